//! A worker: handlers, the queues they serve, and how long it runs.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::retry::{AttemptLimit, Cap, RetryPolicy};
use windlass_core::{Invalid, Kind, Report, WorkerName};
use windlass_engine::{
    CancellationToken, Handler as AttemptHandler, Hooks, RunningAttempt, Stopped,
    Worker as EngineWorker, WorkerConfig,
};

use crate::client::Client;
use crate::error::Error;
use crate::failure::{Classifier, Classify, classifier};
use crate::handler::{Adapter, Handler, Shared};
use crate::job::Job;
use crate::options::Retry;
use crate::queue::{Queue, Queues};
use crate::retry::RetryRule;
use crate::schedule::Schedule;

/// The slots of the queue `default`, where none is named.
const SLOTS_DEFAULT: u32 = 10;

const DAY: Duration = Duration::from_secs(24 * 3600);

type Make<S> = Box<dyn Fn(&Arc<Shared<S>>) -> Arc<dyn AttemptHandler> + Send + Sync + 'static>;
type Before = Arc<dyn Fn(&RunningAttempt) + Send + Sync>;
type After = Arc<dyn Fn(&RunningAttempt, &Report) + Send + Sync>;
type Signal = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs jobs.
///
/// ```no_run
/// # use windlass::{Client, Context, Error, Failure, Job, Worker};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct SendEmail { to: String }
/// # impl Job for SendEmail { const KIND: &'static str = "email:send"; }
/// # struct App;
/// async fn send_email(job: SendEmail, ctx: Context<App>) -> Result<(), Failure> {
///     ctx.log(format!("sending to {}", job.to));
///     Ok(())
/// }
/// # async fn example(ctrl_c: impl Future<Output = ()> + Send + 'static) -> Result<(), Error> {
/// let client = Client::open("sqlite:jobs.db").await?;
/// Worker::new(&client, App).queue("mail", 10).handle(send_email).run_until(ctrl_c).await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a worker does nothing until it is run"]
pub struct Worker<S = ()> {
    client: Client,
    state: Arc<S>,
    name: Option<String>,
    queues: Vec<Queue>,
    discovered: Vec<Queues>,
    handlers: Vec<(Vec<String>, Make<S>)>,
    kind_retry: BTreeMap<String, Arc<RetryPolicy>>,
    classifiers: Vec<Classifier>,
    rule: Option<Box<dyn RetryRule>>,
    before: Vec<Before>,
    after: Vec<After>,
    schedules: Vec<(String, Vec<Schedule>)>,
    config: WorkerConfig,
    stop_at_once: Option<Signal>,
    problems: Vec<Invalid>,
}

impl<S: Send + Sync + 'static> Worker<S> {
    /// A worker on a client's store; its handlers share `state`.
    pub fn new(client: &Client, state: S) -> Self {
        let unnamed = WorkerName::new("worker").expect("it is a name");
        Worker {
            client: client.clone(),
            state: Arc::new(state),
            name: None,
            queues: Vec::new(),
            discovered: Vec::new(),
            handlers: Vec::new(),
            kind_retry: BTreeMap::new(),
            classifiers: Vec::new(),
            rule: None,
            before: Vec::new(),
            after: Vec::new(),
            schedules: Vec::new(),
            config: WorkerConfig::new(unnamed),
            stop_at_once: None,
            problems: Vec::new(),
        }
    }

    /// Its name, of its own among all workers; made up from the process if not said.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Serves a queue, with so many of its jobs running at once. Without any, `default` with 10.
    pub fn queue(self, name: &str, concurrency: u32) -> Self {
        self.queue_with(Queue::new(name, concurrency))
    }

    /// Serves a queue with more to say about it.
    pub fn queue_with(mut self, queue: Queue) -> Self {
        self.queues.push(queue);
        self
    }

    /// Serves all queues, also those that are first used later, with `concurrency` of their jobs
    /// running at once, all together. See [`Queues`].
    pub fn all_queues(self, concurrency: u32) -> Self {
        self.queues_with(Queues::all(concurrency))
    }

    /// Serves the queues whose names match a pattern such as `tenant-*`, also those that are first
    /// used later, with `concurrency` of their jobs running at once, all together.
    ///
    /// ```
    /// # use windlass::{Client, Worker};
    /// # fn example(client: &Client) {
    /// Worker::new(client, ()).queue("billing", 5).queues_matching("tenant-*", 50);
    /// # }
    /// ```
    pub fn queues_matching(self, pattern: &str, concurrency: u32) -> Self {
        self.queues_with(Queues::matching(pattern, concurrency))
    }

    /// Serves queues that it discovers, with more to say about them. A queue that the worker names
    /// itself is not among them; one that matches several patterns belongs to the first.
    pub fn queues_with(mut self, queues: Queues) -> Self {
        self.discovered.push(queues);
        self
    }

    /// At most so many jobs run at once over all queues, which share the slots by their weights.
    pub fn concurrency(mut self, most: u32) -> Self {
        self.config.concurrency = Some(most);
        self
    }

    /// Runs jobs of one type with an async function.
    pub fn handle<H, Shape>(mut self, handler: H) -> Self
    where
        H: Handler<S, Shape>,
        Shape: 'static,
    {
        let kinds = std::iter::once(H::Job::KIND).chain(H::Job::ALIASES.iter().copied());
        let kinds: Vec<String> = kinds.map(str::to_owned).collect();
        if let Some(policy) = H::Job::defaults().retry_of_kind() {
            for kind in &kinds {
                self.kind_retry.insert(kind.clone(), Arc::clone(&policy));
            }
        }
        let handler = Arc::new(handler);
        let make: Make<S> = Box::new(move |shared| {
            Arc::new(Adapter::<S, H, Shape>::new(
                Arc::clone(&handler),
                Arc::clone(shared),
            ))
        });
        self.handlers.push((kinds, make));
        self
    }

    /// Runs jobs of one kind with a handler that sees the attempt as the engine does: it decodes the
    /// payload itself, and its report says how the attempt ended. For crates that bring handlers
    /// of their own; a program's own jobs go through [`Worker::handle`].
    pub fn handle_attempts(mut self, kind: &str, handler: Arc<dyn AttemptHandler>) -> Self {
        let make: Make<S> = Box::new(move |_| Arc::clone(&handler));
        self.handlers.push((vec![kind.to_owned()], make));
        self
    }

    /// The policy of jobs of one kind that have none of their own.
    pub fn retry_kind(mut self, kind: &str, policy: impl Into<Retry>) -> Self {
        let policy = policy.into().into_policy();
        self.kind_retry.insert(kind.to_owned(), policy);
        self
    }

    /// Errors of this type, also wrapped ones, lead to what they say.
    pub fn classify<E: Classify>(mut self) -> Self {
        self.classifiers.push(classifier::<E>());
        self
    }

    /// The policy of jobs that nobody else has one for; `standard` if not said. Its limit is the cap, unless one is set.
    pub fn retry(mut self, policy: impl Into<Retry>) -> Self {
        self.config.retry.policy = Some(policy.into().into_policy());
        self
    }

    /// Decides in code what a failed attempt leads to. The policy still gives the limit of attempts, and is what counts where no
    /// handler returned: for timeouts and workers that died.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use windlass::retry::{FailedAttempt, RetryDecision};
    /// # use windlass::{Client, Worker};
    /// # fn example(client: &Client) {
    /// Worker::new(client, ()).retry_rule(|failed: &FailedAttempt| match failed.error.message() {
    ///     "locked" => RetryDecision::After(Duration::from_millis(50)),
    ///     "no such account" => RetryDecision::Never,
    ///     _ => RetryDecision::ByPolicy,
    /// });
    /// # }
    /// ```
    pub fn retry_rule(mut self, rule: impl RetryRule) -> Self {
        self.rule = Some(Box::new(rule));
        self
    }

    /// Fails fast: the first failure of a job is its last, whatever the job says.
    pub fn no_retry(mut self) -> Self {
        self.config.retry.policy = None;
        self
    }

    /// The most attempts this worker grants, whatever a job asks for.
    pub fn cap(mut self, max_attempts: u32) -> Self {
        match AttemptLimit::from_max_attempts(i64::from(max_attempts)) {
            Ok(Some(limit)) => self.config.retry.cap = Cap::At(limit),
            Ok(None) => self
                .problems
                .push(Invalid::new("cap", "must be at least 1")),
            Err(error) => self.problems.push(error.within("cap")),
        }
        self
    }

    /// Jobs get as many attempts as they ask for.
    pub fn no_cap(mut self) -> Self {
        self.config.retry.cap = Cap::Unlimited;
        self
    }

    /// Called before every attempt.
    pub fn before(mut self, hook: impl Fn(&RunningAttempt) + Send + Sync + 'static) -> Self {
        self.before.push(Arc::new(hook));
        self
    }

    /// Called once after every attempt, in whatever way it ended.
    pub fn after(
        mut self,
        hook: impl Fn(&RunningAttempt, &Report) + Send + Sync + 'static,
    ) -> Self {
        self.after.push(Arc::new(hook));
        self
    }

    /// Declares schedules. They are created or changed by name at the start; those that the set of this name declared before,
    /// and no longer does, are removed.
    pub fn schedules(mut self, set: &str, schedules: impl IntoIterator<Item = Schedule>) -> Self {
        let schedules = schedules.into_iter().collect();
        self.schedules.push((set.to_owned(), schedules));
        self
    }

    /// How long a lease lasts, which is renewed every third of it; 30 s if not said. A worker that dies is found after it.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = lease;
        self
    }

    /// After so long it looks for jobs even if nobody told it to; 1 s if not said.
    pub fn poll(mut self, poll: Duration) -> Self {
        self.config.poll = poll;
        self
    }

    /// At shutdown, running jobs have so long to end before they are given back; 30 s if not said.
    pub fn shutdown_grace(mut self, grace: Duration) -> Self {
        self.config.shutdown_grace = grace;
        self
    }

    /// A handler that was told to stop has so long to return before it is cut off at an `await`; 5 s if not said.
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.config.cancel_grace = grace;
        self
    }

    /// An outcome that the store keeps refusing is retried, and its lease renewed, for at most this long after the handler
    /// returned; 5 minutes if not said. After that the lease expires, and the attempt counts as lost.
    pub fn outcome_retry_max(mut self, time: Duration) -> Self {
        self.config.outcome_retry_max = time;
        self
    }

    /// Finished jobs are kept for so many days; 7 if not said.
    pub fn retention_days(mut self, days: u32) -> Self {
        self.config.janitor.retention = days * DAY;
        self
    }

    /// Dead jobs are removed after so many days; never, if not said.
    pub fn dead_retention_days(mut self, days: u32) -> Self {
        self.config.janitor.dead_retention = Some(days * DAY);
        self
    }

    /// What ends the shutdown at once, without the grace period: a second signal.
    pub fn stop_at_once_on<F>(mut self, signal: F) -> Self
    where
        F: Future + Send + 'static,
    {
        self.stop_at_once = Some(Box::pin(async move {
            signal.await;
        }));
        self
    }

    /// Runs until the signal; then running jobs have the grace period to end, and what is left is
    /// given back.
    ///
    /// If the store stops for good (a SQLite file whose sync failed), the worker cancels its
    /// handlers and returns [`Error::Store`] with
    /// [`StoreError::Stopped`](crate::StoreError::Stopped): end the process and start it again.
    pub async fn run_until<F>(mut self, signal: F) -> Result<Stopped, Error>
    where
        F: Future + Send + 'static,
    {
        let at_once = self.stop_at_once.take();
        let worker = self.build().await?;
        let (stop, stop_now) = (CancellationToken::new(), CancellationToken::new());
        let (stops, stops_now) = (stop.clone(), stop_now.clone());
        let signals = async move {
            signal.await;
            stops.cancel();
            if let Some(at_once) = at_once {
                at_once.await;
                stops_now.cancel();
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            stopped = worker.run(stop, stop_now) => Ok(stopped?),
            () = signals => unreachable!("it waits for ever"),
        }
    }

    /// Declares the schedules and builds the worker of the engine; all problems at once.
    pub(crate) async fn build(self) -> Result<EngineWorker, Error> {
        let client = self.client.clone();
        let mut problems = self.problems.clone();
        let now = client.now();
        let declared = self.schedules.iter().flat_map(|(_, schedules)| schedules);
        let to_come = declared.filter(|schedule| !schedule.is_over(now));
        problems.extend(to_come.filter_map(|schedule| schedule.checked(now).err()));
        let schedules = self.schedules.clone();
        let config = self.config(&mut problems);
        if let Err(problem) = config.check() {
            problems.push(problem);
        }
        if !problems.is_empty() {
            return Err(Error::Worker(problems));
        }
        client.declare(&schedules).await?;
        Ok(EngineWorker::new(Arc::clone(&client.engine), config)?)
    }

    fn config(mut self, problems: &mut Vec<Invalid>) -> WorkerConfig {
        let mut config = self.config;
        let name = self.name.unwrap_or_else(|| {
            let drawn = self.client.engine.ids().bits() >> 32;
            format!("worker-{}-{drawn:08x}", std::process::id())
        });
        match WorkerName::new(&name) {
            Ok(name) => config.name = name,
            Err(error) => problems.push(error.within("name")),
        }
        for queues in &self.discovered {
            match queues.config() {
                Ok(discovered) => config.discovered.push(discovered),
                Err(error) => problems.push(error),
            }
        }
        if self.queues.is_empty() && self.discovered.is_empty() {
            self.queues.push(Queue::new("default", SLOTS_DEFAULT));
        }
        for queue in &self.queues {
            match queue.config() {
                Ok(of) => {
                    if let Some(days) = queue.kept_for_days() {
                        config.janitor.queues.insert(of.name.clone(), days * DAY);
                    }
                    config.queues.push(of);
                }
                Err(error) => problems.push(error),
            }
        }
        let shared = Arc::new(Shared {
            state: self.state,
            classifiers: self.classifiers,
            rule: self.rule,
        });
        for (kinds, make) in &self.handlers {
            let handler = make(&shared);
            for kind in kinds {
                match Kind::new(kind) {
                    Err(error) => problems.push(error.within("kind")),
                    Ok(kind) => {
                        if !config.handlers.add(kind.clone(), Arc::clone(&handler)) {
                            let rule = format!("has two handlers: {kind}");
                            problems.push(Invalid::new("kind", rule));
                        }
                    }
                }
            }
        }
        for (kind, policy) in self.kind_retry {
            if let Ok(kind) = Kind::new(&kind) {
                config.kind_retry.insert(kind, policy);
            }
        }
        if !self.before.is_empty() || !self.after.is_empty() {
            config.hooks = Some(Arc::new(Both {
                before: self.before,
                after: self.after,
            }));
        }
        config
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }
}

struct Both {
    before: Vec<Before>,
    after: Vec<After>,
}

impl Hooks for Both {
    fn before(&self, attempt: &RunningAttempt) {
        self.before.iter().for_each(|hook| hook(attempt));
    }

    fn after(&self, attempt: &RunningAttempt, report: &Report) {
        self.after.iter().for_each(|hook| hook(attempt, report));
    }
}

impl<S> fmt::Debug for Worker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("queues", &self.queues)
            .field("discovered", &self.discovered)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestKit;
    use windlass_core::fairness::Guards;
    use windlass_core::retry::Preset;

    fn config(build: impl FnOnce(Worker) -> Worker) -> (WorkerConfig, Vec<Invalid>) {
        let client = TestKit::new().client().clone();
        let mut problems = Vec::new();
        let config = build(Worker::new(&client, ())).config(&mut problems);
        (config, problems)
    }

    #[test]
    fn a_worker_without_words_serves_the_default_queue() {
        let (config, problems) = config(|worker| worker);
        assert!(problems.is_empty(), "{problems:?}");
        let [queue] = &config.queues[..] else {
            panic!("{:?}", config.queues);
        };
        assert_eq!((queue.name.as_str(), queue.concurrency), ("default", 10));
        assert_eq!(queue.guards, Guards::default());
        assert!(config.name.as_str().starts_with("worker-"));
    }

    #[test]
    fn every_setting_of_a_worker_is_kept() {
        let time = Duration::from_secs;
        let (config, problems) = config(|worker| {
            worker
                .name("w")
                .queue_with(Queue::new("a", 3).retention_days(2))
                .concurrency(5)
                .retry(Preset::Patient)
                .cap(7)
                .lease(time(11))
                .poll(time(12))
                .shutdown_grace(time(13))
                .cancel_grace(time(14))
                .outcome_retry_max(time(17))
                .retention_days(15)
                .dead_retention_days(16)
                .before(|_| {})
        });
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(config.name.as_str(), "w");
        assert_eq!(config.concurrency, Some(5));
        let policy = config.retry.policy.as_ref().unwrap();
        assert_eq!(policy.preset(), Some(Preset::Patient));
        assert!(matches!(config.retry.cap, Cap::At(limit) if limit.get() == 7));
        assert_eq!((config.lease, config.poll), (time(11), time(12)));
        assert_eq!(
            (config.shutdown_grace, config.cancel_grace),
            (time(13), time(14))
        );
        assert_eq!(config.outcome_retry_max, time(17));
        assert_eq!(config.janitor.retention, 15 * DAY);
        assert_eq!(config.janitor.queues[&config.queues[0].name], 2 * DAY);
        assert_eq!(config.janitor.dead_retention, Some(16 * DAY));
        assert!(config.hooks.is_some());
        let (config, _) = super::tests::config(|worker| worker.no_retry().no_cap());
        assert_eq!(config.retry.policy, None);
        assert_eq!(config.retry.cap, Cap::Unlimited);
    }
}
