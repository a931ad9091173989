//! How a worker serves queues.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::fairness::{Guards, Rate, Ratio, RetryLane};
use windlass_core::retry::RetryPolicy;
use windlass_core::{Invalid, QueueName, QueuePattern};
use windlass_engine::{DiscoverConfig, QueueConfig};

use crate::options::Retry;

/// A queue that a worker serves, with its concurrency, fairness and retention.
///
/// [`Worker::queue`](crate::Worker::queue) is enough if only the concurrency matters;
/// [`Worker::queue_with`](crate::Worker::queue_with) takes a `Queue`.
///
/// When a dependency is down, thousands of jobs fail and come back as retries. The *retry guards*
/// below keep them from starving fresh jobs, and they are on by default: while both are waiting,
/// retries get 20 % of the slots, and one slot of four or more never runs a retry.
///
/// ```
/// use windlass::retry::Preset;
/// use windlass::{Client, Queue, Worker};
///
/// # fn workers(client: &Client) {
/// let mail = Queue::new("mail", 20)
///     .weight(3) // three times the slots of a queue with weight 1
///     .retry_fetch_ratio(0.1)
///     .max_inflight_retries(5)
///     .retry(Preset::Conservative)
///     .retention_days(30);
/// Worker::new(client, ()).queue_with(mail).queue("reports", 5).concurrency(22);
/// # }
/// ```
///
/// Limits that apply to all workers of a queue together are set with
/// [`Client::set_queue`](crate::Client::set_queue).
#[derive(Debug, Clone)]
#[must_use]
pub struct Queue {
    name: String,
    concurrency: u32,
    weight: u32,
    guards: Guards,
    ratio: Option<f64>,
    retry: Option<Arc<RetryPolicy>>,
    retention_days: Option<u32>,
}

impl Queue {
    /// Returns a queue of which this worker runs at most `concurrency` jobs at the same time.
    pub fn new(name: &str, concurrency: u32) -> Self {
        Queue {
            name: name.to_owned(),
            concurrency,
            weight: 1,
            guards: Guards::default(),
            ratio: None,
            retry: None,
            retention_days: None,
        }
    }

    /// Sets the share of the queue when the worker has fewer slots than its queues could use. The
    /// default is 1.
    ///
    /// A queue with weight 3 gets three times the slots of a queue with weight 1.
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// Sets the share of the slots that retries get while fresh jobs are waiting too: from 0 to 1, by
    /// default 0.2.
    ///
    /// If there are too few jobs of one sort, the other uses the free slots.
    pub fn retry_fetch_ratio(mut self, ratio: f64) -> Self {
        self.ratio = Some(ratio);
        self
    }

    /// Orders fresh jobs and retries by priority and time only, without a share for each.
    pub fn no_retry_fetch_ratio(mut self) -> Self {
        self.guards.retry_fetch_ratio = None;
        self
    }

    /// Reserves slots that never run a retry. The default is 1 if the queue has at least 4 slots,
    /// otherwise 0.
    pub fn fresh_reserve(mut self, slots: u32) -> Self {
        self.guards.fresh_reserve = Some(slots);
        self
    }

    /// Limits how many retries of the queue run at the same time, over all nodes. There is no limit by
    /// default.
    pub fn max_inflight_retries(mut self, max: u32) -> Self {
        self.guards.max_inflight_retries = Some(max);
        self
    }

    /// Runs retries in a separate pool with this concurrency.
    pub fn retry_lane(mut self, concurrency: u32) -> Self {
        let rate = self.guards.retry_lane.and_then(|lane| lane.rate);
        self.guards.retry_lane = Some(RetryLane { concurrency, rate });
        self
    }

    /// Runs retries in a separate pool, and starts at most `count` of them per period.
    ///
    /// The pool has concurrency 1, unless [`Queue::retry_lane`] sets another.
    pub fn retry_lane_rate(mut self, count: u32, period: Duration) -> Self {
        let rate = Some(Rate { count, period });
        let concurrency = self.guards.retry_lane.map_or(1, |lane| lane.concurrency);
        self.guards.retry_lane = Some(RetryLane { concurrency, rate });
        self
    }

    /// Sets the retry policy of the jobs of this queue, if neither the job nor its kind has one.
    pub fn retry(mut self, policy: impl Into<Retry>) -> Self {
        self.retry = Some(policy.into().into_policy());
        self
    }

    /// Keeps finished jobs of this queue for this many days. The default is that of the worker.
    pub fn retention_days(mut self, days: u32) -> Self {
        self.retention_days = Some(days);
        self
    }

    pub(crate) fn own_retention_days(&self) -> Option<u32> {
        self.retention_days
    }

    pub(crate) fn config(&self) -> Result<QueueConfig, Invalid> {
        let name = QueueName::new(&self.name).map_err(|error| error.within("queue"))?;
        let mut guards = self.guards;
        if let Some(ratio) = self.ratio {
            guards.retry_fetch_ratio = Some(Ratio::new(ratio)?);
        }
        Ok(QueueConfig {
            weight: self.weight,
            guards,
            retry: self.retry.clone(),
            ..QueueConfig::new(name, self.concurrency)
        })
    }
}

/// A group of queues that a worker discovers while it runs: all of them, or those that match a
/// pattern.
///
/// Use it for one queue per tenant: new queues need no configuration and no restart. The queues that
/// have due jobs share the slots in turn, by weight, so a queue with a million jobs delays the first
/// job of another queue by at most one turn. Idle queues cost nothing.
///
/// Weight, limits, retry guards and retry policy of each queue come from its settings on the server
/// (`PUT /api/v1/queues/{queue}/settings`).
///
/// ```
/// use windlass::{Client, Queues, Worker};
///
/// # fn workers(client: &Client) {
/// Worker::new(client, ())
///     .queue("billing", 5)
///     .queues_with(Queues::matching("tenant-*", 50).per_queue(5));
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Queues {
    pattern: String,
    concurrency: u32,
    per_queue: Option<u32>,
    retry: Option<Arc<RetryPolicy>>,
}

impl Queues {
    /// Returns the group of all queues. The worker runs at most `concurrency` of their jobs at the
    /// same time, all together.
    pub fn all(concurrency: u32) -> Self {
        Queues::matching("*", concurrency)
    }

    /// Returns the group of queues whose names match a pattern, such as `tenant-*`.
    ///
    /// `*` stands for any number of characters. The worker runs at most `concurrency` of their jobs
    /// at the same time, all together.
    pub fn matching(pattern: &str, concurrency: u32) -> Self {
        Queues {
            pattern: pattern.to_owned(),
            concurrency,
            per_queue: None,
            retry: None,
        }
    }

    /// Limits how many jobs of one queue this worker runs at the same time. By default, one queue may
    /// use all slots of the group.
    pub fn per_queue(mut self, max: u32) -> Self {
        self.per_queue = Some(max);
        self
    }

    /// Sets the retry policy of the jobs of these queues, if neither the job, its kind nor the
    /// settings of its queue have one.
    pub fn retry(mut self, policy: impl Into<Retry>) -> Self {
        self.retry = Some(policy.into().into_policy());
        self
    }

    pub(crate) fn config(&self) -> Result<DiscoverConfig, Invalid> {
        let pattern = QueuePattern::new(&self.pattern).map_err(|error| error.within("queues"))?;
        Ok(DiscoverConfig {
            pattern,
            concurrency: self.concurrency,
            per_queue: self.per_queue,
            retry: self.retry.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::retry::Preset;

    #[test]
    fn every_setting_of_a_queue_is_kept() {
        let second = Duration::from_secs(1);
        let queue = Queue::new("q", 9)
            .weight(4)
            .retry_fetch_ratio(0.5)
            .fresh_reserve(2)
            .max_inflight_retries(3)
            .retry_lane(6)
            .retry_lane_rate(8, second)
            .retry(Preset::Immediate)
            .retention_days(2);
        let kept = queue.config().unwrap();
        assert_eq!(
            (kept.name.as_str(), kept.concurrency, kept.weight),
            ("q", 9, 4)
        );
        let rate = Some(Rate {
            count: 8,
            period: second,
        });
        let guards = Guards {
            retry_fetch_ratio: Some(Ratio::new(0.5).unwrap()),
            fresh_reserve: Some(2),
            max_inflight_retries: Some(3),
            retry_lane: Some(RetryLane {
                concurrency: 6,
                rate,
            }),
        };
        assert_eq!(kept.guards, guards);
        assert_eq!(
            kept.retry.as_ref().unwrap().preset(),
            Some(Preset::Immediate)
        );
        assert_eq!(queue.own_retention_days(), Some(2));
        let queues = Queues::matching("t-*", 9).per_queue(2);
        let kept = queues.retry(Preset::Immediate).config().unwrap();
        assert_eq!((kept.pattern.as_str(), kept.concurrency), ("t-*", 9));
        assert_eq!(kept.per_queue, Some(2));
        assert_eq!(kept.retry.unwrap().preset(), Some(Preset::Immediate));
        assert_eq!(Queues::all(1).config().unwrap().pattern.as_str(), "*");
        let refused = Queues::matching("a b", 1).config().unwrap_err();
        assert_eq!(refused.field(), "queues");
        let off = Queue::new("q", 9).no_retry_fetch_ratio().config().unwrap();
        assert_eq!(off.guards.retry_fetch_ratio, None);
    }
}
