//! A server whose disk fails or is full. `strace` makes its system calls fail for as long as it is
//! attached.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::{PATIENCE, Server, command, printed, refused};
use serde_json::json;

/// Lets system calls of a running process fail.
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

    /// Lets them succeed again.
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

/// Asks until the server is ready, or is not; what it says then.
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
fn a_sync_that_fails_ends_the_server_without_any_request() {
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
fn a_full_disk_is_not_ready_until_there_is_space_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(folder.path());
    until_ready(&server, true);
    let fault = Fault::inject(&server, "pwrite64,fallocate", "ENOSPC");
    let told = until_ready(&server, false);
    assert!(told.to_string().contains("the disk is full"), "{told}");
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
fn a_backup_is_restored_while_nothing_uses_the_store() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let (store, copy) = (data.join("windlass.db"), folder.path().join("copy.db"));
    let [store, copy] = [&store, &copy].map(|path| path.to_str().expect("a plain path"));
    let running = Server::start(&data, &[]);
    let job = running.post("/api/v1/jobs", &json!({"kind": "a"}));
    printed(&["backup", store, copy]);
    let later = running.post("/api/v1/jobs", &json!({"kind": "b"}));
    let (code, told) = refused(&["restore", copy, store, "--replace"]);
    let owner = format!("in use by process {}", running.pid());
    assert!(code == 1 && told.contains(&owner), "{told}");
    running.signal("KILL");
    running.wait();
    let (code, told) = refused(&["restore", copy, store]);
    assert!(code == 1 && told.contains("`--replace`"), "{told}");
    let told = printed(&["restore", copy, store, "--replace"]);
    assert!(told.contains("windlass.db"), "{told}");
    let restored = Server::start(&data, &[]);
    let path = |job: &serde_json::Value| format!("/api/v1/jobs/{}", job["id"].as_str().unwrap());
    assert_eq!(restored.ask("GET", &path(&job), None, None).0, 200);
    assert_eq!(restored.ask("GET", &path(&later), None, None).0, 404);
    for arguments in [
        ["restore", copy, "postgres://host/jobs"],
        ["backup", "postgres://host/jobs", copy],
    ] {
        let (code, told) = refused(&arguments);
        assert!(code == 1 && told.contains("`pg_"), "{told}");
    }
}

#[test]
fn the_doctor_asks_a_server_that_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().to_str().expect("a plain path");
    let admin = printed(&[
        "keys", "create", "--name", "admin", "--scope", "admin", "--data", data,
    ]);
    let server = server(folder.path());
    let told = printed(&["doctor", "--data", data]);
    assert!(told.contains("warning  store"), "{told}");
    assert!(told.contains("windlass doctor --url"), "{told}");
    let doctor = |key: &str| {
        let mut doctor = command(&["doctor", "--url", &server.url]);
        let done = doctor.env("WINDLASS_KEY", key).output().expect("it runs");
        let told = String::from_utf8_lossy(&done.stdout).into_owned();
        (done.status.code(), told)
    };
    let (code, told) = doctor(admin.trim());
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("ok       server"), "{told}");
    assert!(told.contains("ok       key"), "{told}");
    let (code, told) = doctor("wl_wrong");
    assert!(code == Some(1) && told.contains("failure  key"), "{told}");
    let fault = Fault::inject(&server, "pwrite64,fallocate", "ENOSPC");
    until_ready(&server, false);
    let (code, told) = doctor(admin.trim());
    assert!(
        code == Some(1) && told.contains("the disk is full"),
        "{told}"
    );
    fault.end();
}
