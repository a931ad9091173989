//! The stream of events, numbered and kept for a while, so that a reader who was cut off goes on where it was.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use windlass_api::{Content, Event as Shown, EventName};
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

/// An event as clients see it; its error is as secret as a payload.
pub(crate) fn shown(event: &Event, content: Content) -> Shown {
    let named = Shown {
        event: name_of(event),
        ..Shown::default()
    };
    match event {
        Event::Job { at, job, what } => {
            let about = Shown {
                at: Some(*at),
                job_id: Some(job.id),
                kind: Some(job.kind.clone()),
                queue: Some(job.queue.clone()),
                attempt: Some(job.attempt),
                ..named
            };
            of_job(about, what, content)
        }
        Event::Schedule { at, id, name, what } => {
            let about = Shown {
                at: Some(*at),
                schedule_id: Some(*id),
                schedule: Some(name.clone()),
                ..named
            };
            of_schedule(about, what)
        }
    }
}

/// The word of an event as clients see it.
pub(crate) fn name_of(event: &Event) -> EventName {
    let name = event.name().parse();
    name.expect("clients know every event of the engine")
}

fn millis(duration: Duration) -> Option<u64> {
    u64::try_from(duration.as_millis()).ok()
}

fn of_job(about: Shown, what: &JobEvent, content: Content) -> Shown {
    match what {
        JobEvent::Claimed { waited, .. } => Shown {
            waited_ms: millis(*waited),
            ..about
        },
        JobEvent::Succeeded { ran } | JobEvent::TimedOut { ran } => Shown {
            ran_ms: millis(*ran),
            ..about
        },
        JobEvent::Failed { ran, error } => {
            let error = error.as_ref().filter(|_| content == Content::Shown);
            Shown {
                ran_ms: millis(*ran),
                error: error.map(AttemptError::to_string),
                ..about
            }
        }
        JobEvent::Retried {
            run_at,
            delay,
            failures,
        } => Shown {
            run_at: Some(*run_at),
            delay_ms: millis(*delay),
            failures: Some(*failures),
            ..about
        },
        JobEvent::Snoozed { until } => Shown {
            run_at: Some(*until),
            ..about
        },
        JobEvent::Dead { reason, failures } => Shown {
            dead_reason: Some(reason.name().to_owned()),
            failures: Some(*failures),
            ..about
        },
        JobEvent::Enqueued
        | JobEvent::Started
        | JobEvent::Lost
        | JobEvent::Released
        | JobEvent::Cancelled
        | JobEvent::Revived => about,
    }
}

fn of_schedule(about: Shown, what: &ScheduleEvent) -> Shown {
    match what {
        ScheduleEvent::Fired {
            scheduled_for,
            job,
            lag,
        } => Shown {
            scheduled_for: Some(*scheduled_for),
            job_id: Some(*job),
            lag_ms: millis(*lag),
            ..about
        },
        ScheduleEvent::Skipped(range) => Shown {
            first: Some(range.first),
            last: Some(range.last),
            count: range.count.and_then(|count| u64::try_from(count).ok()),
            reason: Some(range.reason.name().to_owned()),
            ..about
        },
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
