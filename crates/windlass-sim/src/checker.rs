//! The checker: what Windlass promises, compared with what happened.
//!
//! Each invariant is a pure function over a [`History`]. A `Ledger` follows the history step by
//! step; the rules look at each event together with the ledger before it. The ledger believes the
//! store's answers, so that one violation does not cause others.

mod attempts;
mod delivery;
mod effects;
mod keys;
mod leases;
mod ledger;
mod limits;
mod observed;
mod order;
mod outcome;
mod restarts;
mod schedules;
mod share;
mod tallies;

use std::collections::BTreeSet;
use std::fmt;

use windlass_core::JobId;

use crate::history::{Entry, Event, History};
use ledger::Ledger;
pub use observed::check_observed;

/// The most events that a violation shows.
const EVENTS_SHOWN: usize = 40;

macro_rules! invariants {
    ($($name:ident: $text:literal;)*) => {
        /// What must hold for every history.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Invariant {
            $(#[doc = $text] $name,)*
        }

        impl Invariant {
            /// All invariants.
            pub const ALL: &[Invariant] = &[$(Invariant::$name),*];

            /// The short name, as in `I5`.
            pub fn name(self) -> &'static str {
                match self { $(Invariant::$name => stringify!($name),)* }
            }

            /// What it says.
            pub fn text(self) -> &'static str {
                match self { $(Invariant::$name => $text,)* }
            }
        }
    };
}

invariants! {
    I1: "No acknowledged enqueue or outcome is lost.";
    I2: "Every stored job was submitted by someone or fired by a schedule, with its payload; a batch is stored as a whole or not at all.";
    I3: "One unique key belongs to at most one active job of a queue.";
    I4: "A job takes only the steps of the state machine, and finished jobs change only by an operator.";
    I5: "A job has at most one live lease, its attempt numbers grow by one, and no lease ends before its time. A worker never runs two handlers of one job at once.";
    I6: "Every stored job is finished after the drain.";
    I6b: "An at-most-once job starts at most once, plus once for each revival by an operator.";
    I7: "No attempt starts after the limit of failures, or before its backoff has passed.";
    I8: "The store accepts renewals and reports only from the current attempt.";
    I9: "A refused operation changes nothing: the final jobs are those that the accepted steps lead to.";
    I10: "Every attempt has exactly one end, with the outcome that was reported.";
    I11: "A handler gets exactly the payload that was enqueued.";
    I12: "Every attempt of a lost worker is accounted for.";
    I13: "A claim gets at most its limit of jobs: due, not expired, of its queue and kinds, not paused. It reads the clock when it is sent, and a worker that stops sends none.";
    I14: "Concurrency limits, concurrency keys and rates are never exceeded.";
    I15: "Every occurrence of a schedule is fired exactly once or recorded as skipped.";
    I16: "A schedule catches up at most `catch_up_max` occurrences at once.";
    I17: "Only the current version of a schedule fires.";
    I18: "Within a lane of a queue, no job starts before a ready job that is more urgent. While fresh jobs wait, retries get their share and no more.";
    I19: "Counts, failure groups and the tallies of actions are equal to a recount.";
    I23: "Every succeeded job had its effect in the attempt that succeeded.";
    I24: "A restart of the store changes nothing but leases.";
    I25: "No task of the engine panics.";
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The invariant.
    pub invariant: Invariant,
    /// The job, if it is about one.
    pub job: Option<JobId>,
    /// What is wrong.
    pub what: String,
    /// The events that show it, as indexes into the history.
    pub events: Vec<usize>,
}

/// Collects violations.
#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<Violation>);

impl Findings {
    pub(crate) fn add(
        &mut self,
        invariant: Invariant,
        job: impl Into<Option<JobId>>,
        what: impl FnOnce() -> String,
    ) {
        if self.0.len() < 100 {
            self.0.push(Violation {
                invariant,
                job: job.into(),
                what: what(),
                events: Vec::new(),
            });
        }
    }
}

/// A rule about one event, given everything that happened before.
type Rule = fn(&Ledger, &Entry, &mut Findings);
/// A rule about the whole history.
type LastRule = fn(&Ledger, &History, &mut Findings);

const RULES: [Rule; 11] = [
    leases::check,
    outcome::check,
    attempts::check,
    keys::check,
    limits::check,
    order::check,
    share::check,
    restarts::check,
    schedules::check,
    delivery::check,
    effects::check,
];

const LAST_RULES: [LastRule; 5] = [
    delivery::check_last,
    outcome::check_last,
    tallies::check_last,
    schedules::check_last,
    effects::check_last,
];

/// Checks all invariants. Returns the violations, the first one first.
pub fn check(history: &History) -> Vec<Violation> {
    let (mut ledger, mut findings) = (Ledger::default(), Findings::default());
    for (index, entry) in history.entries.iter().enumerate() {
        let before = findings.0.len();
        for rule in RULES {
            rule(&ledger, entry, &mut findings);
        }
        for violation in findings.0.iter_mut().skip(before) {
            violation.events.push(index);
        }
        ledger.apply(entry);
    }
    for rule in LAST_RULES {
        rule(&ledger, history, &mut findings);
    }
    for violation in &mut findings.0 {
        violation.show_events(history);
    }
    findings.0
}

impl Violation {
    /// Adds the events about the job.
    fn show_events(&mut self, history: &History) {
        let Some(job) = self.job else { return };
        let mut shown: BTreeSet<usize> = self.events.drain(..).collect();
        let about = history.entries.iter().enumerate();
        let about = about.filter(|(_, entry)| entry.event.is_about(job));
        let about: Vec<usize> = about.map(|(index, _)| index).collect();
        shown.extend(about.iter().rev().take(EVENTS_SHOWN));
        self.events = shown.into_iter().collect();
    }

    /// The violation as text, with its events.
    pub fn describe(&self, history: &History) -> String {
        let mut text = format!("{}: {}\n", self.invariant, self.what);
        if let Some(job) = self.job {
            text.push_str(&format!("job {job}\n"));
        }
        for index in &self.events {
            if let Some(entry) = history.entries.get(*index) {
                text.push_str(&format!(
                    "  {index} {} node {} {:?}\n",
                    entry.at,
                    entry.node,
                    entry.event.reduced_to(self.job)
                ));
            }
        }
        text
    }
}

impl Event {
    /// The time that the caller passed to the store.
    fn now(&self) -> Option<windlass_core::Timestamp> {
        match self {
            Event::Enqueued { now, .. }
            | Event::Renewed { now, .. }
            | Event::Settled { now, .. }
            | Event::Swept { now, .. }
            | Event::Changed { now, .. } => Some(*now),
            Event::Claimed(claim) => Some(claim.now),
            Event::Fired(fire) => Some(fire.now),
            _ => None,
        }
    }

    fn is_about(&self, job: JobId) -> bool {
        match self {
            Event::Submitted { jobs, .. } => jobs.iter().any(|facts| facts.id == job),
            Event::Enqueued { jobs, .. } => jobs.iter().any(|(facts, answer)| {
                facts.id == job
                    || matches!(answer, crate::history::EnqueueAnswer::Replaced(id) if *id == job)
            }),
            Event::Claimed(claim) => claim.jobs.iter().any(|claimed| claimed.facts.id == job),
            Event::Renewed { attempt, .. }
            | Event::Settled { attempt, .. }
            | Event::SettleAcknowledged { attempt, .. }
            | Event::Started { attempt, .. }
            | Event::Returned { attempt }
            | Event::Effect { attempt } => attempt.job == job,
            Event::Swept { lost, expired, .. } => {
                lost.iter().any(|(attempt, _)| attempt.job == job) || expired.contains(&job)
            }
            Event::Changed { job: changed, .. } => *changed == job,
            Event::Fired(fire) => fire.jobs.iter().any(|facts| facts.id == job),
            Event::Restarted { lost, .. } => lost.iter().any(|(attempt, _)| attempt.job == job),
            Event::Answered { .. }
            | Event::LimitsSet { .. }
            | Event::SchedulePut(_)
            | Event::Killed
            | Event::Booted
            | Event::Stopping
            | Event::Note(..) => false,
        }
    }

    /// The event without what is about other jobs.
    fn reduced_to(&self, job: Option<JobId>) -> Event {
        let mut event = self.clone();
        let Some(job) = job else { return event };
        match &mut event {
            Event::Submitted { jobs, .. } => jobs.retain(|facts| facts.id == job),
            Event::Enqueued { jobs, .. } => jobs.retain(|(facts, _)| facts.id == job),
            Event::Claimed(claim) => claim.jobs.retain(|claimed| claimed.facts.id == job),
            Event::Swept { lost, expired, .. } => {
                lost.retain(|(attempt, _)| attempt.job == job);
                expired.retain(|id| *id == job);
            }
            Event::Restarted { lost, .. } => lost.retain(|(attempt, _)| attempt.job == job),
            Event::Fired(fire) => fire.jobs.retain(|facts| facts.id == job),
            _ => {}
        }
        event
    }
}
