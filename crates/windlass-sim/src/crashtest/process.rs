//! The processes of a crash test: started, killed, stopped, continued and restarted.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::error::{CrashTestError, During as _};

/// A command line that can be started again and again.
#[derive(Debug, Clone)]
pub(super) struct Program {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    pub(super) environment: Vec<(String, String)>,
}

/// What a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Server,
    Worker,
}

/// One place in the test: a process, and after its end the next one.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// How many processes were started here.
    pub(super) generation: u32,
    program: Program,
    log: PathBuf,
    running: Option<Running>,
    resumes_at: Option<Instant>,
    restarts_at: Option<Instant>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    is_ready: Arc<AtomicBool>,
}

/// The argument that stands for the name of one start of a process.
pub(super) const NAME: &str = "{name}";

impl Seat {
    pub(super) fn new(name: &str, kind: Kind, program: Program, folder: &Path) -> Self {
        Seat {
            name: name.to_owned(),
            kind,
            generation: 0,
            program,
            log: folder.join(format!("{name}.log")),
            running: None,
            resumes_at: None,
            restarts_at: None,
        }
    }

    /// Starts the process. It is ready when it has printed a line.
    pub(super) fn start(&mut self) -> Result<(), CrashTestError> {
        self.generation += 1;
        let name = format!("{}.{}", self.name, self.generation);
        let arguments = self.program.arguments.iter();
        let arguments = arguments.map(|argument| argument.replace(NAME, &name));
        let log = OpenOptions::new().append(true).create(true).open(&self.log);
        let mut command = with_parent(&self.program.program);
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("WINDLASS_") {
                command.env_remove(variable);
            }
        }
        command
            .args(arguments)
            .envs(self.program.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.during("open the log of a process")?);
        let mut child = command.spawn().during("start a process with setpriv")?;
        let is_ready = Arc::new(AtomicBool::new(false));
        if let Some(stdout) = child.stdout.take() {
            let is_ready = Arc::clone(&is_ready);
            tokio::spawn(async move {
                let mut lines = BufReader::new(stdout).lines();
                while let Ok(Some(_)) = lines.next_line().await {
                    is_ready.store(true, Ordering::Relaxed);
                }
            });
        }
        self.restarts_at = None;
        self.running = Some(Running { child, is_ready });
        Ok(())
    }

    /// Whether the process has said that it is ready.
    pub(super) fn is_ready(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.is_ready.load(Ordering::Relaxed))
    }

    /// Whether it runs and is not stopped by a signal.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some() && self.resumes_at.is_none()
    }

    /// Kills the process, and starts the next one after `pause`.
    pub(super) async fn kill(&mut self, pause: Duration) -> Result<(), CrashTestError> {
        if let Some(mut running) = self.running.take() {
            signal(&running.child, Signal::KILL)?;
            running.child.wait().await.during("wait for a process")?;
        }
        self.resumes_at = None;
        self.restarts_at = Some(Instant::now() + pause);
        Ok(())
    }

    /// Stops the process with SIGSTOP. It continues after `pause`.
    pub(super) fn pause(&mut self, pause: Duration) -> Result<(), CrashTestError> {
        if let Some(running) = &self.running {
            signal(&running.child, Signal::STOP)?;
            self.resumes_at = Some(Instant::now() + pause);
        }
        Ok(())
    }

    /// Lets the process continue now.
    pub(super) fn resume(&mut self) -> Result<(), CrashTestError> {
        if let Some(running) = self.running.as_ref().filter(|_| self.resumes_at.is_some()) {
            signal(&running.child, Signal::CONT)?;
        }
        self.resumes_at = None;
        Ok(())
    }

    /// Does what is due: continues a stopped process, starts the next one. Returns the status of a
    /// process that ended by itself, and whether it was ready before.
    pub(super) fn tend(&mut self) -> Result<Option<(ExitStatus, bool)>, CrashTestError> {
        let now = Instant::now();
        if self.resumes_at.is_some_and(|at| at <= now) {
            self.resume()?;
        }
        if self.restarts_at.is_some_and(|at| at <= now) {
            self.start()?;
        }
        let Some(running) = &mut self.running else {
            return Ok(None);
        };
        let status = running.child.try_wait().during("wait for a process")?;
        let was_ready = running.is_ready.load(Ordering::Relaxed);
        if status.is_some() {
            self.running = None;
            self.restarts_at = Some(now + Duration::from_millis(300));
        }
        Ok(status.map(|status| (status, was_ready)))
    }

    /// Ends the process with SIGTERM. Returns its status, or `None` if it had to be killed.
    pub(super) async fn stop(
        &mut self,
        patience: Duration,
    ) -> Result<Option<ExitStatus>, CrashTestError> {
        self.restarts_at = None;
        let Some(mut running) = self.running.take() else {
            return Ok(None);
        };
        signal(&running.child, Signal::TERM)?;
        let ended = tokio::time::timeout(patience, running.child.wait()).await;
        match ended {
            Ok(status) => Ok(Some(status.during("wait for a process")?)),
            Err(_) => {
                signal(&running.child, Signal::KILL)?;
                running.child.wait().await.during("wait for a process")?;
                Ok(None)
            }
        }
    }

    /// The last lines of the log of the process.
    pub(super) fn last_lines(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let end = text
            .get(text.len().saturating_sub(1000)..)
            .unwrap_or_default();
        String::from_utf8_lossy(end).trim().to_owned()
    }

    /// The size of the log.
    pub(super) fn log_bytes(&self) -> u64 {
        std::fs::metadata(&self.log).map_or(0, |file| file.len())
    }
}

/// A command whose process is killed when this process ends, however it ends.
pub(super) fn with_parent(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command.kill_on_drop(true);
    command
}

pub(super) fn signal(child: &Child, signal: Signal) -> Result<(), CrashTestError> {
    // `None` after the end of the process, which then cannot get a signal either.
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    match pid {
        Some(pid) => kill_process(pid, signal).during("send a signal"),
        None => Ok(()),
    }
}
