//! `windlass serve`: runs the server until it is told to stop.

use std::io::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;
use windlass_server::Server;
use windlass_server::checks::forbid_core_dumps;
use windlass_server::config::{Config, LogFormat, Sources};
use windlass_server::log::LogLines;

use crate::settings::{SettingsArgs, restrict_new_files};

/// Runs the server: REST interface, schedules, HTTP jobs. It stops at SIGTERM or SIGINT when what runs has ended, at a second
/// one at once.
#[derive(Debug, Args)]
pub(crate) struct ServeCommand {
    #[command(flatten)]
    settings: SettingsArgs,

    /// Where to listen; port 0 takes any that is free. [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<String>,

    /// Let HTTP jobs reach addresses of this range, which are not public. Can be given several times.
    #[arg(long, value_name = "CIDR")]
    allow_target: Vec<String>,

    /// Allow other machines to reach it without TLS and without keys.
    #[arg(long)]
    insecure: bool,

    /// How log lines look: `text` or `json`.
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,

    /// What is logged: `error`, `warn`, `info`, `debug`, `trace`, or a filter.
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
}

impl ServeCommand {
    fn sources(&self) -> Sources {
        let mut sources = self.settings.sources();
        let insecure = self.insecure.then(|| "true".to_owned());
        let targets = (!self.allow_target.is_empty()).then(|| self.allow_target.join(","));
        let flags = [
            ("http_jobs.allow_targets", targets),
            ("bind", self.bind.clone()),
            ("insecure", insecure),
            ("log.format", self.log_format.clone()),
            ("log.level", self.log_level.clone()),
        ];
        let given = flags
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)));
        sources.flags.extend(given);
        sources
    }
}

/// What was cut off and does not end by itself is not waited for any longer.
const LAST_WORK: Duration = Duration::from_secs(1);

pub(crate) fn run(command: &ServeCommand) -> anyhow::Result<()> {
    let config = Config::load(&command.sources())?;
    let log = start_logging(&config)?;
    restrict_new_files();
    forbid_core_dumps();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let served = runtime.block_on(serve(config, log.clone()));
    runtime.shutdown_timeout(LAST_WORK);
    log.flush();
    served
}

async fn serve(config: Config, log: LogLines) -> anyhow::Result<()> {
    let (stop, stop_now) = (CancellationToken::new(), CancellationToken::new());
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let server = tokio::select! {
        started = Server::start(config) => started?.log(log),
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    writeln!(std::io::stdout(), "{}", server.banner()).context("nobody reads where it listens")?;
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

/// Log lines go to stderr, so that stdout has the one line that a program may wait for.
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Alone {
        #[command(flatten)]
        serve: ServeCommand,
    }

    /// Where a server with these arguments would listen.
    fn bound(arguments: &[&str]) -> Option<SocketAddr> {
        let alone = Alone::try_parse_from([&["serve"], arguments].concat()).ok()?;
        let sources = Sources {
            environment: Vec::new(),
            ..alone.serve.sources()
        };
        Some(Config::load(&sources).ok()?.bind)
    }

    #[test]
    fn the_default_is_loopback_and_a_public_address_must_be_meant() {
        assert_eq!(bound(&[]), "127.0.0.1:8080".parse().ok());
        assert_eq!(
            bound(&["--bind", "127.0.0.1:1"]),
            "127.0.0.1:1".parse().ok()
        );
        assert_eq!(bound(&["--bind", "0.0.0.0:1"]), None);
        assert_eq!(
            bound(&["--bind", "0.0.0.0:1", "--insecure"]),
            "0.0.0.0:1".parse().ok()
        );
    }
}
