//! A pgbouncer in transaction mode in front of the shared PostgreSQL server.

use std::path::PathBuf;
use std::process::Child;
use std::sync::OnceLock;
use std::time::Duration;

use windlass_postgres::PostgresStore;

use crate::cluster;

/// A pooler in front of the shared server. It stops with this process.
pub struct Pooler {
    pub port: u16,
    folder: PathBuf,
    _supervisor: Child,
}

impl Pooler {
    /// Opens a store in a new database, through the pooler.
    pub async fn store(&self) -> PostgresStore {
        let url = cluster::database().await;
        let (_, database) = url.rsplit_once('/').expect("a database");
        let url = format!(
            "postgres://windlass@127.0.0.1:{}/{database}?pool_size=2",
            self.port
        );
        let store = PostgresStore::connect(cluster::options(&url)).await;
        store.unwrap_or_else(|error| panic!("no connection: {error:?}\n{}", self.logs()))
    }

    /// The last lines that the pooler and the server have logged.
    fn logs(&self) -> String {
        let server = &cluster::shared().folder;
        let logs = [self.folder.join("log"), server.join("server.log")];
        let last_lines = |path: &PathBuf| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last = &lines[lines.len().saturating_sub(20)..];
            format!("{}:\n{}\n", path.display(), last.join("\n"))
        };
        logs.iter().map(last_lines).collect()
    }
}

pub fn pooler() -> &'static Pooler {
    static POOLER: OnceLock<Pooler> = OnceLock::new();
    POOLER.get_or_init(|| {
        let server = cluster::shared();
        let folder = tempfile::Builder::new()
            .prefix("windlass-pgbouncer-")
            .tempdir()
            .expect("a folder")
            .keep();
        let port = cluster::free_port();
        // Each test has its own database: idle connections to all of them would use up the
        // connections of the server.
        let config = format!(
            "[databases]\n* = host=127.0.0.1 port={} user=windlass\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             auth_type = any\npool_mode = transaction\nmax_client_conn = 1000\ndefault_pool_size = 8\nserver_idle_timeout = 2\n\
             unix_socket_dir =\nlogfile = {}\n",
            server.port,
            folder.join("log").display(),
        );
        std::fs::write(folder.join("pgbouncer.ini"), config).expect("its settings");
        let script = format!(
            r#"{} -q "$1/pgbouncer.ini" 2>/dev/null & pooler=$!; read -r _ || true; kill $pooler; wait $pooler; rm -rf "$1""#,
            program().display()
        );
        let supervisor = cluster::as_user(&folder, &script);
        for _ in 0..200 {
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Pooler {
            port,
            folder,
            _supervisor: supervisor,
        }
    })
}

fn program() -> PathBuf {
    let known = [
        "/usr/sbin/pgbouncer",
        "/usr/bin/pgbouncer",
        "/usr/local/bin/pgbouncer",
    ];
    let found = known.iter().map(PathBuf::from).find(|path| path.exists());
    found.expect("pgbouncer is not installed: ./test installs it")
}
