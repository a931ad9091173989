//! Everything that a crash test starts: the store, the servers, the workers, the target of HTTP
//! jobs and the clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use url::Url;
use windlass_client::Client;
use windlass_client::api::PutSchedule;

use super::cluster::{Cluster, free_port};
use super::error::{CrashTestError, During as _};
use super::load::{Enqueuer, end_of_load};
use super::process::{Kind, NAME, Program, Seat};
use super::proxy::Proxy;
use super::record::Log;
use super::report::Report;
use super::target::Target;
use super::work::{KIND, LEASE, QUEUE};
use super::worker::client;
use super::{CrashStore, CrashTest};

/// How long a process may take until it is ready.
const READY_MAX: Duration = Duration::from_secs(60);
/// How long a process may take to end after SIGTERM.
const STOP_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);
/// The clients that enqueue over REST.
const CLIENTS: u32 = 4;
/// The schedules: their name and the interval.
const SCHEDULES: [(&str, &str); 2] = [("every-second", "1s"), ("every-three-seconds", "3s")];

/// The running parts of a test.
pub(super) struct Stage {
    folder: TempDir,
    /// What clients and handlers saw.
    pub(super) log: PathBuf,
    /// The servers first, then the workers.
    pub(super) seats: Vec<Seat>,
    /// The URLs of the servers.
    pub(super) servers: Vec<String>,
    pub(super) database: Option<Database>,
    /// What a process did that it should not do.
    pub(super) problems: Vec<String>,
    target: Target,
    store: CrashStore,
    /// The URL of the store past the proxy.
    direct: String,
}

/// A PostgreSQL database behind a proxy.
pub(super) struct Database {
    pub(super) proxy: Proxy,
    /// The server, if it belongs to the test.
    pub(super) cluster: Option<Cluster>,
}

/// The clients that enqueue.
pub(super) struct Load {
    stop: CancellationToken,
    clients: JoinSet<()>,
}

impl Stage {
    /// Prepares the store and the commands. Starts no process of Windlass yet.
    pub(super) async fn set(test: &CrashTest) -> Result<Self, CrashTestError> {
        let folder = tempfile::Builder::new()
            .prefix("windlass-crashtest-")
            .tempdir();
        let folder = folder.during("create a folder")?;
        let log = folder.path().join("effects.log");
        let target = Target::start(Arc::new(Log::open(&log, "target")?)).await?;
        let (direct, used, database) = open_store(&test.store, folder.path()).await?;
        let mut stage = Stage {
            log,
            seats: Vec::new(),
            servers: Vec::new(),
            database,
            problems: Vec::new(),
            target,
            store: test.store.clone(),
            direct,
            folder,
        };
        let nodes = if stage.database.is_some() {
            test.nodes
        } else {
            1
        };
        for node in 1..=nodes {
            stage.add_server(test, node, &used)?;
        }
        for worker in 0..2 {
            let server = stage
                .servers
                .get(worker % nodes)
                .cloned()
                .unwrap_or_default();
            stage.add_worker(test, "rest", worker, &server);
            let server = stage
                .servers
                .get((worker + 1) % nodes)
                .cloned()
                .unwrap_or_default();
            stage.add_worker(test, "raw", worker, &server);
            if stage.database.is_some() {
                stage.add_worker(test, "sdk", worker, &used);
            }
        }
        Ok(stage)
    }

    fn add_server(
        &mut self,
        test: &CrashTest,
        node: usize,
        store: &str,
    ) -> Result<(), CrashTestError> {
        let address = format!("127.0.0.1:{}", free_port()?);
        self.servers.push(format!("http://{address}"));
        let arguments = ["serve", "--bind", &address, "--store", store];
        let lease = windlass_core::format_duration(LEASE);
        let environment = [
            ("WINDLASS_JOBS_LEASE", lease.as_str()),
            ("WINDLASS_JOBS_SWEEP_EVERY", "200ms"),
            ("WINDLASS_HTTP_JOBS_ALLOW_TARGETS", "127.0.0.1/32"),
            ("WINDLASS_SHUTDOWN_GRACE", "10s"),
            ("WINDLASS_LOG_LEVEL", "warn"),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let program = Program {
            program: test.program.clone(),
            arguments: arguments.map(str::to_owned).into(),
            environment: environment.into(),
        };
        let name = format!("server-{node}");
        self.seats
            .push(Seat::new(&name, Kind::Server, program, self.folder.path()));
        Ok(())
    }

    fn add_worker(&mut self, test: &CrashTest, role: &str, number: usize, url: &str) {
        let log = self.log.display().to_string();
        let (seed, rate) = (test.seed.to_string(), (test.rate / 8).to_string());
        let arguments = [
            "crashtest-worker",
            "--role",
            role,
            "--connect",
            url,
            "--name",
            NAME,
            "--effects",
            &log,
            "--seed",
            &seed,
            "--rate",
            &rate,
        ];
        let program = Program {
            program: test.program.clone(),
            arguments: arguments.map(str::to_owned).into(),
            environment: Vec::new(),
        };
        let name = format!("{role}-{}", number + 1);
        self.seats
            .push(Seat::new(&name, Kind::Worker, program, self.folder.path()));
    }

    /// Starts all processes, and creates the schedules.
    pub(super) async fn start(&mut self) -> Result<(), CrashTestError> {
        for seat in &mut self.seats {
            seat.start()?;
            if seat.kind == Kind::Server {
                wait_until_ready(seat).await?; // the first one creates the schema
            }
        }
        let jobs = self
            .client()?
            .jobs(&Default::default())
            .limit(1)
            .all()
            .await;
        if !jobs.during("list jobs")?.is_empty() {
            return Err(CrashTestError::new(
                "start",
                "the store must not hold any jobs",
            ));
        }
        for (name, every) in SCHEDULES {
            let work = serde_json::json!({
                "tag": "schedule", "work_ms": 5, "failing_attempts": 0, "is_fatal": false, "filler": "",
            });
            let schedule = serde_json::json!({
                "every": every, "missed": "all", "overlap": "allow", "catch_up_max": 1000,
                "job": {"kind": KIND, "queue": QUEUE, "payload": work},
            });
            let schedule: PutSchedule =
                serde_json::from_str(&schedule.to_string()).during("write a schedule")?;
            let name = name.parse().during("name a schedule")?;
            let put = self.client()?.put_schedule(&name, &schedule).await;
            put.during("create a schedule")?;
        }
        Ok(())
    }

    fn client(&self) -> Result<Client, CrashTestError> {
        client(self.servers.first().map_or("", String::as_str))
    }

    /// Starts the clients that enqueue over REST.
    pub(super) fn start_load(&self, test: &CrashTest) -> Result<Load, CrashTestError> {
        let servers: Result<Vec<_>, _> = self.servers.iter().map(|url| client(url)).collect();
        let (servers, stop) = (servers?, CancellationToken::new());
        let mut clients = JoinSet::new();
        for number in 1..=CLIENTS {
            let name = format!("client-{number}");
            let log = Arc::new(Log::open(&self.log, &name)?);
            let seed = test.seed.wrapping_mul(31).wrapping_add(number.into());
            let load = Enqueuer::new(&name, seed, test.rate.div_ceil(CLIENTS), &log);
            let (servers, target) = (servers.clone(), self.target.url.clone());
            clients.spawn(load.run_with_rest(servers, target, stop.clone()));
        }
        Ok(Load { stop, clients })
    }

    /// Stops the clients, and waits for their last answers.
    pub(super) async fn stop_load(&mut self, mut load: Load) -> Result<(), CrashTestError> {
        load.stop.cancel();
        let mark = std::fs::write(end_of_load(&self.log), ""); // for the SDK's workers
        mark.during("end the load")?;
        loop {
            self.tend()?;
            if let Ok(None) = tokio::time::timeout(POLL, load.clients.join_next()).await {
                return Ok(());
            }
        }
    }

    /// Continues and restarts processes that are due. Notes those that ended by themselves.
    pub(super) fn tend(&mut self) -> Result<(), CrashTestError> {
        for seat in &mut self.seats {
            let Some((status, was_ready)) = seat.tend()? else {
                continue;
            };
            // A server that starts while its database is down may give up.
            if was_ready || self.database.is_none() {
                let (name, lines) = (&seat.name, seat.last_lines());
                self.problems
                    .push(format!("{name} ended by itself: {status}\n{lines}"));
            }
        }
        Ok(())
    }

    /// Ends all faults, and waits until every process is ready.
    pub(super) async fn heal(&mut self, patience: Duration) -> Result<(), CrashTestError> {
        for seat in &mut self.seats {
            seat.resume()?;
        }
        let started = Instant::now();
        loop {
            self.tend()?;
            let waiting = self
                .seats
                .iter()
                .find(|seat| !seat.is_ready() || !seat.is_running());
            let Some(seat) = waiting else { return Ok(()) };
            if started.elapsed() > patience {
                let (name, lines) = (&seat.name, seat.last_lines());
                self.problems
                    .push(format!("{name} is not ready after the faults\n{lines}"));
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Stops the schedules, and waits until no job is active.
    pub(super) async fn drain(&mut self, patience: Duration) -> Result<(), CrashTestError> {
        let client = self.client()?;
        let started = Instant::now();
        let mut last_error = String::new();
        let mut quiet = 0;
        while started.elapsed() < patience {
            self.tend()?;
            match active_jobs(&client).await {
                Ok(0) => quiet += 1,
                Ok(active) => {
                    quiet = 0;
                    last_error = format!("{active} jobs are active");
                }
                Err(error) => {
                    quiet = 0;
                    last_error = error.to_string();
                }
            }
            if quiet == 3 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        self.problems
            .push(format!("not drained after {patience:?}: {last_error}"));
        Ok(())
    }

    /// Ends all processes with SIGTERM, the workers first.
    pub(super) async fn stop(&mut self) -> Result<(), CrashTestError> {
        for seat in self.seats.iter_mut().rev() {
            let status = seat.stop(STOP_MAX).await?;
            let problem = match status {
                Some(status) if status.success() => continue,
                Some(status) => format!("ended with {status} after SIGTERM"),
                None => format!("did not end within {STOP_MAX:?} of SIGTERM"),
            };
            let (name, lines) = (&seat.name, seat.last_lines());
            self.problems.push(format!("{name} {problem}\n{lines}"));
        }
        Ok(())
    }

    /// The URL of the store for the final read.
    pub(super) fn store_url(&self) -> &str {
        &self.direct
    }

    pub(super) fn store_name(&self) -> &'static str {
        match self.store {
            CrashStore::Sqlite(_) => "sqlite",
            CrashStore::Postgres(_) => "postgres",
            CrashStore::OwnCluster => "postgres (own cluster with a synchronous standby)",
        }
    }

    pub(super) fn largest_log(&self) -> u64 {
        let sizes = self.seats.iter().map(Seat::log_bytes);
        sizes.max().unwrap_or(0)
    }

    /// Stops the database. Keeps the logs if something was found.
    pub(super) async fn end(self, report: &mut Report) -> Result<(), CrashTestError> {
        if let Some(cluster) = self.database.and_then(|database| database.cluster) {
            cluster.stop().await?;
        }
        if !report.is_clean() {
            report.logs = Some(self.folder.keep().display().to_string());
        }
        Ok(())
    }
}

async fn wait_until_ready(seat: &mut Seat) -> Result<(), CrashTestError> {
    let started = Instant::now();
    while !seat.is_ready() {
        let ended = seat.tend()?.is_some();
        if ended || started.elapsed() > READY_MAX {
            return Err(CrashTestError::new(
                format!("start {}", seat.name),
                seat.last_lines(),
            ));
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Pauses all schedules. Returns how many jobs are neither finished nor dead.
async fn active_jobs(client: &Client) -> Result<u64, windlass_client::Error> {
    for (name, _) in SCHEDULES {
        client.pause_schedule(name).await?;
    }
    let queues = client.queues().all().await?;
    let active = queues.iter().map(|queue| {
        let counts = &queue.counts;
        counts.scheduled + counts.ready + counts.running
    });
    Ok(active.sum())
}

/// Returns the URL of the store, the one that processes use, and the database behind its proxy.
async fn open_store(
    store: &CrashStore,
    folder: &Path,
) -> Result<(String, String, Option<Database>), CrashTestError> {
    match store {
        CrashStore::Sqlite(path) => {
            let path = path.clone().unwrap_or_else(|| folder.join("store.db"));
            if path.exists() {
                let cause = format!("{} exists; name a new file", path.display());
                return Err(CrashTestError::new("create the store", cause));
            }
            let url = format!("sqlite:{}", path.display());
            Ok((url.clone(), url, None))
        }
        CrashStore::Postgres(url) => {
            let parsed = Url::parse(url).during("read the URL of the store")?;
            let (host, port) = (parsed.host_str().unwrap_or("127.0.0.1"), parsed.port());
            let proxy = Proxy::start().await?;
            proxy.point_to(Some((host, port.unwrap_or(5432))));
            let mut proxied = parsed.clone();
            let changed = proxied.set_host(Some("127.0.0.1")).is_ok()
                && proxied.set_port(Some(proxy.port)).is_ok();
            if !changed {
                return Err(CrashTestError::new(
                    "read the URL of the store",
                    "it has no host",
                ));
            }
            let database = Database {
                proxy,
                cluster: None,
            };
            Ok((url.clone(), proxied.to_string(), Some(database)))
        }
        CrashStore::OwnCluster => {
            let cluster = Cluster::start().await?;
            let proxy = Proxy::start().await?;
            proxy.point_to(Some(("127.0.0.1", cluster.port())));
            let url = format!("postgres://windlass@127.0.0.1:{}/crashtest", proxy.port);
            let database = Database {
                proxy,
                cluster: Some(cluster),
            };
            Ok((url.clone(), url, Some(database)))
        }
    }
}
