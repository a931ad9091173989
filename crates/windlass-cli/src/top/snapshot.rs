//! What `windlass top` shows: one reading of the server.

use std::collections::HashMap;
use std::time::Duration;

use windlass_api::{
    Activity, FailureGroup, FailureParams, Queue, Replay, StatisticsParams, Worker,
};
use windlass_client::{Client, Error, Pager};
use windlass_core::{QueueName, Timestamp};

use crate::clock;

/// The most rows of a list that are read: one page.
const ROWS_MAX: usize = 1000;
/// The number of replays that are read, newest first.
const REPLAYS_MAX: usize = 100;
/// The time over which rates are counted.
const RATES_OVER: Duration = Duration::from_secs(60);

/// One reading of the server.
#[derive(Debug, Clone)]
pub(super) struct Snapshot {
    pub(super) at: Timestamp,
    pub(super) queues: Vec<Queue>,
    /// What happened in the last minute; `None` if the server could not say.
    pub(super) last_minute: Option<HashMap<QueueName, Activity>>,
    /// The groups with the most failing jobs first.
    pub(super) failures: Vec<FailureGroup>,
    pub(super) workers: Vec<Worker>,
    pub(super) replays: Vec<Replay>,
}

impl Snapshot {
    /// Waits, and then reads everything at once.
    pub(super) async fn read(client: &Client, after: Duration) -> Result<Snapshot, Error> {
        tokio::time::sleep(after).await;
        let failures = FailureParams::default();
        let (queues, last_minute, failures, workers, replays) = tokio::join!(
            page(client.queues(), ROWS_MAX),
            last_minute(client),
            page(client.failures(&failures), ROWS_MAX),
            page(client.workers(), ROWS_MAX),
            page(client.replays(), REPLAYS_MAX),
        );
        let mut failures = failures?;
        failures.sort_by_key(|group| {
            std::cmp::Reverse((group.dead + group.retrying, group.last_seen_at))
        });
        Ok(Snapshot {
            at: clock::now(),
            queues: queues?,
            last_minute: last_minute.ok(),
            failures,
            workers: workers?,
            replays: replays?,
        })
    }

    /// What happened in a queue in the last minute. All zero, if nothing did.
    pub(super) fn activity(&self, queue: &QueueName) -> Option<Rates> {
        let rates = self.last_minute.as_ref()?.get(queue);
        Some(rates.map(Rates::of).unwrap_or_default())
    }
}

/// Numbers of the last minute.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) enqueued: u64,
    pub(super) succeeded: u64,
    pub(super) failed: u64,
    pub(super) wait_p95_ms: Option<f64>,
}

impl Rates {
    fn of(activity: &Activity) -> Self {
        let failed = [activity.failed, activity.timed_out, activity.lost];
        Rates {
            enqueued: activity.enqueued,
            succeeded: activity.succeeded.fresh + activity.succeeded.retry,
            failed: failed.iter().map(|count| count.fresh + count.retry).sum(),
            wait_p95_ms: activity.wait.p95_ms,
        }
    }
}

async fn page<T: serde::de::DeserializeOwned>(
    list: Pager<T>,
    limit: usize,
) -> Result<Vec<T>, Error> {
    let page = list.limit(limit).next_page().await?;
    Ok(page.map(|page| page.data).unwrap_or_default())
}

async fn last_minute(client: &Client) -> Result<HashMap<QueueName, Activity>, Error> {
    let params = StatisticsParams {
        from: Some(clock::now().saturating_sub(RATES_OVER)),
        ..StatisticsParams::default()
    };
    let statistics = client.statistics(&params).await?;
    let queues = statistics.queues.into_iter();
    Ok(queues.map(|row| (row.queue, row.activity)).collect())
}
