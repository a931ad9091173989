//! Reads of a store with many dead jobs: failure groups, lists and counts.

use std::time::Duration;

use serde::Serialize;
use windlass_core::{DeadReason, JobId, Kind, PayloadMatch, QueueName};
use windlass_store::{
    FailureGroup, Filter, GroupFilter, ListCursor, ListOrder, ListedState, PAGE_MAX, Page, Store,
};

use super::fill::{KINDS, QUEUES};
use crate::bench::progress;
use crate::bench::run::{Percentiles, percentiles};
use crate::clock;

/// The number of jobs on a page.
const PAGE: usize = 100;

/// How long a read takes.
#[derive(Debug, Serialize)]
pub(super) struct ReadResult {
    pub(super) name: &'static str,
    /// Which part of a list: the first page, one that nine tenths of the jobs are before, or all.
    pub(super) page: &'static str,
    /// How many jobs, groups or queues the read returned.
    pub(super) jobs: usize,
    /// How many jobs the store had to look at.
    pub(super) examined: usize,
    pub(super) ms: Percentiles,
    /// The processor time of this process for one read, without that of a database server.
    pub(super) cpu_ms: f64,
}

/// Measures all reads. `deep` is the number and the id of a job near the end of all lists.
pub(super) async fn measure(
    store: &dyn Store,
    times: u32,
    deep: (u64, JobId),
) -> anyhow::Result<Vec<ReadResult>> {
    let groups = async || Ok((failure_groups(store).await?.len(), 0));
    let counts = async || Ok((store.counts(clock::now()).await?.len(), 0));
    let mut results = vec![
        repeat("failure groups", "all", times, groups).await?,
        repeat("counts of queues", "all", times, counts).await?,
    ];
    let deep_job = store.get(&[deep.1]).await?.into_iter().flatten().next();
    let deep_job = deep_job.ok_or_else(|| anyhow::anyhow!("a dead job is missing"))?;
    for (name, filter, order) in lists(store, deep.0).await? {
        let first = Page {
            order,
            ..Page::first(PAGE)
        };
        let after = ListCursor {
            finished_at: deep_job
                .finished_at()
                .filter(|_| order == ListOrder::Finished),
            id: deep_job.id,
        };
        let deep = Page {
            after: Some(after),
            ..first
        };
        for (part, page) in [("first", first), ("deep", deep)] {
            let list = async || {
                let listed = store.list(&filter, page, clock::now()).await?;
                Ok((listed.jobs.len(), listed.examined))
            };
            results.push(repeat(name, part, times, list).await?);
        }
    }
    Ok(results)
}

/// The measured lists. One in `GROUPS` jobs has the cause, one in 100 the queue and kind, one in 100
/// the reason. Error text and payload match a single job.
async fn lists(
    store: &dyn Store,
    number: u64,
) -> anyhow::Result<Vec<(&'static str, Filter, ListOrder)>> {
    let dead = || Filter::state(ListedState::Dead);
    let groups = failure_groups(store).await?;
    let cause = groups.first().map(|group| group.key.fingerprint);
    let by_cause = Filter {
        fingerprint: cause,
        ..dead()
    };
    let by_kind = Filter {
        queue: QUEUES
            .first()
            .map(|name| QueueName::new(name))
            .transpose()?,
        kind: KINDS.first().map(|name| Kind::new(name)).transpose()?,
        ..dead()
    };
    let by_reason = Filter {
        reason: Some(DeadReason::Exhausted),
        ..dead()
    };
    let by_error = Filter {
        error: Some(format!("order {number}:")),
        ..dead()
    };
    let by_payload = Filter {
        payload: Some(PayloadMatch {
            path: "/order".to_owned(),
            value: number.to_string(),
        }),
        ..dead()
    };
    let (created, finished) = (ListOrder::Created, ListOrder::Finished);
    Ok(vec![
        ("all dead", dead(), created),
        ("by cause", by_cause.clone(), created),
        ("by queue and kind", by_kind, created),
        ("by reason", by_reason, created),
        ("by error text", by_error, created),
        ("by payload", by_payload, created),
        ("all dead, by end", dead(), finished),
        ("by cause, by end", by_cause, finished),
    ])
}

/// Returns all failure groups.
pub(super) async fn failure_groups(store: &dyn Store) -> anyhow::Result<Vec<FailureGroup>> {
    let mut groups: Vec<FailureGroup> = Vec::new();
    loop {
        let after = groups.last().map(|group| group.key.clone());
        let filter = GroupFilter::default();
        let page = store.failure_groups(&filter, after.as_ref(), PAGE_MAX, clock::now());
        let page = page.await?;
        let is_last = page.len() < PAGE_MAX;
        groups.extend(page);
        if is_last {
            return Ok(groups);
        }
    }
}

/// Repeats a read that returns how many jobs it found and examined. The first time does not count.
async fn repeat(
    name: &'static str,
    page: &'static str,
    times: u32,
    read: impl AsyncFn() -> anyhow::Result<(usize, usize)>,
) -> anyhow::Result<ReadResult> {
    let bar = progress(name, times.into());
    let (jobs, examined) = read().await?;
    let cpu = clock::cpu_seconds();
    let mut latencies: Vec<Duration> = Vec::new();
    for _ in 0..times {
        let started = clock::start();
        read().await?;
        latencies.push(started.elapsed());
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(ReadResult {
        name,
        page,
        jobs,
        examined,
        cpu_ms: (clock::cpu_seconds() - cpu) * 1000.0 / f64::from(times),
        ms: percentiles(&mut latencies),
    })
}
