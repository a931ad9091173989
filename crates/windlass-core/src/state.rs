//! The state machine of a job: one enum, one `match`.
//!
//! A job starts as waiting. A claim makes it running, and the end of the attempt makes it waiting
//! again (for a retry or a snooze) or finishes it: succeeded, dead or cancelled. Only a person
//! moves a finished job. No other code decides a next state.

use std::fmt;

use crate::settle::Verdict;
use crate::timestamp::Timestamp;
use crate::words::string_enum;

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Waits for its `run_at`, or for a worker.
    Waiting,
    /// A worker runs it under a lease.
    Running,
    /// An attempt succeeded.
    Succeeded,
    /// Does not run again unless a person revives it.
    Dead(DeadReason),
    /// A user cancelled it.
    Cancelled,
}

/// Why a job is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeadReason {
    /// The limit of failed attempts is reached.
    Exhausted,
    /// The handler reported that no retry can help.
    Unrecoverable,
    /// The job's deadline or the policy's `max_elapsed` passed.
    Expired,
    /// An at-most-once attempt ended without a result, so it may or may not have done its work.
    Lost,
    /// Exhausted, and each of the last three attempts lost its worker.
    Poison,
}

string_enum!(DeadReason {
    Exhausted = "exhausted",
    Unrecoverable = "unrecoverable",
    Expired = "expired",
    Lost = "lost",
    Poison = "poison",
});

/// Something that may happen to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A worker claimed it.
    Claimed,
    /// A user edited it, moved it to another queue, or made it due now.
    Changed,
    /// A user patched it.
    Patched,
    /// Its deadline passed before an attempt started.
    Expired,
    /// A user asked to cancel it.
    CancelRequested,
    /// Its worker renewed the lease.
    Renewed,
    /// Its attempt ended.
    Settled(Verdict),
    /// A person ran it again.
    Revived(Consent),
    /// A person confirmed that the lost attempt succeeded.
    Resolved,
}

/// Whether a person accepts that an at-most-once job may run twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consent {
    /// The person did not say so.
    NotGiven,
    /// The person accepts it (`force` in the REST API).
    MayRunTwice,
}

impl Event {
    /// The verb for error messages.
    pub(crate) const fn verb(self) -> &'static str {
        match self {
            Event::Claimed => "claim",
            Event::Changed => "change",
            Event::Patched => "patch",
            Event::Expired => "expire",
            Event::CancelRequested => "cancel",
            Event::Renewed => "renew the lease of",
            Event::Settled(_) => "settle",
            Event::Revived(_) => "revive",
            Event::Resolved => "resolve",
        }
    }
}

impl State {
    /// The state of a new job.
    pub const INITIAL: State = State::Waiting;

    /// The state that `event` leads to, or `None` if the event does not apply to this state.
    pub fn after(self, event: Event) -> Option<State> {
        match (self, event) {
            (State::Waiting, Event::Claimed) => Some(State::Running),
            (State::Waiting, Event::Changed) => Some(State::Waiting),
            (State::Waiting | State::Dead(_) | State::Cancelled, Event::Patched) => Some(self),
            (State::Waiting, Event::Expired) => Some(State::Dead(DeadReason::Expired)),
            (State::Waiting, Event::CancelRequested) => Some(State::Cancelled),
            (State::Running, Event::Renewed | Event::CancelRequested) => Some(State::Running),
            (State::Running, Event::Settled(verdict)) => Some(verdict.state()),
            // Only at-most-once jobs are dead as `lost`. They may have run, so a revival needs
            // consent.
            (State::Dead(DeadReason::Lost), Event::Revived(Consent::NotGiven)) => None,
            (State::Dead(_) | State::Cancelled, Event::Revived(_)) => Some(State::Waiting),
            (State::Dead(DeadReason::Lost), Event::Resolved) => Some(State::Succeeded),
            _ => None,
        }
    }

    /// Whether only a person can move the job out of this state.
    pub fn is_final(self) -> bool {
        matches!(self, State::Succeeded | State::Dead(_) | State::Cancelled)
    }

    /// The word that users see. A waiting job is `scheduled` before its `run_at` and `ready` from
    /// then on.
    pub fn name(self, run_at: Timestamp, now: Timestamp) -> &'static str {
        match self {
            State::Waiting if run_at > now => "scheduled",
            State::Waiting => "ready",
            State::Running => "running",
            State::Succeeded => "succeeded",
            State::Dead(_) => "dead",
            State::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::Waiting => f.write_str("waiting"),
            State::Running => f.write_str("running"),
            State::Succeeded => f.write_str("succeeded"),
            State::Dead(reason) => write!(f, "dead ({reason})"),
            State::Cancelled => f.write_str("cancelled"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timestamp::at;
    use proptest::prelude::*;

    fn states() -> Vec<State> {
        let mut states = vec![
            State::Waiting,
            State::Running,
            State::Succeeded,
            State::Cancelled,
        ];
        states.extend(DeadReason::ALL.map(State::Dead));
        states
    }

    fn verdicts() -> Vec<Verdict> {
        let run_at = Timestamp::UNIX_EPOCH;
        let mut verdicts = vec![
            Verdict::Succeeded,
            Verdict::Cancelled,
            Verdict::Waiting { run_at },
        ];
        verdicts.extend(DeadReason::ALL.map(Verdict::Dead));
        verdicts
    }

    fn events() -> Vec<Event> {
        let mut events = vec![
            Event::Claimed,
            Event::Changed,
            Event::Expired,
            Event::CancelRequested,
            Event::Renewed,
            Event::Revived(Consent::NotGiven),
            Event::Revived(Consent::MayRunTwice),
            Event::Resolved,
        ];
        events.extend(verdicts().into_iter().map(Event::Settled));
        events
    }

    /// All allowed transitions, written out; every other pair must be refused.
    #[test]
    fn only_these_edges_exist() {
        let mut edges = vec![
            (State::Waiting, Event::Claimed, State::Running),
            (State::Waiting, Event::Changed, State::Waiting),
            (
                State::Waiting,
                Event::Expired,
                State::Dead(DeadReason::Expired),
            ),
            (State::Waiting, Event::CancelRequested, State::Cancelled),
            (State::Running, Event::Renewed, State::Running),
            (State::Running, Event::CancelRequested, State::Running),
            (
                State::Cancelled,
                Event::Revived(Consent::NotGiven),
                State::Waiting,
            ),
            (
                State::Cancelled,
                Event::Revived(Consent::MayRunTwice),
                State::Waiting,
            ),
            (
                State::Dead(DeadReason::Lost),
                Event::Revived(Consent::MayRunTwice),
                State::Waiting,
            ),
            (
                State::Dead(DeadReason::Lost),
                Event::Resolved,
                State::Succeeded,
            ),
        ];
        for verdict in verdicts() {
            let to = match verdict {
                Verdict::Succeeded => State::Succeeded,
                Verdict::Cancelled => State::Cancelled,
                Verdict::Waiting { .. } => State::Waiting,
                Verdict::Dead(reason) => State::Dead(reason),
            };
            edges.push((State::Running, Event::Settled(verdict), to));
        }
        for reason in DeadReason::ALL
            .into_iter()
            .filter(|reason| *reason != DeadReason::Lost)
        {
            for consent in [Consent::NotGiven, Consent::MayRunTwice] {
                edges.push((State::Dead(reason), Event::Revived(consent), State::Waiting));
            }
        }
        for from in states() {
            for event in events() {
                let edge = edges.iter().find(|edge| edge.0 == from && edge.1 == event);
                assert_eq!(
                    from.after(event),
                    edge.map(|edge| edge.2),
                    "{from:?} {event:?}"
                );
            }
        }
    }

    #[test]
    fn a_waiting_job_is_scheduled_before_its_run_at_and_ready_after() {
        let now = at("2026-01-01T00:00:00Z");
        let name = |state: State, run_at| state.name(run_at, now);
        assert_eq!(
            name(State::Waiting, at("2026-01-01T00:00:00.000001Z")),
            "scheduled"
        );
        assert_eq!(name(State::Waiting, now), "ready");
        assert_eq!(name(State::Running, now), "running");
        assert_eq!(name(State::Succeeded, now), "succeeded");
        assert_eq!(name(State::Cancelled, now), "cancelled");
        assert_eq!(name(State::Dead(DeadReason::Lost), now), "dead");
    }

    #[test]
    fn final_states_are_those_that_only_a_person_leaves() {
        assert!(!State::Waiting.is_final() && !State::Running.is_final());
        assert!(State::Succeeded.is_final() && State::Cancelled.is_final());
        assert!(
            DeadReason::ALL
                .into_iter()
                .all(|reason| State::Dead(reason).is_final())
        );
    }

    #[test]
    fn reasons_parse_from_their_words() {
        for reason in DeadReason::ALL {
            assert_eq!(reason.to_string().parse(), Ok(reason));
        }
        assert!("tired".parse::<DeadReason>().is_err());
    }

    proptest! {
        #[test]
        fn nothing_but_revive_and_resolve_leaves_a_final_state(
            choices in proptest::collection::vec(any::<prop::sample::Index>(), 1..200),
        ) {
            let events = events();
            let mut state = State::INITIAL;
            for choice in choices {
                let event = *choice.get(&events);
                let Some(next) = state.after(event) else { continue };
                if state.is_final() {
                    prop_assert!(matches!(event, Event::Revived(_) | Event::Resolved), "{:?} by {:?}", state, event);
                }
                state = next;
            }
        }
    }
}
