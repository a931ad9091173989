//! From a configuration to a server that runs, and to its end.

use std::error::Error as _;
use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use windlass::Client;
use windlass::prometheus::PrometheusRecorder;
use windlass_core::retry::{AttemptLimit, Cap, WorkerRetry};
use windlass_engine::{Audit, Engine, JanitorConfig, MaintenanceConfig, run_maintenance};
use windlass_http::{HttpConfig, HttpConfigError, HttpJobs, SystemResolver, TlsRoots, form};
use windlass_listen::{Certificate, Limits, ListenError, Listener, TlsError, TlsFiles};
use windlass_store::StoreError;

use crate::access::{Access, Caller, WithoutKeys};
use crate::app::{App, Settings};
use crate::http_jobs::Executor;
use crate::refusals::site;
use crate::routes::router;
use crate::secrets::{MasterKey, SecretError, Secrets};
use crate::standalone::checks::{self, Machine, Verdict, make_private};
use crate::standalone::config::Config;
use crate::standalone::log::LogLines;
use crate::standalone::nodes;

/// So many records of throttled tries are on their way to the store at once.
const THROTTLED_WRITING_MAX: usize = 4;

/// A server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Something about this machine.
    #[error("this machine cannot run the server: {0}")]
    Machine(String),
    /// The store cannot be opened.
    #[error("the store {url} cannot be opened")]
    Store {
        /// Which, without its password.
        url: String,
        /// Why.
        #[source]
        cause: Box<windlass::Error>,
    },
    /// Other machines reach it, and there is no key.
    #[error(
        "{address} is reachable from other machines and there is no key yet: make one first (`windlass keys create --name admin --scope admin`, with the same `--data` or `--store`), or say `--insecure`"
    )]
    NoKeys {
        /// Where it would listen.
        address: std::net::SocketAddr,
    },
    /// The keys cannot be read.
    #[error("the keys cannot be read")]
    Keys(#[source] StoreError),
    /// The secrets do not open.
    #[error(transparent)]
    Secrets(#[from] SecretError),
    /// HTTP jobs cannot be run as they are configured.
    #[error("HTTP jobs cannot be run")]
    HttpJobs(#[from] HttpConfigError),
    /// The file with further authorities cannot be read.
    #[error("`http_jobs.ca_file` cannot be read: {path}")]
    Authorities {
        /// Which file.
        path: std::path::PathBuf,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// The address is taken, not ours, or not allowed.
    #[error("cannot listen on {address}: choose another with `--bind`")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        cause: std::io::Error,
    },
    /// TLS cannot be offered.
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

/// A server that ran cannot go on. Better none than half of one.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A part that must run as long as the server does ended before.
    #[error("a loop of the server ended: start it again, and report what the log says before this")]
    LoopEnded(#[source] Option<JoinError>),
    /// The store can no longer keep anything.
    #[error(transparent)]
    StoreStopped(StoreError),
}

/// The file of the store in the data directory.
pub(crate) const STORE_FILE: &str = "windlass.db";

impl Config {
    /// The URL of the store: the one that was set, or a file in the data directory.
    pub fn store_url(&self) -> String {
        match &self.store {
            Some(url) => url.reveal().to_owned(),
            None => format!("sqlite:{}", self.data.join(STORE_FILE).display()),
        }
    }

    /// The URL of the store, without its password.
    pub fn store_shown(&self) -> String {
        self.store
            .as_ref()
            .map_or_else(|| self.store_url(), |url| url.shown())
    }

    /// Whether jobs survive the process.
    pub fn is_durable(&self) -> bool {
        !self.store_url().starts_with("memory:")
    }

    /// Whether one server alone may have the store open.
    pub fn keeps_one_server(&self) -> bool {
        !self.store_url().starts_with("postgres")
    }

    /// Whether the data directory is used.
    pub fn keeps_files(&self) -> bool {
        self.store.is_none()
    }

    /// The store that is configured, opened, with figures going to a recorder.
    pub async fn open_store(
        &self,
        recorder: Arc<PrometheusRecorder>,
    ) -> Result<Client, StartError> {
        if self.keeps_files() {
            make_private(&self.data).map_err(|cause| {
                let data = self.data.display();
                StartError::Machine(format!("{data} cannot be made: {cause}"))
            })?;
        }
        let opened = Client::open_with_recorder(&self.store_url(), recorder).await;
        opened.map_err(|cause| StartError::Store {
            url: self.store_shown(),
            cause: Box::new(cause),
        })
    }

    /// The secrets in a store, with the configured keys; refused if these do not open them all.
    pub async fn open_secrets(&self, engine: &Arc<Engine>) -> Result<Secrets, SecretError> {
        let secrets = self.secrets(engine)?;
        secrets.check().await?;
        Ok(secrets)
    }

    /// The secrets in a store, with the configured keys, whether these open them or not.
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

    /// Whether a key must exist before anybody is let in.
    fn needs_key(&self) -> bool {
        (self.is_public() || self.behind_proxy) && !self.insecure
    }

    fn limits(&self, machine: &Machine) -> Limits {
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        Limits {
            header_time: self.header_time,
            header_bytes: number(self.header_bytes),
            header_fields: number(self.header_fields),
            body_time: self.body_time,
            body_bytes_per_second: self.body_bytes_per_second,
            body_bytes_max: self.bulk_bytes,
            write_time: self.write_time,
            write_bytes: number(self.write_bytes),
            idle_time: self.idle_time,
            connections: number(machine.connections_allowed(self.connections)),
            connections_per_address: number(self.connections_per_address),
            streams: u32::try_from(self.streams).unwrap_or(u32::MAX),
            drain_time: self.shutdown_grace,
        }
    }

    fn settings(&self) -> Settings {
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let cap = self.retry_cap.and_then(|cap| {
            let cap = AttemptLimit::from_max_attempts(i64::try_from(cap).ok()?);
            cap.ok().flatten()
        });
        Settings {
            payload_bytes_max: number(self.payload_bytes),
            bulk_bytes_max: number(self.bulk_bytes),
            lease: self.lease,
            lease_max: self.lease_max,
            wait_max: self.wait_max,
            waiting_max: number(self.waiting_max),
            idempotency_notes_max: self.idempotency_keys,
            replaced_payload_retention: self.retention_replaced_payloads,
            retry: WorkerRetry {
                policy: Some(Arc::new(self.retry.clone())),
                cap: cap.map_or(Cap::Unlimited, Cap::AtMost),
            },
        }
    }

    /// How HTTP jobs are run, which never dial the server itself.
    fn http_config(&self, own: SocketAddr) -> Result<HttpConfig, StartError> {
        let extra_pem = self.http_jobs_ca_file.as_ref().map(|path| {
            let unreadable = |cause| StartError::Authorities {
                path: path.clone(),
                cause,
            };
            std::fs::read(path).map_err(unreadable)
        });
        let ranges = self.allow_targets.iter().map(|range| range.parse());
        Ok(HttpConfig {
            allow: ranges
                .collect::<Result<_, _>>()
                .map_err(HttpConfigError::from)?,
            own: vec![own],
            roots: TlsRoots {
                extra_pem: extra_pem.transpose()?,
            },
            connect_timeout: self.http_jobs_connect_timeout,
            per_host: self
                .http_jobs_per_host
                .map(|most| usize::try_from(most).unwrap_or(usize::MAX)),
            completion_url: self
                .public_url
                .as_ref()
                .map(|url| format!("{}/api/v1/completions/", url.trim_end_matches('/'))),
        })
    }

    fn http_jobs(&self, own: SocketAddr, secrets: &Secrets) -> Result<HttpJobs, StartError> {
        let keys = Arc::new(secrets.clone());
        let config = self.http_config(own)?;
        Ok(HttpJobs::with(config, Arc::new(SystemResolver), keys)?)
    }

    /// The files of TLS, where it is offered.
    pub fn tls_files(&self) -> Option<TlsFiles> {
        let files = self.tls_certificate.clone().zip(self.tls_key.clone());
        files.map(|(certificate, key)| TlsFiles { certificate, key })
    }

    fn upkeep(&self, node: String) -> MaintenanceConfig {
        MaintenanceConfig {
            about: nodes::about(self),
            lease: self.lease,
            sweep_every: self.sweep_every,
            janitor: JanitorConfig {
                retention: self.retention_finished,
                queues: self.retention_queues.clone(),
                dead_retention: self.retention_dead,
                ..JanitorConfig::default()
            },
            ..MaintenanceConfig::new(node)
        }
    }
}

/// A server that is about to run: its store is open, and its address taken.
#[derive(Debug)]
pub struct Server {
    config: Config,
    listener: Listener,
    http_jobs: Option<HttpJobs>,
    app: App,
}

impl Server {
    /// Checks the machine, opens the store and takes the address.
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
        // One that has expired does not keep the server from starting: whoever connects decides.
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
            warn!(
                "the store is in memory: nothing is durable, all jobs are gone with this process"
            );
        }
        let secrets = config
            .open_secrets(windlass::admin::engine_of(&client))
            .await?;
        let access = access(&config, &client).await?;
        let tls = config.tls_files();
        let limits = config.limits(&machine);
        let listener = Listener::bind(config.bind, tls.as_ref(), limits).await?;
        let http_jobs = match config.http_jobs_run {
            true => Some(config.http_jobs(listener.address(), &secrets)?),
            false => None,
        };
        let app = App::new(client, access)
            .settings(config.settings())
            .metrics(recorder)
            .secrets(secrets);
        if let Err(error) = app.audit.prepare().await {
            warn!(%error, "there is no room for the first audit record");
        }
        Ok(Server {
            config,
            listener,
            http_jobs,
            app,
        })
    }

    /// With a log whose lines are counted where they were left out.
    #[must_use]
    pub fn log(self, log: LogLines) -> Server {
        Server {
            app: self.app.log(log),
            ..self
        }
    }

    /// The certificate that it offers, where it offers TLS: for a program that reads it again on a signal.
    pub fn certificate(&self) -> Option<Certificate> {
        self.listener.certificate()
    }

    /// Where it listens: `http://127.0.0.1:8080`.
    pub fn url(&self) -> String {
        self.listener.url()
    }

    /// The line that tells where it listens and what it keeps jobs in.
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

    /// The same for programs.
    pub fn about(&self) -> Value {
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "url": self.url(),
            "store": self.config.store_shown(),
            "durable": self.config.is_durable(),
        })
    }

    /// Runs until `stop`; then what runs may finish within the grace period, or until `stop_now`.
    ///
    /// Ends at once, with an error, when the store stops for good: it could no longer keep a
    /// promise.
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
            // Everything else that ended, ended because of this.
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
        // Loops stop when the last request has been answered: a worker that settles at the end is still heard.
        let over = CancellationToken::new();
        let node = format!(
            "server-{}-{:08x}",
            std::process::id(),
            engine.ids().bits() >> 32
        );
        let upkeep = self.config.upkeep(node);
        if let Some(executor) = self.executor(&upkeep) {
            loops.spawn(executor.run(stop.clone(), stop_now.clone()));
        }
        let (told, until) = (Arc::clone(&engine), over.clone());
        let teller = form::FormFailureLog::listen(&engine);
        loops.spawn(async move { teller.run(&told, until).await });
        loops.spawn(run_maintenance(engine, upkeep, over.clone()));
        let app = self.app.stopping(stop.clone());
        let site = site(router(app.clone()));
        let serving = self.listener.serve(site, stop.clone(), stop_now.clone());
        let cut_off = beside(&mut loops, serving, &stop).await?;
        // Requests whose clients have gone.
        tokio::select! {
            () = app.all_changed() => {}
            () = app.engine().clock().sleep(self.config.shutdown_grace) => {}
            () = stop_now.cancelled() => {}
        }
        over.cancel();
        tokio::select! {
            ended = all_ended(&mut loops) => ended?,
            () = stop_now.cancelled() => {}
        }
        info!(cut_off, "stopped");
        Ok(())
    }
}

/// What `serving` comes to, beside loops that may only end after `stop`, and never break.
async fn beside<T>(
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
        ended.map_err(|broke| RunError::LoopEnded(Some(broke)))?;
        if !stop.is_cancelled() {
            return Err(RunError::LoopEnded(None));
        }
    }
}

async fn all_ended(loops: &mut JoinSet<()>) -> Result<(), RunError> {
    while let Some(ended) = loops.join_next().await {
        ended.map_err(|broke| RunError::LoopEnded(Some(broke)))?;
    }
    Ok(())
}

impl Server {
    /// What runs HTTP jobs, if this server does.
    fn executor(&self, upkeep: &MaintenanceConfig) -> Option<Executor> {
        Some(Executor {
            engine: Arc::clone(self.app.engine()),
            jobs: self.http_jobs.clone()?,
            node: upkeep.node.clone(),
            per_queue: u32::try_from(self.config.http_jobs_concurrency).unwrap_or(u32::MAX),
            lease: self.config.lease,
            retry: self.app.settings.retry.clone(),
            shutdown_grace: self.config.shutdown_grace,
            outcome_retry_max: self.config.outcome_retry_max,
        })
    }
}

/// Who is let in, and how failed tries come into the audit log.
async fn access(config: &Config, client: &Client) -> Result<Access, StartError> {
    let engine = windlass::admin::engine_of(client);
    let without_keys = match config.needs_key() {
        true => WithoutKeys::Closed,
        false => WithoutKeys::Open,
    };
    let audit = Audit::new(Arc::clone(engine));
    let writing = Arc::new(Semaphore::new(THROTTLED_WRITING_MAX));
    let access =
        Access::by_keys(Arc::clone(engine), without_keys).allow_hosts(config.hosts.iter().cloned());
    let access = match config.insecure {
        true => access.allow_addresses(),
        false => access,
    };
    let access = access.on_throttle(Arc::new(move |id, peer, wait| {
        let peer = peer.map(|peer| peer.to_string());
        warn!(key = id, peer, ?wait, "tries with wrong keys are throttled");
        let Ok(permit) = Arc::clone(&writing).try_acquire_owned() else {
            return; // a flood is in the log, and does not become a flood of writes
        };
        let (audit, target) = (audit.clone(), id.unwrap_or("-").to_owned());
        let detail =
            json!({"peer": peer, "wait_ms": u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)});
        tokio::spawn(async move {
            audit
                .record(
                    &Caller::nobody().actor(),
                    "access.throttled",
                    &target,
                    detail,
                )
                .await;
            drop(permit);
        });
    }));
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
        warn!("everybody who reaches this server may do everything: it has no keys");
    }
    Ok(access)
}

#[cfg(test)]
mod tests;
