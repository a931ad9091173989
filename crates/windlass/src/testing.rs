//! Tests of jobs, without sleeping and without a server.
//!
//! A [`TestKit`] has its own store and a virtual clock. The test drives a [`TestWorker`], which does
//! what a running worker does, but at once: the clock jumps from one due time to the next. Hours of
//! retries and days of schedules pass in milliseconds, always with the same result.
//!
//! | method | what it does |
//! |---|---|
//! | [`TestWorker::drain`] | runs until no job is waiting or running |
//! | [`TestWorker::run_for`] | lets a span of time pass, and does everything that is due in it |
//! | [`TestWorker::pass`] | does what is due at this moment |
//! | [`TestWorker::run_one`] | runs one attempt of one job |
//! | [`TestWorker::crash_after_claim`], [`TestWorker::crash_before_settle`] | simulate a killed process |
//! | [`TestKit::enqueued`] | returns the waiting jobs of a type |
//! | [`TestKit::timeline`] | returns all finished attempts of a job |
//!
//! The clock advances only while every handler sleeps with
//! [`Context::sleep`](crate::Context::sleep) or waits for
//! [`Context::stopped`](crate::Context::stopped). Other work of a handler, such as a request to a
//! mock server, takes no virtual time.
//!
//! ```
//! use std::time::Duration;
//!
//! use serde::{Deserialize, Serialize};
//! use windlass::testing::TestKit;
//! use windlass::{Context, Failure, Job, Worker};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Ping;
//!
//! impl Job for Ping {
//!     const KIND: &'static str = "ping";
//! }
//!
//! async fn ping(_: Ping, ctx: Context) -> Result<(), Failure> {
//!     if ctx.attempt() < 3 { Err("no answer".into()) } else { Ok(()) }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), windlass::Error> {
//! let kit = TestKit::new();
//! let id = kit.client().enqueue(Ping).await?.id;
//! let worker = kit.worker(Worker::new(kit.client(), ()).handle(ping)).await?;
//!
//! worker.crash_after_claim().await?; // the first attempt dies with its worker
//! kit.advance(Duration::from_secs(31)); // its lease of 30 s expires
//! worker.drain().await?; // retries until nothing is left to do
//!
//! let timeline = kit.timeline(id).await?;
//! assert_eq!(timeline.outcomes(), ["lost", "failed", "succeeded"]);
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::{Job as StoredJob, JobId, Kind, Timestamp, format_duration};
#[doc(inline)]
pub use windlass_engine::Drained;
use windlass_engine::{Clock as _, Engine, Ids, VirtualClock, Worker as EngineWorker};
use windlass_memory::MemoryStore;
use windlass_store::{Attempt, Filter, ListedState, PAGE_MAX, Page, Store};

use crate::admin::client_of;
use crate::client::Client;
use crate::error::Error;
use crate::job::Job;
use crate::worker::Worker;

/// The time at which the clock of a kit starts.
fn start() -> Timestamp {
    const START_MICROS: i64 = 1_767_225_600_000_000; // 2026-01-01T00:00:00Z
    Timestamp::from_micros(START_MICROS).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// The time at which the clock of a kit starts on a used store: after everything that happened in it.
async fn start_on(store: &dyn Store) -> Result<Timestamp, Error> {
    let heartbeats = store.nodes().await?.into_iter().map(|node| node.beat_at);
    let mut latest = heartbeats.fold(start(), Timestamp::max);
    for state in ListedState::ALL {
        let filter = Filter::state(state);
        let newest = store.list(&filter, Page::first(1), latest).await?;
        let created = newest.jobs.into_iter().map(|job| job.created_at);
        latest = created.fold(latest, Timestamp::max);
    }
    let used = latest > start() || !store.counts(latest).await?.is_empty();
    Ok(latest.saturating_add(Duration::from_secs(u64::from(used))))
}

/// A store, and a virtual clock that only the test moves.
///
/// The module [`testing`](crate::testing) has an example.
#[derive(Debug)]
pub struct TestKit {
    client: Client,
    clock: VirtualClock,
    start: Timestamp,
}

impl TestKit {
    /// Returns a kit with a store in memory. Its clock starts at 2026-01-01T00:00:00Z.
    pub fn new() -> Self {
        TestKit::on(
            Arc::new(MemoryStore::new()),
            VirtualClock::new(start()),
            Ids::seeded(0),
        )
    }

    /// Opens a kit on another store, to test on the store that you use in production.
    ///
    /// On a store that was used before, the clock starts after everything that happened in it.
    ///
    /// # Errors
    ///
    /// As [`Client::open`].
    pub async fn open(url: &str) -> Result<Self, Error> {
        let (store, _) = crate::open::store(url, start(), &Ids::seeded(0)).await?;
        let start = start_on(&*store).await?;
        // Another seed for each run, so that ids do not repeat.
        let ids = Ids::seeded(start.as_micros().unsigned_abs());
        Ok(TestKit::on(store, VirtualClock::new(start), ids))
    }

    fn on(store: Arc<dyn Store>, clock: VirtualClock, ids: Ids) -> Self {
        let engine = Engine::new(store, Arc::new(clock.clone()), ids);
        TestKit {
            client: client_of(Arc::new(engine)),
            start: clock.now(),
            clock,
        }
    }

    /// Returns a client of the store.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the virtual time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Advances the clock. Nothing runs until the test drives a worker.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// Turns a worker into one that the test drives.
    ///
    /// The worker must be made with [`TestKit::client`] of this kit.
    ///
    /// # Errors
    ///
    /// [`Error::Worker`] with all problems of its configuration.
    pub async fn worker<S: Send + Sync + 'static>(
        &self,
        worker: Worker<S>,
    ) -> Result<TestWorker, Error> {
        let same_engine = Arc::ptr_eq(&worker.client().engine, &self.client.engine);
        assert!(
            same_engine,
            "the worker must be made with this kit's client"
        );
        Ok(TestWorker {
            worker: worker.build().await?,
            clock: self.clock.clone(),
        })
    }

    /// Returns the waiting jobs of a type, decoded, in the order in which they were enqueued.
    ///
    /// # Errors
    ///
    /// [`Error::Result`] if a payload is not a `T`.
    pub async fn enqueued<T: Job>(&self) -> Result<Vec<T>, Error> {
        let jobs = self.waiting(&Kind::new(T::KIND)?).await?;
        let decoded = jobs.iter().map(|job| {
            let value = job.payload.decode();
            value.map_err(|error| Error::Result(job.id, error))
        });
        decoded.collect()
    }

    async fn waiting(&self, kind: &Kind) -> Result<Vec<StoredJob>, Error> {
        let mut waiting = Vec::new();
        for state in [ListedState::Ready, ListedState::Scheduled] {
            let filter = Filter {
                kind: Some(kind.clone()),
                ..Filter::state(state)
            };
            let mut jobs = self.client.jobs(&filter);
            while let Some(job) = jobs.next().await? {
                waiting.push(job);
            }
        }
        waiting.sort_by_key(|job| job.id);
        Ok(waiting)
    }

    /// Returns the finished attempts of a job, oldest first: the newest 1000.
    pub async fn timeline(&self, id: JobId) -> Result<Timeline, Error> {
        let mut attempts = self.client.attempts(id, PAGE_MAX).await?;
        attempts.reverse();
        Ok(Timeline {
            start: self.start,
            attempts,
        })
    }
}

impl Default for TestKit {
    fn default() -> Self {
        TestKit::new()
    }
}

/// A worker that a test drives. [`TestKit::worker`] returns it.
#[derive(Debug)]
pub struct TestWorker {
    worker: EngineWorker,
    clock: VirtualClock,
}

impl TestWorker {
    /// Does everything that is due at this moment.
    ///
    /// The clock advances while handlers sleep. Occurrences of schedules that become due meanwhile
    /// wait for the next pass.
    ///
    /// # Errors
    ///
    /// [`Error::NoProgress`] if jobs keep becoming due at the same instant, after 10,000 attempts: a
    /// handler may enqueue itself without a delay.
    pub async fn pass(&self) -> Result<Drained, Error> {
        Ok(self.worker.pass(&self.clock).await?)
    }

    /// Lets time pass until none of the worker's jobs is waiting or running.
    ///
    /// Schedules fire on the way, but the clock does not advance for them alone. It does not return
    /// while a schedule fires faster than its jobs finish; use [`TestWorker::run_for`] there.
    ///
    /// # Errors
    ///
    /// As [`TestWorker::pass`].
    pub async fn drain(&self) -> Result<Drained, Error> {
        Ok(self.worker.drain(&self.clock).await?)
    }

    /// Lets this much time pass, and does everything at the instant at which it is due.
    ///
    /// Handlers wake up, jobs start and schedules fire. A handler that sleeps for longer is still
    /// running at the end, and continues with the next call.
    ///
    /// # Errors
    ///
    /// As [`TestWorker::pass`].
    pub async fn run_for(&self, duration: Duration) -> Result<Drained, Error> {
        let until = self.clock.now().saturating_add(duration);
        Ok(self.worker.run_through(&self.clock, until).await?)
    }

    /// Runs one attempt of one due job, and nothing else. Returns whether the job could be claimed.
    pub async fn run_one(&self, id: JobId) -> Result<bool, Error> {
        Ok(self.worker.run_one(&self.clock, id).await?)
    }

    /// Claims the due jobs and crashes, like a process that is killed before a handler starts.
    ///
    /// Returns the number of claimed jobs. They run again after their leases have expired.
    pub async fn crash_after_claim(&self) -> Result<usize, Error> {
        Ok(self.worker.crash_after_claim().await?)
    }

    /// Runs the due jobs and crashes, like a process that is killed after the handlers returned and
    /// before their outcomes are stored.
    ///
    /// Returns the number of jobs. They run again after their leases have expired.
    pub async fn crash_before_settle(&self) -> Result<usize, Error> {
        Ok(self.worker.crash_before_settle(&self.clock).await?)
    }

    /// Removes the jobs whose retention period is over, and returns their number.
    pub async fn tidy(&self) -> Result<usize, Error> {
        Ok(self.worker.tidy().await?)
    }
}

/// The finished attempts of a job, oldest first. [`TestKit::timeline`] returns it.
///
/// `Display` prints one line per attempt, such as `+5s #2 failed: no answer`, with the time since
/// the kit was made.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    start: Timestamp,
    attempts: Vec<Attempt>,
}

impl Timeline {
    /// Returns the attempts.
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }

    /// Returns the name of each outcome, such as `failed` or `succeeded`.
    pub fn outcomes(&self) -> Vec<&'static str> {
        let names = self.attempts.iter().map(|attempt| attempt.outcome.name());
        names.collect()
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for attempt in &self.attempts {
            let at = format_duration(attempt.started_at.since(self.start));
            write!(f, "+{at} #{} {}", attempt.attempt, attempt.outcome.name())?;
            if let Some(error) = &attempt.error {
                write!(f, ": {error}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
