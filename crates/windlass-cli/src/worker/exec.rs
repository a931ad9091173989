//! The handler `exec`: one fixed command, which gets the payload on its standard input.
//!
//! Invariant: the command and its arguments come from the command line of the worker. Nothing of a
//! job becomes part of them.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader,
};
use tokio::process::{Child, ChildStdin, Command};
use windlass_api::Job;
use windlass_client::{Attempt, Failure, Handled};
use windlass_core::Invalid;

/// The exit code of a failure that no retry can help.
pub(super) const UNRECOVERABLE: i32 = 100;
/// How long a command may take after SIGTERM before it gets SIGKILL.
const KILL_AFTER: Duration = Duration::from_secs(5);
/// How long to read the output that other processes of the group still hold open.
const READ_AFTER_EXIT: Duration = Duration::from_secs(1);
/// The most bytes of standard output that become the result of the job.
const RESULT_BYTES_MAX: usize = 64 * 1024;
/// The most bytes that are read of a line of standard error.
const LINE_BYTES_MAX: u64 = 8 * 1024;

/// The command that the worker runs for every job.
#[derive(Debug)]
pub(super) struct FixedCommand {
    program: String,
    arguments: Vec<String>,
}

/// A running command. Dropping it kills all processes of its group.
struct Running {
    child: Child,
    group: Option<Pid>,
}

impl FixedCommand {
    pub(super) fn new(words: &[String]) -> Result<Self, Invalid> {
        let Some((program, arguments)) = words.split_first() else {
            let rule = "is required with `exec`: `windlass worker run exec -- COMMAND ARGUMENTS`";
            return Err(Invalid::new("COMMAND", rule));
        };
        Ok(FixedCommand {
            program: program.clone(),
            arguments: arguments.to_vec(),
        })
    }

    pub(super) async fn run(&self, attempt: &Attempt) -> Handled {
        let mut running = self.start(&attempt.job).map_err(|error| {
            let message = format!("cannot start `{}`: {error}", self.program);
            Failure::new(message)
        })?;
        let (input, output, errors) = (
            running.child.stdin.take(),
            running.child.stdout.take(),
            running.child.stderr.take(),
        );
        let payload = attempt.job.payload.as_ref();
        let payload = payload.map_or("null", |payload| payload.0.as_str());
        let streams = async {
            tokio::join!(
                write_payload(input, payload),
                read_result(output),
                read_log(errors, attempt)
            )
        };
        tokio::pin!(streams);
        let mut read = None;
        let status = {
            let ended = running.wait(attempt);
            tokio::pin!(ended);
            loop {
                tokio::select! {
                    status = &mut ended => break status,
                    done = &mut streams, if read.is_none() => read = Some(done),
                }
            }
        };
        if read.is_none() {
            // A process that the command left behind may hold the streams open.
            read = tokio::time::timeout(READ_AFTER_EXIT, streams).await.ok();
        }
        let ((), result, last_line) = read.unwrap_or_default();
        let status = status.map_err(|error| {
            Failure::new(format!("cannot wait for `{}`: {error}", self.program))
        })?;
        match failure(status, &last_line) {
            _ if attempt.stop.is_cancelled() => Err(Failure::new("the command was stopped")),
            Some(failure) => Err(failure),
            None => Ok(result),
        }
    }

    fn start(&self, job: &Job) -> std::io::Result<Running> {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .env("WINDLASS_JOB_ID", job.id.to_string())
            .env("WINDLASS_JOB_KIND", job.kind.as_str())
            .env("WINDLASS_JOB_QUEUE", job.queue.as_str())
            .env("WINDLASS_JOB_ATTEMPT", job.attempt.to_string())
            .env_remove("WINDLASS_KEY")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A group of its own, so that the command can be killed with all that it starts, and so
            // that Ctrl-C reaches the worker only.
            .process_group(0);
        let child = command.spawn()?;
        let group = child.id().and_then(|id| i32::try_from(id).ok());
        let group = group.and_then(Pid::from_raw);
        Ok(Running { child, group })
    }
}

impl Running {
    /// Waits until the command has ended. Stops it when the attempt should stop.
    async fn wait(&mut self, attempt: &Attempt) -> std::io::Result<ExitStatus> {
        tokio::select! {
            status = self.child.wait() => return status,
            () = attempt.stop.cancelled() => self.signal(Signal::TERM),
        }
        if let Ok(status) = tokio::time::timeout(KILL_AFTER, self.child.wait()).await {
            return status;
        }
        self.signal(Signal::KILL);
        self.child.wait().await
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // The group may have ended by itself.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

async fn write_payload(input: Option<ChildStdin>, payload: &str) {
    if let Some(mut input) = input {
        // A command that does not read its input is no failure.
        let _ = input.write_all(payload.as_bytes()).await;
        let _ = input.shutdown().await;
    }
}

/// Reads the result: JSON or another text, cut to [`RESULT_BYTES_MAX`].
async fn read_result(output: Option<impl AsyncRead + Unpin>) -> Value {
    let Some(output) = output else {
        return Value::Null;
    };
    let (mut kept, max) = (Vec::new(), RESULT_BYTES_MAX - 1024);
    let mut limited = output.take(u64::try_from(max).unwrap_or(u64::MAX));
    let _ = limited.read_to_end(&mut kept).await;
    // Read on, so that a command with more output does not block.
    let _ = tokio::io::copy(&mut limited.into_inner(), &mut tokio::io::sink()).await;
    let text = String::from_utf8_lossy(&kept);
    let text = text.trim_end().replace('\0', "\u{fffd}");
    if text.is_empty() {
        return Value::Null;
    }
    let as_text = |text: String| {
        // Escapes make a text longer in JSON.
        let mut value = Value::String(text);
        while value.to_string().len() > RESULT_BYTES_MAX {
            let text = value.as_str().unwrap_or_default();
            let half = text.chars().count() / 2;
            value = Value::String(text.chars().take(half).collect());
        }
        value
    };
    serde_json::from_str(&text).unwrap_or_else(|_| as_text(text))
}

/// Adds the lines of standard error to the log of the attempt. Returns the last one.
async fn read_log(errors: Option<impl AsyncRead + Unpin>, attempt: &Attempt) -> String {
    let mut last = String::new();
    let Some(errors) = errors else {
        return last;
    };
    let mut errors = BufReader::new(errors);
    loop {
        let mut line = Vec::new();
        // A longer line becomes several.
        let mut limited = (&mut errors).take(LINE_BYTES_MAX);
        match limited.read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return last,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches(['\n', '\r']);
        attempt.log(text);
        if !text.trim().is_empty() {
            last = text.to_owned();
        }
    }
}

/// Returns the failure that an exit status stands for.
fn failure(status: ExitStatus, last_line: &str) -> Option<Failure> {
    use std::os::unix::process::ExitStatusExt as _;
    let message = match (status.code(), status.signal()) {
        (Some(0), _) => return None,
        (Some(code), _) => format!("the command exited with code {code}"),
        (None, Some(signal)) => format!("signal {signal} ended the command"),
        (None, None) => "the command ended without an exit code".to_owned(),
    };
    let message = match last_line {
        "" => message,
        line => format!("{message}: {line}"),
    };
    let failure = Failure::new(message);
    Some(match status.code() {
        Some(UNRECOVERABLE) => failure.unrecoverable(),
        _ => failure,
    })
}
