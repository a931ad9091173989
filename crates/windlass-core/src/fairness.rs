//! How a claim is shared between fresh work and retries, so that neither starves the other.
//!
//! Per queue, and usable together: a share of the slots (`retry_fetch_ratio`), slots that retries never get
//! (`fresh_reserve`), a cap on retries running at once (`max_inflight_retries`), and a pool of their own (`retry_lane`).
//! Invariant: while fresh work waits, at most ⌈r·k⌉+1 of the next k freed slots go to retries, and retries that wait get
//! their share of them.

mod looks;
mod settings;
mod turns;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use looks::{LookPace, Rests, Scan};
pub use settings::{ClaimSettings, WEIGHT_MAX};
pub use turns::{ClaimQueue, QueueOrder, Round, Taker, Turns};

use crate::Invalid;
use crate::duration::check_duration;
use crate::job::Lane;
use crate::timestamp::Timestamp;

const WHOLE: i64 = 1_000_000;

/// A share from 0 to 1, to the millionth, so that adding it up never drifts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ratio(i64);

impl Ratio {
    /// The share of retries unless configured otherwise: 0.2.
    pub const DEFAULT: Ratio = Ratio(200_000);

    /// Checks a share.
    pub fn new(ratio: f64) -> Result<Self, Invalid> {
        if !(0.0..=1.0).contains(&ratio) {
            let rule = format!("must be a number from 0 to 1, got {ratio}");
            return Err(Invalid::new("retry_fetch_ratio", rule));
        }
        Ok(Ratio((ratio * WHOLE as f64).round() as i64))
    }

    /// The share as a number.
    pub fn get(self) -> f64 {
        self.0 as f64 / WHOLE as f64
    }
}

/// The guards of one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guards {
    /// The share of the slots that retries get while both kinds wait. None: strict priority over both kinds.
    pub retry_fetch_ratio: Option<Ratio>,
    /// So many slots of a worker never hold a retry. None: one of four or more.
    pub fresh_reserve: Option<u32>,
    /// At most so many retries run at once in the queue, over all nodes.
    pub max_inflight_retries: Option<u32>,
    /// Retries run in a pool of their own.
    pub retry_lane: Option<RetryLane>,
}

/// A pool for retries alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryLane {
    /// How many run at once.
    pub concurrency: u32,
    /// How many start in a period, if that is limited.
    pub rate: Option<Rate>,
}

/// So many in each period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// How many.
    pub count: u32,
    /// In how long.
    #[serde(with = "crate::duration::text")]
    pub period: Duration,
}

impl Rate {
    /// When a further job may start, where those that started have used it up: when and how many, the oldest first.
    pub fn used_up_until(
        self,
        starts: impl IntoIterator<Item = (Timestamp, u32)>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let counted = starts.into_iter();
        let counted: Vec<_> = counted
            .filter(|(at, _)| now.since(*at) < self.period)
            .collect();
        let mut left: u64 = counted.iter().map(|(_, count)| u64::from(*count)).sum();
        let mut until = None;
        for (at, count) in counted {
            if left < u64::from(self.count) {
                break;
            }
            left -= u64::from(count);
            until = Some(at.saturating_add(self.period));
        }
        until
    }
}

impl Default for Guards {
    fn default() -> Self {
        Guards {
            retry_fetch_ratio: Some(Ratio::DEFAULT),
            fresh_reserve: None,
            max_inflight_retries: None,
            retry_lane: None,
        }
    }
}

/// The pool that a claim fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pool {
    /// The worker's slots.
    Main,
    /// The slots of the retry lane.
    RetryLane,
    /// All slots of a worker that has one pool for both kinds: a retry lane limits how many of them
    /// hold a retry.
    Single,
}

/// The slots of one pool of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// How many there are.
    pub total: u32,
    /// How many are free: a claim never takes more.
    pub free: u32,
    /// How many hold a retry.
    pub retries_running: u32,
}

impl Slots {
    /// Free slots of a worker that does not say how many it has in all: none is kept free of
    /// retries.
    pub fn uncounted(free: u32) -> Self {
        Slots {
            total: u32::MAX,
            free,
            retries_running: 0,
        }
    }
}

/// What retries are owed, in parts of a slot; below zero they had more than their share.
///
/// Kept by each fetcher for each queue, between minus one and one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Credit(i64);

/// What a claim is told to take. The driver takes `retries_first` retries, then fresh jobs, then fills with retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimPlan {
    /// At most so many jobs in all.
    pub limit: u32,
    /// At most so many fresh ones.
    pub fresh_max: u32,
    /// At most so many retries.
    pub retries_max: u32,
    /// How the two kinds are mixed.
    pub mix: Mix,
    /// At most so many retries running at once in the queue, those of this claim included.
    pub max_inflight_retries: Option<u32>,
}

/// How a claim mixes the two kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// By the order of claims alone, over both kinds.
    Strict,
    /// So many retries come first, then fresh jobs; free slots are filled with retries.
    RetriesFirst(u32),
}

/// What a claim took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Taken {
    /// How many fresh jobs.
    pub fresh: u32,
    /// How many retries.
    pub retries: u32,
    /// Whether both kinds were ready when the claim came.
    pub both_waited: bool,
}

impl Guards {
    /// Refuses guards that would let retries wait for ever in a worker with so many slots.
    pub fn check(&self, slots: u32) -> Result<(), Invalid> {
        if self.retry_lane.is_none() && self.reserve(slots) >= slots {
            let rule =
                format!("must be less than the {slots} slots of the worker, or retries never run");
            return Err(Invalid::new("fresh_reserve", rule));
        }
        if self.max_inflight_retries == Some(0) {
            let rule = "must be at least 1, or retries never run";
            return Err(Invalid::new("max_inflight_retries", rule));
        }
        let Some(lane) = self.retry_lane else {
            return Ok(());
        };
        if lane.concurrency == 0 {
            return Err(Invalid::new("retry_lane.concurrency", "must be at least 1"));
        }
        if let Some(rate) = lane.rate {
            check_duration(rate.period).map_err(|error| error.within("retry_lane.rate.period"))?;
            if rate.count == 0 || rate.period.is_zero() {
                let rule = "must allow at least one retry in a period longer than nothing";
                return Err(Invalid::new("retry_lane.rate", rule));
            }
        }
        Ok(())
    }

    /// What the next claim of a pool takes.
    pub fn plan(&self, pool: Pool, slots: Slots, credit: Credit) -> ClaimPlan {
        let limit = slots.free;
        let retries_max = match (pool, self.retry_lane) {
            (Pool::RetryLane, _) => limit,
            (Pool::Main, Some(_)) => 0,
            (Pool::Main | Pool::Single, lane) => {
                let open = slots.total.saturating_sub(self.reserve(slots.total));
                let open = lane.map_or(open, |lane| open.min(lane.concurrency));
                open.saturating_sub(slots.retries_running).min(limit)
            }
        };
        let mix = match self.retry_fetch_ratio {
            None => Mix::Strict,
            Some(ratio) => Mix::RetriesFirst(credit.slots(ratio, limit).min(retries_max)),
        };
        ClaimPlan {
            limit,
            fresh_max: if pool == Pool::RetryLane { 0 } else { limit },
            retries_max,
            mix,
            max_inflight_retries: self.max_inflight_retries,
        }
    }

    /// What retries are owed after a claim. It counts only if both kinds waited and fresh work did not run short; retries
    /// that ran short themselves are owed nothing more.
    pub fn credit_after(&self, credit: Credit, plan: &ClaimPlan, taken: Taken) -> Credit {
        let (Some(ratio), Mix::RetriesFirst(first)) = (self.retry_fetch_ratio, plan.mix) else {
            return credit;
        };
        let full = taken.fresh.saturating_add(taken.retries) == plan.limit;
        if !taken.both_waited || !full || taken.retries > first {
            return credit;
        }
        let owed = credit.0 + ratio.0 * i64::from(plan.limit) - WHOLE * i64::from(taken.retries);
        let most = if taken.retries < first { 0 } else { WHOLE };
        Credit(owed.clamp(-WHOLE, most))
    }

    fn reserve(&self, slots: u32) -> u32 {
        self.fresh_reserve.unwrap_or(u32::from(slots >= 4))
    }
}

impl Credit {
    /// How many of `limit` slots are due to retries: rounded up, and the rest is a debt.
    fn slots(self, ratio: Ratio, limit: u32) -> u32 {
        let owed = self.0 + ratio.0 * i64::from(limit);
        let slots = (owed.max(0) + WHOLE - 1) / WHOLE;
        u32::try_from(slots).unwrap_or(u32::MAX).min(limit)
    }
}

impl ClaimPlan {
    /// The plan of a claim that finds so many retries of the queue running, over all nodes.
    #[must_use]
    pub fn beside(self, retries_running: u32) -> ClaimPlan {
        let Some(cap) = self.max_inflight_retries else {
            return self;
        };
        let retries_max = self.retries_max.min(cap.saturating_sub(retries_running));
        ClaimPlan {
            retries_max,
            ..self
        }
    }

    /// Which kind the claim takes next, given the places in the order of claims of the foremost ready job of each.
    pub fn next_lane<O: Ord>(
        &self,
        taken: Taken,
        fresh: Option<O>,
        retry: Option<O>,
    ) -> Option<Lane> {
        if taken.fresh.saturating_add(taken.retries) >= self.limit {
            return None;
        }
        let fresh = fresh.filter(|_| taken.fresh < self.fresh_max);
        let retry = retry.filter(|_| taken.retries < self.retries_max);
        match (fresh, retry, self.mix) {
            (None, None, _) => None,
            (Some(_), None, _) => Some(Lane::Fresh),
            (None, Some(_), _) => Some(Lane::Retry),
            (Some(_), Some(_), Mix::RetriesFirst(first)) if taken.retries < first => {
                Some(Lane::Retry)
            }
            (Some(_), Some(_), Mix::RetriesFirst(_)) => Some(Lane::Fresh),
            (Some(fresh), Some(retry), Mix::Strict) if retry < fresh => Some(Lane::Retry),
            (Some(_), Some(_), Mix::Strict) => Some(Lane::Fresh),
        }
    }
}

#[cfg(test)]
mod tests;
