//! Tools for operators: change many jobs, limit and pause queues, migrate a database.
//!
//! The methods are on [`Client`]. This module has the types that they take and return, and the
//! parts of a [`StoredJob`](crate::StoredJob).
//!
//! | task | method |
//! |---|---|
//! | find jobs | [`Client::jobs`], [`Client::count`], [`Client::list`] |
//! | see why a job failed | [`Client::attempts`] |
//! | change one job | [`Client::cancel`], [`Client::revive`], [`Client::run_now`], [`Client::edit`], [`Client::purge`] |
//! | change many jobs | [`Client::change_many`] |
//! | settle a lost at-most-once job | [`Client::resolve`] |
//! | limit or pause a queue | [`Client::set_queue`], [`Client::pause_queue`], [`Client::resume_queue`] |
//! | watch the system | [`Client::counts`], [`Client::statistics`], [`Client::nodes`], [`Client::health`] |
//!
//! This program finds all dead jobs and runs them again:
//!
//! ```
//! use windlass::admin::{Change, Changed, Revival};
//! use windlass::testing::TestKit;
//! use windlass::{Context, Failure, Filter, Job, ListedState, State, Worker};
//! # #[derive(serde::Serialize, serde::Deserialize)]
//! # struct Import;
//! # impl Job for Import { const KIND: &'static str = "import"; }
//! # async fn import(_: Import, _: Context) -> Result<(), Failure> {
//! #     Err(Failure::unrecoverable("the file is empty"))
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), windlass::Error> {
//! # let kit = TestKit::new();
//! # kit.client().enqueue(Import).await?;
//! # kit.worker(Worker::new(kit.client(), ()).handle(import)).await?.drain().await?;
//! # let client = kit.client();
//!
//! let mut dead = client.jobs(&Filter::state(ListedState::Dead));
//! let mut ids = Vec::new();
//! while let Some(job) = dead.next().await? {
//!     ids.push(job.id);
//! }
//! let changed = client.change_many(&ids, &Change::Revive(Revival::default())).await?;
//! assert_eq!(changed, [Changed::Now(State::Waiting)]);
//! # Ok(())
//! # }
//! ```
//!
//! A program that serves others on top of the SDK, as the Windlass server does, reaches the engine
//! with [`engine_of`].

use std::sync::Arc;

#[doc(inline)]
pub use windlass_core::fairness::{ClaimSettings, QueueSettings, Rate};
#[doc(inline)]
pub use windlass_core::statistics::{
    AttemptCount, Histogram, Period as StatisticsPeriod, QueueStatistics, Statistics,
    StatisticsRange,
};
#[doc(inline)]
pub use windlass_core::{
    AttemptError, Concurrency, Consent, Deadline, Delivery, Edit, FailureCount, FinalState, Finish,
    Key, Kind, Lane, Lease, NewJob, Occurrence, OnDuplicate, PayloadMatch, QueueName, Reason,
    Revival, RevivalForecast, RevivalRefusal, ScanFilter, Settlement, Start, StateDetails, Tag,
    Timeout, Unique, Verdict, WorkerName,
};
#[doc(inline)]
pub use windlass_engine::{
    Engine, Handler as AttemptHandler, Health, Running as RunningHandler, StatisticsSeries,
};
#[doc(inline)]
pub use windlass_store::{
    Change, Changed, Counts, EnqueueMode, Listed, Node, Page, Pause, QueueLimits,
};

pub use crate::client::{ClaimRules, Diagnosis, FinishedDiagnosis, QueueInfo, Search, SearchPage};
pub use crate::handler::RESULT_BYTES_MAX;

use crate::client::Client;
#[cfg(feature = "postgres")]
use crate::error::Error;

/// Migrates the schema of a PostgreSQL database and returns the names of the applied migrations.
///
/// Concurrent calls wait for each other. [`Client::open`] creates the schema of an empty database,
/// but refuses one that is older than this build: other nodes may still be using it. A SQLite file
/// is migrated when it is opened.
///
/// Requires the feature `postgres`.
///
/// # Errors
///
/// [`Error::Invalid`] if the URL cannot be parsed, [`Error::Store`] if the database cannot be
/// reached or its schema is newer than this build.
#[cfg(feature = "postgres")]
pub async fn migrate(url: &str) -> Result<Vec<String>, Error> {
    use windlass_postgres::{Migration, Options, PostgresStore};
    let applied = PostgresStore::migrate(&Options::parse(url)?).await?;
    let name = |migration: &Migration| format!("{} {}", migration.number, migration.name);
    Ok(applied.iter().map(name).collect())
}

/// Returns the engine of a client: its store, clock and events.
///
/// All clients and workers of one store in a process share an engine. Only programs that build
/// their own loops or routes need it.
pub fn engine_of(client: &Client) -> &Arc<Engine> {
    &client.engine
}

/// Returns a client of an engine that the program built itself.
pub fn client_of(engine: Arc<Engine>) -> Client {
    Client { engine }
}
