//! Lines of claims that wait: one of them looks for all that want the same.
//!
//! Claims that would find the same jobs stand in one line, first come, first served. Only the head of a line watches for hints: a
//! change of the store, a due time, the next start that a rate allows, and a poll that finds what no one announced. When one
//! comes, the head claims. A claim that got jobs leaves the line, and those behind it look in its stead, more of them the
//! longer there are jobs, until one finds nothing. So a new job costs a handful of claims however many wait, and none of
//! them is started by a timer of its own.
//!
//! Invariant: a hint that came after the last look that found nothing began leads to another look.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use windlass_core::{JobId, Kind, QueueName, Timestamp};

use crate::engine::Engine;

/// A line looks this often even if nothing hints at a job, give or take a fifth.
const POLL_EVERY: Duration = Duration::from_secs(5);
/// This many claims of a line look at once at most.
const LOOKERS_MAX: usize = 8;
/// Between looks that find nothing a line rests this long at least while the store keeps changing.
const REST_MIN: Duration = Duration::from_millis(5);
/// And this long at most.
const REST_MAX: Duration = Duration::from_millis(200);
/// After this long without a look, the next hint is followed at once.
const QUIET: Duration = Duration::from_millis(500);
/// A rate is not followed in finer steps than this.
const RATE_STEP_MIN: Duration = Duration::from_millis(10);

/// What a claim looks for. Where one claim finds nothing, another with the same interest finds nothing either.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Interest {
    pub(super) queues: BTreeSet<QueueName>,
    pub(super) kinds: Option<BTreeSet<Kind>>,
    pub(super) ids: Option<BTreeSet<JobId>>,
    /// Slots and running retries decide how many retries a claim may get.
    pub(super) slots: Option<u32>,
    pub(super) retries_running: u32,
}

/// All lines of a process. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Lines(Arc<Mutex<BTreeMap<Arc<Interest>, Line>>>);

/// Claims with one interest.
#[derive(Debug)]
struct Line {
    /// In the order in which they came: their numbers go up.
    waiting: VecDeque<(u64, Arc<Notify>)>,
    next_number: u64,
    /// There may be jobs: the first claims look.
    stale: bool,
    /// How many look at once.
    lookers: usize,
    /// How many looks found jobs.
    finds: u64,
    watch: Watch,
}

/// What the head of a line waits for.
#[derive(Debug, Clone, Copy)]
struct Watch {
    /// The store's number of changes before the last look.
    seen: u64,
    looked_at: Timestamp,
    /// No look begins earlier after the last one.
    rest: Duration,
    poll_at: Timestamp,
    /// When a rate allows the next start, if one of the queues has a rate.
    rate_at: Option<Timestamp>,
    /// How many looks in a row were made because of a rate and found nothing.
    rate_looks: u32,
}

/// What a claim in a line does now.
enum Role {
    Look,
    Watch(Watch),
    Behind,
}

/// A look that has begun.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    seen: u64,
    begun_at: Timestamp,
    finds: u64,
}

impl Lines {
    /// Puts a claim at the end of its line.
    pub(super) fn join(&self, interest: Interest) -> Position {
        let mut lines = self.lines();
        let interest = match lines.get_key_value(&interest) {
            Some((known, _)) => Arc::clone(known),
            None => Arc::new(interest),
        };
        let line = lines.entry(Arc::clone(&interest)).or_insert_with(Line::new);
        let (number, bell) = (line.next_number, Arc::new(Notify::new()));
        line.next_number += 1;
        line.waiting.push_back((number, Arc::clone(&bell)));
        Position {
            lines: self.clone(),
            interest,
            number,
            bell,
        }
    }

    fn lines(&self) -> MutexGuard<'_, BTreeMap<Arc<Interest>, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many claims wait in all lines.
    pub(super) fn waiting(&self) -> usize {
        self.lines().values().map(|line| line.waiting.len()).sum()
    }
}

impl Line {
    fn new() -> Self {
        Line {
            waiting: VecDeque::new(),
            next_number: 0,
            stale: true,
            lookers: 1,
            finds: 0,
            watch: Watch {
                seen: 0,
                looked_at: Timestamp::MIN,
                rest: Duration::ZERO,
                poll_at: Timestamp::MIN,
                rate_at: None,
                rate_looks: 0,
            },
        }
    }

    fn role(&self, number: u64) -> Role {
        let ahead = self.waiting.partition_point(|(known, _)| *known < number);
        match ahead {
            ahead if self.stale && ahead < self.lookers => Role::Look,
            0 => Role::Watch(self.watch),
            _ => Role::Behind,
        }
    }

    fn wake_first(&self) {
        let first = self.waiting.iter().take(self.lookers);
        first.for_each(|(_, bell)| bell.notify_one());
    }

    /// A look found jobs: there may be more.
    fn found(&mut self) {
        self.finds += 1;
        self.stale = true;
        self.lookers = (self.lookers * 2).min(LOOKERS_MAX);
        self.watch.rest = Duration::ZERO;
        self.watch.rate_looks = 0;
        self.wake_first();
    }

    /// A look found nothing: the head watches for hints, unless another look found jobs meanwhile.
    fn found_nothing(&mut self, look: Look, rate_step: Option<Duration>, random: u64) {
        self.lookers = 1;
        self.stale = self.finds != look.finds;
        let watch = &mut self.watch;
        let by_rate = watch.rate_at.is_some_and(|at| at <= look.begun_at);
        watch.rate_looks = watch.rate_looks.saturating_add(u32::from(by_rate)).min(20);
        watch.rest = match look.begun_at.since(watch.looked_at) >= QUIET {
            true => REST_MIN,
            false => (watch.rest * 2).clamp(REST_MIN, REST_MAX),
        };
        watch.seen = look.seen;
        watch.looked_at = look.begun_at;
        watch.poll_at = look.begun_at.saturating_add(jittered(POLL_EVERY, random));
        // A queue whose rate is used up has its next start a step later; one without jobs is looked at less and less often.
        let rate_wait = rate_step.map(|step| step.max(RATE_STEP_MIN) * (1 << watch.rate_looks));
        watch.rate_at = rate_wait.map(|wait| look.begun_at.saturating_add(wait));
        self.wake_first();
    }
}

impl Watch {
    /// Ends when there may be a job, and the line has rested.
    async fn hint(&self, engine: &Engine) {
        let mut changes = engine.store().changes();
        loop {
            let due_changed = engine.due_changed();
            let times = [self.rate_at, engine.next_due(self.looked_at)];
            let at = times
                .into_iter()
                .flatten()
                .fold(self.poll_at, Timestamp::min);
            tokio::select! {
                _ = changes.wait_for(|number| *number != self.seen) => break,
                () = engine.clock().sleep_until(at) => break,
                () = due_changed => {}
            }
        }
        let rested_at = self.looked_at.saturating_add(self.rest);
        engine.clock().sleep_until(rested_at).await;
    }
}

/// Spreads the polls of many lines and processes.
fn jittered(every: Duration, random: u64) -> Duration {
    let part = (random >> 40) as f64 / (1_u64 << 24) as f64;
    every.mul_f64(0.8 + 0.4 * part)
}

/// A claim's position in its line; dropping it leaves the line.
#[derive(Debug)]
pub(super) struct Position {
    lines: Lines,
    interest: Arc<Interest>,
    number: u64,
    bell: Arc<Notify>,
}

impl Position {
    /// Whether this claim looks now.
    pub(super) fn looks_now(&self) -> bool {
        matches!(self.role(), Role::Look)
    }

    /// Ends when this claim is to look. Until then the head of the line watches for hints.
    pub(super) async fn turn(&self, engine: &Engine) {
        loop {
            match self.role() {
                Role::Look => return,
                Role::Behind => self.bell.notified().await,
                Role::Watch(watch) => tokio::select! {
                    () = self.bell.notified() => {}
                    () = watch.hint(engine) => self.with_line(|line| line.stale = true),
                },
            }
        }
    }

    /// Begins a look: what happens from now on is not covered by it.
    pub(super) fn begin(&self, engine: &Engine) -> Look {
        let seen = *engine.store().changes().borrow();
        let mut finds = 0;
        self.with_line(|line| finds = line.finds);
        Look {
            seen,
            begun_at: engine.now(),
            finds,
        }
    }

    /// The look found jobs.
    pub(super) fn found(&self) {
        self.with_line(Line::found);
    }

    /// The look found nothing. `rate_step` is the shortest time after which a rate of one of the queues allows another start.
    pub(super) fn found_nothing(&self, look: Look, rate_step: Option<Duration>, random: u64) {
        self.with_line(|line| line.found_nothing(look, rate_step, random));
    }

    fn role(&self) -> Role {
        let mut role = Role::Behind;
        self.with_line(|line| role = line.role(self.number));
        role
    }

    fn with_line(&self, change: impl FnOnce(&mut Line)) {
        let mut lines = self.lines.lines();
        if let Some(line) = lines.get_mut(&self.interest) {
            change(line);
        }
    }
}

impl Drop for Position {
    fn drop(&mut self) {
        let mut lines = self.lines.lines();
        let Some(line) = lines.get_mut(&self.interest) else {
            return;
        };
        line.waiting.retain(|(number, _)| *number != self.number);
        match line.waiting.is_empty() {
            true => drop(lines.remove(&self.interest)),
            false => line.wake_first(),
        }
    }
}
