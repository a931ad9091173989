//! Windlass jobs in a PostgreSQL database that many nodes share.
//!
//! Every verb is one transaction, most of them in one or two round trips. Claims skip rows that
//! others have locked. The claim order is a partial index over due jobs; a job that becomes due
//! moves into it, and the next claim does that move.

mod backfill;
mod change;
mod claim;
mod concurrency_key;
mod connect;
mod direct;
mod document;
mod enqueue;
mod error;
mod failure_group;
mod fold;
mod limited;
mod list;
mod migrate;
mod node;
mod open_error;
mod options;
mod param;
mod queue;
mod read;
mod record;
mod row;
mod schedule;
mod session;
mod settings;
mod settle;
mod statement;
mod store;
mod tally_change;
mod tls;
mod unique_key;
mod unreadable;
mod upkeep;
mod wake;
mod watermark;
mod write;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::JoinHandle;
use windlass_store::StoreError;
use windlass_store::refused::Refusals;

use connect::Connections;
use error::DriverResult;
use failure_group::Groups;
use settings::Settings;
use wake::Wake;

pub use migrate::{MIGRATIONS, Migration};
pub use options::Options;

/// A store in a PostgreSQL database, in its schema `windlass`.
pub struct PostgresStore {
    connections: Arc<Connections>,
    settings: Arc<Settings>,
    groups: Arc<Groups>,
    wake: Arc<Wake>,
    refusals: Refusals,
    background: Vec<JoinHandle<()>>,
}

impl PostgresStore {
    /// Connects to a database whose schema is up to date.
    ///
    /// # Errors
    ///
    /// Refuses a schema of another version, and a server that can lose acknowledged writes
    /// (`fsync`, `full_page_writes` or `synchronous_commit` is off).
    pub async fn connect(options: Options) -> Result<Self, StoreError> {
        let connections = Arc::new(Connections::new(options)?);
        connections.check().await?;
        let (wake, settings) = (Arc::new(Wake::new()), Arc::new(Settings::default()));
        let groups = Arc::new(Groups::default());
        let spawn = |task: Background| {
            let groups = Arc::clone(&groups);
            let (connections, wake) = (Arc::clone(&connections), Arc::clone(&wake));
            let settings = Arc::clone(&settings);
            tokio::spawn(async move {
                match task {
                    Background::SendNotices => wake.send_notices(&connections).await,
                    Background::Listen => wake.listen(&connections).await,
                    Background::Look => wake.look(&connections).await,
                    Background::UnparkMissed => {
                        concurrency_key::unpark_missed(&connections, &wake).await;
                    }
                    Background::Upkeep => upkeep::run(&connections, &settings).await,
                    Background::Fold => fold::run(&connections).await,
                    Background::Backfill => backfill::run(&connections, &settings, &groups).await,
                }
            })
        };
        let background = [
            Background::SendNotices,
            Background::Listen,
            Background::Look,
            Background::UnparkMissed,
            Background::Upkeep,
            Background::Fold,
            Background::Backfill,
        ];
        Ok(PostgresStore {
            background: background.map(spawn).into(),
            connections,
            settings,
            groups,
            wake,
            refusals: Refusals::default(),
        })
    }

    /// Migrates the schema to the newest version, and fills in what old jobs lack. Returns the
    /// migrations that it applied. If several nodes start together, one migrates and the others
    /// wait.
    ///
    /// The schema changes in one transaction, the jobs in many small ones. If this is interrupted,
    /// another call, or a store that connects, continues.
    pub async fn migrate(options: &Options) -> Result<Vec<Migration>, StoreError> {
        let applied = with_client(options, async |client| migrate::up(client).await).await?;
        let connections = Connections::new(options.clone())?;
        let (settings, groups) = (Settings::default(), Groups::default());
        let filled_in = backfill::fill_in(&connections, &settings, &groups).await;
        connections.close();
        filled_in.map(|()| applied)
    }

    /// Returns the version of the schema; 0 if there is none.
    pub async fn schema_version(options: &Options) -> Result<u32, StoreError> {
        with_client(options, async |client| migrate::version(client).await).await
    }
}

/// A task that runs as long as the store is open.
enum Background {
    SendNotices,
    Listen,
    Look,
    UnparkMissed,
    Upkeep,
    Fold,
    Backfill,
}

/// Locks a mutex, also after a panic of another thread: no code here leaves the data half-changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs something on a new connection.
async fn with_client<T>(
    options: &Options,
    work: impl AsyncFnOnce(&tokio_postgres::Client) -> DriverResult<T>,
) -> Result<T, StoreError> {
    let tls = tls::connector(options.root_certificates.as_deref())?;
    let server = &options.server;
    let connected = tokio::time::timeout(options.statement_timeout, server.connect(tls)).await;
    let connected = connected.map_err(|_| open_error::silent(server))?;
    let (client, connection) = connected.map_err(|error| open_error::refused(server, &error))?;
    let connection = tokio::spawn(connection);
    let done = work(&client).await;
    connection.abort();
    done.map_err(|error| open_error::failed(server, error))
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        for task in &self.background {
            task.abort();
        }
        self.connections.close();
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = &self.connections.options.server;
        write!(
            f,
            "PostgresStore({:?}/{:?})",
            server.get_hosts(),
            server.get_dbname()
        )
    }
}
