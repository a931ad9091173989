//! The queues that a worker takes jobs from: those that it names, and those that it discovers.

use std::sync::Arc;

use windlass_core::fairness::{Guards, RetryLane, Slots as FreeSlots};
use windlass_core::retry::RetryPolicy;
use windlass_core::{Invalid, QueueName, QueuePattern};
use windlass_store::CLAIM_MAX;

/// A queue that a worker takes jobs from.
#[derive(Debug, Clone)]
pub struct QueueConfig {
    /// Its name.
    pub name: QueueName,
    /// The maximum number of jobs of this queue that run at once in this worker.
    pub concurrency: u32,
    /// The queue's share of the worker's slots, relative to other queues, when there are not enough
    /// slots for all. 1.
    pub weight: u32,
    /// How fresh work and retries share its slots.
    pub guards: Guards,
    /// The retry policy for jobs that have none of their own and whose kind has none.
    pub retry: Option<Arc<RetryPolicy>>,
}

impl QueueConfig {
    /// A queue with every other setting at its default.
    pub fn new(name: QueueName, concurrency: u32) -> Self {
        QueueConfig {
            name,
            concurrency,
            weight: 1,
            guards: Guards::default(),
            retry: None,
        }
    }
}

/// Queues that a worker discovers while it runs: all queues that match a pattern and have due jobs
/// of its kinds.
///
/// They share the slots by weight, in turns. The settings of each queue provide its weight and
/// guards.
#[derive(Debug, Clone)]
pub struct DiscoverConfig {
    /// The pattern of their names. It does not apply to queues that the worker names itself. A
    /// queue that matches several patterns belongs to the first one.
    pub pattern: QueuePattern,
    /// The maximum number of jobs of all these queues that run at once in this worker.
    pub concurrency: u32,
    /// The maximum number of jobs of one of these queues that run at once in this worker. Defaults
    /// to `concurrency`.
    pub per_queue: Option<u32>,
    /// The retry policy for jobs that have none of their own, if neither their kind nor the
    /// settings of their queue have one.
    pub retry: Option<Arc<RetryPolicy>>,
}

impl DiscoverConfig {
    /// A pattern with every other setting at its default.
    pub fn new(pattern: QueuePattern, concurrency: u32) -> Self {
        DiscoverConfig {
            pattern,
            concurrency,
            per_queue: None,
            retry: None,
        }
    }

    fn queue_slots(&self) -> u32 {
        let queue_max = self.per_queue.unwrap_or(self.concurrency);
        queue_max.min(self.concurrency)
    }
}

/// Everything that a worker takes jobs from.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    pub(crate) queues: Vec<QueueConfig>,
    pub(crate) discovered: Vec<DiscoverConfig>,
}

/// Where a queue comes from: the worker names it, or it matches a pattern. The number is the index
/// in [`Sources`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    Queue(usize),
    Pattern(usize),
}

/// How to claim from a queue. Operators can change these rules while a worker runs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct QueueRules {
    /// How fresh work and retries share its slots.
    pub(crate) guards: Guards,
    /// The queue's share relative to other queues.
    pub(crate) weight: u32,
    /// The retry policy for jobs that have none of their own and whose kind has none.
    pub(crate) retry: Option<Arc<RetryPolicy>>,
}

impl QueueRules {
    pub(crate) fn lane(&self) -> Option<RetryLane> {
        self.guards.retry_lane
    }
}

impl Sources {
    /// Returns the source of a queue, or `None` if the worker does not serve it.
    pub(crate) fn of(&self, queue: &QueueName) -> Option<Source> {
        let mut queues = self.queues.iter();
        if let Some(index) = queues.position(|config| config.name == *queue) {
            return Some(Source::Queue(index));
        }
        let mut patterns = self.discovered.iter();
        let index = patterns.position(|config| config.pattern.matches(queue))?;
        Some(Source::Pattern(index))
    }

    /// Returns the slots of a source: for all of its queues together, and for each of them.
    pub(crate) fn slots(&self, source: Source) -> (u32, u32) {
        let slots = match source {
            Source::Queue(index) => self
                .queues
                .get(index)
                .map(|config| (config.concurrency, config.concurrency)),
            Source::Pattern(index) => self
                .discovered
                .get(index)
                .map(|config| (config.concurrency, config.queue_slots())),
        };
        slots.unwrap_or_default()
    }

    /// The slots of all sources together.
    pub(crate) fn total_slots(&self) -> u32 {
        let queues = self.queues.iter().map(|queue| queue.concurrency);
        let discovered = self.discovered.iter().map(|config| config.concurrency);
        queues.chain(discovered).fold(0, u32::saturating_add)
    }

    /// The rules of a queue without operator settings.
    pub(crate) fn own_rules(&self, source: Source) -> QueueRules {
        let named = match source {
            Source::Queue(index) => self.queues.get(index),
            Source::Pattern(_) => None,
        };
        let discovered = match source {
            Source::Pattern(index) => self.discovered.get(index),
            Source::Queue(_) => None,
        };
        let retry = named.map(|config| config.retry.clone());
        QueueRules {
            guards: named.map_or_else(Guards::default, |config| config.guards),
            weight: named.map_or(1, |config| config.weight),
            retry: retry
                .or_else(|| discovered.map(|config| config.retry.clone()))
                .flatten(),
        }
    }

    /// Checks the settings. The error names the first setting that cannot work.
    pub(crate) fn check(&self) -> Result<(), Invalid> {
        if self.queues.is_empty() && self.discovered.is_empty() {
            return Err(Invalid::new("queues", "must name at least one queue"));
        }
        for (index, queue) in self.queues.iter().enumerate() {
            if self.of(&queue.name) != Some(Source::Queue(index)) {
                let rule = format!("must name each queue once, got {} twice", queue.name);
                return Err(Invalid::new("queues", rule));
            }
            check_slots(queue.concurrency, &format!("queue {}", queue.name))?;
            queue.guards.check(queue.concurrency)?;
        }
        for discovered in &self.discovered {
            let name = format!("queues {}", discovered.pattern);
            check_slots(discovered.concurrency, &name)?;
            if discovered.per_queue == Some(0) {
                let rule = format!("must be at least 1 for {name}");
                return Err(Invalid::new("per_queue", rule));
            }
        }
        Ok(())
    }
}

fn check_slots(slots: u32, name: &str) -> Result<(), Invalid> {
    if slots == 0 || usize::try_from(slots).is_ok_and(|slots| slots > CLAIM_MAX) {
        let rule = format!("must be from 1 to {CLAIM_MAX} for {name}");
        return Err(Invalid::new("concurrency", rule));
    }
    Ok(())
}

/// The slots of a queue that the worker does not serve.
pub(crate) const NO_SLOTS: FreeSlots = FreeSlots {
    total: 0,
    free: 0,
    retries_running: 0,
};
