//! One stream of events about jobs and schedules. Metrics, dashboards and tests all read it.

use std::fmt;
use std::sync::{Arc, RwLock, Weak};
use std::time::Duration;

use tokio::sync::broadcast;
use windlass_core::schedule::SkippedRange;
use windlass_core::{
    ActionId, AttemptError, DeadReason, Fingerprint, Job, JobId, Kind, Lane, QueueName, ScheduleId,
    ScheduleName, StopReason, Timestamp,
};

use crate::poison::{read, write};
use crate::recorder::Recorder;

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Something happened to a job.
    Job {
        /// When it happened.
        at: Timestamp,
        /// The job.
        job: JobRef,
        /// What happened.
        what: JobEvent,
    },
    /// Something happened to a schedule.
    Schedule {
        /// When it happened.
        at: Timestamp,
        /// The schedule.
        id: ScheduleId,
        /// Its name.
        name: ScheduleName,
        /// What happened.
        what: ScheduleEvent,
    },
    /// Something happened to a bulk action or a replay.
    Action {
        /// When it happened.
        at: Timestamp,
        /// The action.
        id: ActionId,
        /// Whether it is a replay.
        is_replay: bool,
        /// What happened.
        what: ActionEvent,
    },
}

/// The job that an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRef {
    /// The job.
    pub id: JobId,
    /// Its kind.
    pub kind: Kind,
    /// Its queue.
    pub queue: QueueName,
    /// The number of its claims so far.
    pub attempt: u32,
    /// When it was enqueued.
    pub created_at: Timestamp,
}

impl JobRef {
    /// The reference to a job.
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
    /// The job was stored.
    Enqueued,
    /// A worker claimed the job.
    Claimed {
        /// How long the job was due before.
        waited: Duration,
        /// Whether the attempt is a retry.
        lane: Lane,
    },
    /// The handler started.
    Started,
    /// The attempt succeeded.
    Succeeded {
        /// How long the attempt ran.
        ran: Duration,
    },
    /// The attempt failed.
    Failed {
        /// How long the attempt ran.
        ran: Duration,
        /// The error.
        error: Option<AttemptError>,
    },
    /// The attempt timed out.
    TimedOut {
        /// How long the attempt ran.
        ran: Duration,
    },
    /// The worker died or hung, and the lease expired.
    Lost,
    /// The attempt failed, and the job will run again.
    Retried {
        /// When the job is due again.
        run_at: Timestamp,
        /// The delay until then.
        delay: Duration,
        /// The number of failed attempts so far.
        failures: u32,
    },
    /// The handler asked to run again later.
    Snoozed {
        /// When the job is due again.
        until: Timestamp,
    },
    /// The worker gave the job back.
    Released,
    /// The job was cancelled.
    Cancelled,
    /// The job is dead and waits for a person.
    Dead {
        /// The reason.
        reason: DeadReason,
        /// The number of failed attempts.
        failures: u32,
    },
    /// A person revived the job.
    Revived,
    /// The job failed or died of a cause that its queue and kind did not have in the last 24 hours.
    FailureGroupCreated {
        /// The cause.
        fingerprint: Fingerprint,
    },
}

/// What happened to a bulk action or a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActionEvent {
    /// It changed all jobs that it could.
    Finished,
    /// The replay stopped itself.
    Stopped {
        /// Why.
        reason: StopReason,
    },
}

/// What happened to a schedule.
#[derive(Debug, Clone, PartialEq)]
pub enum ScheduleEvent {
    /// An occurrence became a job.
    Fired {
        /// The nominal time of the occurrence.
        scheduled_for: Timestamp,
        /// The job that it became.
        job: JobId,
        /// How late it fired.
        lag: Duration,
    },
    /// Occurrences were skipped and will not fire.
    Skipped(SkippedRange),
}

impl Event {
    /// The name of the event.
    pub fn name(&self) -> &'static str {
        match self {
            Event::Job { what, .. } => what.name(),
            Event::Schedule { what, .. } => match what {
                ScheduleEvent::Fired { .. } => "fired",
                ScheduleEvent::Skipped(_) => "skipped",
            },
            Event::Action {
                is_replay, what, ..
            } => match (what, is_replay) {
                (ActionEvent::Finished, true) => "replay_finished",
                (ActionEvent::Finished, false) => "bulk_action_finished",
                (ActionEvent::Stopped { .. }, _) => "replay_stopped",
            },
        }
    }

    /// The job that the event is about.
    pub fn job(&self) -> Option<JobId> {
        match self {
            Event::Job { job, .. } => Some(job.id),
            Event::Schedule {
                what: ScheduleEvent::Fired { job, .. },
                ..
            } => Some(*job),
            Event::Schedule { .. } | Event::Action { .. } => None,
        }
    }
}

impl JobEvent {
    /// The name of the event.
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
            JobEvent::FailureGroupCreated { .. } => "failure_group_created",
        }
    }
}

/// Sees every event without loss. Called where the event happens, so it must be fast, must not
/// block and must not panic.
pub trait Observer: Send + Sync + fmt::Debug {
    /// Called for every event.
    fn event(&self, event: &Arc<Event>);
}

/// The sender of events.
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

    /// Sends an event to the recorder, the observers and the subscribers. The closure runs only if
    /// there is one of them.
    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        if !self.is_heard() {
            return;
        }
        let event = Arc::new(event());
        if let Some(recorder) = &self.recorder {
            recorder.event(&event);
        }
        let observers = read(&self.observers);
        for observer in observers.iter().filter_map(Weak::upgrade) {
            observer.event(&event);
        }
        drop(observers);
        if self.sender.receiver_count() > 0 {
            let _ = self.sender.send(event); // the last subscriber may just have left
        }
    }

    pub(crate) fn observe(&self, observer: Weak<dyn Observer>) {
        let mut observers = write(&self.observers);
        observers.retain(|known| known.strong_count() > 0);
        observers.push(observer);
    }

    pub(crate) fn subscribe(&self) -> Subscription {
        Subscription(self.sender.subscribe())
    }

    /// Whether anyone would receive an event.
    pub(crate) fn is_heard(&self) -> bool {
        let observers = || read(&self.observers);
        self.recorder.is_some() || self.sender.receiver_count() > 0 || !observers().is_empty()
    }

    pub(crate) fn recorder(&self) -> Option<&Arc<dyn Recorder>> {
        self.recorder.as_ref()
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Events({} subscribers)", self.sender.receiver_count())
    }
}

/// A subscription to the stream. It buffers a bounded number of events; a slow reader learns how
/// many it missed.
#[derive(Debug)]
pub struct Subscription(broadcast::Receiver<Arc<Event>>);

/// What a subscription yields.
#[derive(Debug, Clone, PartialEq)]
pub enum Received {
    /// The next event.
    Event(Arc<Event>),
    /// The reader was too slow and missed this many events.
    Missed(u64),
}

impl Subscription {
    /// Waits for the next event. Returns `None` once the engine is dropped.
    pub async fn next(&mut self) -> Option<Received> {
        match self.0.recv().await {
            Ok(event) => Some(Received::Event(event)),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(Received::Missed(missed)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }

    /// Returns the next event, if one has already arrived.
    pub fn try_next(&mut self) -> Option<Received> {
        match self.0.try_recv() {
            Ok(event) => Some(Received::Event(event)),
            Err(broadcast::error::TryRecvError::Lagged(missed)) => Some(Received::Missed(missed)),
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
    async fn a_slow_reader_learns_how_much_it_missed() {
        let events = Events::new(4, None);
        let mut reader = events.subscribe();
        for number in 0..10 {
            events.emit(|| event(number));
        }
        assert_eq!(reader.next().await, Some(Received::Missed(6)));
        let rest: Vec<_> = std::iter::from_fn(|| reader.try_next()).collect();
        assert_eq!(rest.len(), 4);
        assert_eq!(rest[0], Received::Event(Arc::new(event(6))));
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
    fn an_event_without_listeners_is_not_created() {
        let events = Events::new(4, None);
        events.emit(|| panic!("no one listens"));
    }
}
