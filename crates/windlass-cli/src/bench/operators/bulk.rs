//! Bulk actions on many jobs, alone and next to a worker that serves fresh jobs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use windlass::admin::{
    ActionCommand, ActionState, Actor, BulkChange, BulkRevival, NewAction, Work,
};
use windlass::{Client, Filter, ListedState, Queue};

use crate::bench::OperatorsBench;
use crate::bench::run::{FRESH_PER_S, Meter, Noop, PATIENCE, Percentiles, RunningWorker};
use crate::clock;

/// Each action changes at most this part of all jobs, so that enough are left for the others.
const SHARE: u64 = 8;
/// The queue of the fresh jobs.
const FRESH: &str = "fresh";

/// The speed of a bulk action.
#[derive(Debug, Serialize)]
pub(super) struct BulkResult {
    pub(super) name: &'static str,
    /// How many jobs it changed before it was aborted or had finished.
    pub(super) jobs: u64,
    pub(super) jobs_per_s: f64,
    /// How long fresh jobs took to reach their handler during the action.
    pub(super) pick_up_ms: Option<Percentiles>,
    /// The number of fresh jobs.
    pub(super) fresh_jobs: u64,
}

/// Measures fresh jobs without a bulk action.
pub(super) async fn calm(client: &Client, seconds: u32) -> anyhow::Result<Percentiles> {
    let meter = Arc::new(Meter::default());
    let worker = RunningWorker::start(client, Queue::new(FRESH, 10), &meter, false);
    let end = clock::start() + Duration::from_secs(seconds.into());
    send_fresh(client, &meter, async || Ok(clock::start() < end)).await?;
    worker.stop().await?;
    Ok(meter.latencies().0)
}

/// Measures all actions. A worker carries them on; it is idle, or it serves fresh jobs.
pub(super) async fn measure(
    client: &Client,
    bench: &OperatorsBench,
) -> anyhow::Result<Vec<BulkResult>> {
    let revive = BulkChange::Revive(BulkRevival::default());
    let prioritise = BulkChange::Reprioritise { priority: 5 };
    let mut results = Vec::new();
    for (name, state, change, with_fresh) in [
        ("revive", ListedState::Dead, &revive, false),
        ("revive, with fresh jobs", ListedState::Dead, &revive, true),
        ("reprioritise", ListedState::Ready, &prioritise, false),
        (
            "reprioritise, with fresh jobs",
            ListedState::Ready,
            &prioritise,
            true,
        ),
        ("delete", ListedState::Dead, &BulkChange::Delete, false),
        (
            "delete, with fresh jobs",
            ListedState::Dead,
            &BulkChange::Delete,
            true,
        ),
    ] {
        let new = NewAction {
            filter: Filter::state(state),
            work: Work::Bulk {
                change: change.clone(),
                rate: None,
            },
            reason: "benchmark".to_owned(),
        };
        results.push(action(client, bench, name, new, with_fresh).await?);
    }
    Ok(results)
}

async fn action(
    client: &Client,
    bench: &OperatorsBench,
    name: &'static str,
    new: NewAction,
    with_fresh: bool,
) -> anyhow::Result<BulkResult> {
    let meter = Arc::new(Meter::default());
    let worker = RunningWorker::start(client, Queue::new(FRESH, 10), &meter, false);
    let actor = Actor {
        id: "bench".to_owned(),
        name: "bench".to_owned(),
    };
    let actions = client.actions();
    let started = clock::start();
    let id = actions.create(new, &actor).await?.id;
    let goes_on = async || {
        let status = actions.get(id).await?;
        let is_running = status.action.state == ActionState::Running;
        let has_time = started.elapsed() < Duration::from_secs(bench.seconds.into());
        Ok(is_running && has_time && status.done() < bench.jobs / SHARE)
    };
    let mut fresh_jobs = 0;
    if with_fresh {
        fresh_jobs = send_fresh(client, &meter, goes_on).await?;
    } else {
        while goes_on().await? {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let (jobs, took) = (actions.get(id).await?.done(), started.elapsed());
    if actions.get(id).await?.action.state == ActionState::Running {
        let aborted = actions.command(id, ActionCommand::Abort, &actor).await;
        // It may have finished in the meantime.
        let _ = aborted;
    }
    worker.stop().await?;
    Ok(BulkResult {
        name,
        jobs,
        jobs_per_s: jobs as f64 / took.as_secs_f64(),
        pick_up_ms: with_fresh.then(|| meter.latencies().0),
        fresh_jobs,
    })
}

/// Enqueues fresh jobs at a fixed rate, at least one, and waits until all have run. Returns their
/// number.
async fn send_fresh(
    client: &Client,
    meter: &Meter,
    goes_on: impl AsyncFn() -> anyhow::Result<bool>,
) -> anyhow::Result<u64> {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / u32::try_from(FRESH_PER_S)?);
    let mut number = 0;
    loop {
        ticks.tick().await;
        meter.send(number);
        client.enqueue(Noop { number }).queue(FRESH).await?;
        number += 1;
        if !goes_on().await? {
            break;
        }
    }
    let sent_at: Instant = clock::start();
    while !meter.is_complete() && sent_at.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(number)
}
