//! The worker: claims jobs from queues and runs their handlers.

mod build;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::retry::{AttemptLimit, Cap, RetryPolicy};
use windlass_core::{Invalid, Report, WorkerName};
use windlass_engine::{
    CancellationToken, Handler as AttemptHandler, RunningAttempt, Stopped, WorkerConfig,
};

use crate::client::Client;
use crate::error::Error;
use crate::failure::{Classifier, Classify, classifier};
use crate::handler::{Handler, HandlerAdapter, HandlerEnvironment};
use crate::job::Job;
use crate::options::Retry;
use crate::queue::{Queue, Queues};
use crate::retry::RetryRule;
use crate::schedule::Schedule;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Builds a handler when the environment that all handlers share is known.
type HandlerFactory<S> =
    Box<dyn Fn(&Arc<HandlerEnvironment<S>>) -> Arc<dyn AttemptHandler> + Send + Sync + 'static>;
type BeforeHook = Arc<dyn Fn(&RunningAttempt) + Send + Sync>;
type AfterHook = Arc<dyn Fn(&RunningAttempt, &Report) + Send + Sync>;
type StopSignal = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Claims jobs from queues and runs their handlers.
///
/// Give it the queues to serve ([`queue`](Worker::queue)) and a handler for each type of job
/// ([`handle`](Worker::handle)), then run it ([`run_until`](Worker::run_until)). A worker claims only
/// jobs that it has a handler for; other jobs wait for a worker that knows them. It also fires
/// schedules, recovers the jobs of crashed workers, and removes old jobs. A process may run several
/// workers, and several processes may run workers on the same PostgreSQL database.
///
/// ```no_run
/// use windlass::{Client, Context, Error, Failure, Job, Worker};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct SendEmail { to: String }
/// # impl Job for SendEmail { const KIND: &'static str = "email:send"; }
///
/// /// The state that all handlers share.
/// struct App {
///     sender: String,
/// }
///
/// async fn send_email(job: SendEmail, ctx: Context<App>) -> Result<(), Failure> {
///     ctx.log(format!("from {} to {}", ctx.state.sender, job.to));
///     Ok(())
/// }
///
/// #[tokio::main]
/// async fn main() -> Result<(), Error> {
///     let client = Client::open("sqlite:jobs.db").await?;
///     let app = App { sender: "shop@example.org".into() };
///     Worker::new(&client, app)
///         .queue("mail", 10)
///         .handle(send_email)
///         .run_until(tokio::signal::ctrl_c())
///         .await?;
///     Ok(())
/// }
/// ```
#[must_use = "a worker does nothing until it is run"]
pub struct Worker<S = ()> {
    client: Client,
    state: Arc<S>,
    name: Option<String>,
    queues: Vec<Queue>,
    discovered: Vec<Queues>,
    handlers: Vec<(Vec<String>, HandlerFactory<S>)>,
    kind_retry: BTreeMap<String, Arc<RetryPolicy>>,
    classifiers: Vec<Classifier>,
    retry_rule: Option<Box<dyn RetryRule>>,
    before: Vec<BeforeHook>,
    after: Vec<AfterHook>,
    schedules: Vec<(String, Vec<Schedule>)>,
    config: WorkerConfig,
    stop_at_once: Option<StopSignal>,
    problems: Vec<Invalid>,
}

impl<S: Send + Sync + 'static> Worker<S> {
    /// Returns a worker that uses the store of a client. All its handlers share `state`, see
    /// [`Context::state`](crate::Context::state).
    pub fn new(client: &Client, state: S) -> Self {
        let unnamed = WorkerName::new("worker").expect("\"worker\" is a valid name");
        Worker {
            client: client.clone(),
            state: Arc::new(state),
            name: None,
            queues: Vec::new(),
            discovered: Vec::new(),
            handlers: Vec::new(),
            kind_retry: BTreeMap::new(),
            classifiers: Vec::new(),
            retry_rule: None,
            before: Vec::new(),
            after: Vec::new(),
            schedules: Vec::new(),
            config: WorkerConfig::new(unnamed),
            stop_at_once: None,
            problems: Vec::new(),
        }
    }

    /// Sets the name of the worker, which must be unique among the workers of the store.
    ///
    /// The default is made from the process id and a random number.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Serves a queue, and runs at most `concurrency` of its jobs at the same time.
    ///
    /// A worker without any queue serves `default` with a concurrency of 10.
    pub fn queue(self, name: &str, concurrency: u32) -> Self {
        self.queue_with(Queue::new(name, concurrency))
    }

    /// Serves a queue with its own weight, retry guards (limits on the share of retries), retry
    /// policy or retention. See [`Queue`].
    pub fn queue_with(mut self, queue: Queue) -> Self {
        self.queues.push(queue);
        self
    }

    /// Serves all queues, including those that are first used later. Runs at most `concurrency` of
    /// their jobs at the same time, in total. See [`Queues`].
    pub fn all_queues(self, concurrency: u32) -> Self {
        self.queues_with(Queues::all(concurrency))
    }

    /// Serves the queues whose names match a pattern such as `tenant-*`, including those that are
    /// first used later. Runs at most `concurrency` of their jobs at the same time, in total. See
    /// [`Queues`].
    pub fn queues_matching(self, pattern: &str, concurrency: u32) -> Self {
        self.queues_with(Queues::matching(pattern, concurrency))
    }

    /// Serves a group of queues that the worker discovers while it runs. See [`Queues`].
    ///
    /// A queue that is also added by name ([`Worker::queue`]) is not part of a group. A queue that
    /// matches several patterns belongs to the first.
    pub fn queues_with(mut self, queues: Queues) -> Self {
        self.discovered.push(queues);
        self
    }

    /// Limits how many jobs run at the same time across all queues of this worker.
    ///
    /// The queues share the slots by their [weights](Queue::weight). By default the limit is the sum
    /// of the concurrencies of all queues.
    pub fn concurrency(mut self, max: u32) -> Self {
        self.config.concurrency = Some(max);
        self
    }

    /// Runs jobs of one type with an async function. See [`Handler`] for its shape.
    ///
    /// The function also gets the jobs of the [aliases](Job::ALIASES) of the type. If two handlers
    /// have the same kind, the worker does not start.
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
        let factory: HandlerFactory<S> = Box::new(move |environment| {
            Arc::new(HandlerAdapter::<S, H, Shape>::new(
                Arc::clone(&handler),
                Arc::clone(environment),
            ))
        });
        self.handlers.push((kinds, factory));
        self
    }

    /// Runs jobs of one kind with a handler that decodes the payload and reports the outcome itself.
    ///
    /// This is for crates that provide ready-made handlers. Use [`Worker::handle`] for your own jobs.
    pub fn handle_attempts(mut self, kind: &str, handler: Arc<dyn AttemptHandler>) -> Self {
        let factory: HandlerFactory<S> = Box::new(move |_| Arc::clone(&handler));
        self.handlers.push((vec![kind.to_owned()], factory));
        self
    }

    /// Sets the retry policy of the jobs of one kind that have no policy of their own.
    ///
    /// For a Rust type, [`Job::defaults`] does the same.
    pub fn retry_for_kind(mut self, kind: &str, policy: impl Into<Retry>) -> Self {
        let policy = policy.into().into_policy();
        self.kind_retry.insert(kind.to_owned(), policy);
        self
    }

    /// Lets an error type decide which of its errors are retried, even if another error wraps it.
    ///
    /// See [`Classify`].
    pub fn classify<E: Classify>(mut self) -> Self {
        self.classifiers.push(classifier::<E>());
        self
    }

    /// Sets the retry policy of jobs for which neither the job, its kind nor its queue has one.
    ///
    /// The default is [`Preset::Standard`](crate::retry::Preset::Standard). The attempt limit of
    /// this policy is also the cap for all jobs, unless you change it with [`Worker::attempt_cap`]
    /// or [`Worker::no_attempt_cap`].
    pub fn retry(mut self, policy: impl Into<Retry>) -> Self {
        self.config.retry.policy = Some(policy.into().into_policy());
        self
    }

    /// Sets a rule in code that decides what happens after a handler has returned an error. See
    /// [`RetryRule`].
    ///
    /// The policy still sets the limit of attempts. It also decides when no handler has returned an
    /// error: after timeouts, panics and crashes.
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
        self.retry_rule = Some(Box::new(rule));
        self
    }

    /// Turns retries off: the first failure of a job is its last, even if the job has a retry policy.
    pub fn no_retry(mut self) -> Self {
        self.config.retry.policy = None;
        self
    }

    /// Caps the number of attempts of every job, even if the job asks for more. `max_attempts` must
    /// be at least 1.
    pub fn attempt_cap(mut self, max_attempts: u32) -> Self {
        match AttemptLimit::from_max_attempts(i64::from(max_attempts)) {
            Ok(Some(limit)) => self.config.retry.cap = Cap::AtMost(limit),
            Ok(None) => self
                .problems
                .push(Invalid::new("attempt_cap", "must be at least 1")),
            Err(error) => self.problems.push(error.within("attempt_cap")),
        }
        self
    }

    /// Removes the cap: jobs get as many attempts as they or their policies ask for.
    pub fn no_attempt_cap(mut self) -> Self {
        self.config.retry.cap = Cap::Unlimited;
        self
    }

    /// Calls a function before every attempt. It must be quick and must not block.
    ///
    /// May be called several times; the hooks run in order.
    pub fn before(mut self, hook: impl Fn(&RunningAttempt) + Send + Sync + 'static) -> Self {
        self.before.push(Arc::new(hook));
        self
    }

    /// Calls a function once after every attempt, with its outcome, however the attempt ended. It must
    /// be quick and must not block.
    pub fn after(
        mut self,
        hook: impl Fn(&RunningAttempt, &Report) + Send + Sync + 'static,
    ) -> Self {
        self.after.push(Arc::new(hook));
        self
    }

    /// Declares a set of schedules. When the worker starts, it creates each of them, or changes the
    /// existing one with the same name.
    ///
    /// Schedules that this set declared before and no longer declares are removed. A set that is not
    /// declared at all keeps its schedules: declare it empty to remove them. See
    /// [`schedule`](crate::schedule).
    pub fn schedules(mut self, set: &str, schedules: impl IntoIterator<Item = Schedule>) -> Self {
        let schedules = schedules.into_iter().collect();
        self.schedules.push((set.to_owned(), schedules));
        self
    }

    /// Sets how long a lease lasts. The default is 30 s, the minimum is 100 ms.
    ///
    /// The worker renews its leases each time a third of this time has passed. When it dies, its
    /// jobs run again after their leases have expired.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = lease;
        self
    }

    /// Sets how often an idle worker polls for jobs. The default is 1 s.
    ///
    /// New jobs normally wake the worker at once; polling finds them if that notification is lost.
    pub fn poll(mut self, poll: Duration) -> Self {
        self.config.poll = poll;
        self
    }

    /// Sets how much time running jobs get to finish at shutdown. The default is 30 s.
    ///
    /// Jobs that are still running after that are given back: they are due again at once, and no
    /// failure is counted. An at-most-once job that has started is dead instead. Choose less time
    /// than your deployment waits before it kills the process.
    pub fn shutdown_grace(mut self, grace: Duration) -> Self {
        self.config.shutdown_grace = grace;
        self
    }

    /// Sets how long a handler may take to return after it was asked to stop. The default is 5 s.
    ///
    /// After that the worker drops the handler at its next `await`.
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.config.cancel_grace = grace;
        self
    }

    /// Sets how long the worker keeps trying to store an outcome that the store refuses. The
    /// default is 5 minutes, counted from the return of the handler.
    ///
    /// The worker renews the lease meanwhile. When it gives up, the lease expires, and the attempt
    /// counts as lost.
    pub fn outcome_retry_max(mut self, max: Duration) -> Self {
        self.config.outcome_retry_max = max;
        self
    }

    /// Keeps succeeded and cancelled jobs for this many days. The default is 7.
    ///
    /// [`Queue::retention_days`] overrides it for one queue.
    pub fn retention_days(mut self, days: u32) -> Self {
        self.config.janitor.retention = days * DAY;
        self
    }

    /// Removes dead jobs after this many days. By default they are kept until a person removes them.
    pub fn dead_retention_days(mut self, days: u32) -> Self {
        self.config.janitor.dead_retention = Some(days * DAY);
        self
    }

    /// Ends the shutdown at once, without the rest of the grace period, when this future completes.
    ///
    /// For example, pass a second signal. The worker starts to wait for it only after the signal of
    /// [`Worker::run_until`] has completed.
    pub fn stop_immediately_on<F>(mut self, signal: F) -> Self
    where
        F: Future + Send + 'static,
    {
        self.stop_at_once = Some(Box::pin(async move {
            signal.await;
        }));
        self
    }

    /// Runs the worker until `signal` completes, then shuts it down gracefully.
    ///
    /// At shutdown the worker claims nothing more, waits for running jobs
    /// ([`Worker::shutdown_grace`]) and gives back those that have not finished by then.
    /// [`Stopped`] says how many it gave back. If this future is dropped instead, that is like a
    /// crash: the jobs run again after their leases have expired.
    ///
    /// # Errors
    ///
    /// [`Error::Worker`] with all problems of the configuration, before anything runs.
    /// [`Error::Store`] if the store fails at the start, or if it stops for good while the worker
    /// runs ([`StoreError::Stopped`](crate::StoreError::Stopped), for example after a failed sync of
    /// a SQLite file): restart the process.
    pub async fn run_until<F>(mut self, signal: F) -> Result<Stopped, Error>
    where
        F: Future + Send + 'static,
    {
        let at_once = self.stop_at_once.take();
        let worker = self.build().await?;
        let (stop, stop_now) = (CancellationToken::new(), CancellationToken::new());
        let (stop_trigger, stop_now_trigger) = (stop.clone(), stop_now.clone());
        let signals = async move {
            signal.await;
            stop_trigger.cancel();
            if let Some(at_once) = at_once {
                at_once.await;
                stop_now_trigger.cancel();
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            stopped = worker.run(stop, stop_now) => Ok(stopped?),
            () = signals => unreachable!("the future never completes"),
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
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
