//! Jobs in large numbers: stored in steps, read in pages. On every store.

use crate::support::{every_store, seconds};
use futures_util::TryStreamExt as _;
use serde::{Deserialize, Serialize};
use serde_json::json;
use windlass::admin::{Page, QueueSettings};
use windlass::testing::TestKit;
use windlass::{Error, Filter, Job, JobId, ListedState, StoreError};

/// More than one step stores, and more than one page looks at.
const MANY: u32 = 10_500;

/// The most jobs of one step.
const STEP: usize = 10_000;

#[derive(Serialize, Deserialize)]
struct Common(u32);

impl Job for Common {
    const KIND: &'static str = "common";
}

fn common() -> Vec<Common> {
    (0..MANY).map(Common).collect()
}

fn of_kind(kind: &str) -> Filter {
    Filter {
        kind: Some(kind.parse().unwrap()),
        ..Filter::default()
    }
}

every_store! {
    async fn an_empty_page_does_not_hide_the_jobs_behind_it(kit: TestKit) {
        let client = kit.client();
        let rare = client.enqueue_json("rare", &json!(null)).delay(seconds(60.0)).await.unwrap().id;
        let receipts = client.enqueue_many(&common()).await.unwrap();
        let page = client.list(&of_kind("rare"), Page::first(100)).await.unwrap();
        assert!(page.jobs.is_empty() && page.next.is_some(), "an empty page that is not the last: {page:?}");

        let mut jobs = client.jobs(&of_kind("rare"));
        assert_eq!(jobs.next().await.unwrap().unwrap().id, rare);
        assert_eq!(jobs.next().await.unwrap(), None);
        assert_eq!(jobs.next().await.unwrap(), None, "the end stays the end");

        let listed = client.jobs(&of_kind("common")).into_stream().map_ok(|job| job.id);
        let listed: Vec<JobId> = listed.try_collect().await.unwrap();
        let newest_first: Vec<JobId> = receipts.iter().rev().map(|receipt| receipt.id).collect();
        assert_eq!(listed, newest_first, "one receipt per job, and every job once");
    }

    async fn jobs_are_counted_by_any_filter(kit: TestKit) {
        let client = kit.client();
        client.enqueue_json("rare", &json!(null)).queue("other").delay(seconds(60.0)).await.unwrap();
        client.enqueue_many(&common()).await.unwrap();
        let queue = |name: &str| Some(name.parse().unwrap());
        let many = u64::from(MANY);
        for (filter, count) in [
            (Filter::default(), many + 1),
            (Filter::state(ListedState::Ready), many),
            (Filter::state(ListedState::Dead), 0),
            (Filter { queue: queue("other"), ..Filter::default() }, 1),
            (Filter { queue: queue("other"), ..Filter::state(ListedState::Ready) }, 0),
            (Filter { queue: queue("nowhere"), ..Filter::default() }, 0),
            (of_kind("rare"), 1),
            (of_kind("common"), many),
            (Filter { queue: queue("other"), ..of_kind("common") }, 0),
        ] {
            assert_eq!(client.count(&filter).await.unwrap(), count, "{filter:?}");
        }
    }

    async fn a_step_that_fails_leaves_the_receipts_of_those_before_it(kit: TestKit) {
        let client = kit.client();
        let settings = QueueSettings { max_depth: Some(STEP as u64 + 1), ..QueueSettings::default() };
        client.set_queue("default", &settings).await.unwrap();
        let error = client.enqueue_many(&common()).await.unwrap_err();
        let Error::PartiallyEnqueued { receipts, total, source } = error else { panic!("{error:?}") };
        assert!(matches!(source, StoreError::QueueFull { .. }), "{source:?}");
        assert_eq!((receipts.len(), total), (STEP, MANY as usize));
        assert_eq!(client.count(&Filter::default()).await.unwrap(), STEP as u64, "nothing of the failed step");
        assert_eq!(client.get(receipts.last().unwrap().id).await.unwrap().unwrap().payload.decode::<usize>().unwrap(), STEP - 1);

        let first = client.enqueue_many(&common()).await.unwrap_err();
        assert!(matches!(first, Error::Store(StoreError::QueueFull { .. })), "nothing is stored: {first:?}");
        let none: &[Common] = &[];
        assert_eq!(client.enqueue_many(none).await.unwrap(), []);
    }
}
