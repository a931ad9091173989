//! Tools for operators: change many jobs, replay failures, limit and pause queues, migrate a
//! database.
//!
//! The methods are on [`Client`]. This module has the types that they take and return, and the
//! parts of a [`StoredJob`](crate::StoredJob).
//!
//! | task | method |
//! |---|---|
//! | find jobs | [`Client::jobs`], [`Client::count`], [`Client::list`] |
//! | see why a job failed | [`Client::attempts`] |
//! | change one job | [`Client::cancel`], [`Client::revive`], [`Client::run_now`], [`Client::edit`], [`Client::purge`] |
//! | change many jobs | [`Client::change_many`] by id, [`Client::actions`] by filter |
//! | see the causes of failures | [`Client::failure_groups`] |
//! | settle a lost at-most-once job | [`Client::resolve`] |
//! | limit or pause a queue | [`Client::set_queue`], [`Client::pause_queue`], [`Client::resume_queue`] |
//! | report events to a URL | [`Client::hooks`] |
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
//! # Find causes and replay
//!
//! Jobs of one queue, kind and cause are a [`FailureGroup`]. Once the cause is gone, a replay revives
//! them step by step: first a few jobs, the canary, then the rest at a rate. It stops itself if too
//! many jobs fail again. Any worker of the store carries it on.
//!
//! ```
//! use windlass::admin::{Actor, FailureFilter, NewAction, ReplayRules, Work};
//! use windlass::{Client, Context, Failure, Filter, Job, ListedState, Worker};
//! # use std::sync::atomic::{AtomicBool, Ordering};
//! # static IS_UP: AtomicBool = AtomicBool::new(false);
//! # #[derive(serde::Serialize, serde::Deserialize)]
//! # struct Import;
//! # impl Job for Import { const KIND: &'static str = "import"; }
//! # async fn import(_: Import, _: Context) -> Result<(), Failure> {
//! #     match IS_UP.load(Ordering::Relaxed) {
//! #         true => Ok(()),
//! #         false => Err("no connection to db1".into()),
//! #     }
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), windlass::Error> {
//! # let client = Client::open("memory:").await?;
//! # let id = client.enqueue(Import).max_attempts(1).await?.id;
//! # let waiting = client.clone();
//! # let dead = async move { waiting.wait(id, std::time::Duration::from_secs(10)).await };
//! # Worker::new(&client, ()).handle(import).run_until(dead).await?;
//!
//! let page = client.failure_groups(&FailureFilter::default(), 10, None).await?;
//! let largest = &page.groups[0];
//! assert_eq!((largest.dead, largest.error.as_str()), (1, "no connection to db1"));
//!
//! # IS_UP.store(true, Ordering::Relaxed);
//! let replay = NewAction {
//!     filter: Filter {
//!         fingerprint: Some(largest.key.fingerprint),
//!         ..Filter::state(ListedState::Dead)
//!     },
//!     work: Work::replay(ReplayRules::default()),
//!     reason: "db1 is up again".to_owned(),
//! };
//! let operator = Actor { id: "7".to_owned(), name: "ann".to_owned() };
//! let replay = client.actions().create(replay, &operator).await?;
//! # let carrying = client.clone();
//! # let done = async move { carrying.carry_on_action(replay.id, |_| {}).await };
//! # Worker::new(&client, ()).handle(import).run_until(done).await?;
//!
//! let status = client.actions().get(replay.id).await?; // later
//! assert_eq!((status.action.matched, status.tally.recovered), (1, 1));
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
    ActionCommand, ActionId, ActionState, ActionTally, AttemptError, BulkChange, BulkRevival,
    Concurrency, Consent, Deadline, Delivery, Edit, FailureCount, FinalState, Fingerprint, Finish,
    FirstOutcome, GroupCursor, GroupKey, GroupMember, Hook, HookDefinition, HookEvent, HookName,
    Interventions, Key, Kind, Lane, Lease, NewJob, Occurrence, OnDuplicate, Patch, PayloadMatch,
    PayloadPatch, Phase, QueueName, Reason, ReplayProgress, ReplayRules, Revival, RevivalForecast,
    RevivalRefusal, Revived, Settlement, SkipReason, Start, StateDetails,
    StopReason as ReplayStopReason, Tag, Timeout, Unique, Verdict, WaitingFor, WorkerName,
};
#[doc(inline)]
pub use windlass_engine::{
    Action, ActionError, ActionPreview, ActionStatus, Actions, Actor, Engine,
    Handler as AttemptHandler, Health, HookError, ItemFailure, NewAction, Origin,
    Running as RunningHandler, StatisticsSeries, StoredHooks, Work,
};
#[doc(inline)]
pub use windlass_store::{
    Change, Changed, Counts, EnqueueMode, Expected, FailureGroup, ListCursor, ListOrder, Listed,
    Node, Page, Pause, QueueLimits,
};

pub use crate::client::{
    ClaimRules, Diagnosis, FailureFilter, FailurePage, FinishedDiagnosis, QueueInfo, RetryPlan,
    SearchPage,
};
pub use crate::handler::RESULT_BYTES_MAX;

use crate::client::Client;
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

/// Publishes where this process serves the store, and which token it accepts, to other processes of
/// the same user. Commands such as `windlass jobs list --store sqlite:jobs.db` then find it.
///
/// The address and the token are in the lock file of a SQLite store until the returned value is
/// dropped. Returns `None` for other stores, which any process can open or none.
///
/// `windlass_server::admin` calls this for you.
///
/// # Errors
///
/// [`Error::Store`] if other users could read the token, or if an address is published already.
pub fn publish_address(
    client: &Client,
    url: &str,
    token: Option<&str>,
) -> Result<Option<PublishedAddress>, Error> {
    #[cfg(feature = "sqlite")]
    if let Some(note) = &client.owner_note {
        let note = note.publish(url, token)?;
        return Ok(Some(PublishedAddress { _note: note }));
    }
    let _ = (client, url, token); // unused without the feature `sqlite`
    Ok(None)
}

/// An address that other processes of the same user can find. Dropping it withdraws the address.
#[derive(Debug)]
#[must_use = "dropping it withdraws the address"]
pub struct PublishedAddress {
    #[cfg(feature = "sqlite")]
    _note: windlass_sqlite::PublishedNote,
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
    Client {
        engine,
        owner_note: None,
    }
}
