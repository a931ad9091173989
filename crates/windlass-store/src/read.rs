//! Reading: jobs, lists, counts. Nothing here changes anything.

use windlass_core::{
    DeadReason, Job, JobId, Key, Kind, QueueName, ScheduleId, State, Tag, Timestamp,
};

/// The most rows one page has.
pub const PAGE_MAX: usize = 1000;

/// A state as users name it: a waiting job is scheduled or ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListedState {
    /// Waiting, its `run_at` lies ahead.
    Scheduled,
    /// Waiting, its `run_at` has come.
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
    /// All of them.
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

/// Which jobs; what is not given is not asked. Everything that is given must hold.
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
    /// Enqueued at or after.
    pub created_from: Option<Timestamp>,
    /// Enqueued before.
    pub created_before: Option<Timestamp>,
    /// Finished before.
    pub finished_before: Option<Timestamp>,
}

impl Filter {
    /// Jobs in that state.
    pub fn state(state: ListedState) -> Self {
        Filter {
            state: Some(state),
            ..Filter::default()
        }
    }

    /// Whether it asks for a queue and a state at most, so that [`Counts`] answer how many match.
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

    /// Whether a job is one of those, at `now`.
    pub fn matches(&self, job: &Job, now: Timestamp) -> bool {
        fn fits<T: PartialEq>(asked: &Option<T>, found: Option<&T>) -> bool {
            asked.as_ref().is_none_or(|asked| Some(asked) == found)
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
                job.occurrence.as_ref().map(|of| &of.schedule_id),
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

/// Which part of a list: newest first, from behind the cursor on.
#[derive(Debug, Clone, Copy)]
pub struct Page {
    /// [`Listed::next`] of the page before.
    pub after: Option<JobId>,
    /// How many jobs, at most [`PAGE_MAX`].
    pub limit: usize,
}

impl Page {
    /// The first page.
    pub fn first(limit: usize) -> Self {
        Page { after: None, limit }
    }
}

/// The most jobs that one list looks at.
pub const SCAN_MAX: usize = 10_000;

/// A page of a list. Where few of many jobs match, it may be short, or empty, and still not the last.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Listed {
    /// The jobs, newest first.
    pub jobs: Vec<Job>,
    /// The cursor of the next page; none at the end of the list.
    pub next: Option<JobId>,
}

/// Fills a page from jobs that are looked at one by one, in bounded steps: every driver ends its pages alike.
#[derive(Debug)]
pub struct Lister {
    limit: usize,
    looked_at: usize,
    last: Option<JobId>,
    jobs: Vec<Job>,
}

impl Lister {
    /// An empty page.
    pub fn new(page: Page) -> Self {
        Lister {
            limit: page.limit.min(PAGE_MAX),
            looked_at: 0,
            last: page.after,
            jobs: Vec::new(),
        }
    }

    /// Whether the page can take no more.
    pub fn is_full(&self) -> bool {
        self.jobs.len() >= self.limit || self.looked_at >= SCAN_MAX
    }

    /// Looks at the next job, which may not be one of those that are asked for.
    pub fn look(&mut self, id: JobId, job: Option<Job>) {
        self.looked_at += 1;
        self.last = Some(id);
        self.jobs.extend(job);
    }

    /// The page. It has a next one if it was full before the list ended.
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
    /// Waiting, `run_at` ahead.
    pub scheduled: u64,
    /// Waiting, due.
    pub ready: u64,
    /// Of those waiting, how many have failed before.
    pub retrying: u64,
    /// Running.
    pub running: u64,
    /// Succeeded and not yet removed.
    pub succeeded: u64,
    /// Dead and not yet removed.
    pub dead: u64,
    /// Cancelled and not yet removed.
    pub cancelled: u64,
    /// The `run_at` of the job that is ready for longest.
    pub oldest_ready: Option<Timestamp>,
    /// When a further one may start, where the rate of the queue is used up.
    pub rate_until: Option<Timestamp>,
}

impl Counts {
    /// How many are in a state; in any state, if none is given.
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
