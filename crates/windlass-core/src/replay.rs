//! The decisions of a replay: how many jobs to revive next, when to wait, when to stop.
//!
//! A replay first revives a few jobs, the canary, and waits for their outcomes. Then it revives the
//! rest at a rate, with a bound on the jobs that have no outcome yet. It stops itself when too many
//! jobs fail again.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::words::string_enum;
use crate::{ActionTally, Invalid, Timestamp};

/// The first outcomes that the share of failures is computed over, if `min_sample` is smaller.
const WINDOW_MIN: u64 = 200;

/// How a replay proceeds and when it stops itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplayRules {
    /// How many jobs the canary has.
    pub canary_jobs: u32,
    /// How long the canary may take. A job without an outcome then counts as failed again.
    pub canary_timeout_ms: u64,
    /// How many jobs to revive per second.
    pub rate: u32,
    /// The most revived jobs without an outcome; by default the larger of the canary and what two
    /// seconds of the rate revive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_pending: Option<u32>,
    /// The replay stops when a larger share than this fails again.
    pub failed_share: f64,
    /// The fewest outcomes of the rate phase that the share is computed over.
    pub min_sample: u32,
    /// The replay stops when this many jobs fail again with the cause that they had died of; 0 is
    /// never. By default 1 in the canary, and never in the rate phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_fingerprint: Option<u32>,
}

impl Default for ReplayRules {
    fn default() -> Self {
        ReplayRules {
            canary_jobs: 20,
            canary_timeout_ms: 5 * 60 * 1000,
            rate: 100,
            max_pending: None,
            failed_share: 0.2,
            min_sample: 50,
            same_fingerprint: None,
        }
    }
}

impl ReplayRules {
    /// Refuses rules that make no sense.
    pub fn check(&self) -> Result<(), Invalid> {
        let at_least_one = |field, value: u32| {
            let rule = "must be at least 1";
            if value == 0 {
                Err(Invalid::new(field, rule))
            } else {
                Ok(())
            }
        };
        at_least_one("canary.jobs", self.canary_jobs)?;
        at_least_one("rate", self.rate)?;
        at_least_one("max_pending", self.max_pending.unwrap_or(1))?;
        at_least_one("stop.min_sample", self.min_sample)?;
        if self.canary_timeout_ms == 0 {
            return Err(Invalid::new("canary.timeout", "must be longer than 0"));
        }
        if !(0.0..=1.0).contains(&self.failed_share) {
            return Err(Invalid::new("stop.failed_share", "must be from 0 to 1"));
        }
        Ok(())
    }

    /// The most revived jobs without an outcome.
    pub fn pending_max(&self) -> u64 {
        let by_rate = self.rate.saturating_mul(2).max(self.canary_jobs);
        u64::from(self.max_pending.unwrap_or(by_rate))
    }

    fn canary_timeout(&self) -> Duration {
        Duration::from_millis(self.canary_timeout_ms)
    }

    fn is_too_much(&self, failed: u64, total: u64) -> bool {
        failed as f64 > self.failed_share * total as f64
    }
}

/// The phase of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// Few jobs are revived, to see whether they succeed.
    #[default]
    Canary,
    /// The rest is revived at a rate.
    Rate,
}

string_enum!(Phase {
    Canary = "canary",
    Rate = "rate",
});

/// Why a replay stopped itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// Too large a share of the jobs failed again.
    FailedShare,
    /// Jobs failed again with the cause that they had died of.
    SameFingerprint,
    /// Too many jobs of the canary failed again or had no outcome in time.
    CanaryTimeout,
}

string_enum!(StopReason {
    FailedShare = "failed_share",
    SameFingerprint = "same_fingerprint",
    CanaryTimeout = "canary_timeout",
});

/// What an action waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitingFor {
    /// The number of matching jobs is being counted.
    Counting,
    /// The outcomes of the canary.
    Canary,
    /// Outcomes: `max_pending` jobs have none yet.
    MaxPending,
    /// The outcomes of the last revived jobs.
    LastOutcomes,
    /// A queue of the jobs is paused.
    QueuePaused,
    /// A queue of the jobs is full.
    QueueFull,
}

string_enum!(WaitingFor {
    Counting = "counting",
    Canary = "canary",
    MaxPending = "max_pending",
    LastOutcomes = "last_outcomes",
    QueuePaused = "queue_paused",
    QueueFull = "queue_full",
});

/// What a replay has to remember between two decisions. Everything else is counted by the store.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplayProgress {
    /// The phase.
    pub phase: Phase,
    /// How many jobs were revived before this canary.
    revived_before: u64,
    /// How many jobs failed again before this canary.
    failed_before: u64,
    /// How many of them failed with the same cause.
    failed_alike_before: u64,
    /// How many jobs had no outcome before this canary.
    pending_before: u64,
    /// Whether the replay still waits for outcomes of jobs that were revived before it stopped.
    is_draining: bool,
    /// When the last job of the canary, or the last job at all, was revived.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_revived_at: Option<Timestamp>,
    /// First outcomes so far at several moments, the oldest first: failures and all.
    samples: VecDeque<(u64, u64)>,
}

/// What a replay does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayStep {
    /// Revives up to this many jobs.
    Revive(u64),
    /// Waits.
    Wait(WaitingFor),
    /// Stops itself.
    Stop(StopReason),
    /// Is finished.
    Finish,
}

impl ReplayProgress {
    /// Prepares another canary. It starts when the jobs that were revived before have an outcome,
    /// or the time for it has passed, and does not count them.
    pub fn restart(&mut self) {
        *self = ReplayProgress {
            is_draining: true,
            ..ReplayProgress::default()
        };
    }

    /// Starts a canary that does not count what was revived before.
    fn start_canary(&mut self, tally: &ActionTally) {
        *self = ReplayProgress {
            revived_before: tally.changed(),
            failed_before: tally.first_failed + tally.first_failed_alike,
            failed_alike_before: tally.first_failed_alike,
            pending_before: tally.pending,
            ..ReplayProgress::default()
        };
    }

    /// Notes that jobs were revived.
    pub fn note_revived(&mut self, now: Timestamp) {
        self.last_revived_at = Some(now);
    }

    /// Decides what to do. `allowance` is what the rate allows now, `is_walked` says that no job is
    /// left to revive.
    pub fn next(
        &mut self,
        rules: &ReplayRules,
        tally: &ActionTally,
        is_walked: bool,
        allowance: u64,
        now: Timestamp,
    ) -> ReplayStep {
        if tally.pending > 0 {
            // A process that died before it could write this down revived them just now.
            self.last_revived_at.get_or_insert(now);
        }
        if self.is_draining {
            if tally.pending > 0 && !self.has_timed_out(rules, now) {
                return ReplayStep::Wait(WaitingFor::LastOutcomes);
            }
            self.start_canary(tally);
        }
        if self.phase == Phase::Canary {
            match self.next_of_canary(rules, tally, is_walked, now) {
                Some(step) => return step,
                None => self.phase = Phase::Rate,
            }
        }
        self.next_of_rate(rules, tally, is_walked, allowance, now)
    }

    /// Decides in the canary; `None` if it is over.
    fn next_of_canary(
        &self,
        rules: &ReplayRules,
        tally: &ActionTally,
        is_walked: bool,
        now: Timestamp,
    ) -> Option<ReplayStep> {
        let revived = tally.changed().saturating_sub(self.revived_before);
        let size = if is_walked {
            revived
        } else {
            revived.max(rules.canary_jobs.into())
        };
        if self.has_same_cause(tally, rules.same_fingerprint.unwrap_or(1)) {
            return Some(ReplayStep::Stop(StopReason::SameFingerprint));
        }
        let failed = tally.first_failed + tally.first_failed_alike;
        let failed = failed.saturating_sub(self.failed_before);
        if rules.is_too_much(failed, size) {
            return Some(ReplayStep::Stop(StopReason::FailedShare));
        }
        if revived < size {
            let free = rules.pending_max().saturating_sub(tally.pending);
            return Some(if free == 0 {
                ReplayStep::Wait(WaitingFor::MaxPending)
            } else {
                ReplayStep::Revive(free.min(size - revived))
            });
        }
        let pending = tally.pending.saturating_sub(self.pending_before);
        if pending == 0 {
            return None;
        }
        if !self.has_timed_out(rules, now) {
            return Some(ReplayStep::Wait(WaitingFor::Canary));
        }
        let is_stopped = rules.is_too_much(failed + pending, size);
        is_stopped.then_some(ReplayStep::Stop(StopReason::CanaryTimeout))
    }

    fn next_of_rate(
        &mut self,
        rules: &ReplayRules,
        tally: &ActionTally,
        is_walked: bool,
        allowance: u64,
        now: Timestamp,
    ) -> ReplayStep {
        if self.has_same_cause(tally, rules.same_fingerprint.unwrap_or(0)) {
            return ReplayStep::Stop(StopReason::SameFingerprint);
        }
        let (failed, total) = self.window(rules, tally);
        if total >= rules.min_sample.into() && rules.is_too_much(failed, total) {
            return ReplayStep::Stop(StopReason::FailedShare);
        }
        if is_walked {
            return if tally.pending == 0 || self.has_timed_out(rules, now) {
                ReplayStep::Finish
            } else {
                ReplayStep::Wait(WaitingFor::LastOutcomes)
            };
        }
        let free = rules.pending_max().saturating_sub(tally.pending);
        if free == 0 {
            return ReplayStep::Wait(WaitingFor::MaxPending);
        }
        ReplayStep::Revive(free.min(allowance))
    }

    fn has_same_cause(&self, tally: &ActionTally, limit: u32) -> bool {
        let alike = tally
            .first_failed_alike
            .saturating_sub(self.failed_alike_before);
        limit > 0 && alike >= limit.into()
    }

    fn has_timed_out(&self, rules: &ReplayRules, now: Timestamp) -> bool {
        let last = self.last_revived_at;
        last.is_some_and(|last| now.since(last) >= rules.canary_timeout())
    }

    /// Returns how many of the last first outcomes were failures, and how many outcomes these were:
    /// the size of the window, plus at most what arrived between two decisions. Fewer until the
    /// window is full.
    fn window(&mut self, rules: &ReplayRules, tally: &ActionTally) -> (u64, u64) {
        let size = WINDOW_MIN.max(rules.min_sample.into());
        let failed = tally.first_failed + tally.first_failed_alike;
        let current = (failed, failed + tally.first_succeeded);
        if self.samples.back() != Some(&current) {
            self.samples.push_back(current);
        }
        let is_large = |sample: &(u64, u64)| current.1.saturating_sub(sample.1) >= size;
        while self.samples.get(1).is_some_and(is_large) {
            self.samples.pop_front();
        }
        let (old_failed, old_total) = self.samples.front().copied().unwrap_or(current);
        (
            failed.saturating_sub(old_failed),
            current.1.saturating_sub(old_total),
        )
    }
}

#[cfg(test)]
mod tests;
