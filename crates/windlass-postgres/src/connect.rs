//! Connection pools, retries, and the check of a server at opening.
//!
//! What is retried, and when a result is indeterminate:
//!
//! - Before `COMMIT` is sent, an error means that nothing happened: PostgreSQL rolls back. Such a
//!   transaction runs again after a short delay, at most [`TRIES`] times in all, if that can help:
//!   after a serialization failure, deadlock or lock timeout, and on a new connection after a lost
//!   connection, a shutdown or a failover.
//! - After `COMMIT` is sent, a lost connection or timeout says nothing about the result. The server
//!   may have committed before the answer got lost. Retrying could do the work twice, so the caller
//!   gets [`StoreError::Indeterminate`] and decides: verbs with an id (claim, enqueue) are repeated
//!   with the same id and get the same answer. The flag `committing` of a session marks this point.
//! - One error after `COMMIT` is certain: a read-only server reports that it did not write.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Pool, PoolError, RecyclingMethod, Runtime,
};
use tokio_postgres::Client;
use tokio_postgres_rustls::MakeRustlsConnect;
use windlass_store::StoreError;

use crate::direct;
use crate::error::{DriverError, DriverResult};
use crate::options::Options;
use crate::session::{Session, Transactions};
use crate::statement::Route;
use crate::{migrate, open_error, tls};

/// The most tries of a transaction, and of getting a connection.
const TRIES: u32 = 5;

/// The number of connections that only settles, renewals, heartbeats and sweeps use. Even if all
/// other connections are busy, no lease expires because of it.
const RESERVED: usize = 2;

/// Which pool a verb takes its connection from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionClass {
    /// The reserved connections.
    Vital,
    /// The main pool.
    Other,
}

pub(crate) struct Connections {
    pub(crate) options: Options,
    pub(crate) tls: MakeRustlsConnect,
    /// How transactions begin while all connections are direct, and how after one was not.
    direct: Arc<Transactions>,
    pooled: Arc<Transactions>,
    /// Whether a connection led to a pooler. Then all are treated as if they did.
    has_pooler: Arc<AtomicBool>,
    main: Pool,
    reserved: Pool,
}

impl Connections {
    pub(crate) fn new(options: Options) -> Result<Self, StoreError> {
        let tls = tls::connector(options.root_certificates.as_deref())?;
        let has_pooler = Arc::default();
        Ok(Connections {
            direct: Arc::new(direct_transactions()),
            pooled: Arc::new(pooled_transactions(&options)),
            main: pool(&options, &tls, options.pool_size, &has_pooler)?,
            reserved: pool(&options, &tls, RESERVED, &has_pooler)?,
            has_pooler,
            options,
            tls,
        })
    }

    /// Runs a transaction, and retries it if that can help (see the top of this file).
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Indeterminate`] if the transaction may have been committed. All other
    /// errors mean that nothing was changed.
    pub(crate) async fn run<T, F, Work>(
        &self,
        class: ConnectionClass,
        work: F,
    ) -> Result<T, StoreError>
    where
        F: Fn(Session) -> Work + Send + Sync,
        Work: Future<Output = DriverResult<T>> + Send,
        T: Send,
    {
        let mut tried = 0;
        loop {
            tried += 1;
            let object = self.object(class).await?;
            let committing = Arc::new(AtomicBool::new(false));
            // Read after the connection was made: its check may have just found a pooler.
            let transactions = match self.has_pooler.load(Ordering::SeqCst) {
                true => Arc::clone(&self.pooled),
                false => Arc::clone(&self.direct),
            };
            let session = Session::new(object, transactions, Arc::clone(&committing));
            let time_max = self.options.statement_timeout + self.options.lock_timeout;
            let result = tokio::time::timeout(time_max, work(session)).await;
            let commit_was_sent = committing.load(Ordering::Relaxed);
            let error = match result {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => error,
                Err(_) => {
                    let cause = format!("the database did not answer within {time_max:?}");
                    return Err(if commit_was_sent {
                        StoreError::Indeterminate(cause.into())
                    } else {
                        StoreError::Unavailable(cause.into())
                    });
                }
            };
            if error.is_connection_error() {
                // The idle connections probably lead to the same server, which is down or
                // read-only now: drop them all.
                self.main.retain(|_, _| false);
                self.reserved.retain(|_, _| false);
                if commit_was_sent && !error.was_not_executed() {
                    return Err(StoreError::Indeterminate(error.into_store_error().into()));
                }
            } else if !error.is_collision() {
                return Err(error.into_store_error());
            }
            if tried == TRIES {
                return Err(error.into_store_error());
            }
            tokio::time::sleep(pause(tried)).await;
        }
    }

    async fn object(
        &self,
        class: ConnectionClass,
    ) -> Result<deadpool_postgres::Object, StoreError> {
        let pool = match class {
            ConnectionClass::Vital => &self.reserved,
            ConnectionClass::Other => &self.main,
        };
        let mut tried = 0;
        loop {
            match pool.get().await {
                Ok(object) => return Ok(object),
                Err(error) => {
                    tried += 1;
                    let is_backend_error = matches!(
                        &error,
                        PoolError::Backend(_) | PoolError::PostCreateHook(HookError::Backend(_))
                    );
                    if !is_backend_error || tried == TRIES {
                        return Err(StoreError::Unavailable(error.into()));
                    }
                    tokio::time::sleep(pause(tried)).await;
                }
            }
        }
    }

    /// Refuses a server that can lose acknowledged writes, and a schema of another version.
    pub(crate) async fn check(&self) -> Result<(), StoreError> {
        let server = &self.options.server;
        let object = match self.main.get().await {
            Ok(object) => object,
            Err(PoolError::Backend(error)) => return Err(open_error::refused(server, &error)),
            Err(PoolError::PostCreateHook(HookError::Backend(error))) => {
                return Err(open_error::failed(server, error.into()));
            }
            Err(_) => return Err(open_error::silent(server)),
        };
        let failed = |error: DriverError| open_error::failed(server, error);
        let unsafe_settings = unsafe_settings(&object).await.map_err(failed)?;
        if !unsafe_settings.is_empty() && !self.options.allow_unsafe_durability {
            let settings = unsafe_settings.join(", ");
            return Err(StoreError::CannotOpen {
                reason: format!("the server can lose acknowledged writes ({settings})"),
                next: "correct its settings, or add `allow_unsafe_durability=true` to the URL",
            });
        }
        let found = migrate::version(&object).await.map_err(failed)?;
        let needed = migrate::newest();
        if found != needed {
            return Err(StoreError::WrongSchema { found, needed });
        }
        Ok(())
    }

    pub(crate) fn close(&self) {
        self.main.close();
        self.reserved.close();
    }
}

/// All reads are short. With wrong estimates, the planner would start parallel workers, which takes
/// longer than the read itself.
const NO_PARALLEL_WORKERS: &str = "max_parallel_workers_per_gather = 0";

/// Plans for the first rows in the order of an index.
const IN_ORDER: &str = "set local enable_bitmapscan = off; set local enable_sort = off";

fn timeouts(options: &Options) -> [String; 3] {
    let (statement, lock) = (options.statement_timeout, options.lock_timeout);
    [
        format!("statement_timeout = {}", statement.as_millis()),
        format!("lock_timeout = {}", lock.as_millis()),
        format!(
            "idle_in_transaction_session_timeout = {}",
            (statement * 2).as_millis()
        ),
    ]
}

/// Returns how transactions begin behind a pooler. They bring all settings along: settings of a
/// connection would also apply to other clients.
fn pooled_transactions(options: &Options) -> Transactions {
    let timeouts = timeouts(options).map(|timeout| format!("set local {timeout}"));
    let timeouts = timeouts.join("; ");
    let begin_read = format!(
        "begin read only; set local enable_seqscan = off; set local jit = off; \
         set local {NO_PARALLEL_WORKERS}; {timeouts}"
    );
    Transactions {
        route: Route::Pooled,
        begin: format!("{}{timeouts}", include_str!("../sql/begin.sql")),
        begin_read_in_order: format!("{begin_read}; {IN_ORDER}"),
        begin_read,
    }
}

/// Returns how transactions begin on a connection that has the settings of [`direct_settings`].
fn direct_transactions() -> Transactions {
    let begin_read = "begin read only".to_owned();
    Transactions {
        route: Route::Direct,
        begin: "begin".to_owned(),
        begin_read_in_order: format!("{begin_read}; {IN_ORDER}"),
        begin_read,
    }
}

/// Returns the SQL that a direct connection starts with.
fn direct_settings(options: &Options) -> String {
    let timeouts = timeouts(options).map(|timeout| format!("set {timeout}"));
    format!(
        "set enable_seqscan = off; set jit = off; set {NO_PARALLEL_WORKERS}; {}",
        timeouts.join("; ")
    )
}

fn pool(
    options: &Options,
    tls: &MakeRustlsConnect,
    size: usize,
    has_pooler: &Arc<AtomicBool>,
) -> Result<Pool, StoreError> {
    let config = ManagerConfig {
        recycling_method: RecyclingMethod::Fast,
    };
    let manager = Manager::from_config(options.server.clone(), tls.clone(), config);
    let (settings, has_pooler) = (direct_settings(options), Arc::clone(has_pooler));
    let settings: Arc<str> = settings.into();
    let time_max = options.statement_timeout;
    let look = Hook::async_fn(move |client, _| {
        let (settings, has_pooler) = (Arc::clone(&settings), Arc::clone(&has_pooler));
        Box::pin(async move {
            let prepared = async {
                if direct::is_direct(client).await? {
                    return client.batch_execute(&settings).await;
                }
                has_pooler.store(true, Ordering::SeqCst);
                Ok(())
            };
            // The pool has no time limit for hooks, and a pooler may let a query wait for ever.
            match tokio::time::timeout(time_max, prepared).await {
                Ok(prepared) => prepared.map_err(HookError::Backend),
                Err(_) => Err(HookError::message("the server did not answer in time")),
            }
        })
    });
    Pool::builder(manager)
        .max_size(size)
        .wait_timeout(Some(options.lock_timeout))
        .create_timeout(Some(options.statement_timeout))
        .post_create(look)
        .runtime(Runtime::Tokio1)
        .build()
        .map_err(|error| StoreError::Unavailable(error.into()))
}

/// Returns the settings of the server that can lose acknowledged writes.
async fn unsafe_settings(client: &Client) -> DriverResult<Vec<String>> {
    let sql = "select name || ' is ' || setting from pg_settings
         where name in ('fsync', 'full_page_writes', 'synchronous_commit') and setting = 'off' order by name";
    let rows = client.query_typed(sql, &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Returns the delay before the next try: exponential, and different for each caller.
fn pause(tried: u32) -> Duration {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let spread = windlass_core::fixed_hash(&call.to_le_bytes()) % 10;
    Duration::from_millis(10 * u64::from(2_u32.pow(tried)) + spread * u64::from(tried))
}
