//! The stream of events. The server numbers events and keeps the most recent ones, so that a reader
//! can resume after a lost connection.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;
use windlass_api::{Content, Event as Shown, EventName};
use windlass_core::AttemptError;
use windlass_engine::{ActionEvent, Engine, Event, JobEvent, Observer, ScheduleEvent};

use crate::poison::lock;
use crate::rates::Rates;

/// The number of recent events that readers can resume from.
const EVENTS_MAX: usize = 10_000;

/// The position of an event: the run of the server, and the number of the event in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventId {
    /// A random number that identifies this process.
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

/// The next item of a reader's stream.
#[derive(Debug, Clone)]
pub(crate) enum Next {
    /// An event.
    Event(EventId, Arc<Event>),
    /// The reader missed events that are no longer kept. It continues after `last`.
    Missed {
        /// The last missed event.
        last: EventId,
        /// The number of missed events; unknown if the server restarted.
        count: Option<u64>,
    },
}

/// The recent events, and a signal for new ones. It observes the engine directly, so it misses no
/// event.
#[derive(Debug)]
pub(crate) struct Feed {
    run: u64,
    recent: Mutex<RecentEvents>,
    newest: watch::Sender<u64>,
    rates: Arc<Rates>,
}

#[derive(Debug, Default)]
struct RecentEvents {
    events: VecDeque<Arc<Event>>,
    /// The number of the newest event.
    newest: u64,
}

impl Feed {
    /// Starts to observe an engine. Ends when the feed is dropped.
    pub(crate) fn start(engine: &Arc<Engine>, rates: Arc<Rates>) -> Arc<Self> {
        let feed = Arc::new(Feed {
            run: engine.ids().bits(),
            recent: Mutex::default(),
            newest: watch::Sender::new(0),
            rates,
        });
        engine.observe(&feed);
        feed
    }

    /// Returns the start position of a reader that wants only future events.
    pub(crate) fn now(&self) -> EventId {
        EventId {
            run: self.run,
            number: self.recent().newest,
        }
    }

    /// Returns the position of a reader that has all events up to `last`. If `last` is from another
    /// run, the reader continues with the oldest event that is kept.
    pub(crate) fn behind(&self, last: EventId) -> EventId {
        let newest = self.recent().newest;
        if last.run == self.run && last.number <= newest {
            return last;
        }
        EventId {
            run: !self.run,
            number: 0,
        }
    }

    /// Waits for the next event after `last`.
    pub(crate) async fn next(&self, last: EventId) -> Next {
        let mut newest = self.newest.subscribe();
        loop {
            newest.mark_unchanged();
            if let Some(next) = self.try_next(last) {
                return next;
            }
            // Cannot fail: `self` owns the sender.
            let _ = newest.changed().await;
        }
    }

    fn try_next(&self, last: EventId) -> Option<Next> {
        let recent = self.recent();
        let first = recent.newest - u64::try_from(recent.events.len()).unwrap_or(u64::MAX) + 1;
        let id = |number| EventId {
            run: self.run,
            number,
        };
        if last.run != self.run || last.number + 1 < first {
            let count = (last.run == self.run).then(|| first - 1 - last.number);
            let last = id(first - 1);
            return Some(Next::Missed { last, count });
        }
        let index = usize::try_from(last.number + 1 - first).ok()?;
        let event = recent.events.get(index)?;
        Some(Next::Event(id(last.number + 1), Arc::clone(event)))
    }

    fn recent(&self) -> MutexGuard<'_, RecentEvents> {
        lock(&self.recent)
    }
}

impl Observer for Feed {
    fn event(&self, event: &Arc<Event>) {
        self.rates.count(event);
        let mut recent = self.recent();
        if recent.events.len() == EVENTS_MAX {
            recent.events.pop_front();
        }
        recent.events.push_back(Arc::clone(event));
        recent.newest += 1;
        // Sent under the lock, so that the number never goes back to an older event.
        self.newest.send_replace(recent.newest);
    }
}

/// Returns an event as clients see it. The error is hidden from callers who may not read payloads.
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
        Event::Action { at, id, what, .. } => Shown {
            at: Some(*at),
            action_id: Some(*id),
            reason: match what {
                ActionEvent::Stopped { reason } => Some(reason.name().to_owned()),
                ActionEvent::Finished => None,
            },
            ..named
        },
    }
}

/// Returns the name of an event in the API.
pub(crate) fn name_of(event: &Event) -> EventName {
    let name = event.name().parse();
    name.expect("the API has a name for every event of the engine")
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
        JobEvent::FailureGroupCreated { fingerprint } => Shown {
            fingerprint: Some(*fingerprint),
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
