//! Types of the verbs that read jobs: filters, pages, counts.

use windlass_core::{
    DeadReason, Job, JobId, Key, Kind, QueueName, ScheduleId, State, Tag, Timestamp,
};

/// The most rows of one page.
pub const PAGE_MAX: usize = 1000;

/// The state of a job as users see it: a waiting job is scheduled or ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListedState {
    /// Waiting; its `run_at` is in the future.
    Scheduled,
    /// Waiting; its `run_at` has come.
    Ready,
    /// Running.
    Running,
    /// Succeeded.
    Succeeded,
    /// Dead.
    Dead,
    /// Cancelled.
    Cancelled,
}

impl ListedState {
    /// All states.
    pub const ALL: [ListedState; 6] = [
        ListedState::Scheduled,
        ListedState::Ready,
        ListedState::Running,
        ListedState::Succeeded,
        ListedState::Dead,
        ListedState::Cancelled,
    ];

    /// The listed state of a job at `now`.
    pub fn of(job: &Job, now: Timestamp) -> Self {
        match job.state() {
            State::Waiting if job.run_at > now => ListedState::Scheduled,
            State::Waiting => ListedState::Ready,
            State::Running => ListedState::Running,
            State::Succeeded => ListedState::Succeeded,
            State::Dead(_) => ListedState::Dead,
            State::Cancelled => ListedState::Cancelled,
        }
    }
}

/// Selects jobs. All given conditions must hold; conditions that are not given always hold.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// In this state.
    pub state: Option<ListedState>,
    /// In this queue.
    pub queue: Option<QueueName>,
    /// Of this kind.
    pub kind: Option<Kind>,
    /// With this tag.
    pub tag: Option<Tag>,
    /// With this unique key.
    pub unique_key: Option<Key>,
    /// Of this schedule.
    pub schedule: Option<ScheduleId>,
    /// Dead for this reason.
    pub reason: Option<DeadReason>,
    /// Enqueued at or after this time.
    pub created_from: Option<Timestamp>,
    /// Enqueued before this time.
    pub created_before: Option<Timestamp>,
    /// Finished before this time.
    pub finished_before: Option<Timestamp>,
}

impl Filter {
    /// Selects the jobs in this state.
    pub fn state(state: ListedState) -> Self {
        Filter {
            state: Some(state),
            ..Filter::default()
        }
    }

    /// Whether the filter has at most a queue and a state, so that [`Counts`] say how many jobs
    /// match.
    pub fn is_counted(&self) -> bool {
        matches!(
            self,
            Filter {
                state: _,
                queue: _,
                kind: None,
                tag: None,
                unique_key: None,
                schedule: None,
                reason: None,
                created_from: None,
                created_before: None,
                finished_before: None,
            }
        )
    }

    /// Whether a job matches at `now`.
    pub fn matches(&self, job: &Job, now: Timestamp) -> bool {
        fn fits<T: PartialEq>(condition: &Option<T>, value: Option<&T>) -> bool {
            condition
                .as_ref()
                .is_none_or(|condition| Some(condition) == value)
        }
        let reason = match job.state() {
            State::Dead(reason) => Some(reason),
            _ => None,
        };
        fits(&self.state, Some(&ListedState::of(job, now)))
            && fits(&self.queue, Some(&job.queue))
            && fits(&self.kind, Some(&job.kind))
            && self.tag.as_ref().is_none_or(|tag| job.tags.contains(tag))
            && fits(
                &self.unique_key,
                job.unique.as_ref().map(|unique| &unique.key),
            )
            && fits(
                &self.schedule,
                job.occurrence
                    .as_ref()
                    .map(|occurrence| &occurrence.schedule_id),
            )
            && fits(&self.reason, reason.as_ref())
            && self.created_from.is_none_or(|from| job.created_at >= from)
            && self
                .created_before
                .is_none_or(|before| job.created_at < before)
            && self
                .finished_before
                .is_none_or(|before| job.finished_at().is_some_and(|finished| finished < before))
    }
}

/// A part of a list, newest first.
#[derive(Debug, Clone, Copy)]
pub struct Page {
    /// [`Listed::next`] of the previous page; `None` for the first page.
    pub after: Option<JobId>,
    /// The most jobs of the page, at most [`PAGE_MAX`].
    pub limit: usize,
}

impl Page {
    /// The first page.
    pub fn first(limit: usize) -> Self {
        Page { after: None, limit }
    }
}

/// The most jobs that one list examines.
pub const SCAN_MAX: usize = 10_000;

/// A page of a list. If few of many jobs match, the page may be short or empty although more pages
/// follow.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Listed {
    /// The jobs, newest first.
    pub jobs: Vec<Job>,
    /// The cursor of the next page; `None` at the end of the list.
    pub next: Option<JobId>,
}

/// Fills a page from jobs that a driver examines one by one. All drivers use it, so that their
/// pages end alike.
#[derive(Debug)]
pub struct Lister {
    limit: usize,
    examined: usize,
    last: Option<JobId>,
    jobs: Vec<Job>,
}

impl Lister {
    /// Starts an empty page.
    pub fn new(page: Page) -> Self {
        Lister {
            limit: page.limit.min(PAGE_MAX),
            examined: 0,
            last: page.after,
            jobs: Vec::new(),
        }
    }

    /// Whether the page is complete: it has `limit` jobs, or [`SCAN_MAX`] jobs were examined.
    pub fn is_full(&self) -> bool {
        self.jobs.len() >= self.limit || self.examined >= SCAN_MAX
    }

    /// Examines the next job; `job` is `None` if it does not match.
    pub fn look(&mut self, id: JobId, job: Option<Job>) {
        self.examined += 1;
        self.last = Some(id);
        self.jobs.extend(job);
    }

    /// Returns the page. It has a cursor if it was complete before the list ended.
    pub fn finish(self) -> Listed {
        let next = self.last.filter(|_| self.is_full() && self.limit > 0);
        Listed {
            jobs: self.jobs,
            next,
        }
    }
}

/// How many jobs of a queue are in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Waiting; `run_at` is in the future.
    pub scheduled: u64,
    /// Waiting; `run_at` has come.
    pub ready: u64,
    /// How many of the waiting jobs have failed before.
    pub retrying: u64,
    /// Running.
    pub running: u64,
    /// Succeeded and not yet removed.
    pub succeeded: u64,
    /// Dead and not yet removed.
    pub dead: u64,
    /// Cancelled and not yet removed.
    pub cancelled: u64,
    /// The `run_at` of the job that has been ready for longest.
    pub oldest_ready: Option<Timestamp>,
    /// When the queue may start the next job, if its rate is used up.
    pub rate_until: Option<Timestamp>,
}

impl Counts {
    /// How many jobs are in a state; in all states together for `None`.
    pub fn of(&self, state: Option<ListedState>) -> u64 {
        match state {
            None => ListedState::ALL
                .iter()
                .map(|state| self.of(Some(*state)))
                .sum(),
            Some(ListedState::Scheduled) => self.scheduled,
            Some(ListedState::Ready) => self.ready,
            Some(ListedState::Running) => self.running,
            Some(ListedState::Succeeded) => self.succeeded,
            Some(ListedState::Dead) => self.dead,
            Some(ListedState::Cancelled) => self.cancelled,
        }
    }
}
