//! A PostgreSQL server for tests, and databases in it.
//!
//! The first test that needs the server starts it from the installed programs. It stops with this
//! process. If the tests run as root, it runs as the user `postgres`. Set
//! `WINDLASS_TEST_POSTGRES_URL` to use another server instead.

use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windlass_postgres::{Options, PostgresStore};

/// A PostgreSQL server. Its supervisor stops it when standard input closes, and so when this
/// process ends.
pub struct Cluster {
    pub folder: PathBuf,
    pub port: u16,
    supervisor: Child,
}

impl Cluster {
    /// Starts a server with additional settings, such as `ssl=on`.
    pub fn start(settings: &[&str]) -> Cluster {
        let folder = tempfile::Builder::new()
            .prefix("windlass-postgres-")
            .tempdir()
            .expect("a folder")
            .keep();
        Cluster::start_in(folder, settings)
    }

    /// Starts a server in a folder that may contain certificates, in `tls`.
    pub fn start_in(folder: PathBuf, settings: &[&str]) -> Cluster {
        let port = free_port();
        let settings: Vec<String> = settings
            .iter()
            .map(|setting| format!("-c {setting}"))
            .collect();
        let script = format!(
            r#"set -e
            PATH="$PATH:{programs}"
            initdb -D "$1/data" -U windlass --auth=trust --no-instructions >"$1/initdb.log" 2>&1
            if [ -d "$1/tls" ]; then cp "$1"/tls/* "$1/data"; chmod 600 "$1"/data/*.key; fi
            start() {{
                postgres -D "$1/data" -k "$1" -p {port} -c listen_addresses=127.0.0.1 -c max_connections=300 {settings} \
                    >>"$1/server.log" 2>&1 &
                server=$!
            }}
            start "$1"
            # Each input line is a signal to send to the server, which is then restarted.
            while read -r signal; do
                kill -"$signal" $server
                wait $server || true
                start "$1"
            done
            kill -QUIT $server 2>/dev/null || true
            wait $server || true
            rm -rf "$1""#,
            programs = programs().display(),
            settings = settings.join(" "),
        );
        let supervisor = as_user(&folder, &script);
        let cluster = Cluster {
            folder,
            port,
            supervisor,
        };
        cluster.wait_until_it_answers();
        cluster
    }

    fn wait_until_it_answers(&self) {
        let log = |name: &str| std::fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        for _ in 0..600 {
            if log("server.log").contains("ready to accept connections") {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let logs = log("initdb.log") + &log("server.log");
        panic!(
            "PostgreSQL did not start within 30 s in {}; its logs: {logs:?}",
            self.folder.display()
        );
    }

    /// Stops the server at once, like a crash, and restarts it.
    pub fn crash(&mut self) {
        use std::io::Write as _;
        let commands = self.supervisor.stdin.as_mut().expect("it listens");
        commands.write_all(b"QUIT\n").expect("it listens");
    }

    /// The URL of a database on this server.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://windlass@127.0.0.1:{}/{database}", self.port)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.supervisor.stdin.take());
        let _ = self.supervisor.wait(); // it is exiting, so its status does not matter
    }
}

/// Runs a script, with the folder as `$1`, as a user that is allowed to run a server.
pub fn as_user(folder: &Path, script: &str) -> Child {
    let root = user_id() == 0;
    let mut command = if root {
        let (user, group) = user("postgres");
        chown(folder, Some(user), Some(group)).expect("the folder is given away");
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid=postgres",
            "--regid=postgres",
            "--clear-groups",
            "sh",
        ]);
        command
    } else {
        Command::new("sh")
    };
    command
        .args(["-c", script, "sh"])
        .arg(folder)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("setpriv and sh are there")
}

/// The user id of this process.
fn user_id() -> u32 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").map_or(1, |process| process.uid())
}

fn user(name: &str) -> (u32, u32) {
    let users = std::fs::read_to_string("/etc/passwd").expect("there are users");
    let line = users
        .lines()
        .find(|line| line.split(':').next() == Some(name));
    let line =
        line.expect("PostgreSQL is not installed: there is no user postgres. ./test installs it");
    let number = |field: usize| {
        line.split(':')
            .nth(field)
            .and_then(|text| text.parse().ok())
    };
    (
        number(2).expect("a user id"),
        number(3).expect("a group id"),
    )
}

/// The folder with PostgreSQL's programs: on the path, or where Debian installs them.
pub fn programs() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).find(|folder| folder.join("initdb").exists());
    let debian = || {
        let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
        let folders = versions.flatten().map(|version| version.path().join("bin"));
        folders
            .filter(|folder| folder.join("initdb").exists())
            .max()
    };
    on_path
        .or_else(debian)
        .expect("PostgreSQL is not installed: ./test installs it")
}

pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// The server that all tests of this program share.
pub fn shared() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| Cluster::start(&[]))
}

/// Creates a database with the Windlass schema and returns its URL.
pub async fn database() -> String {
    let url = empty_database().await;
    PostgresStore::migrate(&options(&url))
        .await
        .expect("the schema");
    url
}

/// Creates an empty database and returns its URL.
pub async fn empty_database() -> String {
    static DATABASES: AtomicU32 = AtomicU32::new(1);
    let number = DATABASES.fetch_add(1, Ordering::Relaxed);
    let name = format!("test_{}_{number}", std::process::id());
    let server =
        std::env::var("WINDLASS_TEST_POSTGRES_URL").unwrap_or_else(|_| shared().url("postgres"));
    execute(&server, &format!("create database {name}")).await;
    let (address, query) = server.split_once('?').unwrap_or((&server, ""));
    let (address, _) = address.rsplit_once('/').expect("the URL names a database");
    match query {
        "" => format!("{address}/{name}"),
        query => format!("{address}/{name}?{query}"),
    }
}

pub fn options(url: &str) -> Options {
    Options::parse(url).expect("a URL")
}

/// Opens a store in a new database.
pub async fn store() -> PostgresStore {
    open(&database().await).await
}

/// Opens a store in an existing database, as another node does.
pub async fn open(url: &str) -> PostgresStore {
    PostgresStore::connect(options(url))
        .await
        .expect("it connects")
}

/// Opens a plain connection, like any other client of the database.
pub async fn client(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls)
        .await
        .expect("it connects");
    tokio::spawn(connection);
    client
}

pub async fn execute(url: &str, sql: &str) {
    client(url)
        .await
        .batch_execute(sql)
        .await
        .expect("it is done");
}
