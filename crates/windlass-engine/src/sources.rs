//! Where a worker takes jobs from: queues that it names, and queues that it discovers.

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
    /// At most this many of its jobs run at once in this worker.
    pub concurrency: u32,
    /// Its share of the worker's slots next to other queues, where there are fewer slots than the
    /// queues could use. 1.
    pub weight: u32,
    /// How fresh work and retries share its slots.
    pub guards: Guards,
    /// The policy of jobs that have none of their own and no kind with one.
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

/// Queues that a worker discovers while it runs: all that match a pattern and have due jobs of its
/// kinds. They share the slots by weight, in turn. Weight and guards come from the settings of each
/// queue.
#[derive(Debug, Clone)]
pub struct DiscoverConfig {
    /// Their names. A queue that the worker names itself is not among them; one that matches
    /// several patterns belongs to the first.
    pub pattern: QueuePattern,
    /// At most this many of their jobs run at once in this worker.
    pub concurrency: u32,
    /// At most this many jobs of one of them run at once in this worker; none: as many as of all.
    pub per_queue: Option<u32>,
    /// The policy of jobs that have none of their own, and neither their kind nor the settings of
    /// their queue have one.
    pub retry: Option<Arc<RetryPolicy>>,
}

impl DiscoverConfig {
    /// Queues with every other setting at its default.
    pub fn new(pattern: QueuePattern, concurrency: u32) -> Self {
        DiscoverConfig {
            pattern,
            concurrency,
            per_queue: None,
            retry: None,
        }
    }

    fn queue_slots(&self) -> u32 {
        let most = self.per_queue.unwrap_or(self.concurrency);
        most.min(self.concurrency)
    }
}

/// Everything that a worker takes jobs from.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    pub(crate) queues: Vec<QueueConfig>,
    pub(crate) discovered: Vec<DiscoverConfig>,
}

/// What a queue belongs to: itself, if the worker names it, or the pattern that it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    Queue(usize),
    Pattern(usize),
}

/// How the jobs of a queue are claimed: what may change while a worker runs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct QueueRules {
    /// How fresh work and retries share its slots.
    pub(crate) guards: Guards,
    /// Its share next to other queues.
    pub(crate) weight: u32,
    /// The policy of jobs that have none of their own and no kind with one.
    pub(crate) retry: Option<Arc<RetryPolicy>>,
}

impl QueueRules {
    pub(crate) fn lane(&self) -> Option<RetryLane> {
        self.guards.retry_lane
    }
}

impl Sources {
    /// What a queue belongs to, if the worker serves it.
    pub(crate) fn of(&self, queue: &QueueName) -> Option<Source> {
        let mut queues = self.queues.iter();
        if let Some(index) = queues.position(|of| of.name == *queue) {
            return Some(Source::Queue(index));
        }
        let mut patterns = self.discovered.iter();
        let index = patterns.position(|of| of.pattern.matches(queue))?;
        Some(Source::Pattern(index))
    }

    /// The slots of all queues of a source, and of each of them.
    pub(crate) fn slots(&self, source: Source) -> (u32, u32) {
        let slots = match source {
            Source::Queue(index) => self
                .queues
                .get(index)
                .map(|of| (of.concurrency, of.concurrency)),
            Source::Pattern(index) => self
                .discovered
                .get(index)
                .map(|of| (of.concurrency, of.queue_slots())),
        };
        slots.unwrap_or_default()
    }

    /// The slots of all sources together.
    pub(crate) fn total_slots(&self) -> u32 {
        let queues = self.queues.iter().map(|queue| queue.concurrency);
        let discovered = self.discovered.iter().map(|of| of.concurrency);
        queues.chain(discovered).fold(0, u32::saturating_add)
    }

    /// How a queue is claimed about which nothing is set.
    pub(crate) fn own_rules(&self, source: Source) -> QueueRules {
        let named = match source {
            Source::Queue(index) => self.queues.get(index),
            Source::Pattern(_) => None,
        };
        let discovered = match source {
            Source::Pattern(index) => self.discovered.get(index),
            Source::Queue(_) => None,
        };
        let retry = named.map(|of| of.retry.clone());
        QueueRules {
            guards: named.map_or_else(Guards::default, |of| of.guards),
            weight: named.map_or(1, |of| of.weight),
            retry: retry
                .or_else(|| discovered.map(|of| of.retry.clone()))
                .flatten(),
        }
    }

    /// Refuses what cannot work, by the name of the setting.
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

/// No slots.
pub(crate) const NO_SLOTS: FreeSlots = FreeSlots {
    total: 0,
    free: 0,
    retries_running: 0,
};
