//! Commands that run until they are stopped: `worker run`, `jobs logs --follow`, `tail` and `top`.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{PATIENCE, Server, command, free_address, printed, refused, windlass};

/// A running command, which is killed when this is dropped. A thread reads its lines.
struct Live {
    child: Child,
    lines: Receiver<String>,
}

impl Live {
    fn start(arguments: &[&str]) -> Live {
        let child = command(arguments).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("it starts");
        let stdout = child.stdout.take().expect("its stdout");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(stdout).lines();
            for line in lines.map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Live { child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line in time")
    }

    fn until(&self, text: &str) -> String {
        loop {
            let line = self.line();
            if line.contains(text) {
                return line;
            }
        }
    }

    fn terminate(&self) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(sent.expect("kill").success());
    }

    /// Waits until the command ends by itself. Returns its exit code.
    fn ends(mut self) -> Option<i32> {
        until(|| self.child.try_wait().expect("its end")).code()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Polls until there is an answer.
fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let mut looks = (0..PATIENCE.as_millis() / 50).map(|_| {
        let found = look();
        if found.is_none() {
            std::thread::sleep(Duration::from_millis(50));
        }
        found
    });
    looks.find_map(|found| found).expect("it happens in time")
}

struct World {
    folder: TempDir,
    server: Server,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().expect("a directory");
        let server = Server::start(&folder.path().join("data"), &[]);
        World { folder, server }
    }

    fn url(&self) -> &str {
        &self.server.url
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn job(&self, queue: &str, more: &Value) -> String {
        let mut body = json!({"kind": "try", "queue": queue, "retry": "immediate"});
        let fields = more.as_object().expect("an object").clone();
        body.as_object_mut().expect("an object").extend(fields);
        let created = self.server.post("/api/v1/jobs", &body);
        let id = created.get("id").and_then(Value::as_str);
        id.expect("an id").to_owned()
    }

    fn finished(&self, id: &str) -> Value {
        self.server
            .get(&format!("/api/v1/jobs/{id}/wait?timeout=50s"))
    }

    /// Starts a worker with this handler for a queue.
    fn worker(&self, queue: &str, handler: &[&str]) -> Live {
        let run = ["worker", "run", "--url", self.url(), "--queue", queue];
        let worker = Live::start(&[&run, handler].concat());
        worker.until("claiming");
        worker
    }
}

#[test]
fn a_log_is_followed_over_attempts_until_the_job_has_finished() {
    let world = World::new();
    let gate = world.path("gate");
    let id = world.job("mail", &json!({}));
    let script = r#"echo "attempt $WINDLASS_JOB_ATTEMPT of $WINDLASS_JOB_KIND in $WINDLASS_JOB_QUEUE" >&2
        until [ -e "$0" ]; do sleep 0.1; done
        printf 'done \033[31m\n' >&2
        [ "$WINDLASS_JOB_ATTEMPT" = 2 ]"#;
    let worker = world.worker("mail", &["exec", "--", "sh", "-c", script, &gate]);
    let follow = Live::start(&["jobs", "logs", &id, "--follow", "--url", world.url()]);
    assert!(follow.line().ends_with("  attempt 1 of try in mail"));
    std::fs::write(&gate, "").expect("a file");
    assert!(follow.line().ends_with("  done \\u{1b}[31m"), "harmless");
    assert!(follow.line().ends_with("  attempt 2 of try in mail"));
    follow.until("done");
    assert_eq!(follow.ends(), Some(0));
    drop(worker);

    let url = ["--url", world.url()];
    let logs = |more: &[&str]| printed(&[&["jobs", "logs", &id], more, &url].concat());
    assert!(logs(&[]).contains("attempt 2"), "the latest");
    assert!(logs(&["--attempt", "1"]).contains("attempt 1"));
    assert!(logs(&["-o", "wide"]).contains("  2:1  attempt 2"));
    let line: Value = serde_json::from_str(logs(&["-o", "ndjson"]).lines().next().expect("a line"))
        .expect("JSON");
    assert_eq!((&line["attempt"], &line["number"]), (&json!(2), &json!(1)));
    let all: Value = serde_json::from_str(&logs(&["-o", "json"])).expect("JSON");
    assert_eq!(all["state"], "succeeded");
    let later = windlass(&[&["jobs", "logs", &id, "--attempt", "9"], &url[..]].concat());
    let note = String::from_utf8_lossy(&later.stderr);
    assert!(note.contains("has not started"), "{note}");
}

#[test]
fn each_handler_of_worker_run_ends_jobs_in_its_way() {
    let world = World::new();
    let payload = json!({"n": [1, null]});
    let id = world.job("echo", &json!({"payload": payload}));
    let _echo = world.worker("echo", &["echo"]);
    assert_eq!(world.finished(&id)["result"], payload);

    let id = world.job("sleep", &json!({}));
    let _sleep = world.worker("sleep", &["sleep", "--duration", "700ms"]);
    world.finished(&id);
    let history = world.server.get(&format!("/api/v1/jobs/{id}/history"));
    assert_eq!(history["data"][0]["log"][0]["line"], "waiting 700ms");

    let id = world.job("fail", &json!({}));
    let _fail = world.worker("fail", &["fail"]);
    let dead = world.finished(&id);
    assert_eq!(
        (&dead["state"], &dead["attempt"]),
        (&json!("dead"), &json!(3))
    );

    let (never, always) = (
        world.job("never", &json!({})),
        world.job("always", &json!({})),
    );
    let _never = world.worker("never", &["flaky", "--share", "0"]);
    let _always = world.worker("always", &["flaky", "--share", "1"]);
    assert_eq!(world.finished(&never)["state"], "succeeded");
    assert_eq!(world.finished(&always)["state"], "dead");

    // A command from the payload never runs: it is only input.
    let touched = world.path("touched");
    let evil = json!({"payload": format!("$(touch {touched}); touch {touched}")});
    let id = world.job("exec", &evil);
    let _exec = world.worker("exec", &["exec", "--", "sh", "-c", "cat; env >&2"]);
    let job = world.finished(&id);
    assert_eq!(job["result"], job["payload"]);
    assert!(!Path::new(&touched).exists());

    let id = world.job("hopeless", &json!({}));
    let script = "echo first >&2; echo 'no such customer' >&2; exit 100";
    let _hopeless = world.worker("hopeless", &["exec", "--", "sh", "-c", script]);
    let dead = world.finished(&id);
    assert_eq!(dead["dead_reason"], "unrecoverable");
    let error = "the command exited with code 100: no such customer";
    assert_eq!(dead["last_error"], error);

    let id = world.job("missing", &json!({}));
    let _missing = world.worker("missing", &["exec", "--", "/no/such/command"]);
    let error = world.finished(&id)["last_error"].to_string();
    assert!(error.contains("cannot start"), "{error}");
}

#[test]
fn a_worker_claims_only_its_kind_and_runs_jobs_at_once() {
    let world = World::new();
    let other = world.job("q", &json!({"kind": "other"}));
    let ids = [world.job("q", &json!({})), world.job("q", &json!({}))];
    // Both commands must run at once: each waits for the other.
    let script =
        r#"touch "$0.$WINDLASS_JOB_ID"; until [ $(ls "$0".* | wc -l) = 2 ]; do sleep 0.1; done"#;
    let flags = ["--kind", "try", "--concurrency", "2", "--name", "pair"];
    let exec = ["exec", "--", "sh", "-c", script];
    let at = exec.iter().position(|word| *word == "--").expect("it");
    let gate = world.path("both");
    let arguments = [&exec[..at], &flags, &exec[at..], &[gate.as_str()]].concat();
    let _pair = world.worker("q", &arguments);
    for id in ids {
        let job = world.finished(&id);
        assert_eq!(
            (&job["state"], &job["worker"]),
            (&json!("succeeded"), &json!("pair"))
        );
    }
    let other = world.server.get(&format!("/api/v1/jobs/{other}"));
    assert_eq!(other["state"], "ready");
}

#[test]
fn cancelling_a_job_kills_all_processes_of_its_command() {
    let world = World::new();
    let pids = world.path("pids");
    let id = world.job("q", &json!({}));
    // The child ignores SIGTERM and outlives the shell.
    let script = r#"sh -c 'trap "" TERM; while :; do sleep 0.2; done' & echo "$$ $!" > "$0"; wait"#;
    let worker = world.worker("q", &["exec", "--", "sh", "-c", script, &pids]);
    let written = until(|| {
        std::fs::read_to_string(&pids)
            .ok()
            .filter(|text| text.contains('\n'))
    });
    world
        .server
        .post(&format!("/api/v1/jobs/{id}/cancel"), &json!({}));
    assert_eq!(world.finished(&id)["state"], "cancelled");
    for pid in written.split_whitespace() {
        until(|| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
            let is_gone = status.is_ok_and(|status| status.contains("State:\tZ"));
            (is_gone || !Path::new(&format!("/proc/{pid}")).exists()).then_some(())
        });
    }
    worker.terminate();
    worker.until("finishing");
    assert_eq!(worker.ends(), Some(0));
}

#[test]
fn a_worker_that_is_stopped_finishes_its_job() {
    let world = World::new();
    let (begun, gate) = (world.path("begun"), world.path("gate"));
    let id = world.job("q", &json!({}));
    let script = r#"touch "$0"; until [ -e "$1" ]; do sleep 0.1; done"#;
    let worker = world.worker("q", &["exec", "--", "sh", "-c", script, &begun, &gate]);
    until(|| Path::new(&begun).exists().then_some(()));
    worker.terminate();
    worker.until("finishing");
    std::fs::write(&gate, "").expect("a file");
    assert_eq!(worker.ends(), Some(0));
    assert_eq!(world.finished(&id)["state"], "succeeded");

    // Without grace, the job goes back to the queue.
    let (begun, gate) = (world.path("begun2"), world.path("gate2"));
    let id = world.job("q", &json!({}));
    let exec = [
        "exec", "--grace", "0s", "--", "sh", "-c", script, &begun, &gate,
    ];
    let worker = world.worker("q", &exec);
    until(|| Path::new(&begun).exists().then_some(()));
    worker.terminate();
    assert_eq!(worker.ends(), Some(0));
    assert_eq!(
        world.server.get(&format!("/api/v1/jobs/{id}"))["state"],
        "ready"
    );
}

#[test]
fn a_worker_runs_the_jobs_of_a_store_that_no_server_uses() {
    let world = World::new();
    let id = world.job("q", &json!({}));
    let data = world.path("data");
    world.server.stop();
    let worker = Live::start(&["worker", "run", "echo", "--data", &data, "--queue", "q"]);
    worker.until("succeeded");
    worker.terminate();
    assert_eq!(worker.ends(), Some(0));
    let shown = printed(&["jobs", "show", &id, "--data", &data]);
    assert!(shown.contains("succeeded"), "{shown}");
}

#[test]
fn tail_prints_matching_events_and_resumes_after_a_restart() {
    let folder = tempfile::tempdir().expect("a directory");
    let (data, address) = (
        folder.path().display().to_string(),
        free_address().to_string(),
    );
    let serve = ["serve", "--bind", &address, "--data", &data];
    let server = Server::spawn(command(&serve));
    let url = server.url.clone();
    let tail = |more: &[&str]| Live::start(&[&["tail", "--url", &url], more].concat());
    let all = tail(&[]);
    let mail = tail(&[
        "-o",
        "ndjson",
        "--queue",
        "mail",
        "--kind",
        "a",
        "--event",
        "enqueued,dead",
    ]);
    let ids = tail(&["-o", "id"]);
    let create = |server: &Server, queue: &str, kind: &str| {
        let body = json!({"kind": kind, "queue": queue});
        server.post("/api/v1/jobs", &body)["id"]
            .as_str()
            .expect("an id")
            .to_owned()
    };
    // The commands connect at their own time.
    let probe = || ids.lines.try_recv().is_ok().then_some(());
    until(|| {
        create(&server, "other", "probe");
        probe()
    });
    until(|| {
        create(&server, "mail", "b");
        create(&server, "mail", "a");
        mail.lines.recv_timeout(Duration::from_millis(200)).ok()
    });
    let line = all.until("  mail a");
    assert!(
        line.contains("  enqueued    ") && !line.contains('\u{1b}'),
        "{line}"
    );
    let server_stopped = server.stop();
    assert!(server_stopped.0.success());
    let server = Server::spawn(command(&serve));
    let event = until(|| {
        create(&server, "mail", "b");
        create(&server, "mail", "a");
        mail.lines.recv_timeout(Duration::from_millis(200)).ok()
    });
    let missed_or_event: Value = serde_json::from_str(&event).expect("JSON");
    assert!(["missed", "enqueued"].contains(&missed_or_event["event"].as_str().expect("a name")));
    let id = create(&server, "mail", "a");
    let line = mail.until(&id);
    let event: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(
        (&event["event"], &event["kind"]),
        (&json!("enqueued"), &json!("a"))
    );
    let one = Live::start(&["tail", "--url", &url, "--job", &id]);
    until(|| {
        server.post(&format!("/api/v1/jobs/{id}/run-now"), &json!({}));
        let other = create(&server, "mail", "a");
        server.post(&format!("/api/v1/jobs/{other}/cancel"), &json!({}));
        let created = server.ask("POST", &format!("/api/v1/jobs/{id}/cancel"), None, None);
        let revived = server.ask("POST", &format!("/api/v1/jobs/{id}/revive"), None, None);
        assert!(created.0 < 500 && revived.0 < 500);
        one.lines
            .recv_timeout(Duration::from_millis(200))
            .ok()
            .filter(|line| line.contains(&id))
    });
}

/// A terminal of its own, in tmux.
struct Screen(String);

impl Screen {
    fn start(name: &str, run: &str) -> Screen {
        let screen = Screen(format!("windlass-{name}-{}", std::process::id()));
        let size = ["-x", "80", "-y", "24"];
        screen.tmux(&[&["-f", "/dev/null", "new-session", "-d"], &size[..], &[run]].concat());
        screen
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let done = Command::new("tmux")
            .args(["-L", &self.0])
            .args(arguments)
            .output();
        let done = done.expect("tmux is installed");
        assert!(done.status.success(), "{arguments:?}: {done:?}");
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// Waits until the screen has a line that matches.
    fn until(&self, matches: impl Fn(&str) -> bool) -> String {
        until(|| {
            let shown = self.tmux(&["capture-pane", "-p"]);
            let line = shown.lines().find(|line| matches(line));
            line.map(str::to_owned)
        })
    }

    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = Command::new("tmux")
            .args(["-L", &self.0, "kill-server"])
            .output();
    }
}

#[test]
fn top_shows_a_counter_that_moves_and_restores_the_terminal() {
    let folder = tempfile::tempdir().expect("a directory");
    let (data, address) = (
        folder.path().display().to_string(),
        free_address().to_string(),
    );
    let serve = ["serve", "--bind", &address, "--data", &data];
    let server = Server::spawn(command(&serve));
    let create = |server: &Server| {
        server.post("/api/v1/jobs", &json!({"kind": "a", "queue": "mail"}));
    };
    create(&server);
    let program = env!("CARGO_BIN_EXE_windlass");
    let top = format!(
        "{program} top --url {} --every 500ms; echo \"exit code $?\"; stty -a; exec sh",
        server.url
    );
    let screen = Screen::start("top", &top);
    let ready = |line: &str, count: &str| {
        let mut words = line.split_whitespace();
        words.next() == Some("mail") && words.next() == Some(count)
    };
    screen.until(|line| ready(line, "1"));
    create(&server);
    screen.until(|line| ready(line, "2"));
    screen.keys(&["Tab"]);
    screen.until(|line| line.starts_with("WORKER"));
    screen.keys(&["Right"]);
    screen.until(|line| line == "every 500ms, sorted by ready");

    screen.keys(&["p"]);
    screen.until(|line| line.starts_with("paused"));
    screen.keys(&["p"]);
    let (ended, _) = server.stop();
    assert!(ended.success());
    screen.until(|line| line.starts_with("no answer, retrying every 500ms"));
    let server = Server::spawn(command(&serve));
    create(&server);
    screen.until(|line| ready(line, "3"));

    screen.keys(&["C-c"]);
    screen.until(|line| line == "exit code 0");
    let settings = screen.until(|line| line.contains("icanon"));
    assert!(!settings.contains("-icanon"), "{settings}");
}

#[test]
fn commands_refuse_what_they_cannot_do() {
    let id = "01a1eee4-7944-7e9b-8000-00d36b94f5c8";
    for (arguments, error) in [
        (
            &["top", "--every", "1ms"][..],
            "`--every` must be 500ms to 1m",
        ),
        (&["top"], "must be a terminal"),
        (
            &["worker", "run", "exec"],
            "`COMMAND` is required with `exec`",
        ),
        (
            &["worker", "run", "echo", "--", "ls"],
            "`COMMAND` is only allowed with `exec`",
        ),
        (
            &["worker", "run", "echo", "--share", "0.5"],
            "`--share` is only allowed with `flaky`",
        ),
        (
            &["worker", "run", "echo", "--duration", "1s"],
            "`--duration` is only allowed with",
        ),
        (
            &["worker", "run", "flaky", "--share", "2"],
            "must be a number from 0 to 1",
        ),
        (
            &["worker", "run", "sleep", "--duration", "1x"],
            "`--duration` must be a duration",
        ),
        (
            &["worker", "run", "echo", "--grace", "x"],
            "`--grace` must be a duration",
        ),
        (
            &["worker", "run", "echo", "--concurrency", "0"],
            "0 is not in 1..=1000",
        ),
        (&["tail", "--event", "nope"], "must be one of enqueued"),
        (&["jobs", "logs", id, "-o", "id"], "lines have no id"),
        (&["jobs", "logs", id, "--attempt", "0"], "0 is not in"),
    ] {
        let (code, message) = refused(arguments);
        assert!(
            code == 2 && message.contains(error),
            "{arguments:?}: {code} {message}"
        );
    }
    let folder = tempfile::tempdir().expect("a directory");
    let data = folder.path().display().to_string();
    Server::start(folder.path(), &[]).stop();
    let (code, message) = refused(&["tail", "--data", &data]);
    assert!(code == 2 && message.contains("--url"), "{code} {message}");
}
