//! The stream of events, numbered and kept for a while, so that a reader who was cut off goes on where it was.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::watch;
use windlass_api::Content;
use windlass_core::AttemptError;
use windlass_engine::{Engine, Event, JobEvent, Observer, ScheduleEvent};

use crate::rates::Rates;

/// So many events are kept for readers who come back.
const KEPT: usize = 10_000;

/// The place of an event: which run of the server, and which event of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventId {
    /// Of this process; another one has other numbers.
    run: u64,
    /// Counted from 1.
    number: u64,
}

impl EventId {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (run, number) = text.split_once('-')?;
        Some(EventId {
            run: u64::from_str_radix(run, 16).ok()?,
            number: number.parse().ok()?,
        })
    }
}

impl std::fmt::Display for EventId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}-{}", self.run, self.number)
    }
}

/// What a reader gets next.
#[derive(Debug, Clone)]
pub(crate) enum Next {
    /// An event.
    Event(EventId, Arc<Event>),
    /// Events between what the reader had and what is still kept are gone; it goes on behind this one.
    Missed {
        /// The last one that is gone.
        last: EventId,
        /// How many; not known of another run of the server.
        count: Option<u64>,
    },
}

/// The last events, and a bell that rings with each. It observes the engine, so that no event passes it by.
#[derive(Debug)]
pub(crate) struct Feed {
    run: u64,
    kept: Mutex<Kept>,
    newest: watch::Sender<u64>,
    rates: Arc<Rates>,
}

#[derive(Debug, Default)]
struct Kept {
    events: VecDeque<Arc<Event>>,
    /// The number of the newest one.
    newest: u64,
}

impl Feed {
    /// Listens to an engine until it is dropped.
    pub(crate) fn start(engine: &Arc<Engine>, rates: Arc<Rates>) -> Arc<Self> {
        let feed = Arc::new(Feed {
            run: engine.ids().bits(),
            kept: Mutex::default(),
            newest: watch::Sender::new(0),
            rates,
        });
        engine.observe(&feed);
        feed
    }

    /// Where a reader begins who wants only what is to come.
    pub(crate) fn now(&self) -> EventId {
        EventId {
            run: self.run,
            number: self.kept().newest,
        }
    }

    /// Where a reader goes on who had everything up to `last`; of another run, with what is still there.
    pub(crate) fn behind(&self, last: EventId) -> EventId {
        let newest = self.kept().newest;
        if last.run == self.run && last.number <= newest {
            return last;
        }
        EventId {
            run: !self.run,
            number: 0,
        }
    }

    /// The next event behind `last`, when there is one.
    pub(crate) async fn next(&self, last: EventId) -> Next {
        let mut newest = self.newest.subscribe();
        loop {
            newest.mark_unchanged();
            if let Some(next) = self.look(last) {
                return next;
            }
            // The sender lives as long as we do.
            let _ = newest.changed().await;
        }
    }

    fn look(&self, last: EventId) -> Option<Next> {
        let kept = self.kept();
        let first = kept.newest - u64::try_from(kept.events.len()).unwrap_or(u64::MAX) + 1;
        let id = |number| EventId {
            run: self.run,
            number,
        };
        if last.run != self.run || last.number + 1 < first {
            let count = (last.run == self.run).then(|| first - 1 - last.number);
            let last = id(first - 1);
            return Some(Next::Missed { last, count });
        }
        let place = usize::try_from(last.number + 1 - first).ok()?;
        let event = kept.events.get(place)?;
        Some(Next::Event(id(last.number + 1), Arc::clone(event)))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Feed {
    fn event(&self, event: &Arc<Event>) {
        self.rates.count(event);
        let mut kept = self.kept();
        if kept.events.len() == KEPT {
            kept.events.pop_front();
        }
        kept.events.push_back(Arc::clone(event));
        kept.newest += 1;
        // Under the lock, so that the bell never goes back to an older event.
        self.newest.send_replace(kept.newest);
    }
}

/// An event as JSON; its error is as secret as a payload.
pub(crate) fn event_json(event: &Event, content: Content) -> Value {
    let mut json = match event {
        Event::Job { at, job, what } => {
            let mut json = json!({
                "at": at, "job_id": job.id, "kind": job.kind, "queue": job.queue, "attempt": job.attempt,
            });
            merge(&mut json, job_detail(what, content));
            json
        }
        Event::Schedule { at, id, name, what } => {
            let mut json = json!({"at": at, "schedule_id": id, "schedule": name});
            merge(&mut json, schedule_detail(what));
            json
        }
    };
    merge(&mut json, json!({"event": event.name()}));
    json
}

fn merge(into: &mut Value, more: Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}

fn millis(duration: &std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn job_detail(what: &JobEvent, content: Content) -> Value {
    let shown = |_: &&AttemptError| content == Content::Shown;
    let text = |error: &Option<AttemptError>| {
        let error = error.as_ref().filter(shown);
        error.map(AttemptError::to_string)
    };
    match what {
        JobEvent::Claimed { waited, .. } => json!({"waited_ms": millis(waited)}),
        JobEvent::Succeeded { ran } | JobEvent::TimedOut { ran } => json!({"ran_ms": millis(ran)}),
        JobEvent::Failed { ran, error } => json!({"ran_ms": millis(ran), "error": text(error)}),
        JobEvent::Retried {
            run_at,
            delay,
            failures,
        } => json!({"run_at": run_at, "delay_ms": millis(delay), "failures": failures}),
        JobEvent::Snoozed { until } => json!({"run_at": until}),
        JobEvent::Dead { reason, failures } => {
            json!({"dead_reason": reason.name(), "failures": failures})
        }
        JobEvent::Enqueued
        | JobEvent::Started
        | JobEvent::Lost
        | JobEvent::Released
        | JobEvent::Cancelled
        | JobEvent::Revived => json!({}),
    }
}

fn schedule_detail(what: &ScheduleEvent) -> Value {
    match what {
        ScheduleEvent::Fired {
            scheduled_for,
            job,
            lag,
        } => json!({"scheduled_for": scheduled_for, "job_id": job, "lag_ms": millis(lag)}),
        ScheduleEvent::Skipped(range) => json!({
            "first": range.first, "last": range.last, "count": range.count, "reason": range.reason.name(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_text_of_an_event_id_panics(text in "[0-9a-f+-]{0,20}-?[0-9+-]{0,25}|\\PC{0,20}", run: u64, number: u64) {
            let _ = EventId::parse(&text);
            let id = EventId { run, number };
            prop_assert_eq!(EventId::parse(&id.to_string()), Some(id));
        }
    }
}
