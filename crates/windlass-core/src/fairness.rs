//! How claims divide slots between new jobs and retries, so that neither starves the other.
//!
//! A slot is room for one running job in a worker. Each queue can combine four [`Guards`]: a share
//! of the slots for retries (`retry_fetch_ratio`), slots that never run retries (`fresh_reserve`),
//! a limit of running retries (`max_inflight_retries`), and a separate pool for retries
//! (`retry_lane`). [`Turns`] divides slots between several queues by weight.
//!
//! Invariant: while new jobs wait, at most ⌈r·k⌉+1 of the next k freed slots go to retries, and
//! waiting retries get their share r of them.

mod discovery;
mod settings;
mod turns;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use discovery::{DiscoveryPace, DueQueueScan, RestingQueues};
pub use settings::{ClaimSettings, QueueSettings, WEIGHT_MAX};
pub use turns::{ClaimQueue, QueueDemand, QueueOrder, Round, Turns};

use crate::Invalid;
use crate::duration::check_duration;
use crate::job::Lane;
use crate::timestamp::Timestamp;

const WHOLE: i64 = 1_000_000;

/// A share from 0 to 1, in millionths, so that sums are exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ratio(i64);

impl Ratio {
    /// The default share of retries: 0.2.
    pub const DEFAULT: Ratio = Ratio(200_000);

    /// Makes a share; it must be from 0 to 1.
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

/// The fairness settings of one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guards {
    /// The share of the slots that retries get while new jobs and retries both wait. `None` claims
    /// strictly by priority.
    pub retry_fetch_ratio: Option<Ratio>,
    /// How many slots of a worker never run a retry. `None` means 1 if the worker has at least 4
    /// slots, else 0.
    pub fresh_reserve: Option<u32>,
    /// The most retries that run at once in the queue, across all nodes.
    pub max_inflight_retries: Option<u32>,
    /// Runs retries in a separate pool.
    pub retry_lane: Option<RetryLane>,
}

/// A pool that runs only retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryLane {
    /// How many retries run at once.
    pub concurrency: u32,
    /// How many retries start per period, if that is limited.
    pub rate: Option<Rate>,
}

/// A rate: at most `count` starts per `period`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// How many may start.
    pub count: u32,
    /// The length of the period.
    #[serde(with = "crate::duration::text")]
    pub period: Duration,
}

impl Rate {
    /// When the next job may start, if the rate is used up. `starts` lists when how many jobs
    /// started, oldest first.
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

/// The pool of slots that a claim fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pool {
    /// The worker's slots.
    Main,
    /// The slots of the retry lane.
    RetryLane,
    /// All slots of a worker with one pool for new jobs and retries. A retry lane limits how many
    /// of them run a retry.
    Single,
}

/// The slots of one pool of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// How many there are.
    pub total: u32,
    /// How many are free. A claim never takes more.
    pub free: u32,
    /// How many run a retry.
    pub retries_running: u32,
}

impl Slots {
    /// The free slots of a worker whose total is unknown. None of them is reserved for new jobs.
    pub fn uncounted(free: u32) -> Self {
        Slots {
            total: u32::MAX,
            free,
            retries_running: 0,
        }
    }
}

/// The slots that retries are owed, in millionths of a slot. Negative if they had more than their
/// share.
///
/// Each fetcher keeps one per queue, between -1 and 1 slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Credit(i64);

/// What a claim takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimPlan {
    /// The most jobs in all.
    pub limit: u32,
    /// The most new jobs.
    pub fresh_max: u32,
    /// The most retries.
    pub retries_max: u32,
    /// How new jobs and retries are mixed.
    pub mix: Mix,
    /// The most retries that run at once in the queue, those of this claim included.
    pub max_inflight_retries: Option<u32>,
}

/// How a claim mixes new jobs and retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// By claim order alone, without regard to the lane.
    Strict,
    /// Retries get their share, new jobs the rest. If one lane runs out, the other gets its slots.
    Shared(RetryShare),
}

/// The share of slots that retries get while new jobs wait too, and what earlier claims left them
/// owed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryShare {
    ratio: Ratio,
    credit: Credit,
}

impl RetryShare {
    /// How many of the next `slots` slots retries get. Rounded up; the difference is subtracted
    /// from the credit.
    fn of(self, slots: u32) -> u32 {
        let owed = self.owed(slots).max(0);
        u32::try_from((owed + WHOLE - 1) / WHOLE).map_or(slots, |owed| owed.min(slots))
    }

    /// What retries are owed of the next `slots` slots, in millionths.
    fn owed(self, slots: u32) -> i64 {
        self.credit.0 + self.ratio.0 * i64::from(slots)
    }

    /// The same share without what earlier claims left.
    #[must_use]
    pub fn without_credit(self) -> Self {
        RetryShare {
            credit: Credit::default(),
            ..self
        }
    }
}

/// What a claim took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Taken {
    /// How many new jobs.
    pub fresh: u32,
    /// How many retries.
    pub retries: u32,
    /// Whether new jobs and retries were both ready when the claim started.
    pub both_lanes_ready: bool,
}

impl Guards {
    /// Checks that retries can run in a worker with this many slots.
    pub fn check(&self, slots: u32) -> Result<(), Invalid> {
        if self.retry_lane.is_none() && self.reserve(slots) >= slots {
            let rule =
                format!("must be less than the worker's {slots} slots, or retries never run");
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
                let rule = "must have a count of at least 1 and a period longer than 0s";
                return Err(Invalid::new("retry_lane.rate", rule));
            }
        }
        Ok(())
    }

    /// Plans the next claim of a pool.
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
            Some(ratio) => Mix::Shared(RetryShare { ratio, credit }),
        };
        ClaimPlan {
            limit,
            fresh_max: if pool == Pool::RetryLane { 0 } else { limit },
            retries_max,
            mix,
            max_inflight_retries: self.max_inflight_retries,
        }
    }

    /// Returns what retries are owed after a claim. A claim changes the credit only if new jobs and
    /// retries both waited, and if retries did not get more than their share because the new jobs
    /// ran out. If the retries ran out, they are owed nothing.
    ///
    /// Only the slots that were filled count: a limit of the queue or of a concurrency key may have
    /// ended the claim early.
    pub fn credit_after(&self, credit: Credit, plan: &ClaimPlan, taken: Taken) -> Credit {
        let Mix::Shared(share) = plan.mix else {
            return credit;
        };
        let filled = taken.fresh.saturating_add(taken.retries);
        let due = share.of(filled).min(plan.retries_max);
        if !taken.both_lanes_ready || filled == 0 || taken.retries > due {
            return credit;
        }
        let owed = share.owed(filled) - WHOLE * i64::from(taken.retries);
        let credit_max = if taken.retries < due { 0 } else { WHOLE };
        Credit(owed.clamp(-WHOLE, credit_max))
    }

    /// Returns what retries are owed after a claim whose answer is lost. It may have filled any
    /// number of its slots, so retries may have got nearly one slot more than they were owed.
    /// They must not get it again from the next claim, so the credit becomes the lowest possible.
    pub fn credit_after_lost(&self, credit: Credit, plan: &ClaimPlan) -> Credit {
        if plan.retries_first() == 0 {
            return credit;
        }
        Credit(-WHOLE)
    }

    fn reserve(&self, slots: u32) -> u32 {
        self.fresh_reserve.unwrap_or(u32::from(slots >= 4))
    }
}

impl ClaimPlan {
    /// Limits the plan, given how many retries of the queue already run across all nodes.
    #[must_use]
    pub fn limited_by_running(self, retries_running: u32) -> ClaimPlan {
        let Some(cap) = self.max_inflight_retries else {
            return self;
        };
        let retries_max = self.retries_max.min(cap.saturating_sub(retries_running));
        ClaimPlan {
            retries_max,
            ..self
        }
    }

    /// How many retries the claim takes while new jobs wait too, if it fills all its slots.
    pub fn retries_first(&self) -> u32 {
        match self.mix {
            Mix::Strict => 0,
            Mix::Shared(share) => share.of(self.limit).min(self.retries_max),
        }
    }

    /// How many of the first N slots retries get while new jobs wait too, for each N from 1 to
    /// `slots`.
    pub fn retry_shares(&self, slots: u32) -> Vec<u32> {
        let share_of = |slots| match self.mix {
            Mix::Strict => 0,
            Mix::Shared(share) => share.of(slots),
        };
        (1..=slots).map(share_of).collect()
    }

    /// The lane from which the claim takes its next job, given the claim order of the first ready
    /// job of each lane.
    pub fn next_lane<O: Ord>(
        &self,
        taken: Taken,
        fresh: Option<O>,
        retry: Option<O>,
    ) -> Option<Lane> {
        let filled = taken.fresh.saturating_add(taken.retries);
        if filled >= self.limit {
            return None;
        }
        let fresh = fresh.filter(|_| taken.fresh < self.fresh_max);
        let retry = retry.filter(|_| taken.retries < self.retries_max);
        match (fresh, retry, self.mix) {
            (None, None, _) => None,
            (Some(_), None, _) => Some(Lane::Fresh),
            (None, Some(_), _) => Some(Lane::Retry),
            // Slot by slot, so that the shares are right wherever a limit ends the claim.
            (Some(_), Some(_), Mix::Shared(share)) if taken.retries < share.of(filled + 1) => {
                Some(Lane::Retry)
            }
            (Some(_), Some(_), Mix::Shared(_)) => Some(Lane::Fresh),
            (Some(fresh), Some(retry), Mix::Strict) if retry < fresh => Some(Lane::Retry),
            (Some(_), Some(_), Mix::Strict) => Some(Lane::Fresh),
        }
    }
}

#[cfg(test)]
mod tests;
