//! `windlass serve`: runs the server until a signal stops it.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;
use windlass_server::standalone::Server;
use windlass_server::standalone::checks::forbid_core_dumps;
use windlass_server::standalone::config::{Config, LogFormat};
use windlass_server::standalone::log::LogLines;

use crate::config::{ServerArgs, restrict_new_files};
use crate::output::Output;

#[derive(Debug, Args)]
#[command(after_help = "Signals:
  SIGTERM, SIGINT  Finish the running jobs, then stop. A second signal stops the server immediately
  SIGHUP           Reload the TLS certificate")]
pub(crate) struct ServeCommand {
    #[command(flatten)]
    server: ServerArgs,
}

/// How long to wait for tasks that are still running after the server has stopped.
const RUNTIME_SHUTDOWN_MAX: Duration = Duration::from_secs(1);

pub(crate) fn run(command: &ServeCommand, output: &Output) -> anyhow::Result<()> {
    let config = command.server.load()?;
    let log = start_logging(&config)?;
    restrict_new_files();
    forbid_core_dumps();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let served = runtime.block_on(serve(config, log.clone(), output));
    runtime.shutdown_timeout(RUNTIME_SHUTDOWN_MAX);
    log.flush();
    served
}

async fn serve(config: Config, log: LogLines, output: &Output) -> anyhow::Result<()> {
    let (stop, stop_now) = (CancellationToken::new(), CancellationToken::new());
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let server = tokio::select! {
        started = Server::start(config) => started?.log(log),
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let printed = output.print_line(&server.about(), server.banner());
    printed.context("cannot write the server's address to stdout")?;
    if let Some(certificate) = server.certificate() {
        let mut hang_up = signal(SignalKind::hangup())?;
        tokio::spawn(async move {
            while hang_up.recv().await.is_some() {
                certificate.reload();
            }
        });
    }
    let (first, second) = (stop.clone(), stop_now.clone());
    tokio::spawn(async move {
        for signalled in [first, second] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            signalled.cancel();
        }
    });
    Ok(server.run(stop, stop_now).await?)
}

/// Logs to stderr: stdout has only the one line with the server's address, which a program can wait
/// for.
fn start_logging(config: &Config) -> anyhow::Result<LogLines> {
    let log = LogLines::to(std::io::stderr(), config.log_format)?;
    let filter: EnvFilter = config.log_level.parse()?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(log.clone());
    match config.log_format {
        LogFormat::Text => lines.with_ansi(false).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
    Ok(log)
}
