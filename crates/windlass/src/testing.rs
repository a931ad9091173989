//! Tests of jobs without sleeping and without a server.
//!
//! A [`TestKit`] has a store of its own and a clock that stands still. A worker is driven pass by pass: what a running one
//! would do by and by, it does at once, and time jumps from one due time to the next.
//!
//! ```
//! use serde::{Deserialize, Serialize};
//! use windlass::testing::TestKit;
//! use windlass::{Context, Failure, Job, Worker};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Ping;
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
//! worker.drain().await?;
//! let timeline = kit.timeline(id).await?;
//! assert_eq!(timeline.outcomes(), ["failed", "failed", "succeeded"]);
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::{Job as StoredJob, JobId, Kind, Timestamp, format_duration};
pub use windlass_engine::Drained;
use windlass_engine::{Clock as _, Engine, Ids, VirtualClock, Worker as EngineWorker};
use windlass_memory::MemoryStore;
use windlass_store::{Attempt, Filter, ListedState, PAGE_MAX, Page, Store};

use crate::admin::client_of;
use crate::client::Client;
use crate::error::Error;
use crate::job::Job;
use crate::worker::Worker;

/// When the clock of a kit starts.
fn start() -> Timestamp {
    const START_MICROS: i64 = 1_767_225_600_000_000; // 2026-01-01T00:00:00Z
    Timestamp::from_micros(START_MICROS).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// When the clock of a kit starts on a store: after all that happened in it.
async fn start_on(store: &dyn Store) -> Result<Timestamp, Error> {
    let beats = store.nodes().await?.into_iter().map(|node| node.beat_at);
    let mut latest = beats.fold(start(), Timestamp::max);
    for state in ListedState::ALL {
        let filter = Filter::state(state);
        let newest = store.list(&filter, Page::first(1), latest).await?;
        let made = newest.jobs.into_iter().map(|job| job.created_at);
        latest = made.fold(latest, Timestamp::max);
    }
    let used = latest > start() || !store.counts(latest).await?.is_empty();
    Ok(latest.saturating_add(Duration::from_secs(u64::from(used))))
}

/// A store, and a clock that only the test moves.
#[derive(Debug)]
pub struct TestKit {
    client: Client,
    clock: VirtualClock,
    start: Timestamp,
}

impl TestKit {
    /// In memory; the clock starts at the first of January 2026, UTC.
    pub fn new() -> Self {
        TestKit::on(
            Arc::new(MemoryStore::new()),
            VirtualClock::new(start()),
            Ids::seeded(0),
        )
    }

    /// On a store of your choice, so that a test runs on what production runs on. On a store that has been used before, time
    /// goes on after what happened in it.
    pub async fn open(url: &str) -> Result<Self, Error> {
        let store = crate::open::store(url, start(), &Ids::seeded(0)).await?;
        let start = start_on(&*store).await?;
        // Other ids than those that were made before.
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

    /// A client of the store.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// What time it is.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Lets time pass; nothing runs by itself.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// A worker that the test drives. It must be on this kit's client.
    pub async fn worker<S: Send + Sync + 'static>(
        &self,
        worker: Worker<S>,
    ) -> Result<TestWorker, Error> {
        let same = Arc::ptr_eq(&worker.client().engine, &self.client.engine);
        assert!(same, "the worker must be made with this kit's client");
        Ok(TestWorker {
            worker: worker.build().await?,
            clock: self.clock.clone(),
        })
    }

    /// The waiting jobs of a type, decoded, in the order they were enqueued in.
    pub async fn enqueued<T: Job>(&self) -> Result<Vec<T>, Error> {
        let jobs = self.waiting(&Kind::new(T::KIND)?).await?;
        let decoded = jobs.iter().map(|job| {
            let value = job.payload.decode();
            value.map_err(|error| Error::Result(job.id, error))
        });
        decoded.collect()
    }

    async fn waiting(&self, kind: &Kind) -> Result<Vec<StoredJob>, Error> {
        let mut found = Vec::new();
        for state in [ListedState::Ready, ListedState::Scheduled] {
            let filter = Filter {
                kind: Some(kind.clone()),
                ..Filter::state(state)
            };
            let mut jobs = self.client.jobs(&filter);
            while let Some(job) = jobs.next().await? {
                found.push(job);
            }
        }
        found.sort_by_key(|job| job.id);
        Ok(found)
    }

    /// All attempts of a job that have ended.
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

/// A worker that a test drives.
#[derive(Debug)]
pub struct TestWorker {
    worker: EngineWorker,
    clock: VirtualClock,
}

impl TestWorker {
    /// Does everything that is due at this moment. Time passes while handlers sleep; occurrences of
    /// schedules that come due meanwhile wait for the next pass.
    ///
    /// Here and in the next two, jobs that keep coming at one instant are [`Error::Spinning`],
    /// after 10,000 attempts and those that were ready by then.
    pub async fn pass(&self) -> Result<Drained, Error> {
        Ok(self.worker.pass(&self.clock).await?)
    }

    /// Lets time pass until none of its jobs waits or runs. Schedules fire on the way, but time
    /// does not go on for them alone. It does not return while a schedule fires faster than its
    /// jobs end: use [`TestWorker::run_for`] there.
    pub async fn drain(&self) -> Result<Drained, Error> {
        Ok(self.worker.drain(&self.clock).await?)
    }

    /// Lets this much time pass, doing everything that is due on the way, at its instant: handlers
    /// wake up, jobs start, schedules fire. A handler that sleeps for longer still runs at the end,
    /// and goes on with the next call.
    pub async fn run_for(&self, time: Duration) -> Result<Drained, Error> {
        let until = self.clock.now().saturating_add(time);
        Ok(self.worker.run_through(&self.clock, until).await?)
    }

    /// Runs one attempt of one job that is due, and nothing else. Whether it could be claimed.
    pub async fn run_one(&self, id: JobId) -> Result<bool, Error> {
        Ok(self.worker.run_one(&self.clock, id).await?)
    }

    /// Claims what is due and vanishes, as a process that is killed before a handler starts. How many jobs it had.
    pub async fn crash_after_claim(&self) -> Result<usize, Error> {
        Ok(self.worker.crash_after_claim().await?)
    }

    /// Runs what is due and vanishes before it can tell how that ended, as a process that is killed in between. How many jobs
    /// it had.
    pub async fn crash_before_settle(&self) -> Result<usize, Error> {
        Ok(self.worker.crash_before_settle(&self.clock).await?)
    }

    /// Removes what is old. How many jobs.
    pub async fn tidy(&self) -> Result<usize, Error> {
        Ok(self.worker.tidy().await?)
    }
}

/// All attempts of a job that have ended, oldest first. Printed, each is a line like `+5s #2 failed: no answer`.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    start: Timestamp,
    attempts: Vec<Attempt>,
}

impl Timeline {
    /// The attempts.
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }

    /// How each ended.
    pub fn outcomes(&self) -> Vec<&'static str> {
        let words = self.attempts.iter().map(|attempt| attempt.outcome.name());
        words.collect()
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
