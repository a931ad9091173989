//! Lines of waiting claims (long polls). In each line, one claim probes the store for all others.
//!
//! Thousands of workers may wait for jobs at the same time. If each of them polled, an idle system
//! would be busy; if each of them reacted to every new job, one job would cost thousands of claims.
//! So claims that would find the same jobs form a line, first come, first served:
//!
//! - Only the head of a line watches for hints: the store has changed, a known due time has come, a
//!   rate limit allows another start, or the poll interval has passed.
//! - On a hint, the head probes: it makes a real claim. A claim that gets jobs leaves the line.
//! - After a success, the next claims probe too, twice as many each time (at most 8 at once), until
//!   one finds nothing.
//!
//! So a new job costs a handful of claims, no matter how many workers wait, and no waiting claim
//! needs a timer of its own.
//!
//! Invariant: no hint is lost. A hint that arrives after the start of the last unsuccessful probe
//! leads to another probe, because the watch compares with the store's version from before that
//! probe.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use windlass_core::{JobId, Kind, QueueName, Timestamp};

use crate::engine::Engine;
use crate::poison::lock;

/// How often a line probes without a hint, with 20 % jitter.
const POLL_EVERY: Duration = Duration::from_secs(5);
/// The maximum number of claims of a line that probe at once.
const PROBERS_MAX: usize = 8;
/// The shortest pause between unsuccessful probes while the store keeps changing.
const REST_MIN: Duration = Duration::from_millis(5);
/// The longest such pause.
const REST_MAX: Duration = Duration::from_millis(200);
/// After this long without a probe, the pause starts at [`REST_MIN`] again.
const IDLE_AFTER: Duration = Duration::from_millis(500);
/// The shortest interval at which a rate limit is checked.
const RATE_STEP_MIN: Duration = Duration::from_millis(10);

/// What a claim looks for. Claims with the same interest find the same jobs, or none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Interest {
    pub(super) queues: BTreeSet<QueueName>,
    pub(super) kinds: Option<BTreeSet<Kind>>,
    pub(super) ids: Option<BTreeSet<JobId>>,
    /// Slots and running retries limit how many retries a claim may get.
    pub(super) slots: Option<u32>,
    pub(super) retries_running: u32,
}

/// All lines of a process. Clones share the same lines.
#[derive(Debug, Clone, Default)]
pub(super) struct Lines(Arc<Mutex<BTreeMap<Arc<Interest>, Line>>>);

/// The waiting claims with one interest.
#[derive(Debug)]
struct Line {
    /// In order of arrival, with ascending numbers.
    waiting: VecDeque<(u64, Arc<Notify>)>,
    next_number: u64,
    /// There may be jobs, so the first claims should probe.
    may_have_jobs: bool,
    /// How many claims may probe at once.
    probers: usize,
    /// How many probes have found jobs.
    finds: u64,
    watch: HeadWatch,
}

/// The conditions under which the head of a line probes again.
#[derive(Debug, Clone, Copy)]
struct HeadWatch {
    /// The store's change counter before the last probe.
    store_version: u64,
    probed_at: Timestamp,
    /// The minimum time between the last probe and the next one.
    rest: Duration,
    poll_at: Timestamp,
    /// When a rate limit allows the next start, if a queue of the line has one.
    rate_at: Option<Timestamp>,
    /// The number of unsuccessful probes in a row that a rate limit caused.
    rate_probes: u32,
}

/// What a claim in a line should do now.
enum Role {
    /// Make a claim.
    Probe,
    /// Wait for a hint, as the head of the line.
    Watch(HeadWatch),
    /// Wait behind the head.
    Behind,
}

/// A probe that has started.
#[derive(Debug, Clone, Copy)]
pub(super) struct Probe {
    store_version: u64,
    started_at: Timestamp,
    finds: u64,
}

impl Lines {
    /// Adds a claim at the end of its line.
    pub(super) fn join(&self, interest: Interest) -> Position {
        let mut lines = self.lines();
        let interest = match lines.get_key_value(&interest) {
            Some((known, _)) => Arc::clone(known),
            None => Arc::new(interest),
        };
        let line = lines.entry(Arc::clone(&interest)).or_insert_with(Line::new);
        let (number, wake_up) = (line.next_number, Arc::new(Notify::new()));
        line.next_number += 1;
        line.waiting.push_back((number, Arc::clone(&wake_up)));
        Position {
            lines: self.clone(),
            interest,
            number,
            wake_up,
        }
    }

    fn lines(&self) -> MutexGuard<'_, BTreeMap<Arc<Interest>, Line>> {
        lock(&self.0)
    }

    /// The number of waiting claims in all lines.
    pub(super) fn waiting(&self) -> usize {
        self.lines().values().map(|line| line.waiting.len()).sum()
    }
}

impl Line {
    fn new() -> Self {
        Line {
            waiting: VecDeque::new(),
            next_number: 0,
            may_have_jobs: true,
            probers: 1,
            finds: 0,
            watch: HeadWatch {
                store_version: 0,
                probed_at: Timestamp::MIN,
                rest: Duration::ZERO,
                poll_at: Timestamp::MIN,
                rate_at: None,
                rate_probes: 0,
            },
        }
    }

    fn role(&self, number: u64) -> Role {
        let ahead = self.waiting.partition_point(|(known, _)| *known < number);
        match ahead {
            ahead if self.may_have_jobs && ahead < self.probers => Role::Probe,
            0 => Role::Watch(self.watch),
            _ => Role::Behind,
        }
    }

    fn wake_first(&self) {
        let first = self.waiting.iter().take(self.probers);
        first.for_each(|(_, wake_up)| wake_up.notify_one());
    }

    /// A probe found jobs, so there may be more.
    fn probe_found_jobs(&mut self) {
        self.finds += 1;
        self.may_have_jobs = true;
        self.probers = (self.probers * 2).min(PROBERS_MAX);
        self.watch.rest = Duration::ZERO;
        self.watch.rate_probes = 0;
        self.wake_first();
    }

    /// A probe found nothing: the head watches for hints, unless another probe found jobs
    /// meanwhile.
    fn probe_found_nothing(&mut self, probe: Probe, rate_step: Option<Duration>, random: u64) {
        self.probers = 1;
        self.may_have_jobs = self.finds != probe.finds;
        let watch = &mut self.watch;
        let after_rate_wait = watch.rate_at.is_some_and(|at| at <= probe.started_at);
        watch.rate_probes = watch
            .rate_probes
            .saturating_add(u32::from(after_rate_wait))
            .min(20);
        watch.rest = if probe.started_at.since(watch.probed_at) >= IDLE_AFTER {
            REST_MIN
        } else {
            (watch.rest * 2).clamp(REST_MIN, REST_MAX)
        };
        watch.store_version = probe.store_version;
        watch.probed_at = probe.started_at;
        watch.poll_at = probe
            .started_at
            .saturating_add(jittered(POLL_EVERY, random));
        // A queue that has used up its rate may start a job one step later. The wait doubles with
        // each probe, because the queue may as well have no jobs.
        let rate_wait = rate_step.map(|step| step.max(RATE_STEP_MIN) * (1 << watch.rate_probes));
        watch.rate_at = rate_wait.map(|wait| probe.started_at.saturating_add(wait));
        self.wake_first();
    }
}

impl HeadWatch {
    /// Waits for a hint that there may be a job, and for the minimum pause between probes.
    async fn wait_for_hint(&self, engine: &Engine) {
        let mut changes = engine.store().changes();
        loop {
            let due_changed = engine.due_changed();
            let times = [self.rate_at, engine.next_due(self.probed_at)];
            let at = times
                .into_iter()
                .flatten()
                .fold(self.poll_at, Timestamp::min);
            tokio::select! {
                biased;
                _ = changes.wait_for(|number| *number != self.store_version) => break,
                () = engine.clock().sleep_until(at) => break,
                () = due_changed => {}
            }
        }
        let rested_at = self.probed_at.saturating_add(self.rest);
        engine.clock().sleep_until(rested_at).await;
    }
}

/// Adds jitter, so that many lines and processes do not poll at the same time.
fn jittered(every: Duration, random: u64) -> Duration {
    let part = (random >> 40) as f64 / (1_u64 << 24) as f64;
    every.mul_f64(0.8 + 0.4 * part)
}

/// A claim's position in its line. Dropping it leaves the line.
#[derive(Debug)]
pub(super) struct Position {
    lines: Lines,
    interest: Arc<Interest>,
    number: u64,
    wake_up: Arc<Notify>,
}

impl Position {
    /// Whether this claim should probe now.
    pub(super) fn should_probe(&self) -> bool {
        matches!(self.role(), Role::Probe)
    }

    /// Waits until this claim should probe. The head of the line watches for hints meanwhile.
    pub(super) async fn turn(&self, engine: &Engine) {
        loop {
            match self.role() {
                Role::Probe => return,
                Role::Behind => self.wake_up.notified().await,
                Role::Watch(watch) => tokio::select! {
                    biased;
                    () = self.wake_up.notified() => {}
                    () = watch.wait_for_hint(engine) => self.with_line(|line| line.may_have_jobs = true),
                },
            }
        }
    }

    /// Starts a probe. Hints that arrive from now on lead to another probe.
    pub(super) fn begin_probe(&self, engine: &Engine) -> Probe {
        let store_version = *engine.store().changes().borrow();
        let mut finds = 0;
        self.with_line(|line| finds = line.finds);
        Probe {
            store_version,
            started_at: engine.now(),
            finds,
        }
    }

    /// Reports that the probe found jobs.
    pub(super) fn probe_found_jobs(&self) {
        self.with_line(Line::probe_found_jobs);
    }

    /// Reports that the probe found nothing. `rate_step` is the shortest time after which a rate
    /// limit of the queues allows another start.
    pub(super) fn probe_found_nothing(
        &self,
        probe: Probe,
        rate_step: Option<Duration>,
        random: u64,
    ) {
        self.with_line(|line| line.probe_found_nothing(probe, rate_step, random));
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
        if line.waiting.is_empty() {
            lines.remove(&self.interest);
        } else {
            line.wake_first();
        }
    }
}
