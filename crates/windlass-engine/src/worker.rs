//! A worker: the loops that run the jobs of some queues, from start to shutdown.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::Shared;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use windlass_core::retry::{RetryPolicy, WorkerRetry};
use windlass_core::{CANCEL_GRACE, Invalid, Kind, WorkerName};
use windlass_store::StoreError;

use crate::attempt::StopReason;
use crate::clock::Wait;
use crate::committer::Committer;
use crate::dispatcher::{Dispatcher, DispatcherConfig};
use crate::engine::Engine;
use crate::fetcher::{Fetcher, FetcherConfig};
use crate::handler::{Handlers, Hooks};
use crate::janitor::{Janitor, JanitorConfig};
use crate::queue_settings::Following;
use crate::registry::Registry;
use crate::scheduler::{Scheduler, SchedulerConfig};
use crate::slots::Slots;
use crate::sources::{DiscoverConfig, QueueConfig, Sources};
use crate::sweeper::{Sweeper, SweeperConfig};
use crate::watchdog::{PATIENCE_DEFAULT, Pulse, keep_running};
use crate::worker_description::WorkerAbout;

/// After the handlers are gone, so long is waited for the store to take the last ends.
const LAST_ENDS: Duration = Duration::from_secs(5);
/// So long the store has for the first and the last things it is asked, and for those ends if the
/// worker is to stop at once.
const LAST_WORD: Duration = Duration::from_secs(1);

/// What a worker is to do.
#[derive(Clone)]
pub struct WorkerConfig {
    /// Its name, which must be its own among all workers on the store.
    pub name: WorkerName,
    /// Where it takes jobs from.
    pub queues: Vec<QueueConfig>,
    /// Where else it takes jobs from: queues that it discovers while it runs.
    pub discovered: Vec<DiscoverConfig>,
    /// At most this many jobs run at once over all queues; as many as all queues together if not given.
    pub concurrency: Option<u32>,
    /// The handlers.
    pub handlers: Handlers,
    /// Is told of every attempt.
    pub hooks: Option<Arc<dyn Hooks>>,
    /// Its default policy and cap.
    pub retry: WorkerRetry,
    /// The policies of the kinds.
    pub kind_retry: BTreeMap<Kind, Arc<RetryPolicy>>,
    /// How long a lease lasts. 30 s.
    pub lease: Duration,
    /// After so long it looks for jobs even if nobody told it to. 1 s.
    pub poll: Duration,
    /// At shutdown, running jobs have so long to end before they are given back. 30 s.
    pub shutdown_grace: Duration,
    /// A handler that was told to stop has so long to return before it is cut off. 5 s.
    pub cancel_grace: Duration,
    /// An outcome that the store keeps refusing is retried, and its lease renewed, for at most this long after the handler
    /// returned; then the lease expires and the attempt counts as lost. 5 minutes.
    pub outcome_retry_max: Duration,
    /// A loop that is busy with one step for so long is started again. 60 s.
    pub patience: Duration,
    /// How long things are kept.
    pub janitor: JanitorConfig,
    /// Whether it fires schedules and removes what is old. True; false where [`keep_up`](crate::keep_up) runs beside it.
    pub keeps_up: bool,
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
    /// A worker with every setting at its default, and nothing to do.
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
            keeps_up: true,
        }
    }

    /// Refuses what cannot work, by the name of the setting.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.handlers.kinds().next().is_none() {
            let rule = "must have at least one, or nothing would ever be claimed";
            return Err(Invalid::new("handlers", rule));
        }
        if self.lease < LEASE_MIN {
            return Err(Invalid::new("lease", "must be at least 100 ms"));
        }
        if self.poll.is_zero() {
            return Err(Invalid::new("poll", "must be longer than nothing"));
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

/// The shortest lease: it is renewed every third of it.
pub(crate) const LEASE_MIN: Duration = Duration::from_millis(100);

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stopped {
    /// Jobs that were given back because they did not end in time.
    pub released: usize,
    /// Ends that the store did not take: their leases expire, and the sweeper finds them.
    pub unsettled: usize,
}

/// Runs the jobs of some queues.
pub struct Worker {
    pub(crate) engine: Arc<Engine>,
    config: WorkerConfig,
    pub(crate) slots: Arc<Slots>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) committer: Arc<Committer>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) fetcher: Arc<Fetcher>,
    following: Arc<Following>,
    pub(crate) sweeper: Arc<Sweeper>,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) janitor: Arc<Janitor>,
    no_claims: CancellationToken,
}

impl Worker {
    /// A worker that does not run yet.
    pub fn new(engine: Arc<Engine>, config: WorkerConfig) -> Result<Self, Invalid> {
        config.check()?;
        let sum = config.sources().total_slots();
        let total = config.concurrency.unwrap_or(sum);
        let slots = Arc::new(Slots::new(total));
        let registry = Arc::new(Registry::default());
        let backlog_max = usize::try_from(total).unwrap_or(usize::MAX);
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
        let fetcher = Arc::new(Fetcher::new(
            Arc::clone(&engine),
            fetcher_config(&config),
            Arc::clone(&slots),
            Arc::clone(&dispatcher),
            no_claims.clone(),
        ));
        let following = Following::new(Arc::clone(&engine), Arc::clone(&fetcher));
        let following = Arc::new(following);
        let sweeper = Sweeper::new(Arc::clone(&engine), sweeper_config(&config, total));
        let scheduler = Scheduler::new(Arc::clone(&engine), SchedulerConfig::default());
        let janitor = Janitor::new(Arc::clone(&engine), config.janitor.clone());
        Ok(Worker {
            engine,
            slots,
            registry,
            committer,
            dispatcher,
            fetcher,
            following,
            sweeper: Arc::new(sweeper),
            scheduler: Arc::new(scheduler),
            janitor: Arc::new(janitor),
            no_claims,
            config,
        })
    }

    /// What it is to do.
    pub fn config(&self) -> &WorkerConfig {
        &self.config
    }

    /// Runs until `stop`; then running jobs have the grace period to end, and those left are given
    /// back. `stop_now` ends the grace at once.
    ///
    /// When this is dropped before it ends, it is as if the process had been killed: its loops end,
    /// handlers are told to stop and are cut off at their next `await`, and what they had is found
    /// when its lease has run out.
    ///
    /// When the store stops for good, outcomes can no longer be written: the worker cancels its
    /// handlers, waits up to `cancel_grace` for them and returns the store's error.
    pub fn run(
        &self,
        stop: CancellationToken,
        stop_now: CancellationToken,
    ) -> Pin<Box<dyn Future<Output = Result<Stopped, StoreError>> + Send + '_>> {
        // In a box, so that it can be spawned: the compiler does not see through all that it waits for.
        Box::pin(self.run_on_store(stop, stop_now))
    }

    async fn run_on_store(
        &self,
        stop: CancellationToken,
        stop_now: CancellationToken,
    ) -> Result<Stopped, StoreError> {
        let cut_off = CutOff(self);
        let error = tokio::select! {
            stopped = self.run_loops(stop, stop_now) => return Ok(stopped),
            error = self.engine.writes().stopped() => error,
        };
        for attempt in self.registry.all() {
            attempt.stop().fire(StopReason::Shutdown);
        }
        self.within(self.config.cancel_grace, self.all_returned())
            .await;
        drop(cut_off);
        error!(worker = %self.config.name, %error, "the store stopped; the worker stops too");
        Err(error)
    }

    /// Returns when no handler is left. Only for use after the loops: they wait for the same
    /// signal.
    async fn all_returned(&self) {
        while self.registry.has_running() {
            self.registry.gone().notified().await;
        }
    }

    async fn run_loops(&self, stop: CancellationToken, stop_now: CancellationToken) -> Stopped {
        let over = CancellationToken::new();
        // Nothing is claimed before what operators set is known, unless the store does not answer.
        if let Some(Err(error)) = self.within(LAST_WORD, self.following.pass()).await {
            warn!(%error, "reading the settings of queues failed; trying again");
        }
        let mut fetching = self.start_fetcher();
        let mut loops = self.start_loops(&over);
        info!(worker = %self.config.name, "started");
        tokio::select! {
            () = stop.cancelled() => {}
            () = stop_now.cancelled() => {}
        }
        self.no_claims.cancel();
        info!(worker = %self.config.name, running = self.slots.used(), "stopping");
        let grace = self
            .engine
            .clock()
            .sleep(self.config.shutdown_grace)
            .shared();
        // A claim that is on its way still answers: what it gets is given back.
        tokio::select! {
            _ = fetching.join_next() => {}
            () = grace.clone() => {}
            () = stop_now.cancelled() => {}
        }
        fetching.shutdown().await;
        let released = self.wind_down(grace, &stop_now).await;
        over.cancel();
        self.within(LAST_WORD, async {
            while loops.join_next().await.is_some() {}
        })
        .await;
        loops.shutdown().await;
        self.engine.narrator().finish(self.engine.now());
        let unsettled = self.committer.backlog();
        if unsettled > 0 {
            error!(
                unsettled,
                "the store did not take the last ends: their leases expire"
            );
        }
        let removed = self.engine.store().remove_node(self.config.name.as_str());
        match self.within(LAST_WORD, removed).await {
            Some(Ok(())) => {}
            Some(Err(error)) => warn!(%error, "the node stays listed"),
            None => warn!("the store does not answer: the node stays listed"),
        }
        info!(worker = %self.config.name, released, "stopped");
        Stopped {
            released,
            unsettled,
        }
    }

    /// Waits for something, but not longer than that.
    async fn within<T>(&self, time: Duration, what: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = what => Some(done),
            () = self.engine.clock().sleep(time) => None,
        }
    }

    /// Lets running jobs end, gives back those that do not, and waits for the store to know all of it.
    async fn wind_down(&self, grace: Shared<Wait>, stop_now: &CancellationToken) -> usize {
        tokio::select! {
            () = self.registry.wait_until_empty() => return 0,
            () = grace => {}
            () = stop_now.cancelled() => {}
        }
        let released = self.dispatcher.release_all();
        // What is left is told to stop, and cut off after its grace.
        tokio::select! {
            () = self.registry.wait_until_empty() => return released,
            () = self.engine.clock().sleep(self.config.cancel_grace) => {}
            () = stop_now.cancelled() => {}
        }
        self.registry.abort_all();
        let last_ends = match stop_now.is_cancelled() {
            true => LAST_WORD,
            false => LAST_ENDS,
        };
        self.within(last_ends, self.committer.wait_until_empty())
            .await;
        released
    }

    fn start_fetcher(&self) -> JoinSet<()> {
        let mut fetching = JoinSet::new();
        let fetcher = Arc::clone(&self.fetcher);
        self.keep(&mut fetching, "fetcher", move |pulse| {
            Arc::clone(&fetcher).run(pulse)
        });
        fetching
    }

    fn start_loops(&self, over: &CancellationToken) -> JoinSet<()> {
        let mut loops = JoinSet::new();
        let (dispatcher, until) = (Arc::clone(&self.dispatcher), over.clone());
        self.keep(&mut loops, "alarms", move |pulse| {
            Arc::clone(&dispatcher).run_alarms(until.clone(), pulse)
        });
        let (dispatcher, until) = (Arc::clone(&self.dispatcher), over.clone());
        self.keep(&mut loops, "renewals", move |pulse| {
            Arc::clone(&dispatcher).run_renewals(until.clone(), pulse)
        });
        let (committer, until) = (Arc::clone(&self.committer), over.clone());
        self.keep(&mut loops, "committer", move |pulse| {
            Arc::clone(&committer).run(until.clone(), pulse)
        });
        let (following, until) = (Arc::clone(&self.following), self.no_claims.clone());
        self.keep(&mut loops, "queue settings", move |pulse| {
            Arc::clone(&following).run(until.clone(), pulse)
        });
        let (sweeper, until) = (Arc::clone(&self.sweeper), self.no_claims.clone());
        self.keep(&mut loops, "sweeper", move |pulse| {
            Arc::clone(&sweeper).run(until.clone(), pulse)
        });
        if !self.config.keeps_up {
            return loops;
        }
        let (scheduler, until) = (Arc::clone(&self.scheduler), self.no_claims.clone());
        self.keep(&mut loops, "scheduler", move |pulse| {
            Arc::clone(&scheduler).run(until.clone(), pulse)
        });
        let (janitor, until) = (Arc::clone(&self.janitor), self.no_claims.clone());
        self.keep(&mut loops, "janitor", move |pulse| {
            Arc::clone(&janitor).run(until.clone(), pulse)
        });
        loops
    }

    fn keep<L, F>(&self, loops: &mut JoinSet<()>, name: &str, run: L)
    where
        L: Fn(Arc<Pulse>) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let name = format!("{} {name}", self.config.name);
        let engine = Arc::clone(&self.engine);
        loops.spawn(keep_running(engine, name, self.config.patience, run));
    }
}

/// Ends what a run started, in whatever way the run ends. The loops end with their sets.
struct CutOff<'a>(&'a Worker);

impl Drop for CutOff<'_> {
    fn drop(&mut self) {
        self.0.no_claims.cancel();
        self.0.dispatcher.cut_off();
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
    let about = WorkerAbout {
        queues: Some(queues.collect()),
        patterns: config
            .discovered
            .iter()
            .map(|of| of.pattern.clone())
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
