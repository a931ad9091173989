//! Starts a server from a configuration, runs it and shuts it down.

use std::error::Error as _;
use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use windlass::Client;
use windlass::admin::{PublishedAddress, publish_address};
use windlass::prometheus::PrometheusRecorder;
use windlass_engine::{Engine, MaintenanceConfig, run_maintenance};
use windlass_http::{HttpConfigError, HttpJobs, form};
use windlass_listen::{Certificate, ListenError, Listener, TlsError};
use windlass_store::StoreError;

use crate::access::{Access, ApiKey, WithoutKeys, audit_throttled};
use crate::admin::local_url;
use crate::app::App;
use crate::http_jobs::Executor;
use crate::refusals::site;
use crate::secrets::{MasterKey, SecretError, Secrets};
use crate::standalone::checks::{self, Machine, Verdict, create_private};
use crate::standalone::config::Config;
use crate::standalone::log::LogLines;

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A check of the machine failed.
    #[error("this machine cannot run the server: {0}")]
    Machine(String),
    /// The server cannot open the store.
    #[error("cannot open the store {url}")]
    Store {
        /// The URL of the store without its password.
        url: String,
        /// The cause.
        #[source]
        cause: Box<windlass::Error>,
    },
    /// Other machines can reach the server, and the store has no API key.
    #[error(
        "{address} is reachable from other machines, but the store has no API key: create one with `windlass keys create --name admin --scope admin` and the same `--data` or `--store`, or use `--insecure`"
    )]
    NoKeys {
        /// The address to listen on.
        address: std::net::SocketAddr,
    },
    /// The server cannot read the API keys from the store.
    #[error("cannot read the API keys from the store")]
    Keys(#[source] StoreError),
    /// The operating system returns no random bytes for a key.
    #[error("cannot create a key: the operating system returns no random bytes")]
    Random,
    /// The server cannot decrypt the secrets in the store.
    #[error(transparent)]
    Secrets(#[from] SecretError),
    /// The settings of HTTP jobs are invalid.
    #[error("the settings of HTTP jobs are invalid")]
    HttpJobs(#[from] HttpConfigError),
    /// The server cannot read the file with certificate authorities.
    #[error("cannot read {path}, the file of `http_jobs.ca_file`")]
    Authorities {
        /// The path of the file.
        path: std::path::PathBuf,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// The address is in use, does not belong to this machine, or is not permitted.
    #[error("cannot listen on {address}: choose another address with `--bind`")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        cause: std::io::Error,
    },
    /// The TLS certificate or key is unusable.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl From<ListenError> for StartError {
    fn from(error: ListenError) -> Self {
        match error {
            ListenError::Bind { address, cause } => StartError::Bind { address, cause },
            ListenError::Tls(error) => error.into(),
        }
    }
}

/// Why a running server stopped. A server that lost one of its parts stops as a whole.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A background loop ended before the shutdown.
    #[error(
        "a background loop of the server ended unexpectedly: restart the server and report a bug with the log lines before this one"
    )]
    LoopEnded(#[source] Option<JoinError>),
    /// The store stopped for good.
    #[error(transparent)]
    StoreStopped(StoreError),
}

/// The name of the store's file in the data directory.
pub(crate) const STORE_FILE: &str = "windlass.db";

impl Config {
    /// Returns the configured URL of the store, or the URL of a file in the data directory.
    pub fn store_url(&self) -> String {
        match &self.store {
            Some(url) => url.reveal().to_owned(),
            None => format!("sqlite:{}", self.data.join(STORE_FILE).display()),
        }
    }

    /// Returns the URL of the store without its password.
    pub fn store_shown(&self) -> String {
        self.store
            .as_ref()
            .map_or_else(|| self.store_url(), |url| url.shown())
    }

    /// Whether jobs survive a restart of the server.
    pub fn is_durable(&self) -> bool {
        !self.store_url().starts_with("memory:")
    }

    /// Whether only one server can have the store open.
    pub fn keeps_one_server(&self) -> bool {
        !self.store_url().starts_with("postgres")
    }

    /// Whether the server uses the data directory.
    pub fn keeps_files(&self) -> bool {
        self.store.is_none()
    }

    /// Opens the configured store. The recorder receives its metrics.
    pub async fn open_store(
        &self,
        recorder: Arc<PrometheusRecorder>,
    ) -> Result<Client, StartError> {
        if self.keeps_files() {
            create_private(&self.data).map_err(|cause| {
                let data = self.data.display();
                StartError::Machine(format!("cannot create {data}: {cause}"))
            })?;
        }
        let opened = Client::open_with_recorder(&self.store_url(), recorder).await;
        opened.map_err(|cause| StartError::Store {
            url: self.store_shown(),
            cause: Box::new(cause),
        })
    }

    /// Returns the secrets of a store with the configured master keys. Fails if these cannot
    /// decrypt every secret.
    pub async fn open_secrets(&self, engine: &Arc<Engine>) -> Result<Secrets, SecretError> {
        let secrets = self.secrets(engine)?;
        secrets.check().await?;
        Ok(secrets)
    }

    /// Returns the secrets of a store with the configured master keys, without checking that these
    /// can decrypt them.
    pub fn secrets(&self, engine: &Arc<Engine>) -> Result<Secrets, SecretError> {
        let key = self
            .master_key
            .as_ref()
            .map(|key| MasterKey::parse(key.reveal()));
        let old_keys = self
            .old_keys
            .iter()
            .map(|key| MasterKey::parse(key.reveal()));
        let old_keys = old_keys.collect::<Result<_, _>>()?;
        Ok(Secrets::new(Arc::clone(engine), key.transpose()?, old_keys))
    }
}

/// A server that is ready to run. Its store is open and its address is bound.
#[derive(Debug)]
pub struct Server {
    config: Config,
    listener: Listener,
    http_jobs: Option<HttpJobs>,
    app: App,
    published: Option<PublishedAddress>,
}

impl Server {
    /// Checks the machine, opens the store and binds the address.
    pub async fn start(config: Config) -> Result<Server, StartError> {
        let recorder = Arc::new(PrometheusRecorder::new());
        let clock = windlass_engine::SystemClock::new();
        let machine = Machine::measure(&config, windlass_engine::Clock::now(&clock));
        for check in machine.judge(config.connections, &config.data) {
            match check.verdict {
                Verdict::Ok => {}
                Verdict::Warning => warn!(check = check.name, "{}", check.found),
                Verdict::Failure => return Err(StartError::Machine(check.found)),
            }
        }
        // The server starts with an expired certificate: clients decide whether to accept it.
        if let Some(check) = checks::certificate(&config, machine.now)
            && check.verdict != Verdict::Ok
        {
            warn!(check = check.name, "{}", check.found);
        }
        config
            .warnings
            .iter()
            .for_each(|warning| warn!("{warning}"));
        let client = config.open_store(Arc::clone(&recorder)).await?;
        if !config.is_durable() {
            warn!("the store is in memory: all jobs are lost when this process stops");
        }
        let secrets = config
            .open_secrets(windlass::admin::engine_of(&client))
            .await?;
        let access = access(&config, &client).await?;
        let tls = config.tls_files();
        let limits = config.limits(&machine);
        let listener = Listener::bind(config.bind, tls.as_ref(), limits).await?;
        let (access, published) = publish(access, &listener, &client)?;
        let http_jobs = if config.http_jobs_run {
            Some(config.http_jobs(listener.address(), &secrets)?)
        } else {
            None
        };
        let app = App::new(client, access)
            .settings(config.settings())
            .metrics(recorder)
            .secrets(secrets)
            .configuration(config.to_settings());
        if let Err(error) = app.audit.prepare().await {
            warn!(%error, "cannot reserve space for audit records");
        }
        Ok(Server {
            config,
            listener,
            http_jobs,
            app,
            published,
        })
    }

    /// Reports the dropped lines of this log as a metric.
    #[must_use]
    pub fn log(self, log: LogLines) -> Server {
        Server {
            app: self.app.log(log),
            ..self
        }
    }

    /// Returns the TLS certificate, if configured. A program can reload it on a signal.
    pub fn certificate(&self) -> Option<Certificate> {
        self.listener.certificate()
    }

    /// Returns the URL of the server: `http://127.0.0.1:8080`.
    pub fn url(&self) -> String {
        self.listener.url()
    }

    /// Returns a line with the version, the URL and the store.
    pub fn banner(&self) -> String {
        let durable = if self.config.is_durable() {
            ""
        } else {
            " (not durable)"
        };
        let (version, url, store) = (
            env!("CARGO_PKG_VERSION"),
            self.url(),
            self.config.store_shown(),
        );
        format!("windlass {version} listens on {url}, store {store}{durable}")
    }

    /// Returns the version, the URL and the store as JSON.
    pub fn about(&self) -> Value {
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "url": self.url(),
            "store": self.config.store_shown(),
            "durable": self.config.is_durable(),
        })
    }

    /// Runs until `stop` is cancelled. Running requests and jobs can then finish within the grace
    /// period, or until `stop_now` is cancelled.
    ///
    /// # Errors
    ///
    /// Returns an error at once if the store stops for good or a background loop ends.
    pub async fn run(
        self,
        stop: CancellationToken,
        stop_now: CancellationToken,
    ) -> Result<(), RunError> {
        let engine = Arc::clone(windlass::admin::engine_of(self.app.client()));
        let ran = tokio::select! {
            ran = self.run_on_store(stop, stop_now) => ran,
            stopped = engine.writes().stopped() => Err(RunError::StoreStopped(stopped)),
        };
        match engine.writes().stop_error() {
            None => ran,
            // The stopped store is the cause of any other error.
            Some(stopped) => {
                let cause = stopped.source().map(ToString::to_string);
                error!(cause, "{stopped}");
                Err(RunError::StoreStopped(stopped))
            }
        }
    }

    async fn run_on_store(
        self,
        stop: CancellationToken,
        stop_now: CancellationToken,
    ) -> Result<(), RunError> {
        let engine = Arc::clone(windlass::admin::engine_of(self.app.client()));
        let mut loops = JoinSet::new();
        // Loops stop after the last response, so that workers can still settle jobs during
        // shutdown.
        let stop_loops = CancellationToken::new();
        let node = format!(
            "server-{}-{:08x}",
            std::process::id(),
            engine.ids().bits() >> 32
        );
        let maintenance = self.config.upkeep(node);
        if let Some(executor) = self.executor(&maintenance) {
            loops.spawn(executor.run(stop.clone(), stop_now.clone()));
        }
        let (log_engine, stop_log) = (Arc::clone(&engine), stop_loops.clone());
        let form_failures = form::FormFailureLog::listen(&engine);
        loops.spawn(async move { form_failures.run(&log_engine, stop_log).await });
        loops.spawn(run_maintenance(engine, maintenance, stop_loops.clone()));
        let app = self.app.stopping(stop.clone());
        let site = site(self.config.routes(app.clone(), &self.listener.url()));
        let serving = self.listener.serve(site, stop.clone(), stop_now.clone());
        let aborted_requests = serve_with_loops(&mut loops, serving, &stop).await?;
        drop(self.published);
        // A request that changes something continues after its client has disconnected.
        tokio::select! {
            () = app.all_changed() => {}
            () = app.engine().clock().sleep(self.config.shutdown_grace) => {}
            () = stop_now.cancelled() => {}
        }
        stop_loops.cancel();
        tokio::select! {
            ended = all_ended(&mut loops) => ended?,
            () = stop_now.cancelled() => {}
        }
        info!(aborted_requests, "stopped");
        Ok(())
    }
}

/// Runs `serving` to its end. Fails if a loop panics, or ends before `stop` is cancelled.
async fn serve_with_loops<T>(
    loops: &mut JoinSet<()>,
    serving: impl Future<Output = T>,
    stop: &CancellationToken,
) -> Result<T, RunError> {
    tokio::pin!(serving);
    loop {
        let ended = tokio::select! {
            served = &mut serving => return Ok(served),
            Some(ended) = loops.join_next() => ended,
        };
        ended.map_err(|panic| RunError::LoopEnded(Some(panic)))?;
        if !stop.is_cancelled() {
            return Err(RunError::LoopEnded(None));
        }
    }
}

async fn all_ended(loops: &mut JoinSet<()>) -> Result<(), RunError> {
    while let Some(ended) = loops.join_next().await {
        ended.map_err(|panic| RunError::LoopEnded(Some(panic)))?;
    }
    Ok(())
}

impl Server {
    /// Returns the executor of HTTP jobs, if this server runs them.
    fn executor(&self, maintenance: &MaintenanceConfig) -> Option<Executor> {
        Some(Executor {
            engine: Arc::clone(self.app.engine()),
            jobs: self.http_jobs.clone()?,
            node: maintenance.node.clone(),
            per_queue: u32::try_from(self.config.http_jobs_concurrency).unwrap_or(u32::MAX),
            lease: self.config.lease,
            retry: self.app.settings.retry.clone(),
            shutdown_grace: self.config.shutdown_grace,
            outcome_retry_max: self.config.outcome_retry_max,
        })
    }
}

/// Lets commands of the same user find this server in the lock file of its store. A server with TLS
/// gives out no token: its certificate names a host, and commands must use that name.
///
/// Anyone who can read the lock file can read the store as well, so the token gives away nothing.
fn publish(
    access: Access,
    listener: &Listener,
    client: &Client,
) -> Result<(Access, Option<PublishedAddress>), StartError> {
    let token = match listener.certificate() {
        Some(_) => None,
        None => Some(ApiKey::generate().map_err(|_| StartError::Random)?),
    };
    let shown = token.as_ref().map(ApiKey::reveal);
    match publish_address(client, &local_url(listener), shown.as_deref()) {
        Ok(None) => Ok((access, None)),
        Ok(published) => match token {
            Some(token) => Ok((
                access.with_token(&token, listener.address().ip()),
                published,
            )),
            None => Ok((access, published)),
        },
        Err(error) => {
            warn!(%error, "commands with `--store` will not find this server");
            Ok((access, None))
        }
    }
}

/// Returns the access rules of the server. Records throttled clients in the audit log.
async fn access(config: &Config, client: &Client) -> Result<Access, StartError> {
    let engine = windlass::admin::engine_of(client);
    let without_keys = if config.needs_key() {
        WithoutKeys::Closed
    } else {
        WithoutKeys::Open
    };
    let access =
        Access::by_keys(Arc::clone(engine), without_keys).allow_hosts(config.hosts.iter().cloned());
    let access = if config.insecure {
        access.allow_addresses()
    } else {
        access
    };
    let access = access.on_throttle(audit_throttled(engine));
    let no_keys = match access.keys() {
        Some(keys) => keys.list().await.map_err(StartError::Keys)?.is_empty(),
        None => true,
    };
    if no_keys && config.needs_key() {
        return Err(StartError::NoKeys {
            address: config.bind,
        });
    }
    if no_keys && config.is_public() {
        warn!("no API keys: anyone who can reach this server can do everything");
    }
    Ok(access)
}

#[cfg(test)]
mod tests;
