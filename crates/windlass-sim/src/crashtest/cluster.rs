//! A throw-away PostgreSQL cluster: a primary and a synchronous standby that takes over.
//!
//! If this process runs as root, PostgreSQL runs as the user `postgres`, because it refuses root.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::Instant;
use tokio_postgres::{Client, NoTls};

use super::error::{CrashTestError, During as _};
use super::process::{signal, with_parent};

/// How long a server may take to start, to recover, or to be promoted.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// A running cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    folder: TempDir,
    programs: PathBuf,
    owner: Option<Owner>,
    primary: Server,
    standby: Option<Server>,
    servers: u32,
}

/// The user that runs PostgreSQL if this process is root.
#[derive(Debug, Clone, Copy)]
struct Owner {
    user: u32,
    group: u32,
}

#[derive(Debug)]
struct Server {
    data: PathBuf,
    port: u16,
    child: Child,
}

/// How a server is stopped.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stop {
    /// As `pg_ctl stop -m immediate` does.
    Immediate,
    /// `kill -9` of the postmaster.
    Kill,
}

impl Cluster {
    /// Starts a primary with a synchronous standby, and creates the database `crashtest`.
    pub(super) async fn start() -> Result<Self, CrashTestError> {
        let programs = programs()?;
        let owner = owner()?;
        let mut folder = tempfile::Builder::new();
        let folder = folder.prefix("windlass-crashtest-postgres-").tempdir();
        let folder = folder.during("create a folder for PostgreSQL")?;
        if let Some(Owner { user, group }) = owner {
            let given = chown(folder.path(), Some(user), Some(group));
            given.during("hand a folder to PostgreSQL")?;
        }
        let data = folder.path().join("1");
        let mut initdb = command(&programs, owner, "initdb");
        initdb.arg("-D").arg(&data);
        initdb.args([
            "-U",
            "windlass",
            "--auth=trust",
            "--no-instructions",
            "--no-sync",
        ]);
        finish(initdb).await?;
        let port = free_port()?;
        let child = launch(&programs, owner, folder.path(), &data, port)?;
        let primary = Server { data, port, child };
        let mut cluster = Cluster {
            folder,
            programs,
            owner,
            primary,
            standby: None,
            servers: 1,
        };
        cluster.wait_for_primary().await?;
        let created = cluster.execute("create database crashtest").await;
        created.during("create a database")?;
        cluster.add_standby().await?;
        Ok(cluster)
    }

    /// The port of the primary.
    pub(super) fn port(&self) -> u16 {
        self.primary.port
    }

    /// Stops the primary like a crash, and starts it again.
    pub(super) async fn restart(&mut self, stop: Stop) -> Result<(), CrashTestError> {
        end(&mut self.primary.child, stop).await?;
        self.relaunch_primary().await
    }

    /// Kills the primary and promotes the standby. Returns when the new primary takes writes.
    pub(super) async fn fail_over(&mut self, stop: Stop) -> Result<(), CrashTestError> {
        let Some(standby) = self.standby.take() else {
            return Err(CrashTestError::new("fail over", "there is no standby"));
        };
        end(&mut self.primary.child, stop).await?;
        let old = std::mem::replace(&mut self.primary, standby);
        let _ = std::fs::remove_dir_all(old.data); // its last processes may still write to it
        let promoted = self.execute("select pg_promote(true, 60)").await;
        promoted.during("promote the standby")?;
        Ok(())
    }

    /// Adds a standby to the primary, from a copy of it, and makes commits wait for it.
    pub(super) async fn add_standby(&mut self) -> Result<(), CrashTestError> {
        self.servers += 1;
        let data = self.folder.path().join(self.servers.to_string());
        let mut copy = command(&self.programs, self.owner, "pg_basebackup");
        let primary = self.primary.port.to_string();
        copy.args(["-h", "127.0.0.1", "-U", "windlass", "-p", &primary]);
        copy.args(["-R", "-X", "stream", "-c", "fast", "--no-sync", "-D"]);
        copy.arg(&data);
        finish(copy).await?;
        // After its promotion, it must not wait for a standby of its own before there is one.
        let settings = data.join("postgresql.auto.conf");
        let opened = OpenOptions::new().append(true).open(settings);
        let mut settings = opened.during("configure the standby")?;
        let written = settings.write_all(b"synchronous_standby_names = ''\n");
        written.during("configure the standby")?;
        let port = free_port()?;
        let child = launch(&self.programs, self.owner, self.folder.path(), &data, port)?;
        self.standby = Some(Server { data, port, child });
        let synchronous = "alter system set synchronous_standby_names = '*'";
        self.execute(synchronous).await.during("add a standby")?;
        let reloaded = self.execute("select pg_reload_conf()").await;
        reloaded.during("add a standby")?;
        self.wait_for_standby().await
    }

    /// Waits until commits wait for the standby.
    pub(super) async fn wait_for_standby(&mut self) -> Result<(), CrashTestError> {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            let query = "select 1 from pg_stat_replication where sync_state = 'sync' and state = 'streaming'";
            if let Ok(client) = connect(self.primary.port, "postgres").await
                && client
                    .query(query, &[])
                    .await
                    .is_ok_and(|rows| !rows.is_empty())
            {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
        Err(CrashTestError::new("wait for the standby", self.log_end()))
    }

    async fn relaunch_primary(&mut self) -> Result<(), CrashTestError> {
        let started = Instant::now();
        loop {
            let Server { data, port, .. } = &self.primary;
            let child = launch(&self.programs, self.owner, self.folder.path(), data, *port)?;
            self.primary.child = child;
            match self.wait_for_primary().await {
                Ok(()) => return Ok(()),
                // Processes of the killed server still hold its shared memory.
                Err(_) if started.elapsed() < PATIENCE => tokio::time::sleep(POLL).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until the primary answers. Fails if its process ends.
    async fn wait_for_primary(&mut self) -> Result<(), CrashTestError> {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            let ended = self.primary.child.try_wait();
            if ended.during("wait for PostgreSQL")?.is_some() {
                break;
            }
            if connect(self.primary.port, "postgres").await.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
        Err(CrashTestError::new("start PostgreSQL", self.log_end()))
    }

    async fn execute(&self, sql: &str) -> Result<(), tokio_postgres::Error> {
        let client = connect(self.primary.port, "postgres").await?;
        client.batch_execute(sql).await
    }

    fn log_end(&self) -> String {
        let log =
            std::fs::read_to_string(self.folder.path().join("server.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(10).collect();
        lines
            .into_iter()
            .rev()
            .fold(String::new(), |mut text, line| {
                let _ = writeln!(text, "{line}"); // writing to a text does not fail
                text
            })
    }

    /// Stops all servers.
    pub(super) async fn stop(mut self) -> Result<(), CrashTestError> {
        if let Some(mut standby) = self.standby.take() {
            end(&mut standby.child, Stop::Immediate).await?;
        }
        end(&mut self.primary.child, Stop::Immediate).await
    }
}

async fn connect(port: u16, database: &str) -> Result<Client, tokio_postgres::Error> {
    let url = format!("postgres://windlass@127.0.0.1:{port}/{database}?connect_timeout=5");
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn end(child: &mut Child, stop: Stop) -> Result<(), CrashTestError> {
    let number = match stop {
        Stop::Immediate => Signal::QUIT,
        Stop::Kill => Signal::KILL,
    };
    signal(child, number)?;
    let ended = tokio::time::timeout(PATIENCE, child.wait()).await;
    ended.during("stop PostgreSQL")?.during("stop PostgreSQL")?;
    Ok(())
}

fn launch(
    programs: &Path,
    owner: Option<Owner>,
    folder: &Path,
    data: &Path,
    port: u16,
) -> Result<Child, CrashTestError> {
    let path = folder.join("server.log");
    let log = OpenOptions::new().append(true).create(true).open(path);
    let mut server = command(programs, owner, "postgres");
    server.arg("-D").arg(data).arg("-k").arg(folder);
    server.args(["-p", &port.to_string()]);
    for setting in [
        "listen_addresses=127.0.0.1",
        "max_connections=300",
        "wal_level=replica",
        "hot_standby=on",
        "synchronous_commit=on",
        "wal_retrieve_retry_interval=200ms",
        "shared_buffers=64MB",
    ] {
        server.args(["-c", setting]);
    }
    let log = log.during("open the log of PostgreSQL")?;
    server
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    server.spawn().during("start PostgreSQL")
}

/// A command that runs a program of PostgreSQL as the user who may.
fn command(programs: &Path, owner: Option<Owner>, program: &str) -> Command {
    let program = programs.join(program);
    let mut command = match owner {
        None => with_parent(&program),
        Some(Owner { user, group }) => {
            let mut command = Command::new("setpriv");
            command.arg(format!("--reuid={user}"));
            command.arg(format!("--regid={group}"));
            command.args(["--clear-groups", "--pdeathsig", "KILL", "--"]);
            command.arg(program).kill_on_drop(true);
            command
        }
    };
    command.current_dir("/");
    command
}

async fn finish(mut command: Command) -> Result<(), CrashTestError> {
    let run = tokio::time::timeout(PATIENCE, command.output()).await;
    let done = run.during("run a program of PostgreSQL")?;
    let done = done.during("run a program of PostgreSQL")?;
    if done.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    Err(CrashTestError::new("prepare PostgreSQL", errors))
}

/// The owner of the servers, if this process is root.
fn owner() -> Result<Option<Owner>, CrashTestError> {
    if !rustix::process::getuid().is_root() {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd").during("read /etc/passwd")?;
    let mut lines = users
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>());
    let line = lines.find(|fields| fields.first() == Some(&"postgres"));
    let numbers = line.and_then(|fields| {
        let user = fields.get(2)?.parse().ok()?;
        let group = fields.get(3)?.parse().ok()?;
        Some(Owner { user, group })
    });
    let missing = "there is no user `postgres`; install PostgreSQL";
    numbers
        .map(Some)
        .ok_or_else(|| CrashTestError::new("start PostgreSQL", missing))
}

/// The folder with PostgreSQL's programs: on the path, or where Debian installs them.
fn programs() -> Result<PathBuf, CrashTestError> {
    let is_complete = |folder: &PathBuf| {
        let programs = ["initdb", "postgres", "pg_basebackup"];
        programs.iter().all(|program| folder.join(program).exists())
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).find(is_complete);
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    let debian = versions.flatten().map(|version| version.path().join("bin"));
    let missing = || {
        CrashTestError::new(
            "start PostgreSQL",
            "`initdb`, `postgres` and `pg_basebackup` are not installed",
        )
    };
    on_path
        .or_else(|| debian.filter(is_complete).max())
        .ok_or_else(missing)
}

/// A port that stays free while its server is down: not an ephemeral one, which a connection could
/// take meanwhile.
pub(super) fn free_port() -> Result<u16, CrashTestError> {
    static PORTS: AtomicU32 = AtomicU32::new(0);
    for _ in 0..10_000 {
        let next = PORTS.fetch_add(1, Ordering::Relaxed);
        let offset = std::process::id().wrapping_mul(37).wrapping_add(next) % 10_000;
        let port = u16::try_from(15_000 + offset).unwrap_or(15_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    Err(CrashTestError::new("find a free port", "all are taken"))
}
