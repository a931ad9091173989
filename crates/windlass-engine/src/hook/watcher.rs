//! The loop that looks for events in the store and enqueues their reports.
//!
//! It reads stored facts: failure groups, dead jobs, replays, counts and statistics. So an event is
//! reported even if the process in which it happened dies right after it, and settling a job costs
//! nothing more. A pass looks at everything since the last pass of any node, and a minute further
//! back for facts that were written late. Reports that exist already are not enqueued again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use windlass_core::statistics::{Statistics, StatisticsRange};
use windlass_core::{
    ActionState, DeadReason, Filter, GroupKey, Hook, HookEvent, HookReport, HookSubject, Job,
    JobId, Kind, ListedState, QueueName, QueueStarts, STALL_QUEUES_MAX, State, Timestamp,
    hook_queue, idle_since,
};
use windlass_store::{
    Counts, Enqueue, EnqueueMode, Enqueued, FailureGroup, GroupFilter, ListOrder, PAGE_MAX, Page,
    StoreError,
};

use super::progress::{self, Progress};
use super::{Report, StoredHooks};
use crate::action::{ActionStatus, live_actions};
use crate::engine::Engine;
use crate::poison::lock;
use crate::remote::remote_workers;
use crate::watchdog::Pulse;
use crate::worker_description::{WorkerDescription, is_alive};

/// How much later than its own instant a fact may become visible: a slow transaction, or the clock
/// of another node.
const OVERLAP: Duration = Duration::from_secs(60);

/// The longest time that a pass looks back, after no process ran for a while.
const LOOK_BACK_MAX: Duration = Duration::from_secs(24 * 3600);

/// How often the starts of queues are looked at.
const STARTS_EVERY: Duration = Duration::from_secs(15);

/// Processes write their statistics every 10 s, so a start may show up this much later.
const STATISTICS_DELAY: Duration = Duration::from_secs(30);

/// How often to look for a worker that runs HTTP jobs; the first time so long after the start.
const WORKERS_EVERY: Duration = Duration::from_secs(15);

/// The most pages of one search for a dead job. A page may be empty although more follow.
const SEARCH_PAGES_MAX: usize = 20;

/// How to look for events.
#[derive(Debug, Clone)]
pub struct HookWatcherConfig {
    /// The interval between two passes. 5 s.
    pub every: Duration,
}

impl Default for HookWatcherConfig {
    fn default() -> Self {
        HookWatcherConfig {
            every: Duration::from_secs(5),
        }
    }
}

/// Enqueues the reports of hooks.
#[derive(Debug)]
pub struct HookWatcher {
    engine: Arc<Engine>,
    hooks: StoredHooks,
    config: HookWatcherConfig,
    /// When to look for a worker that runs HTTP jobs.
    look_for_workers_at: Mutex<Timestamp>,
    /// Whether the log says that no worker runs HTTP jobs.
    is_warned: AtomicBool,
}

impl HookWatcher {
    /// Creates a watcher.
    pub fn new(engine: Arc<Engine>, config: HookWatcherConfig) -> Self {
        let look_at = engine.now().saturating_add(WORKERS_EVERY);
        HookWatcher {
            hooks: StoredHooks::new(Arc::clone(&engine)),
            engine,
            config,
            look_for_workers_at: Mutex::new(look_at),
            is_warned: AtomicBool::new(false),
        }
    }

    /// Looks for events, and enqueues their reports. Returns how many it enqueued.
    pub async fn pass(&self, now: Timestamp) -> Result<usize, StoreError> {
        let mut hooks = self.hooks.list().await?;
        hooks.retain(|hook| !hook.definition.paused);
        let new_groups = self.engine.new_groups().list();
        let Some(oldest) = hooks.iter().map(|hook| hook.active_since).min() else {
            self.engine.new_groups().remove(&new_groups);
            return Ok(0);
        };
        self.look_for_workers(now).await?;
        let look = Look {
            engine: &self.engine,
            hooks: &hooks,
            now,
        };
        let mut reports = look.new_groups(&new_groups).await?;
        let (mut progress, expected) = progress::read(&self.engine).await?;
        let is_recent = |seen_to| now.since(seen_to) < self.config.every / 2;
        if progress.seen_to.is_some_and(is_recent) {
            let enqueued = self.enqueue(reports).await?; // another node has just looked for the rest
            self.engine.new_groups().remove(&new_groups);
            return Ok(enqueued);
        }
        let from = progress
            .seen_to
            .map(|seen_to| seen_to.saturating_sub(OVERLAP));
        let from = from.unwrap_or(oldest).max(oldest);
        let from = from.max(now.saturating_sub(LOOK_BACK_MAX));
        look.groups(from, &mut reports).await?;
        look.replays(from, &mut reports).await?;
        look.queues(from, &mut progress, &mut reports).await?;
        let enqueued = self.enqueue(reports).await?;
        progress.seen_to = Some(now);
        progress::write(&self.engine, &progress, expected).await?;
        self.engine.new_groups().remove(&new_groups);
        Ok(enqueued)
    }

    /// Enqueues the reports that do not exist yet.
    async fn enqueue(&self, reports: BTreeMap<JobId, Report>) -> Result<usize, StoreError> {
        let mut enqueued = 0;
        let ids: Vec<JobId> = reports.keys().copied().collect();
        for part in ids.chunks(PAGE_MAX) {
            let store = self.engine.store();
            let known = store.get(part).await?;
            let is_new = |(_, known): &(&JobId, &Option<Job>)| known.is_none();
            let missing = part.iter().zip(&known).filter(is_new);
            let now = self.engine.now();
            let missing: Vec<Job> = missing
                .filter_map(|(id, _)| reports.get(id))
                .map(|(id, new)| new.clone().into_stored_job(*id, now))
                .collect();
            if missing.is_empty() {
                continue;
            }
            let batch = Enqueue {
                jobs: missing.clone(),
                mode: EnqueueMode::Independent,
            };
            for (job, answer) in missing.iter().zip(store.enqueue(batch, now).await?) {
                match answer {
                    Enqueued::Created(_) => {
                        self.engine.enqueued(std::iter::once(job), now);
                        enqueued += 1;
                    }
                    Enqueued::QueueFull { queue, max_depth } => {
                        warn!(%queue, max_depth, "the queue of hooks is full; a report is lost");
                    }
                    Enqueued::Duplicate { .. } | Enqueued::Replaced(_) => {}
                }
            }
        }
        Ok(enqueued)
    }

    /// Logs once if no worker runs HTTP jobs: reports would wait forever without a word.
    async fn look_for_workers(&self, now: Timestamp) -> Result<(), StoreError> {
        if *lock(&self.look_for_workers_at) > now {
            return Ok(());
        }
        *lock(&self.look_for_workers_at) = now.saturating_add(WORKERS_EVERY);
        let store = self.engine.store();
        let mut workers = store.nodes().await?;
        workers.extend(remote_workers(store, now).await?);
        let http = Kind::new("http").expect("`http` is a valid kind");
        let (queue, reserved) = (hook_queue(), BTreeSet::from([http.clone()]));
        let is_served = workers.iter().any(|worker| {
            is_alive(worker, now)
                && WorkerDescription::takes(&worker.about, &queue, &http, &reserved)
        });
        if self.is_warned.swap(!is_served, Ordering::Relaxed) == is_served {
            if is_served {
                info!(%queue, "a worker runs HTTP jobs again; it sends the reports of hooks");
            } else {
                warn!(
                    %queue,
                    "hooks exist, but no live worker runs HTTP jobs; reports wait until a server with `http_jobs`, or a worker with HTTP jobs, takes this queue"
                );
            }
        }
        Ok(())
    }

    /// Looks for events until `stop`.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken, pulse: Arc<Pulse>) {
        let clock = Arc::clone(self.engine.clock());
        loop {
            let started = clock.now();
            pulse.busy(started);
            if let Err(error) = self.pass(started).await {
                warn!(%error, "looking for events of hooks failed; retrying at the next pass");
            }
            pulse.rest();
            let next = clock.now().saturating_add(self.config.every);
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = clock.sleep_until(next) => {}
            }
        }
    }
}

/// One look at the store.
struct Look<'a> {
    engine: &'a Engine,
    hooks: &'a [Hook],
    now: Timestamp,
}

/// The reports that a look found, by the ids of their jobs.
type Reports = BTreeMap<JobId, Report>;

impl Look<'_> {
    /// Adds the jobs of all hooks that report this.
    fn add(&self, report: &HookReport, reports: &mut Reports) {
        for hook in self.hooks.iter().filter(|hook| hook.reports(report)) {
            let job = hook.report_job(report);
            reports.insert(job.0, job);
        }
    }

    /// Whether any hook reports an event of this group.
    fn wants(&self, event: HookEvent, key: &GroupKey) -> bool {
        let report = HookReport {
            event,
            at: self.now,
            subject: group_subject(key, None, None, None),
        };
        self.hooks.iter().any(|hook| hook.reports(&report))
    }

    /// Reports groups that became new in this process.
    async fn new_groups(
        &self,
        listed: &[(GroupKey, (Timestamp, JobId))],
    ) -> Result<Reports, StoreError> {
        let mut reports = Reports::new();
        for (key, (at, job)) in listed {
            if !self.wants(HookEvent::FailureGroupCreated, key) {
                continue;
            }
            let filter = GroupFilter {
                queue: Some(key.queue.clone()),
                kind: Some(key.kind.clone()),
                fingerprint: Some(key.fingerprint),
            };
            let store = self.engine.store();
            let found = store.failure_groups(&filter, None, 1, self.now).await?;
            let report = HookReport {
                event: HookEvent::FailureGroupCreated,
                at: *at,
                subject: group_subject(key, found.first(), Some(*job), None),
            };
            self.add(&report, &mut reports);
        }
        Ok(reports)
    }

    /// Reports new groups and deaths since `from`, page by page.
    async fn groups(&self, from: Timestamp, reports: &mut Reports) -> Result<(), StoreError> {
        let events = [HookEvent::Dead, HookEvent::FailureGroupCreated];
        let names = |hook: &Hook| {
            events
                .iter()
                .any(|event| hook.definition.events.contains(event))
        };
        if !self.hooks.iter().any(names) {
            return Ok(());
        }
        let (store, filter) = (self.engine.store(), GroupFilter::default());
        let mut after: Option<GroupKey> = None;
        loop {
            let page = store.failure_groups(&filter, after.as_ref(), PAGE_MAX, self.now);
            let page = page.await?;
            for group in page.iter().filter(|group| group.last_seen_at >= from) {
                if group.first_seen_at >= from {
                    self.add(&created(group), reports);
                }
                if group.dead > 0 && self.wants(HookEvent::Dead, &group.key) {
                    self.deaths(group, from, reports).await?;
                }
            }
            match page.last() {
                Some(last) if page.len() == PAGE_MAX => after = Some(last.key.clone()),
                _ => return Ok(()),
            }
        }
    }

    /// Reports one dead job for each minute since `from` in which jobs of a group died.
    async fn deaths(
        &self,
        group: &FailureGroup,
        from: Timestamp,
        reports: &mut Reports,
    ) -> Result<(), StoreError> {
        let mut before = None;
        while let Some(job) = self.last_death(group, from, before).await? {
            let State::Dead(reason) = job.state() else {
                return Ok(());
            };
            let Some(at) = job.finished_at() else {
                return Ok(());
            };
            let report = HookReport {
                event: HookEvent::Dead,
                at,
                subject: group_subject(&group.key, Some(group), Some(job.id), Some(reason)),
            };
            self.add(&report, reports);
            before = Some(report.minute_start());
        }
        Ok(())
    }

    /// The job of a group that died last, since `from` and before `before`.
    async fn last_death(
        &self,
        group: &FailureGroup,
        from: Timestamp,
        before: Option<Timestamp>,
    ) -> Result<Option<Job>, StoreError> {
        let filter = Filter {
            queue: Some(group.key.queue.clone()),
            kind: Some(group.key.kind.clone()),
            fingerprint: Some(group.key.fingerprint),
            finished_from: Some(from),
            finished_before: before,
            ..Filter::state(ListedState::Dead)
        };
        let mut page = Page {
            order: ListOrder::Finished,
            ..Page::first(1)
        };
        for _ in 0..SEARCH_PAGES_MAX {
            let listed = self.engine.store().list(&filter, page, self.now).await?;
            if let Some(job) = listed.jobs.into_iter().next() {
                return Ok(Some(job));
            }
            if listed.next.is_none() {
                break;
            }
            page.after = listed.next;
        }
        Ok(None)
    }

    /// Reports replays that stopped themselves since `from`.
    async fn replays(&self, from: Timestamp, reports: &mut Reports) -> Result<(), StoreError> {
        let names = |hook: &Hook| hook.definition.events.contains(&HookEvent::ReplayStopped);
        if !self.hooks.iter().any(names) {
            return Ok(());
        }
        for status in self.engine.stopped_replays(from).await? {
            let action = &status.action;
            let (Some(at), Some(reason)) = (action.stopped_at, action.stop_reason) else {
                continue;
            };
            let subject = HookSubject::Replay {
                id: action.id,
                queue: action.filter.queue.clone(),
                kind: action.filter.kind.clone(),
                reason,
                revived: status.tally.changed(),
                failed_again: status.tally.failed_again,
                to_do: status.to_do(),
            };
            let event = HookEvent::ReplayStopped;
            self.add(&HookReport { event, at, subject }, reports);
        }
        Ok(())
    }

    /// Updates since when queues are idle, and reports those that have been so for too long.
    async fn queues(
        &self,
        from: Timestamp,
        progress: &mut Progress,
        reports: &mut Reports,
    ) -> Result<(), StoreError> {
        let names = |hook: &&Hook| hook.definition.events.contains(&HookEvent::QueueStalled);
        let watching: Vec<&Hook> = self.hooks.iter().filter(names).collect();
        if watching.is_empty() {
            progress.idle_since.clear();
            progress.starts_seen_at = None;
            return Ok(());
        }
        let seen_at = progress.starts_seen_at;
        if seen_at.is_some_and(|seen_at| self.now.since(seen_at) < STARTS_EVERY) {
            return Ok(());
        }
        let queues = self.starts(seen_at).await?;
        for (name, queue) in &queues {
            let before = progress.idle_since.remove(name);
            let Some(since) = idle_since(before, queue, self.now) else {
                continue;
            };
            if progress.idle_since.len() < STALL_QUEUES_MAX {
                progress.idle_since.insert(name.clone(), since);
            }
            for hook in &watching {
                let after = hook.definition.stalled_after;
                let report = queue.stalled(name, since, after, self.now);
                if let Some(report) = report.filter(|one| one.at >= from && hook.reports(one)) {
                    let job = hook.report_job(&report);
                    reports.insert(job.0, job);
                }
            }
        }
        progress
            .idle_since
            .retain(|name, _| queues.contains_key(name));
        progress.starts_seen_at = Some(self.now);
        Ok(())
    }

    /// What is known about each queue that has jobs, except reserved ones.
    async fn starts(
        &self,
        seen_at: Option<Timestamp>,
    ) -> Result<BTreeMap<QueueName, QueueStarts>, StoreError> {
        let store = self.engine.store();
        let counts = store.counts(self.now).await?;
        let limits = store.queues().await?;
        let from = seen_at.unwrap_or(self.now).saturating_sub(STATISTICS_DELAY);
        let from = from.max(self.now.saturating_sub(LOOK_BACK_MAX));
        let range = StatisticsRange::new(from, self.now, None, self.now);
        let statistics = match range {
            Ok(range) => self.engine.statistics(range, None).await?.queues,
            Err(_) => Statistics::default(),
        };
        let starts = |(name, counts): (QueueName, Counts)| {
            let starts = QueueStarts {
                ready: counts.ready,
                running: counts.running,
                is_paused: limits.get(&name).is_some_and(|one| one.paused.is_some()),
                rate_until: counts.rate_until,
                has_started: may_have_started(&statistics, &name),
            };
            (name, starts)
        };
        let counts = counts.into_iter().filter(|(name, _)| !name.is_reserved());
        Ok(counts.map(starts).collect())
    }
}

/// Whether a queue may have started jobs. Queues beyond the limit of statistics are counted
/// together; while any of them starts jobs, none of them counts as idle.
fn may_have_started(statistics: &Statistics, queue: &QueueName) -> bool {
    let numbers = statistics.queues.get(queue).unwrap_or(&statistics.other);
    numbers.started.total() > 0
}

fn created(group: &FailureGroup) -> HookReport {
    HookReport {
        event: HookEvent::FailureGroupCreated,
        at: group.first_seen_at,
        subject: group_subject(&group.key, Some(group), group.sample, None),
    }
}

fn group_subject(
    key: &GroupKey,
    group: Option<&FailureGroup>,
    job: Option<JobId>,
    reason: Option<DeadReason>,
) -> HookSubject {
    HookSubject::Group {
        key: key.clone(),
        job,
        reason,
        dead: group.map_or(0, |group| group.dead),
        retrying: group.map_or(0, |group| group.retrying),
        error: group.map_or_else(String::new, |group| group.error.clone()),
    }
}

impl Engine {
    /// The replays that stopped themselves at or after `from` and were not continued or ended.
    async fn stopped_replays(&self, from: Timestamp) -> Result<Vec<ActionStatus>, StoreError> {
        let mut stopped = Vec::new();
        for action in live_actions(self).await? {
            let is_stopped = action.state == ActionState::Stopped;
            if is_stopped && action.stopped_at.is_some_and(|at| at >= from) {
                let tally = self.store().action_tally(action.id).await?;
                stopped.push(ActionStatus { action, tally });
            }
        }
        Ok(stopped)
    }
}
