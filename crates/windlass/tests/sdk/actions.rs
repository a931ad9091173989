//! Causes of failures, and what operators do about them. On every store.

use crate::support::every_store;
use serde_json::json;
use windlass::admin::{
    Actor, BulkChange, FailureFilter, GroupMember, ListOrder, NewAction, Page, PayloadPatch,
    Revival, Work,
};
use windlass::testing::TestKit;
use windlass::{Context, Error, Failure, Filter, Job, JobId, ListedState, State, Worker};

#[derive(serde::Serialize, serde::Deserialize)]
struct Charge {
    customer: u32,
    error: String,
}

impl Job for Charge {
    const KIND: &'static str = "charge";
}

async fn charge(job: Charge, _: Context) -> Result<(), Failure> {
    match job.error.as_str() {
        "" => Ok(()),
        error => Err(Failure::unrecoverable(format!(
            "{error} for customer {}",
            job.customer
        ))),
    }
}

/// Runs a charge with each of these errors.
async fn run(kit: &TestKit, errors: &[&str]) -> Vec<JobId> {
    let client = kit.client();
    let worker = Worker::new(client, ()).handle(charge);
    let worker = kit.worker(worker).await.unwrap();
    let mut ids = Vec::new();
    for (customer, error) in (1..).zip(errors) {
        let error = (*error).to_owned();
        ids.push(client.enqueue(Charge { customer, error }).await.unwrap().id);
        worker.pass().await.unwrap();
        kit.advance(std::time::Duration::from_secs(1));
    }
    ids
}

fn ann() -> Actor {
    Actor {
        id: "7".to_owned(),
        name: "ann".to_owned(),
    }
}

fn delete(filter: Filter) -> NewAction {
    NewAction {
        filter,
        work: Work::Bulk {
            change: BulkChange::Delete,
            rate: None,
        },
        reason: "not needed".to_owned(),
    }
}

every_store! {
    async fn causes_are_returned_with_the_error_of_a_sample(kit: TestKit) {
        let client = kit.client();
        let ids = run(&kit, &["timeout", "no card", "no card"]).await;
        let all = FailureFilter::default();
        let page = client.failure_groups(&all, 10, None).await.unwrap();
        assert_eq!(page.next, None);
        let groups = page.groups;
        let seen: Vec<_> = groups.iter().map(|group| (group.dead, group.error.as_str())).collect();
        assert_eq!(seen, [(2, "no card for customer 3"), (1, "timeout for customer 1")]);
        assert_eq!(groups[0].sample, Some(ids[2]));
        let first = client.failure_groups(&all, 1, None).await.unwrap();
        assert_eq!(first.groups, &groups[..1]);
        // The order by size changes between the pages, and no group comes twice.
        run(&kit, &["timeout", "timeout"]).await;
        let second = client.failure_groups(&all, 1, first.next.as_ref()).await.unwrap();
        let keys: Vec<_> = second.groups.iter().map(|group| &group.key).collect();
        assert_eq!(keys, [&groups[1].key]);
        assert_eq!((second.groups[0].dead, second.next), (3, None));
        let one = FailureFilter { fingerprint: Some(groups[1].key.fingerprint), ..all.clone() };
        assert_eq!(client.failure_groups(&one, 9, None).await.unwrap().groups.len(), 1);
        let retrying = FailureFilter { member: Some(GroupMember::Retrying), ..all };
        assert!(client.failure_groups(&retrying, 9, None).await.unwrap().groups.is_empty());

        let cause = Filter {
            fingerprint: Some(groups[0].key.fingerprint),
            ..Filter::state(ListedState::Dead)
        };
        assert_eq!(client.count(&cause).await.unwrap(), 2);
        let scanned = Filter { error: Some("NO CARD".to_owned()), ..cause };
        assert_eq!(client.count(&scanned).await.unwrap(), 2);
    }

    async fn jobs_are_listed_by_the_time_of_their_end(kit: TestKit) {
        let client = kit.client();
        let old = client.enqueue(Charge { customer: 0, error: String::new() });
        let old = old.delay(std::time::Duration::from_secs(60)).await.unwrap().id;
        let first = run(&kit, &[""]).await[0];
        kit.advance(std::time::Duration::from_secs(100));
        let worker = kit.worker(Worker::new(client, ()).handle(charge)).await.unwrap();
        worker.drain().await.unwrap();
        let page = Page { order: ListOrder::Finished, ..Page::first(1) };
        let newest = client.search(&Filter::default(), page).await.unwrap();
        assert_eq!(newest.jobs[0].id, old, "it was created first and finished last");
        let page = Page { after: newest.next, ..page };
        let next = client.search(&Filter::default(), page).await.unwrap();
        assert_eq!(next.jobs[0].id, first);
    }

    async fn a_bulk_action_is_carried_on_in_the_foreground(kit: TestKit) {
        let client = kit.client();
        run(&kit, &["timeout", "timeout", ""]).await;
        let actions = client.actions();
        let dead = delete(Filter::state(ListedState::Dead));
        let preview = actions.preview(dead.clone()).await.unwrap();
        assert_eq!((preview.matched, preview.samples.len()), (2, 2));
        let action = actions.create(dead, &ann()).await.unwrap();
        let mut steps = 0;
        let status = client.carry_on_action(action.id, |_| steps += 1).await.unwrap();
        assert_eq!((status.done(), status.to_do()), (2, 0));
        assert!(steps > 0);
        assert_eq!(client.count(&Filter::default()).await.unwrap(), 1);
        let missing = client.carry_on_action(windlass::admin::ActionId::from_u128(1), |_| {}).await;
        assert!(matches!(missing, Err(Error::Action(_))), "{missing:?}");
        let everything = actions.create(delete(Filter::default()), &ann()).await;
        let refused = Error::from(everything.unwrap_err());
        assert!(matches!(refused, Error::Invalid(_)), "{refused:?}");
    }

    async fn a_patch_that_does_not_apply_changes_nothing(kit: TestKit) {
        let client = kit.client();
        let id = run(&kit, &["timeout"]).await[0];
        let patch = |path: &str| Revival {
            payload_patch: PayloadPatch::new(json!([{"op": "remove", "path": path}])).ok(),
            ..Revival::default()
        };
        let refused = client.revive(id, &patch("/no")).await;
        assert!(matches!(refused, Err(Error::PatchFailed { .. })), "{refused:?}");
        assert_eq!(client.revive(id, &patch("/error")).await.unwrap(), State::Waiting);
    }
}
