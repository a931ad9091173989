//! A real server in a process of its own, and a small HTTP client.

pub(crate) mod target;

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use windlass_testkit::client;

pub(crate) use windlass_testkit::client::PATIENCE;

/// `windlass` with arguments, without anything that the environment says about it.
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

/// What a command that succeeds prints.
pub(crate) fn printed(arguments: &[&str]) -> String {
    let done = windlass(arguments);
    assert!(done.status.success(), "{arguments:?}: {done:?}");
    String::from_utf8(done.stdout).expect("text")
}

/// A port that stays free while the server is down: not one of those that connections are given, as they would take it.
pub(crate) fn free_address() -> SocketAddr {
    static ASKED: AtomicU32 = AtomicU32::new(0); // tests of one process ask at once
    let start = (std::process::id() + 100 * ASKED.fetch_add(1, Ordering::Relaxed)) % 10_000;
    let ports = (0..10_000).map(|offset| 15_000 + (start + offset) % 10_000);
    let mut addresses = ports.filter_map(|port| format!("127.0.0.1:{port}").parse().ok());
    let free = addresses.find(|address: &SocketAddr| std::net::TcpListener::bind(address).is_ok());
    free.expect("a free port")
}

/// What a command that fails says, and its exit code.
pub(crate) fn refused(arguments: &[&str]) -> (i32, String) {
    let done = windlass(arguments);
    assert!(!done.status.success(), "{arguments:?}: {done:?}");
    (
        done.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&done.stderr).into_owned(),
    )
}

/// Commands as a terminal shows them: what they print, and their exit codes. A folder is shown as
/// `[folder]`.
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

/// A server that runs.
pub(crate) struct Server {
    child: Child,
    pub(crate) banner: String,
    pub(crate) url: String,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts one on a free port, with its data in a directory.
    pub(crate) fn start(data: &Path, more: &[&str]) -> Self {
        let data = data.display().to_string();
        let arguments = [&["serve", "--bind", "127.0.0.1:0", "--data", &data], more].concat();
        Server::spawn(command(&arguments))
    }

    pub(crate) fn spawn(mut command: Command) -> Self {
        command.stderr(Stdio::piped());
        Server::spawn_logging(command)
    }

    /// Starts one whose log goes where the command says.
    pub(crate) fn spawn_logging(mut command: Command) -> Self {
        let child = command.stdout(Stdio::piped()).spawn();
        let mut child = child.expect("it starts");
        let mut banner = String::new();
        let stdout = child.stdout.take().expect("its stdout");
        BufReader::new(stdout)
            .read_line(&mut banner)
            .expect("a line");
        let mut told = String::new();
        if banner.is_empty() {
            if let Some(mut stderr) = child.stderr.take() {
                let _ = stderr.read_to_string(&mut told);
            }
            let _ = child.wait();
        }
        assert!(!banner.is_empty(), "the server did not start: {told}");
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

    /// Whether its process has ended.
    pub(crate) fn is_gone(&mut self) -> bool {
        self.child.try_wait().expect("its end").is_some()
    }

    /// Waits for its end; what it logged.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let mut log = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut log);
        }
        (self.child.wait().expect("its end"), log)
    }

    /// Asks it to stop, and waits.
    pub(crate) fn stop(self) -> (ExitStatus, String) {
        self.signal("TERM");
        self.wait()
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

    /// What a path answers, if it is not JSON.
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

/// One request on a connection of its own; an error if the connection breaks before the answer is whole.
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
