//! Queues as a worker serves them.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::fairness::{Guards, Rate, Ratio, RetryLane};
use windlass_core::retry::RetryPolicy;
use windlass_core::{Invalid, QueueName, QueuePattern};
use windlass_engine::{DiscoverConfig, QueueConfig};

use crate::options::Retry;

/// A queue that a worker serves, with what is special about it.
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
    /// A queue of which so many jobs run at once in this worker.
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

    /// Its share beside other queues, where the worker has fewer slots than its queues could use.
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// The share of its slots that retries get while fresh work waits too; 0.2 if not said.
    pub fn retry_fetch_ratio(mut self, ratio: f64) -> Self {
        self.ratio = Some(ratio);
        self
    }

    /// Fresh work and retries are mixed by priority and time alone.
    pub fn no_retry_fetch_ratio(mut self) -> Self {
        self.guards.retry_fetch_ratio = None;
        self
    }

    /// So many of its slots never hold a retry; one of four or more if not said.
    pub fn fresh_reserve(mut self, slots: u32) -> Self {
        self.guards.fresh_reserve = Some(slots);
        self
    }

    /// At most so many retries run at once in the queue, over all nodes.
    pub fn max_inflight_retries(mut self, most: u32) -> Self {
        self.guards.max_inflight_retries = Some(most);
        self
    }

    /// Retries run in a pool of their own.
    pub fn retry_lane(mut self, concurrency: u32) -> Self {
        let rate = self.guards.retry_lane.and_then(|lane| lane.rate);
        self.guards.retry_lane = Some(RetryLane { concurrency, rate });
        self
    }

    /// At most so many retries start in each period, in a pool of their own.
    pub fn retry_lane_rate(mut self, count: u32, period: Duration) -> Self {
        let rate = Some(Rate { count, period });
        let concurrency = self.guards.retry_lane.map_or(1, |lane| lane.concurrency);
        self.guards.retry_lane = Some(RetryLane { concurrency, rate });
        self
    }

    /// The policy of its jobs that have none of their own, and no kind with one.
    pub fn retry(mut self, policy: impl Into<Retry>) -> Self {
        self.retry = Some(policy.into().into_policy());
        self
    }

    /// Its finished jobs are kept for so many days; 7 if not said.
    pub fn retention_days(mut self, days: u32) -> Self {
        self.retention_days = Some(days);
        self
    }

    pub(crate) fn kept_for_days(&self) -> Option<u32> {
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

/// Queues that a worker discovers while it runs, with what is special about them.
///
/// Those that have due jobs of the worker's kinds share its slots in turn, by their weights. Weight,
/// limits, guards and retry policy of each are what operators set about it
/// (`PUT /api/v1/queues/{queue}/settings`); idle queues cost nothing.
#[derive(Debug, Clone)]
#[must_use]
pub struct Queues {
    pattern: String,
    concurrency: u32,
    per_queue: Option<u32>,
    retry: Option<Arc<RetryPolicy>>,
}

impl Queues {
    /// All queues. At most `concurrency` of their jobs run at once in this worker, all together.
    pub fn all(concurrency: u32) -> Self {
        Queues::matching("*", concurrency)
    }

    /// The queues whose names match a pattern, in which `*` stands for any number of characters:
    /// `tenant-*`. At most `concurrency` of their jobs run at once in this worker, all together.
    pub fn matching(pattern: &str, concurrency: u32) -> Self {
        Queues {
            pattern: pattern.to_owned(),
            concurrency,
            per_queue: None,
            retry: None,
        }
    }

    /// At most this many jobs of one queue run at once in this worker; as many as of all if not said.
    pub fn per_queue(mut self, most: u32) -> Self {
        self.per_queue = Some(most);
        self
    }

    /// The policy of jobs that have none of their own, where neither their kind nor the settings of
    /// their queue have one.
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
        assert_eq!(queue.kept_for_days(), Some(2));
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
