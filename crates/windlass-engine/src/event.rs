//! One stream of what happens to jobs and schedules: logs, metrics, dashboards and tests all read it.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use tokio::sync::broadcast;
use windlass_core::schedule::SkippedRange;
use windlass_core::{
    AttemptError, DeadReason, Job, JobId, Kind, Lane, QueueName, ScheduleId, ScheduleName,
    Timestamp,
};

use crate::recorder::Recorder;

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// To a job.
    Job {
        /// When.
        at: Timestamp,
        /// To which job.
        job: JobRef,
        /// What.
        what: JobEvent,
    },
    /// To a schedule.
    Schedule {
        /// When.
        at: Timestamp,
        /// The schedule.
        id: ScheduleId,
        /// Its name.
        name: ScheduleName,
        /// What.
        what: ScheduleEvent,
    },
}

/// Which job an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRef {
    /// The job.
    pub id: JobId,
    /// Its kind.
    pub kind: Kind,
    /// Its queue.
    pub queue: QueueName,
    /// Its claims so far.
    pub attempt: u32,
    /// When it was enqueued.
    pub created_at: Timestamp,
}

impl JobRef {
    /// What names a job.
    pub fn of(job: &Job) -> Self {
        JobRef {
            id: job.id,
            kind: job.kind.clone(),
            queue: job.queue.clone(),
            attempt: job.attempt,
            created_at: job.created_at,
        }
    }
}

/// What happened to a job.
#[derive(Debug, Clone, PartialEq)]
pub enum JobEvent {
    /// It was stored.
    Enqueued,
    /// A worker has it.
    Claimed {
        /// How long it was due before.
        waited: Duration,
        /// Whether it is a retry.
        lane: Lane,
    },
    /// Its handler runs.
    Started,
    /// Its attempt succeeded.
    Succeeded {
        /// How long the attempt took.
        ran: Duration,
    },
    /// Its attempt failed.
    Failed {
        /// How long the attempt took.
        ran: Duration,
        /// Why.
        error: Option<AttemptError>,
    },
    /// Its attempt took too long.
    TimedOut {
        /// How long the attempt took.
        ran: Duration,
    },
    /// Its worker died or hung.
    Lost,
    /// It failed and will run again.
    Retried {
        /// From when on.
        run_at: Timestamp,
        /// After how long.
        delay: Duration,
        /// How many attempts failed so far.
        failures: u32,
    },
    /// Its handler asked to run again later.
    Snoozed {
        /// From when on.
        until: Timestamp,
    },
    /// Its worker gave it back.
    Released,
    /// It was called off.
    Cancelled,
    /// It waits for a person.
    Dead {
        /// Why.
        reason: DeadReason,
        /// How many attempts failed.
        failures: u32,
    },
    /// A person runs it again.
    Revived,
}

/// What happened to a schedule.
#[derive(Debug, Clone, PartialEq)]
pub enum ScheduleEvent {
    /// An occurrence became a job.
    Fired {
        /// Its nominal instant.
        scheduled_for: Timestamp,
        /// The job.
        job: JobId,
        /// How late it was.
        lag: Duration,
    },
    /// Occurrences will not fire.
    Skipped(SkippedRange),
}

impl Event {
    /// The word of the event.
    pub fn name(&self) -> &'static str {
        match self {
            Event::Job { what, .. } => what.name(),
            Event::Schedule { what, .. } => match what {
                ScheduleEvent::Fired { .. } => "fired",
                ScheduleEvent::Skipped(_) => "skipped",
            },
        }
    }

    /// The job it is about.
    pub fn job(&self) -> Option<JobId> {
        match self {
            Event::Job { job, .. } => Some(job.id),
            Event::Schedule {
                what: ScheduleEvent::Fired { job, .. },
                ..
            } => Some(*job),
            Event::Schedule { .. } => None,
        }
    }
}

impl JobEvent {
    /// The word of the event.
    pub const fn name(&self) -> &'static str {
        match self {
            JobEvent::Enqueued => "enqueued",
            JobEvent::Claimed { .. } => "claimed",
            JobEvent::Started => "started",
            JobEvent::Succeeded { .. } => "succeeded",
            JobEvent::Failed { .. } => "failed",
            JobEvent::TimedOut { .. } => "timed_out",
            JobEvent::Lost => "lost",
            JobEvent::Retried { .. } => "retried",
            JobEvent::Snoozed { .. } => "snoozed",
            JobEvent::Released => "released",
            JobEvent::Cancelled => "cancelled",
            JobEvent::Dead { .. } => "dead",
            JobEvent::Revived => "revived",
        }
    }
}

/// Sees every event, none is lost. Called where the thing happens, so it must be quick, must not block and must not panic.
pub trait Observer: Send + Sync + fmt::Debug {
    /// Something happened.
    fn event(&self, event: &Arc<Event>);
}

/// Where events come from.
pub(crate) struct Events {
    sender: broadcast::Sender<Arc<Event>>,
    recorder: Option<Arc<dyn Recorder>>,
    observers: RwLock<Vec<Weak<dyn Observer>>>,
}

impl Events {
    pub(crate) fn new(capacity: usize, recorder: Option<Arc<dyn Recorder>>) -> Self {
        Events {
            sender: broadcast::Sender::new(capacity.max(1)),
            recorder,
            observers: RwLock::default(),
        }
    }

    /// Tells everybody; an event that nobody listens to is not even made.
    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        if !self.is_heard() {
            return;
        }
        let event = Arc::new(event());
        if let Some(recorder) = &self.recorder {
            recorder.event(&event);
        }
        let observers = self
            .observers
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        for observer in observers.iter().filter_map(Weak::upgrade) {
            observer.event(&event);
        }
        drop(observers);
        if self.sender.receiver_count() > 0 {
            let _ = self.sender.send(event); // the last one may just have left
        }
    }

    pub(crate) fn observe(&self, observer: Weak<dyn Observer>) {
        let mut observers = self
            .observers
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        observers.retain(|known| known.strong_count() > 0);
        observers.push(observer);
    }

    pub(crate) fn subscribe(&self) -> Subscription {
        Subscription(self.sender.subscribe())
    }

    /// Whether anybody would hear an event.
    pub(crate) fn is_heard(&self) -> bool {
        let observers = || {
            self.observers
                .read()
                .unwrap_or_else(PoisonError::into_inner)
        };
        self.recorder.is_some() || self.sender.receiver_count() > 0 || !observers().is_empty()
    }

    pub(crate) fn recorder(&self) -> Option<&Arc<dyn Recorder>> {
        self.recorder.as_ref()
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Events({} listen)", self.sender.receiver_count())
    }
}

/// A reader of the stream. It holds a bounded number of events; a reader that is slower than that is told how many it missed.
#[derive(Debug)]
pub struct Subscription(broadcast::Receiver<Arc<Event>>);

/// What a reader of the stream gets.
#[derive(Debug, Clone, PartialEq)]
pub enum Heard {
    /// The next event.
    Event(Arc<Event>),
    /// The reader was too slow: so many events are gone.
    Missed(u64),
}

impl Subscription {
    /// The next event; none when the engine is gone.
    pub async fn next(&mut self) -> Option<Heard> {
        match self.0.recv().await {
            Ok(event) => Some(Heard::Event(event)),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(Heard::Missed(missed)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }

    /// The next event, if there is one already.
    pub fn try_next(&mut self) -> Option<Heard> {
        match self.0.try_recv() {
            Ok(event) => Some(Heard::Event(event)),
            Err(broadcast::error::TryRecvError::Lagged(missed)) => Some(Heard::Missed(missed)),
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u128) -> Event {
        Event::Job {
            at: Timestamp::UNIX_EPOCH,
            job: JobRef {
                id: JobId::from_u128(number),
                kind: Kind::new("a").unwrap(),
                queue: QueueName::default(),
                attempt: 0,
                created_at: Timestamp::UNIX_EPOCH,
            },
            what: JobEvent::Enqueued,
        }
    }

    #[tokio::test]
    async fn a_slow_reader_is_told_how_much_it_missed() {
        let events = Events::new(4, None);
        let mut reader = events.subscribe();
        for number in 0..10 {
            events.emit(|| event(number));
        }
        assert_eq!(reader.next().await, Some(Heard::Missed(6)));
        let rest: Vec<_> = std::iter::from_fn(|| reader.try_next()).collect();
        assert_eq!(rest.len(), 4);
        assert_eq!(rest[0], Heard::Event(Arc::new(event(6))));
        drop(events);
        assert_eq!(reader.next().await, None);
    }

    #[derive(Debug, Default)]
    struct Count(std::sync::atomic::AtomicUsize);

    impl Observer for Count {
        fn event(&self, _: &Arc<Event>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    #[test]
    fn an_observer_sees_every_event_until_it_is_dropped() {
        let events = Events::new(4, None);
        let count = Arc::new(Count::default());
        events.observe(Arc::downgrade(&(Arc::clone(&count) as Arc<dyn Observer>)));
        for number in 0..10_000 {
            events.emit(|| event(number));
        }
        assert_eq!(count.0.load(std::sync::atomic::Ordering::Relaxed), 10_000);
        drop(count);
        events.emit(|| event(1));
    }

    #[test]
    fn an_event_that_nobody_hears_is_not_made() {
        let events = Events::new(4, None);
        events.emit(|| panic!("nobody listens"));
    }
}
