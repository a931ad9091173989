//! A server whose disk fails or is full. `strace` makes its system calls fail for as long as it is
//! attached.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::{PATIENCE, Server, command, printed, refused};
use serde_json::json;

/// Makes system calls of a running process fail.
struct Fault(Child);

impl Fault {
    fn inject(server: &Server, calls: &str, error: &str) -> Self {
        let (trace, inject) = (
            format!("trace={calls}"),
            format!("inject={calls}:error={error}"),
        );
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject]);
        strace.args(["-p", &server.pid().to_string()]);
        let strace = strace.stderr(Stdio::null()).spawn();
        Fault(strace.expect("strace is installed: run ./test, which installs it"))
    }

    /// Makes the system calls succeed again.
    fn end(mut self) {
        let pid = self.0.id().to_string();
        let ended = Command::new("kill").args(["-INT", &pid]).status();
        assert!(ended.expect("kill").success());
        let _ = self.0.wait();
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server that sends a heartbeat several times a second.
fn server(data: &std::path::Path) -> Server {
    let mut start = command(&["serve", "--bind", "127.0.0.1:0", "--data"]);
    start.arg(data).env("WINDLASS_JOBS_LEASE", "3s");
    Server::spawn(start)
}

/// Polls `/readyz` until the server is, or is not, ready. Returns the last response.
fn until_ready(server: &Server, ready: bool) -> serde_json::Value {
    let status = if ready { 200 } else { 503 };
    let answered = (0..PATIENCE.as_millis() / 20).find_map(|_| {
        let (got, body) = server.ask("GET", "/readyz", None, None);
        if got != status {
            std::thread::sleep(Duration::from_millis(20));
        }
        (got == status).then_some(body)
    });
    answered.expect("/readyz changes in time")
}

#[test]
fn a_failed_sync_stops_an_idle_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(folder.path());
    let fault = Fault::inject(&server, "fsync,fdatasync", "EIO");
    let (status, log) = server.wait();
    drop(fault);
    assert_eq!(status.code(), Some(1), "{log}");
    // Loops that are still stopping may log in between, so neither line has a fixed position.
    let mut lines = log.lines();
    let logged = lines.find(|line| line.contains("ERROR windlass_server::standalone::start"));
    let logged = logged.unwrap_or_else(|| panic!("{log}"));
    let printed = log.lines().find(|line| line.starts_with("error: "));
    let printed = printed.unwrap_or_else(|| panic!("{log}"));
    for line in [logged, printed] {
        assert!(line.contains("the store stopped"), "{log}");
        assert!(line.contains("the disk failed to sync"), "{log}");
    }
}

#[test]
fn a_server_with_a_full_disk_is_not_ready_until_space_is_free() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(folder.path());
    until_ready(&server, true);
    let fault = Fault::inject(&server, "pwrite64,fallocate", "ENOSPC");
    let output = until_ready(&server, false);
    assert!(output.to_string().contains("the disk is full"), "{output}");
    assert_eq!(server.ask("GET", "/livez", None, None).0, 200);
    let job = json!({"kind": "a"});
    let (status, refused) = server.ask("POST", "/api/v1/jobs", None, Some(&job));
    assert_eq!((status, &refused["code"]), (503, &json!("storage_full")));
    fault.end();
    until_ready(&server, true);
    server.post("/api/v1/jobs", &job);
    let (status, log) = server.stop();
    assert!(status.success(), "{log}");
}

#[test]
fn restore_needs_a_store_that_no_process_uses() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let (store, copy) = (data.join("windlass.db"), folder.path().join("copy.db"));
    let [store, copy] = [&store, &copy].map(|path| path.to_str().expect("a plain path"));
    let running = Server::start(&data, &[]);
    let job = running.post("/api/v1/jobs", &json!({"kind": "a"}));
    printed(&["backup", store, copy]);
    let later = running.post("/api/v1/jobs", &json!({"kind": "b"}));
    let (code, output) = refused(&["restore", copy, store, "--replace"]);
    let owner = format!("in use by process {}", running.pid());
    assert!(code == 1 && output.contains(&owner), "{output}");
    running.signal("KILL");
    running.wait();
    let (code, output) = refused(&["restore", copy, store]);
    assert!(code == 1 && output.contains("`--replace`"), "{output}");
    let output = printed(&["restore", copy, store, "--replace"]);
    assert!(output.contains("windlass.db"), "{output}");
    let restored = Server::start(&data, &[]);
    let path = |job: &serde_json::Value| format!("/api/v1/jobs/{}", job["id"].as_str().unwrap());
    assert_eq!(restored.ask("GET", &path(&job), None, None).0, 200);
    assert_eq!(restored.ask("GET", &path(&later), None, None).0, 404);
    for arguments in [
        ["restore", copy, "postgres://host/jobs"],
        ["backup", "postgres://host/jobs", copy],
    ] {
        let (code, output) = refused(&arguments);
        assert!(code == 1 && output.contains("`pg_"), "{output}");
    }
}

#[test]
fn doctor_asks_a_running_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().to_str().expect("a plain path");
    let admin = printed(&[
        "keys", "create", "--name", "admin", "--scope", "admin", "--data", data,
    ]);
    let server = server(folder.path());
    let output = printed(&["doctor", "--data", data]);
    assert!(output.contains("warning  store"), "{output}");
    assert!(output.contains("windlass doctor --url"), "{output}");
    let doctor = |key: &str| {
        let mut doctor = command(&["doctor", "--url", &server.url]);
        let done = doctor.env("WINDLASS_KEY", key).output().expect("it runs");
        let output = String::from_utf8_lossy(&done.stdout).into_owned();
        (done.status.code(), output)
    };
    let (code, output) = doctor(admin.trim());
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("ok       server"), "{output}");
    assert!(output.contains("ok       key"), "{output}");
    let (code, output) = doctor("wl_wrong");
    assert!(
        code == Some(1) && output.contains("failure  key"),
        "{output}"
    );
    let fault = Fault::inject(&server, "pwrite64,fallocate", "ENOSPC");
    until_ready(&server, false);
    let (code, output) = doctor(admin.trim());
    assert!(
        code == Some(1) && output.contains("the disk is full"),
        "{output}"
    );
    fault.end();
}
