//! What operators' tools need: changes to many jobs, queues over all nodes, migrations.
//!
//! The methods are on [`Client`]; here are the types that they take and return, and what a job is made of as it is stored.
//! A program that serves others on top of the SDK, as the Windlass server does, gets to the engine with [`engine_of`].

use std::sync::Arc;

pub use windlass_core::{
    AttemptError, Concurrency, Consent, Delivery, Edit, End, Ended, Failures, Key, Kind, Lane,
    Lease, Occurrence, OnDuplicate, QueueName, Revival, Standing, Tag, Timeout, Unique, WorkerName,
};
pub use windlass_engine::{Engine, Handler as AttemptHandler, Health, Running as RunningHandler};
pub use windlass_store::{Change, Changed, Counts, Listed, Node, Page, Pause, QueueLimits};

pub use crate::client::QueueSettings;
pub use crate::handler::RESULT_BYTES_MAX;

use crate::client::Client;
#[cfg(feature = "postgres")]
use crate::error::Error;

/// Brings the schema of a PostgreSQL database up to date; returns the names of the migrations that it applied.
///
/// Several at once wait for each other. [`Client::open`] creates the schema of an empty database, and refuses one that is
/// older than this build. An embedded store (`sqlite:`) is migrated when it is opened.
#[cfg(feature = "postgres")]
pub async fn migrate(url: &str) -> Result<Vec<String>, Error> {
    use windlass_postgres::{Options, PostgresStore};
    let applied = PostgresStore::migrate(&Options::parse(url)?).await?;
    let name = |one: &windlass_postgres::Migration| format!("{} {}", one.number, one.name);
    Ok(applied.iter().map(name).collect())
}

/// The engine of a client: the store, its clock and its events, shared by all clients and workers of one process.
///
/// Only programs that build their own loops or routes on it need it.
pub fn engine_of(client: &Client) -> &Arc<Engine> {
    &client.engine
}

/// A client of an engine that the program built itself.
pub fn client_of(engine: Arc<Engine>) -> Client {
    Client { engine }
}
