//! `windlass serve` and the commands around it, as real processes.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use crate::support::figures::Figures;
use crate::support::{PATIENCE, Server, command, printed, refused, windlass};
use serde_json::json;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// Sends a request for jobs with this `Host` header. Returns the response.
fn asked_as(server: &Server, host: &str) -> String {
    let port = server.address.port();
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    write!(
        stream,
        "GET /api/v1/jobs HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    )
    .expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn acknowledged_jobs_survive_kill_9_and_files_are_private() {
    let folder = folder();
    let data = folder.path().join("data");
    let server = Server::start(&data, &[]);
    let job = server.post(
        "/api/v1/jobs",
        &json!({"kind": "email:send", "payload": {"to": "ann"}}),
    );
    let path = format!("/api/v1/jobs/{}", job["id"].as_str().unwrap());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&data), 0o700);
    for file in std::fs::read_dir(&data).unwrap() {
        let file = file.unwrap().path();
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
    server.signal("KILL");
    server.wait();
    let again = Server::start(&data, &[]);
    assert_eq!(again.get(&path)["payload"]["to"], "ann");
    let (status, log) = again.stop();
    assert!(status.success(), "{log}");
}

#[test]
fn the_banner_names_the_address_and_says_if_the_store_is_not_durable() {
    let folder = folder();
    let durable = Server::start(folder.path(), &[]);
    assert!(
        durable.banner.contains("listens on http://127.0.0.1:")
            && durable.banner.contains("store sqlite:")
    );
    assert!(
        !durable.banner.contains("not durable"),
        "{}",
        durable.banner
    );
    drop(durable);
    let in_memory = Server::start(folder.path(), &["--store", "memory:"]);
    assert!(
        in_memory.banner.contains("(not durable)"),
        "{}",
        in_memory.banner
    );
    let (_, log) = in_memory.stop();
    assert!(
        log.contains("all jobs are lost when this process stops"),
        "{log}"
    );
}

#[test]
fn shutdown_finishes_requests_and_does_not_wait_for_long_polls() {
    let folder = folder();
    let mut start = command(&["serve", "--bind", "127.0.0.1:0", "--data"]);
    start.arg(folder.path());
    // A request that waits for the long poll would take longer than the test's timeout.
    start.env("WINDLASS_HTTP_WAIT_MAX", "1h");
    start.env("WINDLASS_SHUTDOWN_GRACE", "1h");
    let server = Server::spawn(start);
    let address = server.address;
    let claim = json!({"queues": ["default"], "worker": "w", "limit": 1, "wait": "1h"});
    let waiting = std::thread::spawn(move || {
        crate::support::ask(address, "POST", "/api/v1/claim", None, Some(&claim))
    });
    // The server lists the worker once its claim has started.
    let began = (0..PATIENCE.as_millis() / 10).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        server.get("/api/v1/workers").to_string().contains("\"w\"")
    });
    assert!(began, "the claim never came");
    let (status, log) = server.stop();
    assert!(status.success(), "{log}");
    let (status, answer) = waiting.join().unwrap().expect("an answer");
    assert_eq!((status, &answer["data"]), (200, &json!([])), "{answer}");
}

#[test]
fn a_slow_request_body_gets_408() {
    use std::io::Read as _;
    let folder = folder();
    let mut start = command(&["serve", "--bind", "127.0.0.1:0", "--data"]);
    start
        .arg(folder.path())
        .env("WINDLASS_HTTP_BODY_TIME", "100ms");
    let server = Server::spawn(start);
    let mut stream = std::net::TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(b"{\"kind\":").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("\"body_too_slow\""), "{answer}");
}

#[test]
fn keys_are_created_in_a_store_and_through_a_running_server() {
    let folder = folder();
    let data = text(folder.path());
    let admin = printed(&[
        "keys", "create", "--name", "admin", "--scope", "admin", "--data", data,
    ]);
    let admin = admin.trim();
    assert!(admin.starts_with("wl_"));
    let server = Server::start(folder.path(), &[]);
    assert_eq!(server.ask("GET", "/api/v1/jobs", None, None).0, 401);
    assert_eq!(server.ask("GET", "/api/v1/jobs", Some(admin), None).0, 200);
    // Only one process can open an embedded store, so the command asks the running server.
    let listed = printed(&["keys", "list", "--data", data, "-o", "ndjson"]);
    assert!(listed.contains(r#""name":"admin""#), "{listed}");
    let with_key = |arguments: &[&str]| {
        let url = ["--url", server.url.as_str()];
        let done = command(&[arguments, &url].concat())
            .env("WINDLASS_KEY", admin)
            .output()
            .unwrap();
        assert!(done.status.success(), "{arguments:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    let made = with_key(&[
        "keys",
        "create",
        "--name",
        "producer",
        "--scope",
        "enqueue,read",
        "--expires-in",
        "1h",
        "--json",
    ]);
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    let (id, key) = (made["id"].as_str().unwrap(), made["key"].as_str().unwrap());
    assert!(made["expires_at"].is_string());
    let job = json!({"kind": "a"});
    assert_eq!(
        server.ask("POST", "/api/v1/jobs", Some(key), Some(&job)).0,
        201
    );
    assert_eq!(server.ask("GET", "/api/v1/keys", Some(key), None).0, 403);
    let listed = with_key(&["keys", "list"]);
    assert!(
        listed.contains("producer") && listed.contains("enqueue,read") && !listed.contains(key),
        "{listed}"
    );
    with_key(&["keys", "revoke", id]);
    assert_eq!(
        server.ask("POST", "/api/v1/jobs", Some(key), Some(&job)).0,
        401
    );
    assert!(with_key(&["keys", "list"]).contains("revoked"));
    let log = with_key(&["audit", "list"]);
    for action in [
        "store  key.create",
        "admin  key.create",
        "admin  key.revoke",
    ] {
        assert!(log.contains(action), "{action}: {log}");
    }
    assert!(!log.contains(key));
    assert!(with_key(&["audit", "verify"]).starts_with("verified 3 records"));
    let (status, _) = server.stop();
    assert!(status.success());
    assert!(printed(&["audit", "verify", "--data", data]).starts_with("verified 3 records"));
    let (code, output) = refused(&["audit", "verify", "--data", data, "--known", "0123"]);
    assert!(code == 1 && output.contains("is missing"), "{output}");
}

#[test]
fn throttled_wrong_keys_are_audited() {
    let folder = folder();
    let data = text(folder.path());
    let admin = printed(&[
        "keys", "create", "--name", "admin", "--scope", "admin", "--data", data,
    ]);
    let server = Server::start(folder.path(), &[]);
    let statuses: Vec<u16> = (0..30)
        .map(|_| {
            server
                .ask("GET", "/api/v1/jobs", Some("wl_nonsense"), None)
                .0
        })
        .collect();
    assert_eq!(statuses[..20], [401; 20]);
    assert!(statuses[20..].contains(&429), "{statuses:?}");
    assert_eq!(
        server
            .ask("GET", "/api/v1/jobs", Some(admin.trim()), None)
            .0,
        200,
        "a right key still works"
    );
    let (_, log) = server.stop();
    assert!(
        log.contains("throttled a client after failed authentication"),
        "{log}"
    );
    assert!(printed(&["audit", "list", "--data", data]).contains("access.throttled"));
}

#[test]
fn a_public_bind_is_refused_without_tls_and_without_a_key() {
    let folder = folder();
    let data = text(folder.path());
    let (code, output) = refused(&["serve", "--bind", "0.0.0.0:0", "--data", data]);
    assert!(code == 2 && output.contains("without TLS"), "{output}");
    let mut behind_proxy = command(&["serve", "--bind", "0.0.0.0:0", "--data", data]);
    let done = behind_proxy
        .env("WINDLASS_BEHIND_PROXY", "true")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(
        done.status.code() == Some(1) && output.contains("the store has no API key"),
        "{output}"
    );
    let insecure = Server::spawn(command(&[
        "serve",
        "--bind",
        "0.0.0.0:0",
        "--data",
        data,
        "--insecure",
    ]));
    let asked = |host: &str| asked_as(&insecure, host);
    assert!(asked("192.0.2.7:8080").starts_with("HTTP/1.1 200"));
    let by_name = asked("evil.example");
    assert!(
        by_name.starts_with("HTTP/1.1 403") && by_name.contains("`hosts`"),
        "{by_name}"
    );
    let (_, log) = insecure.stop();
    assert!(
        log.contains("anyone who can reach this server can do everything"),
        "{log}"
    );
    printed(&[
        "keys", "create", "--name", "admin", "--scope", "admin", "--data", data,
    ]);
    let mut with_key = command(&["serve", "--bind", "0.0.0.0:0", "--data", data]);
    with_key.env("WINDLASS_BEHIND_PROXY", "true");
    drop(Server::spawn(with_key));
}

#[test]
fn secrets_come_from_stdin_and_a_wrong_master_key_stops_the_start() {
    let folder = folder();
    let data = text(folder.path());
    let (old, new) = (
        printed(&["secrets", "new-key"]),
        printed(&["secrets", "new-key"]),
    );
    let with = |keys: &[(&str, &str)], arguments: &[&str], stdin: &str| {
        let mut child = command(&[arguments, &["--data", data]].concat());
        child
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        child.envs(keys.iter().map(|(name, value)| (name, value.trim())));
        let mut child = child.spawn().unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(stdin.as_bytes())
            .unwrap();
        let done = child.wait_with_output().unwrap();
        let output = String::from_utf8_lossy(&done.stdout).into_owned()
            + &String::from_utf8_lossy(&done.stderr);
        (done.status.code(), output)
    };
    const KEY: &str = "WINDLASS_SECRETS_MASTER_KEY";
    const OLD: &str = "WINDLASS_SECRETS_OLD_KEYS";
    let (code, output) = with(
        &[],
        &["secrets", "put", "hook", "--host", "api.example.com"],
        "s3cret\n",
    );
    assert!(
        code == Some(1) && output.contains("no master key is configured"),
        "{output}"
    );
    let (code, output) = with(
        &[(KEY, &old)],
        &["secrets", "put", "hook", "--host", "api.example.com"],
        "s3cret\n",
    );
    assert!(code == Some(0), "{output}");
    assert_eq!(
        with(&[(KEY, &old)], &["secrets", "list"], "").1,
        "NAME  HOSTS\nhook  api.example.com\n"
    );
    // Another master key cannot decrypt the secret: the server does not start, nothing is overwritten.
    for arguments in [
        &["serve", "--bind", "127.0.0.1:0"][..],
        &["secrets", "rotate"],
        &["secrets", "put", "other", "--any-host"],
    ] {
        let (code, output) = with(&[(KEY, &new)], arguments, "x");
        assert!(
            code == Some(1) && output.contains("was encrypted with the master key"),
            "{output}"
        );
    }
    let (code, output) = with(&[], &["doctor"], "");
    assert!(
        code == Some(1) && output.contains("failure  secrets"),
        "{output}"
    );
    let (code, output) = with(&[(KEY, &new), (OLD, &old)], &["secrets", "rotate"], "");
    assert!(
        code == Some(0) && output.starts_with("re-encrypted 1 secrets"),
        "{output}"
    );
    let (code, output) = with(&[(KEY, &new)], &["secrets", "remove", "hook"], "");
    assert!(code == Some(0), "{output}");
    let all: String = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|file| {
            String::from_utf8_lossy(&std::fs::read(file.unwrap().path()).unwrap()).into_owned()
        })
        .collect();
    assert!(!all.contains("s3cret"), "no file contains the secret");
}

#[test]
fn serve_explains_why_a_store_cannot_be_opened() {
    let folder = folder();
    let serve = |store: &str| {
        refused(&[
            "serve",
            "--bind",
            "127.0.0.1:0",
            "--data",
            text(folder.path()),
            "--store",
            store,
        ])
    };
    // A port without a listener.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let (code, output) = serve(&format!("postgres://ann:s3cret@127.0.0.1:{port}/jobs"));
    assert!(
        code == 1 && output.contains("cannot open the store") && !output.contains("s3cret"),
        "{output}"
    );
    let refused_at = format!("127.0.0.1:{port} (database \"jobs\")");
    assert!(
        output.contains(&refused_at)
            && output.contains("start the server")
            && !output.contains("try again"),
        "{output}"
    );
    let missing = folder.path().join("missing").join("jobs.db");
    let (code, output) = serve(&format!("sqlite:{}", text(&missing)));
    assert!(
        code == 1 && output.contains("missing does not exist; create the folder"),
        "{output}"
    );
    let (code, output) = serve("postgres://db/jobs?pool_size=many");
    assert!(code == 2 && output.contains("`pool_size` must"), "{output}");
    let (code, output) = serve("mysql://db");
    assert!(
        code == 2 && output.contains("`store` must begin with"),
        "{output}"
    );
    let no_database = folder.path().join("notes.txt");
    std::fs::write(
        &no_database,
        "these are notes, and no database at all".repeat(100),
    )
    .unwrap();
    let (code, output) = serve(&format!("sqlite:{}", text(&no_database)));
    assert!(
        code == 1 && output.contains("cannot open the store"),
        "{output}"
    );
    let newer = folder.path().join("newer.db");
    let (made, _) = Server::start(
        folder.path(),
        &["--store", &format!("sqlite:{}", text(&newer))],
    )
    .stop();
    assert!(made.success());
    let connection = rusqlite::Connection::open(&newer).unwrap();
    connection
        .pragma_update(None, "user_version", 9999)
        .unwrap();
    drop(connection);
    let (code, output) = serve(&format!("sqlite:{}", text(&newer)));
    assert!(
        code == 1 && output.contains("9999") && output.contains("newer build"),
        "{output}"
    );
    let (code, output) = refused(&["serve", "--bind", "127.0.0.1:0", "--data", "/proc/nothing"]);
    assert!(code == 1 && output.contains("cannot write to"), "{output}");
    let taken = Server::start(folder.path(), &[]);
    let (code, output) = refused(&[
        "serve",
        "--data",
        text(&folder.path().join("b")),
        "--bind",
        &taken.address.to_string(),
    ]);
    assert!(
        code == 1 && output.contains("choose another address with `--bind`"),
        "{output}"
    );
}

#[test]
fn doctor_reports_every_check() {
    let folder = folder();
    drop(Server::start(folder.path(), &[]));
    let output = printed(&["doctor", "--data", text(folder.path())]);
    for name in ["open files", "clock", "space", "store", "secrets"] {
        assert!(output.contains(name), "{name}: {output}");
    }
    let (code, output) = refused(&["doctor", "--data", "/proc/nothing"]);
    assert!(code == 1 && output.contains("checks failed"), "{output}");
    let few = std::process::Command::new("sh")
        .args([
            "-c",
            "ulimit -n 200; exec \"$0\" \"$@\"",
            env!("CARGO_BIN_EXE_windlass"),
            "doctor",
            "--data",
            text(folder.path()),
        ])
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&few.stdout).into_owned();
    assert!(
        output.contains("warning  open files       the limit is 200"),
        "{few:?}"
    );
}

#[test]
fn pages_of_other_sites_cannot_use_a_server_without_keys() {
    let folder = folder();
    let server = Server::start(folder.path(), &[]);
    for (fields, status) in [
        ("Host: evil.example\r\n", "403"),
        ("Host: localhost\r\nOrigin: http://evil.example\r\n", "403"),
        ("Host: localhost\r\nSec-Fetch-Site: cross-site\r\n", "403"),
        ("Host: localhost\r\n", "200"),
    ] {
        let mut stream = std::net::TcpStream::connect(server.address).unwrap();
        write!(
            stream,
            "GET /api/v1/jobs HTTP/1.1\r\n{fields}Connection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{fields}: {answer}"
        );
    }
    // HTTP/2 sends the name in `:authority` instead of `Host`.
    let over_http2 = |fields: &[&str]| {
        let url = format!("http://{}/api/v1/jobs", server.address);
        let mut curl = std::process::Command::new("curl");
        let limit = PATIENCE.as_secs().to_string();
        curl.args(["--silent", "--http2-prior-knowledge", "--max-time", &limit]);
        fields.iter().for_each(|field| {
            curl.args(["--header", field]);
        });
        let asked = curl.args(["--write-out", "%{http_code}", "--output", "/dev/null", &url]);
        let output = asked.output().unwrap().stdout;
        String::from_utf8(output).unwrap()
    };
    let origin = |host: String| format!("Origin: http://{host}");
    assert_eq!(over_http2(&[]), "200");
    assert_eq!(over_http2(&["Host: evil.example"]), "403");
    let same = origin(server.address.to_string());
    assert_eq!(over_http2(&[&same]), "200");
    assert_eq!(over_http2(&[&origin("evil.example".to_owned())]), "403");
    assert!(
        !windlass(&["keys", "list", "--url", "ftp://x"])
            .status
            .success()
    );
}

#[test]
fn bench_http_measures_jobs_through_the_rest_api() {
    let figures = Figures::of(&["http", "--jobs", "300", "--batch", "30", "--clients", "3"]);
    // Each of the three clients sends at least 20 jobs one by one.
    figures.check_rates(&[
        ("/enqueue_batch_per_s", 300),
        ("/without_store_batch_per_s", 300),
        ("/enqueue_one_per_s", 60),
        ("/without_store_one_per_s", 60),
        ("/claim_settle_per_s", 300 + 60),
    ]);
    let (batch, one) = ("/enqueue_batch_per_s", "/enqueue_one_per_s");
    figures.check_ratio("/batch_ratio", batch, "/without_store_batch_per_s");
    figures.check_ratio("/one_ratio", one, "/without_store_one_per_s");
    let json = &figures.json;
    assert_eq!((&json["clients"], &json["batch"]), (&json!(3), &json!(30)));
}

#[test]
fn bench_http_measures_idle_long_polls() {
    let small = ["--jobs", "100", "--waiters", "5", "--seconds", "1"];
    let figures = Figures::of(&[&["http", "--idle"][..], &small].concat());
    for key in ["/waiting_cpu_percent", "/baseline_cpu_percent"] {
        let percent = figures.number(key);
        let cores = std::thread::available_parallelism().expect("cores").get();
        assert!((0.0..=105.0 * cores as f64).contains(&percent), "{key}");
    }
    figures.check_positive(&["/pick_up_ms"]);
    let json = &figures.json;
    assert_eq!(json["waiting_transactions_per_s"], serde_json::Value::Null);
    assert_eq!(
        (&json["waiters"], &json["backlog_jobs"], &json["seconds"]),
        (&json!(5), &json!(100), &json!(1))
    );
    let refused = windlass(&["bench", "http", "--waiters", "5"]);
    assert!(!refused.status.success(), "it goes with --idle");
}
