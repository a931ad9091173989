//! Commands on a store that a running program owns.
#![expect(
    clippy::disallowed_methods,
    reason = "a clock bounds the waits of these tests"
)]

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use serde_json::Value;
use windlass_testkit::{child, client};

use crate::support::{PATIENCE, Server, printed, refused, windlass};

/// The example program: an axum server, a worker and an admin listener on one SQLite file.
struct Shop {
    folder: tempfile::TempDir,
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// The addresses of the program's own server and of its admin listener.
    shop: std::net::SocketAddr,
    admin: std::net::SocketAddr,
}

impl Shop {
    fn start() -> Shop {
        let folder = tempfile::tempdir().expect("a folder");
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../windlass-server");
        let mut program = child::example(manifest, "admin_listener");
        let store = store_of(folder.path());
        let mut child = program
            .arg(&store)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("its stdout"));
        let line = line_of(&mut stdout);
        let addresses = line.split("http://").skip(1);
        let mut addresses = addresses.map(|rest| rest.split(' ').next().unwrap_or_default());
        let mut next = || addresses.next().expect("a URL").trim().parse();
        Shop {
            shop: next().expect("an address"),
            admin: next().expect("an address"),
            folder,
            child,
            stdout,
        }
    }

    fn post(&self, path: &str) {
        let request = client::request(self.shop, "POST", path, &[], None);
        let answer = client::send(self.shop, &request).expect("an answer");
        assert_eq!(answer.status, 200, "{path}");
    }

    /// Runs a command on the store. Returns its stdout.
    fn printed(&self, arguments: &[&str]) -> String {
        let store = store_of(self.folder.path());
        printed(&[arguments, &["--store", &store]].concat())
    }

    /// Waits until a command prints what a test expects.
    fn eventually(&self, arguments: &[&str], expected: &str) -> String {
        let begun = Instant::now();
        loop {
            let shown = self.printed(arguments);
            if shown.contains(expected) {
                return shown;
            }
            assert!(begun.elapsed() < PATIENCE, "{expected} is not in {shown}");
        }
    }

    fn lock_file(&self) -> std::path::PathBuf {
        self.folder.path().join("shop.db.lock")
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn store_of(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("shop.db").display())
}

fn line_of(stdout: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    stdout.read_line(&mut line).expect("a line");
    line
}

#[test]
fn commands_pause_a_queue_and_replay_dead_jobs_of_a_running_program() {
    let shop = Shop::start();
    shop.post("/orders/1");
    shop.post("/orders/2");
    let dead = ["queues", "list", "--json"];
    shop.eventually(&dead, "\"dead\": 2");
    shop.printed(&[
        "queues",
        "pause",
        "orders",
        "--reason",
        "the carrier is down",
    ]);
    shop.post("/orders/3");
    let waiting = shop.printed(&["jobs", "list", "--state", "ready", "-o", "id"]);
    assert_eq!(waiting.lines().count(), 1, "{waiting}");
    shop.post("/carrier/repair");
    shop.printed(&["queues", "resume", "orders"]);
    let replay = [
        "replay", "start", "--queue", "orders", "--reason", "it is up", "--yes",
    ];
    shop.printed(&replay);
    let succeeded = ["jobs", "list", "--state", "succeeded", "-o", "id"];
    let begun = Instant::now();
    while shop.printed(&succeeded).lines().count() < 3 {
        assert!(begun.elapsed() < PATIENCE, "three orders are shipped");
    }
    let audit: Value =
        serde_json::from_str(&shop.printed(&["audit", "list", "--json"])).expect("JSON");
    let records = audit["data"].as_array().expect("records");
    let paused = records
        .iter()
        .find(|record| record["action"] == "queue.pause");
    let paused = paused.expect("the pause is audited");
    assert_eq!(paused["key"], "store", "{paused}");
}

#[test]
fn an_operator_stops_the_worker_of_a_program_and_the_program_ends() {
    let mut shop = Shop::start();
    let token = token_of(&shop);
    let begun = Instant::now();
    loop {
        let workers = ask(&shop, "GET", "/api/v1/workers", Some(&token));
        if workers.json["data"][0]["state"] == "running" {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{workers:?}");
    }
    let stop = ask(&shop, "POST", "/api/v1/workers/shop/stop", Some(&token));
    assert_eq!(stop.status, 200, "{stop:?}");
    assert_eq!(line_of(&mut shop.stdout), "stopped, 0 jobs given back\n");
    assert!(shop.child.wait().expect("its end").success());
    let lock = std::fs::read_to_string(shop.lock_file()).expect("the lock file");
    assert!(!lock.contains("token"), "{lock}");
}

#[test]
fn another_user_is_refused() {
    let shop = Shop::start();
    for key in [None, Some("wl_x"), Some("0")] {
        for (method, path) in [("GET", "/api/v1/jobs"), ("POST", "/api/v1/login-links")] {
            let answer = ask(&shop, method, path, key);
            assert_eq!(answer.status, 401, "{path} {answer:?}");
        }
    }
    let mode = std::fs::metadata(shop.lock_file()).expect("a file");
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);
    if rustix::process::geteuid().is_root() {
        let (code, stderr) = as_nobody(&shop);
        assert_eq!(code, 1, "{stderr}");
        assert!(stderr.contains("permission denied"), "{stderr}");
        assert!(stderr.contains("run the command as that user"), "{stderr}");
        assert!(!stderr.contains("wl_"), "{stderr}");
    }
}

/// Lists the jobs as a user that can see the folder but not read the files in it.
fn as_nobody(shop: &Shop) -> (i32, String) {
    let folder = shop.folder.path();
    let open = |path: &Path| std::fs::set_permissions(path, PermissionsExt::from_mode(0o755));
    open(folder).expect("others can look into the folder");
    // The folder of the build may be closed to other users.
    let program = folder.join("windlass");
    std::fs::copy(env!("CARGO_BIN_EXE_windlass"), &program).expect("a copy");
    let done = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .args(["jobs", "list", "--store", &store_of(folder)])
        .current_dir("/")
        .output()
        .expect("setpriv");
    let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
    (done.status.code().unwrap_or(-1), stderr)
}

#[test]
fn a_killed_program_leaves_a_store_that_commands_open_themselves() {
    let mut shop = Shop::start();
    shop.post("/orders/1");
    let old = token_of(&shop);
    shop.child.kill().expect("it is killed");
    shop.child.wait().expect("its end");
    let lock = std::fs::read_to_string(shop.lock_file()).expect("the lock file");
    assert!(lock.contains(&old), "the token is stale: {lock}");
    let jobs = shop.printed(&["jobs", "list", "-o", "id"]);
    assert_eq!(jobs.lines().count(), 1, "{jobs}");
    let lock = std::fs::read_to_string(shop.lock_file()).expect("the lock file");
    assert!(!lock.contains("token"), "{lock}");
}

#[test]
fn a_listener_that_does_not_answer_is_named() {
    let mut shop = Shop::start();
    // The lock file of a running program that points to another listener.
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = other.local_addr().expect("its address");
    drop(other);
    let lock = std::fs::read_to_string(shop.lock_file()).expect("the lock file");
    let admin = shop.admin.to_string();
    std::fs::write(shop.lock_file(), lock.replace(&admin, &address.to_string())).expect("a write");
    let list = ["jobs", "list", "--store", &store_of(shop.folder.path())];
    let (code, stderr) = refused(&list);
    let pid = format!("in use by process {}", shop.child.id());
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains(&pid) && stderr.contains("nothing accepts connections"));
    let stale = lock.replace(&token_in(&lock), &windlass_server_token());
    std::fs::write(shop.lock_file(), stale).expect("a write");
    let (code, stderr) = refused(&list);
    assert!(
        code == 1 && stderr.contains("refuses the token"),
        "{stderr}"
    );
    let silent: String = lock
        .lines()
        .take(2)
        .map(|line| format!("{line}\n"))
        .collect();
    std::fs::write(shop.lock_file(), silent).expect("a write");
    let (code, stderr) = refused(&list);
    assert!(
        code == 1 && stderr.contains("windlass_server::admin(&client)"),
        "{stderr}"
    );
    let _ = shop.child.kill();
}

#[test]
fn commands_find_a_server_by_its_data_directory() {
    let data = tempfile::tempdir().expect("a folder");
    let server = Server::start(data.path(), &[]);
    server.post("/api/v1/jobs", &serde_json::json!({"kind": "a"}));
    let folder = data.path().to_str().expect("a plain path");
    let on_data = |arguments: &[&str]| printed(&[arguments, &["--data", folder]].concat());
    let created = on_data(&["keys", "create", "--name", "ann", "--scope", "admin"]);
    assert!(created.contains("wl_"), "{created}");
    // From now on the server needs a key, and the token of the lock file is one.
    let jobs = on_data(&["jobs", "list", "-o", "id"]);
    assert_eq!(jobs.lines().count(), 1, "{jobs}");
    let without = windlass(&["jobs", "list", "--url", &server.url]);
    assert!(!without.status.success(), "{without:?}");
}

#[test]
fn a_server_continues_when_an_operator_stops_its_worker_for_http_jobs() {
    let data = tempfile::tempdir().expect("a folder");
    let server = Server::start(data.path(), &[]);
    let worker = || {
        let listed = server.get("/api/v1/workers");
        let workers = listed["data"].as_array().cloned().unwrap_or_default();
        let mut workers = workers.into_iter();
        workers.find(|worker| {
            worker["name"]
                .as_str()
                .is_some_and(|name| name.ends_with("-http"))
        })
    };
    let begun = Instant::now();
    let name = loop {
        assert!(begun.elapsed() < PATIENCE, "the worker is listed");
        if let Some(worker) = worker().filter(|worker| worker["state"] == "running") {
            break worker["name"].as_str().expect("a name").to_owned();
        }
    };
    server.post(
        &format!("/api/v1/workers/{name}/stop"),
        &serde_json::json!({}),
    );
    while worker().is_some() {
        assert!(begun.elapsed() < PATIENCE, "the worker stops");
    }
    assert_eq!(server.get("/readyz")["status"], "ok");
    let (status, log) = server.stop();
    assert!(
        status.success() && log.contains("restart the server to run them"),
        "{log}"
    );
}

/// A complete key that no server knows.
fn windlass_server_token() -> String {
    let key = windlass_server::access::ApiKey::generate().expect("random bytes");
    key.reveal()
}

fn token_in(lock: &str) -> String {
    let token = lock.lines().find_map(|line| line.strip_prefix("token "));
    token.expect("a token").to_owned()
}

fn token_of(shop: &Shop) -> String {
    token_in(&std::fs::read_to_string(shop.lock_file()).expect("the lock file"))
}

fn ask(shop: &Shop, method: &str, path: &str, key: Option<&str>) -> client::Answer {
    let authorization = key.map(|key| format!("Bearer {key}"));
    let headers: Vec<(&str, &str)> = authorization
        .iter()
        .map(|value| ("Authorization", value.as_str()))
        .collect();
    let request = client::request(shop.admin, method, path, &headers, None);
    client::send(shop.admin, &request).expect("an answer")
}
