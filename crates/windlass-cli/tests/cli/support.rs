//! A real server in its own process, and a small HTTP client.

pub(crate) mod failing;
pub(crate) mod figures;
pub(crate) mod target;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use windlass_testkit::client;

pub(crate) use windlass_testkit::client::PATIENCE;

/// Returns the command `windlass` with these arguments and without `WINDLASS_` variables.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    let named = std::env::vars_os().map(|(name, _)| name);
    for name in named.filter(|name| name.to_string_lossy().starts_with("WINDLASS_")) {
        command.env_remove(name);
    }
    command.env_remove("COLUMNS"); // it wraps the help
    command.args(arguments).stdin(Stdio::null());
    command
}

pub(crate) fn windlass(arguments: &[&str]) -> Output {
    command(arguments).output().expect("it starts")
}

/// Runs a command that must succeed. Returns its stdout.
pub(crate) fn printed(arguments: &[&str]) -> String {
    let done = windlass(arguments);
    assert!(done.status.success(), "{arguments:?}: {done:?}");
    String::from_utf8(done.stdout).expect("text")
}

/// Returns a port that stays free while the server is down. It is not an ephemeral port, which a
/// connection could take meanwhile.
pub(crate) fn free_address() -> SocketAddr {
    static CALLS: AtomicU32 = AtomicU32::new(0); // tests of one process call this concurrently
    let start = (std::process::id() + 100 * CALLS.fetch_add(1, Ordering::Relaxed)) % 10_000;
    let ports = (0..10_000).map(|offset| 15_000 + (start + offset) % 10_000);
    let mut addresses = ports.filter_map(|port| format!("127.0.0.1:{port}").parse().ok());
    let free = addresses.find(|address: &SocketAddr| std::net::TcpListener::bind(address).is_ok());
    free.expect("a free port")
}

/// Runs a command that must fail. Returns its exit code and its stderr.
pub(crate) fn refused(arguments: &[&str]) -> (i32, String) {
    let done = windlass(arguments);
    assert!(!done.status.success(), "{arguments:?}: {done:?}");
    (
        done.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&done.stderr).into_owned(),
    )
}

/// Runs commands. Returns their output and exit codes as a terminal shows them, with `[folder]` for
/// the path of `folder`.
pub(crate) fn session(folder: &Path, commands: &[&[&str]]) -> String {
    let run = |arguments: &&[&str]| {
        let done = windlass(arguments);
        let printed = [done.stdout, done.stderr].concat();
        let (command, printed) = (arguments.join(" "), String::from_utf8_lossy(&printed));
        let code = done.status.code().expect("it ends by itself");
        format!("$ windlass {command}\n{printed}exit code {code}\n\n")
    };
    let shown: String = commands.iter().map(run).collect();
    shown.replace(&folder.display().to_string(), "[folder]")
}

/// A running server.
pub(crate) struct Server {
    child: Child,
    pub(crate) banner: String,
    pub(crate) url: String,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts a server on a free port, with its data in this directory.
    pub(crate) fn start(data: &Path, more: &[&str]) -> Self {
        let data = data.display().to_string();
        let arguments = [&["serve", "--bind", "127.0.0.1:0", "--data", &data], more].concat();
        Server::spawn(command(&arguments))
    }

    pub(crate) fn spawn(mut command: Command) -> Self {
        command.stderr(Stdio::piped());
        Server::spawn_logging(command)
    }

    /// Starts a server without redirecting its stderr.
    pub(crate) fn spawn_logging(mut command: Command) -> Self {
        let child = command.stdout(Stdio::piped()).spawn();
        let mut child = child.expect("it starts");
        let mut banner = String::new();
        let stdout = child.stdout.take().expect("its stdout");
        BufReader::new(stdout)
            .read_line(&mut banner)
            .expect("a line");
        let mut output = String::new();
        if banner.is_empty() {
            if let Some(mut stderr) = child.stderr.take() {
                let _ = stderr.read_to_string(&mut output);
            }
            let _ = child.wait();
        }
        assert!(!banner.is_empty(), "the server did not start: {output}");
        let mut words =
            banner.split(|letter: char| letter.is_whitespace() || "\",".contains(letter));
        let url = words.find(|word| word.starts_with("http"));
        let url = url.expect("a URL").to_owned();
        let address = url
            .rsplit('/')
            .next()
            .expect("an address")
            .parse()
            .expect("an address");
        Server {
            child,
            banner,
            url,
            address,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &self.pid().to_string()])
            .status();
        assert!(sent.expect("kill").success());
    }

    /// Returns whether the process has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("its end").is_some()
    }

    /// Waits until the process ends. Returns its exit status and its log.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let mut log = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut log);
        }
        (self.child.wait().expect("its end"), log)
    }

    /// Sends SIGTERM and waits until the process ends. Returns its exit status and its log.
    pub(crate) fn stop(self) -> (ExitStatus, String) {
        self.signal("TERM");
        self.wait()
    }

    /// Runs a command against the server. Returns its exit code, stdout and stderr.
    pub(crate) fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        self.run_with_input(arguments, "")
    }

    /// Runs a command with this stdin. Returns its exit code, stdout and stderr.
    pub(crate) fn run_with_input(&self, arguments: &[&str], stdin: &str) -> (i32, String, String) {
        let mut command = command(&[arguments, &["--url", &self.url]].concat());
        let piped = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = piped.spawn().expect("it starts");
        // A command that fails early does not read all of stdin.
        let _ = child
            .stdin
            .take()
            .expect("its stdin")
            .write_all(stdin.as_bytes());
        let done = child.wait_with_output().expect("its end");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        let code = done.status.code().expect("an exit code");
        (code, text(done.stdout), text(done.stderr))
    }

    /// Runs a command that must succeed. Returns its stdout.
    pub(crate) fn printed(&self, arguments: &[&str]) -> String {
        let (code, stdout, stderr) = self.run(arguments);
        assert_eq!(code, 0, "{arguments:?}: {stderr}");
        stdout
    }

    /// Runs a command with `-o json` that must succeed.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let printed = self.printed(&[arguments, &["-o", "json"]].concat());
        serde_json::from_str(&printed).expect("JSON")
    }

    /// Runs a command that must fail with this exit code. Returns its stderr.
    pub(crate) fn refused(&self, code: i32, arguments: &[&str]) -> String {
        let (found, stdout, stderr) = self.run(arguments);
        assert_eq!(found, code, "{arguments:?}: {stdout}{stderr}");
        stderr
    }

    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        key: Option<&str>,
        body: Option<&Value>,
    ) -> (u16, Value) {
        ask(self.address, method, path, key, body).expect("an answer")
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask("GET", path, None, None);
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// Returns the body of a response that is not JSON.
    pub(crate) fn text(&self, path: &str) -> String {
        let request = client::request(self.address, "GET", path, &[], None);
        let answer = client::send(self.address, &request).expect("an answer");
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.text()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.ask("POST", path, None, Some(body));
        assert!((200..300).contains(&status), "{path}: {status} {answer}");
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends one request on a new connection. Fails if the connection breaks before the response is
/// complete.
pub(crate) fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    key: Option<&str>,
    body: Option<&Value>,
) -> std::io::Result<(u16, Value)> {
    let key = key.map(|key| format!("Bearer {key}"));
    let headers: Vec<_> = key
        .iter()
        .map(|key| ("Authorization", key.as_str()))
        .collect();
    let body = body.map(Value::to_string);
    let body = body.as_ref().map(|body| body.as_bytes());
    let request = client::request(address, method, path, &headers, body);
    let answer = client::send(address, &request)?;
    Ok((answer.status, answer.json))
}
