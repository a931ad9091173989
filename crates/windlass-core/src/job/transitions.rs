//! How events change a job. The state machine decides whether an event applies.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::intervention::Revived;
use crate::job::{FinalState, Finish, Job, Lease, StateDetails, Timeout};
use crate::patch::{PatchError, PayloadPatch};
use crate::retry::{AttemptLimit, RetryPolicy};
use crate::settle::{
    CANCEL_GRACE, Outcome, Report, Running, Settlement, Verdict, has_expired, settle,
};
use crate::state::{Consent, DeadReason, Event, State};
use crate::{ActionId, Fingerprint, Payload, QueueName, Timestamp, WorkerName};

/// The error for an event that does not apply to the job's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot {} a job that is {state}", event.verb())]
pub struct Conflict {
    /// The event that was refused.
    pub event: Event,
    /// The state the job is in.
    pub state: State,
}

/// How a person runs a dead or cancelled job again.
#[derive(Debug, Clone, PartialEq)]
pub struct Revival {
    /// What happens to the count of failures.
    pub failures: FailureCount,
    /// From when the job is due; now if not given.
    pub run_at: Option<Timestamp>,
    /// A new payload; the job keeps its payload if not given.
    pub payload: Option<Payload>,
    /// A patch of the payload, applied after `payload`.
    pub payload_patch: Option<PayloadPatch>,
    /// Whether a person accepts that an at-most-once job may run twice.
    pub consent: Consent,
    /// Other fields to change.
    pub changes: RevivalChanges,
}

/// Fields of a job that a revival changes. Fields that are not given keep their value.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RevivalChanges {
    /// How many attempts may fail in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<AttemptLimit>,
    /// The retry policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    /// The queue to move the job to. Its unique key must be free there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueName>,
    /// The priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i16>,
}

/// What a revival does with the count of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FailureCount {
    /// Sets the counters and the time since the first start to zero: the job has all its attempts
    /// again.
    #[default]
    Reset,
    /// Keeps the count. If the job is at its limit, the next failure is final.
    Keep,
}

/// Changes to a waiting job. Fields that are not given keep their value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Edit {
    /// The new payload.
    pub payload: Option<Payload>,
    /// The new priority.
    pub priority: Option<i16>,
    /// The new time from which it is due.
    pub run_at: Option<Timestamp>,
    /// The queue to move it to. Its unique key must be free there.
    pub queue: Option<QueueName>,
}

impl Default for Revival {
    fn default() -> Self {
        Revival {
            failures: FailureCount::Reset,
            run_at: None,
            payload: None,
            payload_patch: None,
            consent: Consent::NotGiven,
            changes: RevivalChanges::default(),
        }
    }
}

impl Job {
    /// Starts an attempt of a ready job: counts the attempt and sets the lease in one step.
    pub fn claim(
        &mut self,
        worker: WorkerName,
        lease: Lease,
        now: Timestamp,
    ) -> Result<(), Conflict> {
        let state = self.allow(Event::Claimed)?;
        if !self.is_ready(now) {
            let event = Event::Claimed;
            return Err(Conflict { event, state });
        }
        self.attempt = self.attempt.saturating_add(1);
        self.first_started_at.get_or_insert(now);
        self.started_at = Some(now);
        self.worker = Some(worker);
        self.state_details = StateDetails::Running(lease);
        Ok(())
    }

    /// Extends the lease of the running attempt.
    pub fn renew(&mut self, until: Timestamp) -> Result<(), Conflict> {
        self.allow(Event::Renewed)?;
        if let StateDetails::Running(lease) = &mut self.state_details {
            lease.until = until;
        }
        Ok(())
    }

    /// Decides what a report of the running attempt leads to. Returns `None` if no attempt is
    /// running.
    ///
    /// If a lease expires that was cut at the timeout, the attempt counts as timed out, not as
    /// lost.
    pub fn decide(&self, report: Report, now: Timestamp, random: u64) -> Option<Settlement> {
        let StateDetails::Running(lease) = &self.state_details else {
            return None;
        };
        let report = match (report, self.timeout) {
            (Report::Lost, Timeout::After(timeout))
                if self.lease_until_max() == Some(lease.until) =>
            {
                Report::TimedOut {
                    timeout,
                    grace: CANCEL_GRACE,
                }
            }
            (report, _) => report,
        };
        let running = Running {
            delivery: self.delivery,
            failures: self.failures,
            snoozes: self.snoozes,
            losses_in_a_row: self.losses_in_a_row,
            policy: lease.policy.as_deref(),
            effective_max: lease.effective_max,
            first_started_at: self.first_started_at.unwrap_or(self.created_at),
            deadline: self.deadline,
            previous_delay: self.previous_delay,
            cancel_requested: lease.cancel_requested,
        };
        let mut settlement = settle(&running, report, now, random);
        settlement.fingerprint = self.cause(&settlement);
        Some(settlement)
    }

    /// The cause of a failed attempt: its error, or the reason of the death if the attempt was
    /// lost, because a lost attempt has no error of its own.
    fn cause(&self, settlement: &Settlement) -> Option<Fingerprint> {
        match (settlement.outcome, settlement.verdict) {
            (Outcome::Lost, Verdict::Dead(reason)) => {
                Some(Fingerprint::without_error(&self.kind, reason))
            }
            _ => {
                let error = settlement.error.as_ref();
                error.map(|error| Fingerprint::new(&self.kind, error))
            }
        }
    }

    /// Applies a decision that was made at `now`.
    pub fn settle(&mut self, settlement: Settlement, now: Timestamp) -> Result<(), Conflict> {
        self.allow(Event::Settled(settlement.verdict))?;
        self.failures = settlement.failures;
        self.snoozes = settlement.snoozes;
        self.losses_in_a_row = settlement.losses_in_a_row;
        self.previous_delay = settlement.delay.or(self.previous_delay);
        if let Some(error) = settlement.error {
            self.last_error = Some(error);
            self.failed_at = Some(now);
        }
        if settlement.fingerprint.is_some() {
            self.set_cause(settlement.fingerprint);
        }
        self.note_first_outcome(settlement.outcome);
        match settlement.verdict {
            Verdict::Waiting { run_at } => {
                self.run_at = run_at;
                self.waiting_since = now;
                self.state_details = StateDetails::Waiting;
            }
            Verdict::Succeeded => self.finish(FinalState::Succeeded(settlement.result), now),
            Verdict::Dead(reason) => self.finish(FinalState::Dead(reason), now),
            Verdict::Cancelled => self.finish(FinalState::Cancelled, now),
        }
        Ok(())
    }

    /// Cancels a waiting job, or asks the worker of a running job to stop.
    pub fn cancel(&mut self, now: Timestamp) -> Result<(), Conflict> {
        self.allow(Event::CancelRequested)?;
        match &mut self.state_details {
            StateDetails::Running(lease) => lease.cancel_requested = true,
            _ => self.finish(FinalState::Cancelled, now),
        }
        Ok(())
    }

    /// Finishes a waiting job whose deadline passed.
    pub fn expire(&mut self, now: Timestamp) -> Result<(), Conflict> {
        self.allow(Event::Expired)?;
        let reason = DeadReason::Expired;
        self.set_cause(Some(Fingerprint::without_error(&self.kind, reason)));
        self.note_first_outcome(Outcome::Failed);
        self.finish(FinalState::Dead(reason), now);
        Ok(())
    }

    /// Makes a waiting job due now, even if it waits for a retry. Its failures still count.
    pub fn run_now(&mut self, now: Timestamp) -> Result<(), Conflict> {
        self.allow(Event::Changed)?;
        self.run_at = self.run_at.min(now);
        Ok(())
    }

    /// Changes a waiting job.
    pub fn edit(&mut self, edit: Edit) -> Result<(), Conflict> {
        self.allow(Event::Changed)?;
        self.payload = edit.payload.unwrap_or_else(|| self.payload.clone());
        self.priority = edit.priority.unwrap_or(self.priority);
        self.run_at = edit.run_at.unwrap_or(self.run_at);
        self.queue = edit.queue.unwrap_or_else(|| self.queue.clone());
        Ok(())
    }

    /// Makes a dead or cancelled job wait again, on a person's request. Removes a deadline that has
    /// passed, because the person wants the job to run in spite of it. A job whose failures are
    /// reset has no cause until it fails again.
    pub fn revive(
        &mut self,
        revival: Revival,
        replay: Option<ActionId>,
        now: Timestamp,
    ) -> Result<(), PatchError> {
        self.allow(Event::Revived(revival.consent))?;
        let mut payload = revival.payload.unwrap_or_else(|| self.payload.clone());
        if let Some(patch) = &revival.payload_patch {
            payload = patch.apply(&payload)?;
        }
        self.payload = payload;
        let changes = revival.changes;
        self.max_attempts = changes.max_attempts.or(self.max_attempts);
        self.retry = changes.retry.map(Arc::new).or_else(|| self.retry.take());
        self.queue = changes.queue.unwrap_or_else(|| self.queue.clone());
        self.priority = changes.priority.unwrap_or(self.priority);
        self.interventions.revived = Some(Revived {
            by: replay,
            cause: self.own_cause(),
            first_outcome: None,
        });
        if revival.failures == FailureCount::Reset {
            self.failures = 0;
            self.snoozes = 0;
            self.losses_in_a_row = 0;
            self.previous_delay = None;
            self.first_started_at = None;
        }
        if self.failures == 0 {
            self.set_cause(None);
        }
        self.run_at = revival.run_at.unwrap_or(now);
        self.waiting_since = now;
        self.deadline = self.deadline.filter(|_| !has_expired(self.deadline, now));
        self.state_details = StateDetails::Waiting;
        Ok(())
    }

    /// Marks a lost job as succeeded, because a person confirmed it.
    pub fn resolve(&mut self, now: Timestamp) -> Result<(), Conflict> {
        self.allow(Event::Resolved)?;
        self.finish(FinalState::Succeeded(None), now);
        Ok(())
    }

    /// Returns the present state if the event applies to it.
    fn allow(&self, event: Event) -> Result<State, Conflict> {
        let state = self.state();
        let next = state.after(event);
        next.map(|_| state).ok_or(Conflict { event, state })
    }

    fn finish(&mut self, state: FinalState, now: Timestamp) {
        self.state_details = StateDetails::Finished(Finish {
            finished_at: now,
            state,
        });
    }
}

#[cfg(test)]
mod tests;
