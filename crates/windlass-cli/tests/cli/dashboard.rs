//! The commands that the dashboard shows: those of the first page work as they are, and the command
//! line accepts those of every other page.
#![expect(clippy::indexing_slicing, reason = "what a test may, its helpers may")]

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::json;
use windlass_testkit::client;

use crate::support::{Server, command};
use crate::workers::eventually;

/// The commands of a page, as its buttons copy them.
fn commands(server: &Server, path: &str) -> Vec<String> {
    let page = page(server, path);
    let shown = page.split("<pre><code>").skip(1);
    let shown = shown.map(|rest| rest.split("</code>").next().unwrap_or_default());
    shown.map(unescaped).collect()
}

/// Returns a page, as a browser asks for it.
fn page(server: &Server, path: &str) -> String {
    let headers = [("Accept", "text/html")];
    let request = client::request(server.address, "GET", path, &headers, None);
    let answer = client::send(server.address, &request).expect("an answer");
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.text()
}

fn unescaped(text: &str) -> String {
    [
        ("&#34;", "\""),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&#60;", "<"),
        ("&#62;", ">"),
        ("&#38;", "&"),
        ("&amp;", "&"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (escape, letter)| {
        text.replace(escape, letter)
    })
}

/// A shell that finds `windlass` and the server.
fn bash(server: &Server, folder: &Path, script: &str) -> Command {
    let binary = folder.join("windlass");
    if !binary.exists() {
        symlink(env!("CARGO_BIN_EXE_windlass"), &binary).expect("a link");
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let clean = command(&[]);
    let removed = clean.get_envs().filter(|(_, value)| value.is_none());
    let mut bash = Command::new("bash");
    for (name, _) in removed {
        bash.env_remove(name);
    }
    bash.args(["-c", script])
        .env("PATH", format!("{}:{path}", folder.display()))
        .env("WINDLASS_URL", &server.url)
        .current_dir(folder)
        .stdin(Stdio::null());
    bash
}

/// Runs a command in such a shell. Returns its output and its errors.
fn shell(server: &Server, folder: &Path, script: &str) -> (String, String) {
    let done = bash(server, folder, script).output().expect("bash starts");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (text(&done.stdout), text(&done.stderr))
}

/// A process that ends with its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_commands_of_the_first_page_create_jobs_and_take_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&folder.path().join("data"), &[]);
    let steps = commands(&server, "/");
    let is_export = |step: &String| step.starts_with("export ");
    let (exports, steps): (Vec<_>, Vec<_>) = steps.into_iter().partition(is_export);
    let exports = format!("unset WINDLASS_URL; {}\n", exports.join("\n"));
    let is_worker = |step: &String| step.starts_with("windlass worker run");
    let (worker, steps): (Vec<_>, Vec<_>) = steps.into_iter().partition(is_worker);
    assert_eq!((worker.len(), steps.len()), (1, 4), "{worker:?} {steps:?}");
    for step in &steps {
        let (output, errors) = shell(&server, folder.path(), &format!("{exports}{step}"));
        let is_refused = output.contains("\"status\":4") || errors.contains("error");
        assert!(!is_refused, "{step}\n{output}{errors}");
    }
    let of = |filter: &str| server.get(&format!("/api/v1/jobs?{filter}"))["data"].clone();
    assert_eq!(of("kind=http").as_array().map(Vec::len), Some(1));
    let in_mail = of("queue=mail");
    assert_eq!(in_mail.as_array().map(Vec::len), Some(2), "{in_mail}");
    let attempted = || {
        let jobs = of("queue=mail");
        let jobs = jobs.as_array().into_iter().flatten();
        jobs.filter(|job| job["attempt"] != 0).count()
    };
    assert_eq!(attempted(), 1, "curl claimed one of them: {in_mail}");
    let script = format!("{exports}exec {}", worker[0]);
    let worker = bash(&server, folder.path(), &script)
        .stdout(Stdio::null())
        .spawn();
    let _worker = Killed(worker.expect("bash starts"));
    eventually("the worker takes the other one", || attempted() == 2);
}

#[test]
fn the_command_line_accepts_the_commands_of_every_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&folder.path().join("data"), &[]);
    for path in pages(&server) {
        let shown = commands(&server, &path);
        assert!(!shown.is_empty(), "{path} shows no command");
        // The lab also shows policies as JSON and as Rust.
        let is_command = |line: &String| line.starts_with("windlass ") || line.starts_with("curl ");
        for line in shown.into_iter().filter(is_command) {
            let (output, errors) = shell(&server, folder.path(), &line);
            let words = [
                "Usage:",
                "unexpected argument",
                "unrecognized",
                "invalid value",
                "unknown_field",
                "syntax error",
            ];
            let refused = words.iter().find(|word| errors.contains(**word));
            assert_eq!(refused, None, "{path}: {line}\n{output}{errors}");
        }
    }
}

/// The paths of pages, after the store has what they show.
fn pages(server: &Server) -> Vec<String> {
    let job = json!({
        "kind": "email:send", "queue": "mail", "payload": {"to": "it's ann"}, "tags": ["eu west"],
        "max_attempts": 2, "priority": 3,
    });
    let jobs = json!({"jobs": vec![job; 3]});
    server.post("/api/v1/jobs/bulk", &jobs);
    let claimed = server.post("/api/v1/claim", &json!({"queue": "mail", "limit": 2}));
    let ids: Vec<&str> = (0..2)
        .filter_map(|index| claimed["data"][index]["id"].as_str())
        .collect();
    let outcome = |index: usize, unrecoverable: bool| {
        json!({
            "id": ids[index], "attempt": 1, "outcome": "failed", "error": "template missing",
            "unrecoverable": unrecoverable,
        })
    };
    let outcomes = json!({"outcomes": [outcome(0, true), outcome(1, false)]});
    server.post("/api/v1/settle", &outcomes);
    let schedule =
        json!({"cron": "0 2 * * *", "timezone": "Europe/Berlin", "job": {"kind": "report"}});
    let (status, created) = server.ask("PUT", "/api/v1/schedules/nightly", None, Some(&schedule));
    assert!(status < 300, "{created}");
    let group = server.get("/api/v1/failures")["data"][0].clone();
    let fingerprint = group["fingerprint"].as_str().expect("a cause");
    let replay = json!({"filter": {"queue": "none"}, "reason": "try"});
    let replay = server.post("/api/v1/replays", &replay);
    let bulk = json!({"action": "cancel", "filter": {"queue": "none"}, "reason": "try"});
    let bulk = server.post("/api/v1/bulk-actions", &bulk);
    let id = |created: &serde_json::Value| created["id"].as_str().expect("an id").to_owned();
    let mut pages: Vec<String> = [
        "/jobs?state=dead&queue=mail&error=it%27s",
        "/jobs?retrying=true&tag=eu+west",
        "/jobs?created_from=2026-03-17T02:00:00Z&payload_path=/to&payload_value=ann",
        "/jobs/all?state=dead&queue=mail",
        "/queues",
        "/all-queues/pause",
        "/all-queues/resume",
        "/queues/mail",
        "/queues/mail/settings",
        "/queues/mail/purge",
        "/dead",
        "/dead?as=jobs&queue=mail",
        "/dead/purge?queue=mail",
        "/schedules",
        "/schedules/nightly",
        "/schedules/nightly/edit",
        "/new/schedule?rule=0+2+*+*+*",
        "/lab?a=webhook&b=full-jitter",
        "/workers",
        "/actions",
        "/audit",
        "/keys",
        "/settings",
        "/?range=15m",
    ]
    .map(str::to_owned)
    .to_vec();
    for step in ["jobs", "payload", "pace", "review"] {
        let patch = "patch=%7B%22to%22%3A%22it%27s%22%7D";
        pages.push(format!(
            "/dead/replay?queue=mail&fingerprint={fingerprint}&{patch}&step={step}"
        ));
    }
    pages.extend([
        format!("/jobs/{}", ids[0]),
        format!("/jobs/{}", ids[1]),
        format!("/jobs/{}/edit", ids[1]),
        format!("/jobs/{}/clone", ids[1]),
        format!("/dead?queue=mail&kind=email:send&fingerprint={fingerprint}"),
        format!("/actions/replays/{}", id(&replay)),
        format!("/actions/bulk/{}", id(&bulk)),
    ]);
    pages
}
