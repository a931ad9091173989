//! Statistics of queues.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::statistics::{AttemptCount, Histogram, QueueStatistics};
use windlass_core::{QueueName, Timestamp};

use crate::{Count, DurationText, plain_body};

/// The statistics to return.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatisticsParams {
    /// Start of the range, at most 30 days ago. Default: one hour before `to`.
    pub from: Option<Timestamp>,
    /// End of the range. Default: now.
    pub to: Option<Timestamp>,
    /// Length of a step: a multiple of `10s`, of `1m` if the range starts more than 2 hours ago, of
    /// `1h` if it starts more than 24 hours ago. Default: the shortest possible. A range has at
    /// most 2,000 steps.
    pub step: Option<DurationText>,
    /// Only this queue.
    pub queue: Option<QueueName>,
}

plain_body!(StatisticsParams);

/// What happened in a range of time, in all processes of the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Statistics {
    /// Start of the first step.
    pub from: Timestamp,
    /// End of the last step.
    pub to: Timestamp,
    /// Length of a step.
    pub step: DurationText,
    /// The steps in which something happened, oldest first.
    pub data: Vec<StatisticsPoint>,
    /// The whole range.
    pub totals: Activity,
    /// The whole range by queue, ordered by name, at most 1,000 queues.
    pub queues: Vec<QueueActivity>,
    /// All other queues together, if there are more than 1,000. Otherwise null.
    pub other: Option<Activity>,
}

/// What happened in one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatisticsPoint {
    /// Start of the step.
    pub at: Timestamp,
    /// What happened.
    #[serde(flatten)]
    pub activity: Activity,
}

/// What happened in one queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueActivity {
    /// Name of the queue.
    pub queue: QueueName,
    /// What happened.
    #[serde(flatten)]
    pub activity: Activity,
}

/// Numbers of jobs and attempts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Activity {
    /// Jobs that were enqueued.
    pub enqueued: Count,
    /// Attempts that started.
    pub started: AttemptSplit,
    /// Attempts that succeeded.
    pub succeeded: AttemptSplit,
    /// Attempts that failed with an error.
    pub failed: AttemptSplit,
    /// Attempts that took longer than their timeout.
    pub timed_out: AttemptSplit,
    /// Attempts whose lease expired.
    pub lost: AttemptSplit,
    /// Attempts that asked to run again later.
    pub snoozed: AttemptSplit,
    /// Attempts that their worker gave back.
    pub released: AttemptSplit,
    /// Attempts that stopped because their job was cancelled.
    pub cancelled: AttemptSplit,
    /// Failed attempts after which the job waits for a retry.
    pub retried: Count,
    /// Jobs that died.
    pub dead: Count,
    /// How long jobs were due before an attempt started.
    pub wait: TimePercentiles,
    /// How long attempts ran that succeeded, failed or timed out.
    pub run: TimePercentiles,
}

/// A number of attempts, split by whether an attempt of the job had failed before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AttemptSplit {
    /// Attempts of jobs that had not failed before.
    pub fresh: Count,
    /// Attempts of jobs that had failed before.
    pub retry: Count,
}

/// Percentiles of durations in milliseconds, estimated to within a quarter. Null if there are none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimePercentiles {
    /// How many durations there are.
    pub count: Count,
    /// Half of them are not longer than this.
    pub p50_ms: Option<f64>,
    /// 95 % of them are not longer than this.
    pub p95_ms: Option<f64>,
    /// 99 % of them are not longer than this.
    pub p99_ms: Option<f64>,
}

impl From<&QueueStatistics> for Activity {
    fn from(numbers: &QueueStatistics) -> Self {
        Activity {
            enqueued: numbers.enqueued,
            started: numbers.started.into(),
            succeeded: numbers.succeeded.into(),
            failed: numbers.failed.into(),
            timed_out: numbers.timed_out.into(),
            lost: numbers.lost.into(),
            snoozed: numbers.snoozed.into(),
            released: numbers.released.into(),
            cancelled: numbers.cancelled.into(),
            retried: numbers.retried,
            dead: numbers.dead,
            wait: (&numbers.wait).into(),
            run: (&numbers.run).into(),
        }
    }
}

impl From<AttemptCount> for AttemptSplit {
    fn from(count: AttemptCount) -> Self {
        AttemptSplit {
            fresh: count.fresh,
            retry: count.retry,
        }
    }
}

impl From<&Histogram> for TimePercentiles {
    fn from(times: &Histogram) -> Self {
        let millis = |thousandths| {
            let time = times.percentile(thousandths)?;
            Some(time.as_micros() as f64 / 1000.0)
        };
        TimePercentiles {
            count: times.count(),
            p50_ms: millis(500),
            p95_ms: millis(950),
            p99_ms: millis(990),
        }
    }
}
