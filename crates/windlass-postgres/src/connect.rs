//! Connections: pools of them, what a server must promise, and what is tried again on another one.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, PoolError, RecyclingMethod, Runtime};
use tokio_postgres::Client;
use tokio_postgres_rustls::MakeRustlsConnect;
use windlass_store::StoreError;

use crate::error::{DriverError, DriverResult};
use crate::options::Options;
use crate::session::{BeginSql, Session};
use crate::{migrate, open_error, tls};

/// A step is tried so often on a fresh connection, or after another step was in its way.
const TRIES: u32 = 5;

/// Connections that only settles, renewals, heartbeats and sweeps may use: load never costs a lease.
const RESERVED: usize = 2;

/// Who needs a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionClass {
    Vital,
    Other,
}

pub(crate) struct Connections {
    pub(crate) options: Options,
    pub(crate) tls: MakeRustlsConnect,
    begin: Arc<BeginSql>,
    main: Pool,
    reserved: Pool,
}

impl Connections {
    pub(crate) fn new(options: Options) -> Result<Self, StoreError> {
        let tls = tls::connector(options.root_certificates.as_deref())?;
        Ok(Connections {
            begin: Arc::new(begin(&options)),
            main: pool(&options, &tls, options.pool_size)?,
            reserved: pool(&options, &tls, RESERVED)?,
            options,
            tls,
        })
    }

    /// Carries out a step, on as many connections as it takes within reason.
    ///
    /// A step that did not happen is tried again where that may help. One of which nobody knows is not: it is answered as
    /// indeterminate.
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
            let session = Session::new(object, Arc::clone(&self.begin), Arc::clone(&committing));
            let time_max = self.options.statement_timeout + self.options.lock_timeout;
            let done = tokio::time::timeout(time_max, work(session)).await;
            let unknown = committing.load(Ordering::Relaxed);
            let error = match done {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => error,
                Err(_) if unknown => {
                    return Err(StoreError::Indeterminate("no answer in time".into()));
                }
                Err(_) => return Err(StoreError::Unavailable("no answer in time".into())),
            };
            if error.is_connection_error() {
                // The others may lead to the same server that is gone, or that only reads now.
                self.main.retain(|_, _| false);
                self.reserved.retain(|_, _| false);
                if unknown && !error.was_not_executed() {
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
                    let gone = matches!(&error, PoolError::Backend(_));
                    if !gone || tried == TRIES {
                        return Err(StoreError::Unavailable(error.into()));
                    }
                    tokio::time::sleep(pause(tried)).await;
                }
            }
        }
    }

    /// Refuses a server that may lose what it acknowledges, or whose schema this build does not know.
    pub(crate) async fn check(&self) -> Result<(), StoreError> {
        let server = &self.options.server;
        let object = match self.main.get().await {
            Ok(object) => object,
            Err(PoolError::Backend(error)) => return Err(open_error::refused(server, &error)),
            Err(_) => return Err(open_error::silent(server)),
        };
        let failed = |error: DriverError| open_error::failed(server, error);
        let unsafe_settings = unsafe_settings(&object).await.map_err(failed)?;
        if !unsafe_settings.is_empty() && !self.options.allow_unsafe_durability {
            let told = unsafe_settings.join(", ");
            return Err(StoreError::CannotOpen {
                reason: format!("the server may lose what it acknowledges ({told})"),
                next: "correct its settings, or add `allow_unsafe_durability=true` to the URL",
            });
        }
        let found = migrate::version(&object).await.map_err(failed)?;
        let needed = migrate::newest();
        match found == needed {
            true => Ok(()),
            false => Err(StoreError::WrongSchema { found, needed }),
        }
    }

    pub(crate) fn close(&self) {
        self.main.close();
        self.reserved.close();
    }
}

/// How a transaction begins: bounded in time, also behind a pooler, where a session's settings are not ours.
fn begin(options: &Options) -> BeginSql {
    let (statement, lock) = (options.statement_timeout, options.lock_timeout);
    let bounds = format!(
        "set local statement_timeout = {}; set local lock_timeout = {}; \
         set local idle_in_transaction_session_timeout = {}",
        statement.as_millis(),
        lock.as_millis(),
        (statement * 2).as_millis(),
    );
    BeginSql {
        write: format!("{}{bounds}", include_str!("../sql/begin.sql")),
        read: format!("begin read only; set local jit = off; {bounds}"),
    }
}

fn pool(options: &Options, tls: &MakeRustlsConnect, size: usize) -> Result<Pool, StoreError> {
    let config = ManagerConfig {
        recycling_method: RecyclingMethod::Fast,
    };
    let manager = Manager::from_config(options.server.clone(), tls.clone(), config);
    Pool::builder(manager)
        .max_size(size)
        .wait_timeout(Some(options.lock_timeout))
        .create_timeout(Some(options.statement_timeout))
        .runtime(Runtime::Tokio1)
        .build()
        .map_err(|error| StoreError::Unavailable(error.into()))
}

/// What the server does that may lose acknowledged work.
async fn unsafe_settings(client: &Client) -> DriverResult<Vec<String>> {
    let sql = "select name || ' is ' || setting from pg_settings
         where name in ('fsync', 'full_page_writes', 'synchronous_commit') and setting = 'off' order by name";
    let rows = client.query_typed(sql, &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Longer with every try, and not for all callers alike.
fn pause(tried: u32) -> Duration {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let spread = windlass_core::fixed_hash(&call.to_le_bytes()) % 10;
    Duration::from_millis(10 * u64::from(2_u32.pow(tried)) + spread * u64::from(tried))
}
