//! A worker: the loops that run the jobs of some queues, from start to shutdown.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::Shared;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use windlass_core::retry::{RetryPolicy, WorkerRetry};
use windlass_core::{CANCEL_GRACE, Invalid, Kind, WorkerName};
use windlass_store::StoreError;

use crate::action::{ActionRunner, ActionRunnerConfig};
use crate::attempt::StopReason;
use crate::clock::Wait;
use crate::committer::Committer;
use crate::dispatcher::{Dispatcher, DispatcherConfig};
use crate::engine::Engine;
use crate::fetcher::{Fetcher, FetcherConfig};
use crate::handler::{Handlers, Hooks};
use crate::hook::{HookWatcher, HookWatcherConfig};
use crate::janitor::{Janitor, JanitorConfig};
use crate::log_writer::LogWriter;
use crate::queue_settings::SettingsFollower;
use crate::registry::Registry;
use crate::saturate::to_usize;
use crate::scheduler::{Scheduler, SchedulerConfig};
use crate::slots::Slots;
use crate::sources::{DiscoverConfig, QueueConfig, Sources};
use crate::statistics::StatisticsWriter;
use crate::sweeper::{Sweeper, SweeperConfig};
use crate::watchdog::{PATIENCE_DEFAULT, Pulse, keep_running};
use crate::worker_description::WorkerDescription;
use crate::worker_state::{SignalFollower, WorkerState};

/// At shutdown, how long to wait for the store to accept the last outcomes.
const LAST_SETTLE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the store may take to answer the first and the last calls of a worker. Also replaces
/// [`LAST_SETTLE_TIMEOUT`] when the worker must stop at once.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);

/// The configuration of a worker.
#[derive(Clone)]
pub struct WorkerConfig {
    /// The name. It must be unique among all workers of the store.
    pub name: WorkerName,
    /// The queues to take jobs from.
    pub queues: Vec<QueueConfig>,
    /// Patterns of further queues, which the worker discovers while it runs.
    pub discovered: Vec<DiscoverConfig>,
    /// The maximum number of jobs that run at once over all queues. Defaults to the sum of the
    /// queues' limits.
    pub concurrency: Option<u32>,
    /// The handlers, by kind.
    pub handlers: Handlers,
    /// Callbacks around every attempt.
    pub hooks: Option<Arc<dyn Hooks>>,
    /// The default retry policy of this worker, and its cap.
    pub retry: WorkerRetry,
    /// The retry policies of single kinds.
    pub kind_retry: BTreeMap<Kind, Arc<RetryPolicy>>,
    /// The length of a lease. 30 s.
    pub lease: Duration,
    /// How often the worker looks for jobs even if no notification arrives. 1 s.
    pub poll: Duration,
    /// At shutdown, how long running jobs may take before the worker gives them back. 30 s.
    pub shutdown_grace: Duration,
    /// How long a handler that was asked to stop may take before it is aborted. 5 s.
    pub cancel_grace: Duration,
    /// How long after the handler returned the worker retries an outcome that the store refuses.
    /// During this time it renews the lease. After it, the lease expires and the attempt counts as
    /// lost. 5 minutes.
    pub outcome_retry_max: Duration,
    /// A loop whose current step takes longer than this is restarted. 60 s.
    pub patience: Duration,
    /// How long finished jobs and other data are kept.
    pub janitor: JanitorConfig,
    /// Whether the worker fires schedules, removes old data and writes statistics. Set it to false if
    /// [`run_maintenance`](crate::run_maintenance) runs in the same process. True.
    pub runs_maintenance: bool,
}

impl fmt::Debug for WorkerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerConfig")
            .field("name", &self.name)
            .field("queues", &self.queues)
            .field("discovered", &self.discovered)
            .field("handlers", &self.handlers)
            .finish_non_exhaustive()
    }
}

impl WorkerConfig {
    /// The default configuration, without queues and handlers.
    pub fn new(name: WorkerName) -> Self {
        WorkerConfig {
            name,
            queues: Vec::new(),
            discovered: Vec::new(),
            concurrency: None,
            handlers: Handlers::new(),
            hooks: None,
            retry: WorkerRetry::default(),
            kind_retry: BTreeMap::new(),
            lease: Duration::from_secs(30),
            poll: Duration::from_secs(1),
            shutdown_grace: Duration::from_secs(30),
            cancel_grace: CANCEL_GRACE,
            outcome_retry_max: Duration::from_secs(300),
            patience: PATIENCE_DEFAULT,
            janitor: JanitorConfig::default(),
            runs_maintenance: true,
        }
    }

    /// Checks the settings. The error names the first setting that cannot work.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.handlers.kinds().next().is_none() {
            let rule = "must have at least one, or nothing would ever be claimed";
            return Err(Invalid::new("handlers", rule));
        }
        if self.lease < LEASE_MIN {
            return Err(Invalid::new("lease", "must be at least 100 ms"));
        }
        if self.poll.is_zero() {
            return Err(Invalid::new("poll", "must be longer than 0 s"));
        }
        self.sources().check()?;
        if self.concurrency == Some(0) {
            return Err(Invalid::new("concurrency", "must be at least 1"));
        }
        Ok(())
    }

    pub(crate) fn sources(&self) -> Sources {
        Sources {
            queues: self.queues.clone(),
            discovered: self.discovered.clone(),
        }
    }
}

/// The shortest lease. A worker renews its leases after each third.
pub(crate) const LEASE_MIN: Duration = Duration::from_millis(100);

/// The result of a worker's shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stopped {
    /// The number of jobs that were given back because they did not finish in time.
    pub released: usize,
    /// The number of outcomes that the store did not accept. Their leases expire, and the sweeper
    /// ends the attempts as lost.
    pub unsettled: usize,
}

/// Claims and runs the jobs of its queues.
pub struct Worker {
    pub(crate) engine: Arc<Engine>,
    config: WorkerConfig,
    pub(crate) slots: Arc<Slots>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) committer: Arc<Committer>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) fetcher: Arc<Fetcher>,
    settings_follower: Arc<SettingsFollower>,
    pub(crate) signal_follower: Arc<SignalFollower>,
    state: Arc<watch::Sender<WorkerState>>,
    log_writer: Arc<LogWriter>,
    pub(crate) sweeper: Arc<Sweeper>,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) janitor: Arc<Janitor>,
    statistics: Arc<StatisticsWriter>,
    action_runner: Arc<ActionRunner>,
    hook_watcher: Arc<HookWatcher>,
    no_claims: CancellationToken,
}

impl Worker {
    /// Creates a worker. [`run`](Self::run) starts it.
    pub fn new(engine: Arc<Engine>, config: WorkerConfig) -> Result<Self, Invalid> {
        config.check()?;
        let sum = config.sources().total_slots();
        let total = config.concurrency.unwrap_or(sum);
        let slots = Arc::new(Slots::new(total));
        let registry = Arc::new(Registry::default());
        let backlog_max = to_usize(total);
        let committer = Arc::new(Committer::new(
            Arc::clone(&engine),
            backlog_max,
            config.outcome_retry_max,
            Arc::clone(&registry),
        ));
        let dispatcher = Arc::new(Dispatcher::new(
            Arc::clone(&engine),
            DispatcherConfig {
                lease: config.lease,
                cancel_grace: config.cancel_grace,
            },
            config.handlers.clone(),
            config.hooks.clone(),
            Arc::clone(&registry),
            Arc::clone(&committer),
        ));
        engine.add_dispatcher(&dispatcher);
        engine.add_slots(&slots);
        let no_claims = CancellationToken::new();
        let state = Arc::new(watch::Sender::new(WorkerState::Running));
        let fetcher = Arc::new(Fetcher::new(
            Arc::clone(&engine),
            fetcher_config(&config),
            Arc::clone(&slots),
            Arc::clone(&dispatcher),
            no_claims.clone(),
            state.subscribe(),
        ));
        let settings_follower = SettingsFollower::new(Arc::clone(&engine), Arc::clone(&fetcher));
        let settings_follower = Arc::new(settings_follower);
        let log_writer = LogWriter::new(Arc::clone(&engine), Arc::clone(&registry));
        let sweeper = Sweeper::new(Arc::clone(&engine), sweeper_config(&config, total));
        let sweeper = Arc::new(sweeper.reporting(state.subscribe()));
        let signal_follower = SignalFollower::new(
            Arc::clone(&engine),
            config.name.clone(),
            Arc::clone(&state),
            Arc::clone(&sweeper),
        );
        let scheduler = Scheduler::new(Arc::clone(&engine), SchedulerConfig::default());
        let janitor = Janitor::new(Arc::clone(&engine), config.janitor.clone());
        let statistics = StatisticsWriter::new(Arc::clone(&engine));
        let action_runner = ActionRunner::new(
            Arc::clone(&engine),
            config.name.as_str(),
            ActionRunnerConfig::default(),
        );
        let hook_watcher = HookWatcher::new(Arc::clone(&engine), HookWatcherConfig::default());
        Ok(Worker {
            engine,
            slots,
            registry,
            committer,
            dispatcher,
            fetcher,
            settings_follower,
            signal_follower: Arc::new(signal_follower),
            state,
            log_writer: Arc::new(log_writer),
            sweeper,
            scheduler: Arc::new(scheduler),
            janitor: Arc::new(janitor),
            statistics: Arc::new(statistics),
            action_runner: Arc::new(action_runner),
            hook_watcher: Arc::new(hook_watcher),
            no_claims,
            config,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &WorkerConfig {
        &self.config
    }

    /// What the worker does.
    pub fn state(&self) -> WorkerState {
        *self.state.borrow()
    }

    /// Runs until `stop`, or until an operator stops the worker. Then running jobs have `shutdown_grace` to finish; the worker gives back
    /// those that do not. `stop_now` ends the grace period at once.
    ///
    /// Dropping the future acts as if the process had been killed: the loops end, handlers are
    /// asked to stop and aborted at their next `await`, and the leases of their jobs expire.
    ///
    /// When the store stops for good, outcomes can no longer be written: the worker cancels its
    /// handlers, waits up to `cancel_grace` for them and returns the store's error.
    pub fn run(
        &self,
        stop: CancellationToken,
        stop_now: CancellationToken,
    ) -> Pin<Box<dyn Future<Output = Result<Stopped, StoreError>> + Send + '_>> {
        // Boxed, because the compiler cannot prove that the unboxed future is `Send`.
        Box::pin(self.run_on_store(stop, stop_now))
    }

    async fn run_on_store(
        &self,
        stop: CancellationToken,
        stop_now: CancellationToken,
    ) -> Result<Stopped, StoreError> {
        let abort_handlers = AbortOnDrop(self);
        let error = tokio::select! {
            biased;
            stopped = self.run_loops(stop, stop_now) => return Ok(stopped),
            error = self.engine.writes().stopped() => error,
        };
        for attempt in self.registry.all() {
            attempt.stop().fire(StopReason::Shutdown);
        }
        self.with_timeout(self.config.cancel_grace, self.all_returned())
            .await;
        drop(abort_handlers);
        error!(worker = %self.config.name, %error, "the store stopped; the worker stops too");
        Err(error)
    }

    /// Waits until all handlers have returned. Only valid after the loops have ended, because they
    /// consume the same notification.
    async fn all_returned(&self) {
        while self.registry.has_running() {
            self.registry.handler_returned().notified().await;
        }
    }

    async fn run_loops(&self, stop: CancellationToken, stop_now: CancellationToken) -> Stopped {
        let loops_stop = CancellationToken::new();
        // Do not claim before the operators' settings are known, unless the store does not answer.
        if let Some(Err(error)) = self
            .with_timeout(STORE_TIMEOUT, self.settings_follower.pass())
            .await
        {
            warn!(%error, "reading queue settings failed; retrying");
        }
        // A signal to an earlier worker of this name must not stop this one.
        if let Some(Err(error)) = self
            .with_timeout(STORE_TIMEOUT, self.signal_follower.pass())
            .await
        {
            warn!(%error, "reading the signal to this worker failed; retrying");
        }
        let mut fetching = self.start_fetcher();
        let mut loops = self.start_loops(&loops_stop);
        info!(worker = %self.config.name, "started");
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = stop_now.cancelled() => {}
            () = self.stopped_by_operator() => {}
        }
        self.no_claims.cancel();
        self.report_stopping(&mut loops);
        info!(worker = %self.config.name, running = self.slots.used(), "stopping");
        let grace = self
            .engine
            .clock()
            .sleep(self.config.shutdown_grace)
            .shared();
        // Let a claim that is in flight finish: the fetcher gives its jobs back.
        tokio::select! {
            biased;
            _ = fetching.join_next() => {}
            () = grace.clone() => {}
            () = stop_now.cancelled() => {}
        }
        fetching.shutdown().await;
        let released = self.wind_down(grace, &stop_now).await;
        loops_stop.cancel();
        self.with_timeout(STORE_TIMEOUT, async {
            while loops.join_next().await.is_some() {}
        })
        .await;
        loops.shutdown().await;
        self.engine.job_log().finish(self.engine.now());
        let unsettled = self.committer.backlog();
        if unsettled > 0 {
            error!(
                unsettled,
                "the store did not accept the last outcomes; their leases expire"
            );
        }
        self.statistics.finish().await;
        let removed = self.engine.store().remove_node(self.config.name.as_str());
        let removed = async { self.signal_follower.finish().await.and(removed.await) };
        match self.with_timeout(STORE_TIMEOUT, removed).await {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                warn!(%error, "removing the node failed; it stays listed until it expires")
            }
            None => warn!("removing the node timed out; it stays listed until it expires"),
        }
        info!(worker = %self.config.name, released, "stopped");
        Stopped {
            released,
            unsettled,
        }
    }

    /// Waits until an operator stops the worker.
    async fn stopped_by_operator(&self) {
        let mut state = self.state.subscribe();
        let stopping = state.wait_for(|state| *state == WorkerState::Stopping);
        stopping.await.expect("this worker holds the sender");
    }

    /// Reports in a last heartbeat that the worker is stopping.
    fn report_stopping(&self, loops: &mut JoinSet<()>) {
        self.state.send_replace(WorkerState::Stopping);
        let (sweeper, now) = (Arc::clone(&self.sweeper), self.engine.now());
        loops.spawn(async move {
            if let Err(error) = sweeper.send_heartbeat(now).await {
                warn!(%error, "the last heartbeat failed");
            }
        });
    }

    /// Waits for a future, but at most for `time`.
    async fn with_timeout<T>(&self, time: Duration, what: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = what => Some(done),
            () = self.engine.clock().sleep(time) => None,
        }
    }

    /// Waits for running jobs, gives back those that do not finish within the grace period, and
    /// waits until everything is settled. Returns how many jobs it gave back.
    async fn wind_down(&self, grace: Shared<Wait>, stop_now: &CancellationToken) -> usize {
        tokio::select! {
            biased;
            () = self.registry.wait_until_empty() => return 0,
            () = grace => {}
            () = stop_now.cancelled() => {}
        }
        let released = self.dispatcher.release_all();
        // The remaining handlers were asked to stop. Abort them after their grace period.
        tokio::select! {
            biased;
            () = self.registry.wait_until_empty() => return released,
            () = self.engine.clock().sleep(self.config.cancel_grace) => {}
            () = stop_now.cancelled() => {}
        }
        self.registry.abort_all();
        let timeout = if stop_now.is_cancelled() {
            STORE_TIMEOUT
        } else {
            LAST_SETTLE_TIMEOUT
        };
        self.with_timeout(timeout, self.committer.wait_until_empty())
            .await;
        released
    }

    fn start_fetcher(&self) -> JoinSet<()> {
        let mut fetching = JoinSet::new();
        let fetcher = Arc::clone(&self.fetcher);
        self.spawn_loop(&mut fetching, "fetcher", move |pulse| {
            Arc::clone(&fetcher).run(pulse)
        });
        fetching
    }

    fn start_loops(&self, loops_stop: &CancellationToken) -> JoinSet<()> {
        let mut loops = JoinSet::new();
        let (dispatcher, until) = (Arc::clone(&self.dispatcher), loops_stop.clone());
        self.spawn_loop(&mut loops, "alarms", move |pulse| {
            Arc::clone(&dispatcher).run_alarms(until.clone(), pulse)
        });
        let (dispatcher, until) = (Arc::clone(&self.dispatcher), loops_stop.clone());
        self.spawn_loop(&mut loops, "renewals", move |pulse| {
            Arc::clone(&dispatcher).run_renewals(until.clone(), pulse)
        });
        let (committer, until) = (Arc::clone(&self.committer), loops_stop.clone());
        self.spawn_loop(&mut loops, "committer", move |pulse| {
            Arc::clone(&committer).run(until.clone(), pulse)
        });
        let (log_writer, until) = (Arc::clone(&self.log_writer), loops_stop.clone());
        self.spawn_loop(&mut loops, "logs", move |pulse| {
            Arc::clone(&log_writer).run(until.clone(), pulse)
        });
        let (settings_follower, until) =
            (Arc::clone(&self.settings_follower), self.no_claims.clone());
        self.spawn_loop(&mut loops, "queue settings", move |pulse| {
            Arc::clone(&settings_follower).run(until.clone(), pulse)
        });
        let (signal_follower, until) = (Arc::clone(&self.signal_follower), self.no_claims.clone());
        self.spawn_loop(&mut loops, "signals", move |pulse| {
            Arc::clone(&signal_follower).run(until.clone(), pulse)
        });
        let (sweeper, until) = (Arc::clone(&self.sweeper), self.no_claims.clone());
        self.spawn_loop(&mut loops, "sweeper", move |pulse| {
            Arc::clone(&sweeper).run(until.clone(), pulse)
        });
        if !self.config.runs_maintenance {
            return loops;
        }
        let (scheduler, until) = (Arc::clone(&self.scheduler), self.no_claims.clone());
        self.spawn_loop(&mut loops, "scheduler", move |pulse| {
            Arc::clone(&scheduler).run(until.clone(), pulse)
        });
        let (runner, until) = (Arc::clone(&self.action_runner), self.no_claims.clone());
        self.spawn_loop(&mut loops, "actions", move |pulse| {
            Arc::clone(&runner).run(until.clone(), pulse)
        });
        let (watcher, until) = (Arc::clone(&self.hook_watcher), self.no_claims.clone());
        self.spawn_loop(&mut loops, "hooks", move |pulse| {
            Arc::clone(&watcher).run(until.clone(), pulse)
        });
        let (janitor, until) = (Arc::clone(&self.janitor), self.no_claims.clone());
        self.spawn_loop(&mut loops, "janitor", move |pulse| {
            Arc::clone(&janitor).run(until.clone(), pulse)
        });
        let (statistics, until) = (Arc::clone(&self.statistics), self.no_claims.clone());
        self.spawn_loop(&mut loops, "statistics", move |pulse| {
            Arc::clone(&statistics).run(until.clone(), pulse)
        });
        loops
    }

    fn spawn_loop<L, F>(&self, loops: &mut JoinSet<()>, name: &str, run: L)
    where
        L: Fn(Arc<Pulse>) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let name = format!("{} {name}", self.config.name);
        let engine = Arc::clone(&self.engine);
        loops.spawn(keep_running(engine, name, self.config.patience, run));
    }
}

/// Stops claiming and aborts all handlers when a run ends in any way, even if it is dropped. The
/// loops end with their `JoinSet`s.
struct AbortOnDrop<'a>(&'a Worker);

impl Drop for AbortOnDrop<'_> {
    fn drop(&mut self) {
        self.0.no_claims.cancel();
        self.0.dispatcher.abort_all();
    }
}

fn fetcher_config(config: &WorkerConfig) -> FetcherConfig {
    FetcherConfig {
        worker: config.name.clone(),
        sources: config.sources(),
        kinds: config.handlers.kinds().cloned().collect(),
        retry: config.retry.clone(),
        kind_retry: config.kind_retry.clone(),
        lease: config.lease,
        poll: config.poll,
    }
}

fn sweeper_config(config: &WorkerConfig, slots: u32) -> SweeperConfig {
    let queues = config.queues.iter().map(|queue| queue.name.clone());
    let about = WorkerDescription {
        queues: Some(queues.collect()),
        patterns: config
            .discovered
            .iter()
            .map(|source| source.pattern.clone())
            .collect(),
        kinds: Some(config.handlers.kinds().cloned().collect()),
        slots: Some(slots),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
    };
    SweeperConfig {
        about: about.to_json(),
        lease: config.lease,
        ..SweeperConfig::new(config.name.as_str().to_owned())
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("name", &self.config.name)
            .field("queues", &self.config.queues)
            .finish_non_exhaustive()
    }
}
