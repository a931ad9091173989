//! Old dead jobs are removed, recorded in the audit log and counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use windlass_core::{JobId, QueueName, Timestamp};
use windlass_engine::{Audit, AuditFilter, AuditRecord, Event, Janitor, JanitorConfig, Recorder};
use windlass_store::Counts;

use windlass_testkit::running::Running;
use windlass_testkit::world::{new_job, worker};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Sums up the removed dead jobs.
#[derive(Debug, Default)]
struct CountRemoved(AtomicU64);

impl Recorder for CountRemoved {
    fn event(&self, _: &Event) {}

    fn store_op(&self, _: &'static str, _: Duration) {}

    fn counts(&self, _: &BTreeMap<QueueName, Counts>, _: Timestamp) {}

    fn dead_removed(&self, queue: &QueueName, count: u64) {
        assert_eq!(queue.as_str(), "default");
        self.0.fetch_add(count, Ordering::SeqCst);
    }
}

/// Three dead jobs, and a janitor that keeps such jobs for 30 days.
async fn old_dead_jobs(removed: &Arc<CountRemoved>) -> (Running, Janitor, Vec<JobId>) {
    let mut run = Running::new();
    run.record(Arc::clone(removed) as Arc<dyn Recorder>);
    run.start(worker(1).no_policy().fails("a"));
    let mut ids = Vec::new();
    for _ in 0..3 {
        let id = run.enqueue(new_job("a")).await;
        run.until("dead", id).await;
        ids.push(id);
    }
    let config = JanitorConfig {
        dead_retention: Some(30 * DAY),
        ..JanitorConfig::default()
    };
    let janitor = Janitor::new(Arc::clone(&run.engine), config);
    (run, janitor, ids)
}

/// A time after the retention of all of them.
fn later(run: &Running) -> Timestamp {
    run.engine.now().saturating_add(31 * DAY)
}

async fn records(run: &Running) -> Vec<AuditRecord> {
    let audit = Audit::new(Arc::clone(&run.engine));
    let page = audit.list(&AuditFilter::default(), None, 100).await;
    page.unwrap().records
}

async fn are_there(run: &Running, ids: &[JobId]) -> bool {
    let found = run.engine.store().get(ids).await.unwrap();
    found.iter().all(Option::is_some)
}

#[tokio::test(start_paused = true)]
async fn a_step_that_removes_dead_jobs_leaves_one_record_and_is_counted() {
    let removed = Arc::new(CountRemoved::default());
    let (run, janitor, mut ids) = old_dead_jobs(&removed).await;
    assert_eq!(janitor.pass(later(&run)).await.unwrap(), 3);
    assert_eq!(removed.0.load(Ordering::SeqCst), 3);
    let records = records(&run).await;
    assert_eq!(records.len(), 1, "one for each queue and step");
    let record = &records[0];
    assert_eq!(
        (record.key.as_str(), record.name.as_str()),
        ("windlass", "janitor")
    );
    assert_eq!(
        (record.action.as_str(), record.target.as_str()),
        ("dead.remove", "default")
    );
    ids.reverse();
    assert_eq!(record.detail["jobs"], json!(ids));
    assert_eq!(record.detail["count"], 3);
    let reasons = record.detail["reasons"].as_object().unwrap();
    assert_eq!(reasons.values().collect::<Vec<_>>(), [&json!(3)]);
    let (oldest, newest) = (
        &record.detail["oldest_finished_at"],
        &record.detail["newest_finished_at"],
    );
    assert!(oldest.as_str().unwrap() <= newest.as_str().unwrap());
}

#[tokio::test(start_paused = true)]
async fn no_dead_job_is_removed_without_a_record() {
    let removed = Arc::new(CountRemoved::default());
    let (run, janitor, ids) = old_dead_jobs(&removed).await;
    run.store.fail("put_document");
    janitor.pass(later(&run)).await.unwrap_err();
    assert!(
        are_there(&run, &ids).await,
        "the record could not be written"
    );
    run.store.heal();
    run.store.fail("change");
    janitor.pass(later(&run)).await.unwrap_err();
    assert_eq!(
        records(&run).await.len(),
        1,
        "recorded before they are removed"
    );
    assert!(are_there(&run, &ids).await);
    assert_eq!(
        removed.0.load(Ordering::SeqCst),
        0,
        "what was removed is counted"
    );
    run.store.heal();
    assert_eq!(janitor.pass(later(&run)).await.unwrap(), 3);
    assert_eq!(records(&run).await.len(), 2);
}
