//! A pgbouncer in transaction mode in front of the shared PostgreSQL server.

use std::path::PathBuf;
use std::process::Child;
use std::sync::OnceLock;
use std::time::Duration;

use crate::cluster;

/// A pooler in front of the shared server. It stops with this process.
pub struct Pooler {
    pub port: u16,
    _supervisor: Child,
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
