//! Everything that a store can be asked for, as text, so that two stores can be compared.

use std::collections::BTreeSet;

use windlass_core::{Delivery, GroupKey, Job, QueuePattern, Timestamp};
use windlass_store::conformance::build::*;
use windlass_store::{
    Claim, DueQueues, Filter, Fire, GroupFilter, PAGE_MAX, Page, RECORDS_MAX, RecordRange,
};

use crate::script;

const QUEUES: [&str; 2] = ["default", "other"];

/// Reads everything. Checks on the way what must hold in any state.
pub(crate) async fn dump(store: &Opened, now: Timestamp) -> Vec<String> {
    let mut lines = Vec::new();
    let all = Filter::default();
    let jobs = store.list(&all, Page::first(PAGE_MAX), now).await;
    let jobs = jobs.expect("it answers").jobs;
    assert!(jobs.len() < PAGE_MAX, "all jobs are on one page");
    check_jobs(&jobs);
    for job in &jobs {
        lines.push(format!("{job:?}"));
        let attempts = store.attempts(job.id, PAGE_MAX).await.expect("it answers");
        lines.extend(attempts.iter().map(|attempt| format!("{attempt:?}")));
    }
    lines.extend(counted(store, now).await);
    let queues = store.queues().await.expect("it answers");
    lines.push(format!("{queues:?}"));
    let schedules = store.schedules().await.expect("it answers");
    lines.push(format!("{schedules:?}"));
    for schedule in (1..=script::ROUNDS).map(script::schedule_id) {
        let fired = store.occurrences(schedule, None, PAGE_MAX).await;
        let fired = fired.expect("it answers");
        let instants: BTreeSet<_> = fired.iter().map(|fired| fired.scheduled_for).collect();
        assert_eq!(instants.len(), fired.len(), "an occurrence fires once");
        lines.push(format!("{fired:?}"));
        lines.push(records(store, &Fire::skipped_topic(schedule)).await);
    }
    lines.push(records(store, "points").await);
    let documents = store.documents("points", now).await.expect("it answers");
    lines.push(format!("{documents:?}"));
    let nodes = store.nodes().await.expect("it answers");
    lines.push(format!("{nodes:?}"));
    lines
}

/// What a store counts in memory.
pub(crate) async fn counted(store: &Opened, now: Timestamp) -> Vec<String> {
    let mut lines = vec![format!(
        "{:?}",
        store.counts(now).await.expect("it answers")
    )];
    let mut last: Option<GroupKey> = None;
    loop {
        let all = GroupFilter::default();
        let groups = store.failure_groups(&all, last.as_ref(), PAGE_MAX, now);
        let groups = groups.await.expect("it answers");
        let Some(end) = groups.last() else { break };
        last = Some(end.key.clone());
        lines.extend(groups.iter().map(|group| format!("{group:?}")));
    }
    for action in script::action_ids() {
        let tally = store.action_tally(action).await.expect("it answers");
        lines.push(format!("{action}: {tally:?}"));
    }
    let look = DueQueues {
        kinds: BTreeSet::from([kind("a")]),
        pattern: QueuePattern::all(),
        after: None,
        limit: 100,
    };
    let due = store.due_queues(&look, now).await.expect("it answers");
    lines.push(format!("{due:?}"));
    lines
}

/// Claims every job that is ready. The order shows the claim order in memory.
pub(crate) async fn claim_all(store: &Opened, now: Timestamp) -> Vec<String> {
    let mut lines = Vec::new();
    for (number, name) in (1..).zip(QUEUES) {
        let claim = Claim {
            id: u128::MAX - number,
            queue: queue(name),
            ..claim(1000)
        };
        let jobs = store.claim(&claim, now).await.expect("it answers").jobs;
        check_jobs(&jobs);
        let claimed: Vec<_> = jobs.iter().map(|job| (job.id, job.attempt)).collect();
        lines.push(format!("{name}: {claimed:?}"));
    }
    lines
}

/// No at-most-once job was started twice, and each unique key has one active job.
fn check_jobs(jobs: &[Job]) {
    let mut keys = BTreeSet::new();
    for job in jobs {
        let once = job.delivery == Delivery::AtMostOnce;
        assert!(!once || job.attempt <= 1, "job {} started twice", job.id);
        let is_active = job.finished_at().is_none();
        if let Some(unique) = job.unique.as_ref().filter(|_| is_active) {
            let is_free = keys.insert((job.queue.clone(), unique.key.clone()));
            assert!(is_free, "{} has two active jobs", unique.key);
        }
    }
}

async fn records(store: &Opened, topic: &str) -> String {
    let records = store.records(topic, RecordRange::OLDEST, RECORDS_MAX).await;
    let records = records.expect("it answers");
    let values: Vec<_> = records.iter().map(|record| &record.value).collect();
    format!("{topic}: {values:?}")
}
