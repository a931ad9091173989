//! Configuration from files, variables and flags. Errors name the source of the value.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::support::{PATIENCE, Server, command, printed, refused, session, windlass};
use serde_json::{Value, json};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

fn allow(path: &Path, mode: u32) {
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, permissions).expect("permissions");
}

#[test]
fn config_checks_prints_and_creates_a_configuration() {
    let folder = folder();
    let path = folder.path().join("windlass.toml");
    std::fs::write(&path, printed(&["config", "init"])).unwrap();
    assert_eq!(
        printed(&["config", "check", "--config", text(&path)]),
        "the configuration is valid\n"
    );
    std::fs::write(&path, "bnid = \"x\"\n[http]\nidle_time = 5\n").unwrap();
    let config = text(&path);
    insta::assert_snapshot!(session(
        folder.path(),
        &[
            &["config", "check", "--config", config],
            &["config", "print", "--config", config],
            &["serve", "--config", config],
            &["doctor", "--config", config],
        ],
    ));
    let set = printed(&["config", "print", "--data", "/somewhere", "--json"]);
    let set: serde_json::Value = serde_json::from_str(&set).unwrap();
    assert_eq!(
        set["data"],
        json!({"value": "/somewhere", "origin": "--data"})
    );
}

#[test]
fn a_certificate_and_its_key_enable_tls() {
    let folder = folder();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let write = |name: &str, content: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        allow(&path, 0o600);
        path.display().to_string()
    };
    let certificate = write("cert.pem", made.cert.pem());
    let key = write("key.pem", made.signing_key.serialize_pem());
    let config = write(
        "tls.toml",
        format!("[tls]\ncertificate = {certificate:?}\nkey = {key:?}\n"),
    );
    let data = folder.path().join("data");
    let server = Server::start(&data, &["--config", &config]);
    assert!(server.url.starts_with("https://"), "{}", server.url);
    let asked = std::process::Command::new("curl")
        .args([
            "--silent",
            "--show-error",
            "--max-time",
            &PATIENCE.as_secs().to_string(),
            "--cacert",
            &certificate,
        ])
        .args([
            "--resolve",
            &format!("localhost:{}:127.0.0.1", server.address.port()),
        ])
        .arg(format!("https://localhost:{}/livez", server.address.port()))
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&asked.stdout).contains("ok"),
        "{asked:?}"
    );
    drop(server);
    let swapped = write(
        "bad.toml",
        format!("[tls]\ncertificate = {key:?}\nkey = {certificate:?}\n"),
    );
    let (code, output) = refused(&[
        "serve",
        "--bind",
        "127.0.0.1:0",
        "--data",
        text(&data),
        "--config",
        &swapped,
    ]);
    assert!(
        code == 2 && output.contains("it must be a PEM file"),
        "{output}"
    );
    // The server refuses a private key that other users can read.
    allow(Path::new(&key), 0o644);
    let (code, output) = refused(&["config", "check", "--config", &config]);
    assert!(
        code == 2 && output.contains("`tls.key` names the file") && output.contains("chmod 600"),
        "{output}"
    );
}

/// Writes a certificate for `localhost` that is valid until this year, and its key. Returns the path
/// of the certificate.
fn write_certificate(folder: &Path, until: i32) -> String {
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()])
        .expect("a certificate and its files");
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(until, 1, 1);
    let key = rcgen::KeyPair::generate().expect("a certificate and its files");
    let made = params
        .self_signed(&key)
        .expect("a certificate and its files");
    let (certificate, key_path) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&key_path, key.serialize_pem()).expect("a certificate and its files");
    allow(&key_path, 0o600);
    std::fs::write(&certificate, made.pem()).expect("a certificate and its files");
    // A copy to verify with, which the next certificate does not overwrite.
    let copy = folder.join(format!("trusted-{until}.pem"));
    std::fs::write(&copy, made.pem()).expect("a certificate and its files");
    copy.display().to_string()
}

/// Returns whether the server's certificate is valid if only this certificate is trusted.
fn shows(server: &Server, trusted: &str) -> bool {
    let port = server.address.port();
    let mut asked = std::process::Command::new("curl");
    asked.args(["--silent", "--max-time", "10", "--cacert", trusted]);
    asked.args(["--resolve", &format!("localhost:{port}:127.0.0.1")]);
    asked.arg(format!("https://localhost:{port}/livez"));
    asked.output().expect("curl").status.success()
}

#[test]
fn an_expired_certificate_fails_the_checks_and_a_new_one_needs_no_restart() {
    let folder = folder();
    let expired = write_certificate(folder.path(), 2021);
    let config = folder.path().join("tls.toml");
    let (certificate, key) = (
        folder.path().join("cert.pem"),
        folder.path().join("key.pem"),
    );
    std::fs::write(
        &config,
        format!("[tls]\ncertificate = {certificate:?}\nkey = {key:?}\n"),
    )
    .unwrap();
    let data = folder.path().join("data");
    let (code, output) = refused(&["config", "check", "--config", text(&config)]);
    assert!(
        code == 2 && output.contains("`tls.certificate`"),
        "{output}"
    );
    assert!(
        output.contains("expired at 2021-01-01T00:00:00Z"),
        "{output}"
    );
    let elsewhere = folder.path().join("elsewhere");
    let doctor = || {
        let done = windlass(&[
            "doctor",
            "--config",
            text(&config),
            "--data",
            text(&elsewhere),
        ]);
        let output = String::from_utf8_lossy(&done.stdout).into_owned();
        (done.status.code(), output)
    };
    let (code, output) = doctor();
    assert!(
        code == Some(1) && output.contains("failure  certificate"),
        "{output}"
    );
    let server = Server::start(&data, &["--config", text(&config)]);
    assert!(!shows(&server, &expired), "it has expired");
    // After SIGHUP, the server uses the new certificate.
    let second = write_certificate(folder.path(), 4000);
    server.signal("HUP");
    let tries = |trusted: &str| {
        (0..3_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            shows(&server, trusted)
        })
    };
    assert!(tries(&second), "the second certificate is offered");
    printed(&["config", "check", "--config", text(&config)]);
    let (code, output) = doctor();
    assert!(
        code == Some(0) && output.contains("ok       certificate"),
        "{output}"
    );
    // The server ignores an invalid certificate, and loads the next one also without a signal.
    std::fs::write(&certificate, "nonsense").unwrap();
    server.signal("HUP");
    assert!(shows(&server, &second), "the old one is kept");
    let third = write_certificate(folder.path(), 4001);
    assert!(tries(&third), "the third certificate is offered");
}

#[test]
fn config_check_and_doctor_check_the_flags_of_a_server() {
    let folder = folder();
    let path = folder.path().join("windlass.toml");
    let config = "log.level = \"wran\"\nhosts = [\"*\"]\nhttp_jobs.public_url = \"not a url\"\ntls.key = \"k\"\nhttp_jobs.ca_file = \"/nowhere/ca.pem\"\n[secrets]\nmaster_key = \"abc\"\n";
    std::fs::write(&path, config).unwrap();
    allow(&path, 0o600);
    let data = folder.path().join("data");
    let everywhere = ["--allow-target", "everywhere"];
    insta::assert_snapshot!(session(
        folder.path(),
        &[
            &["config", "check", "--bind", "0.0.0.0:1"],
            &["config", "check", "--bind", "0.0.0.0:1", "--insecure"],
            &[&["config", "check"][..], &everywhere].concat(),
            &[&["serve", "--data", text(&data)][..], &everywhere].concat(),
            &[&["doctor"][..], &everywhere].concat(),
            &["config", "check", "--log-level", "wran"],
            // Reports all problems at once, and creates no store.
            &["serve", "--data", text(&data), "--config", text(&path)],
        ],
    ));
    assert!(!data.exists());
}

#[test]
fn a_value_that_is_not_utf8_is_refused_by_name() {
    let strange = OsStr::from_bytes(b"127.0.0.1:\xff");
    let output = |command: &mut std::process::Command| {
        let done = command.output().expect("it starts");
        let output = String::from_utf8_lossy(&done.stderr).into_owned();
        (done.status.code(), output)
    };
    let check = ["config", "check"];
    let (code, by_variable) = output(command(&check).env("WINDLASS_BIND", strange));
    assert_eq!(code, Some(2));
    assert!(
        by_variable.contains("`WINDLASS_BIND` must be UTF-8"),
        "{by_variable}"
    );
    let (code, by_flag) = output(command(&check).arg("--data").arg(strange));
    assert_eq!(code, Some(2));
    assert!(by_flag.contains("`--data` must be UTF-8"), "{by_flag}");
    let (code, _) = output(command(&check).env("OTHER", strange));
    assert_eq!(code, Some(0), "other variables need not be UTF-8");
}

#[test]
fn serve_prints_its_address_as_json() {
    let folder = folder();
    let data = ["--data", text(folder.path())];
    let serve = ["serve", "--json", "--bind", "127.0.0.1:0"];
    let server = Server::spawn(command(&[&serve[..], &data].concat()));
    let about: Value = serde_json::from_str(&server.banner).expect("a line of JSON");
    assert_eq!(
        (&about["durable"], &about["url"]),
        (&json!(true), &json!(server.url))
    );
    assert!(
        about["store"]
            .as_str()
            .is_some_and(|store| store.starts_with("sqlite:"))
    );
    assert_eq!(server.get("/livez")["status"], "ok");
}

#[test]
fn a_variable_names_the_configuration_file() {
    let folder = folder();
    let path = folder.path().join("windlass.toml");
    std::fs::write(
        &path,
        "hosts = [\"jobs.example\"]\n[log]\nlevel = \"error\"\n",
    )
    .unwrap();
    let data = folder.path().join("data");
    let mut serve = command(&["serve", "--bind", "127.0.0.1:0", "--data", text(&data)]);
    serve.env("WINDLASS_CONFIG", &path);
    let server = Server::spawn(serve);
    let asked = |host: &str| {
        let done = std::process::Command::new("curl")
            .args([
                "--silent",
                "--output",
                "/dev/null",
                "--write-out",
                "%{http_code}",
            ])
            .args(["--header", &format!("Host: {host}")])
            .arg(format!("{}/api/v1/jobs", server.url))
            .output()
            .expect("curl");
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    assert_eq!(
        (asked("jobs.example"), asked("other.example")),
        ("200".into(), "403".into())
    );
    assert_eq!(server.stop().1, "", "and the level of its log");
}

#[test]
fn the_server_uses_the_configured_retry_policy_and_cap() {
    let folder = folder();
    let serve = ["serve", "--bind", "127.0.0.1:0", "--data"];
    let mut serve = command(&[&serve[..], &[text(folder.path())]].concat());
    let policy = json!({"preset": "immediate", "max_attempts": 9}).to_string();
    serve
        .env("WINDLASS_JOBS_RETRY", policy)
        .env("WINDLASS_JOBS_RETRY_CAP", "2");
    let server = Server::spawn(serve);
    let job = server.post("/api/v1/jobs", &json!({"kind": "a", "max_attempts": 20}));
    let path = format!("/api/v1/jobs/{}", job["id"].as_str().expect("an id"));
    for state in ["ready", "dead"] {
        let claim = json!({"queues": ["default"], "worker": "w", "limit": 1, "wait": "20s"});
        let claimed = server.post("/api/v1/claim", &claim);
        let leased = &claimed["data"][0];
        let failed = json!({"id": leased["id"], "attempt": leased["attempt"], "outcome": "failed", "error": "no"});
        server.post(
            "/api/v1/settle",
            &json!({"worker": "w", "outcomes": [failed]}),
        );
        assert_eq!(
            server.get(&path)["state"],
            state,
            "no delay, and two attempts at most"
        );
    }
}
