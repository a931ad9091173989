//! The configuration of a server, as commands take it: a file, the environment, and flags.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use windlass::Client;
use windlass::prometheus::PrometheusRecorder;
use windlass_core::Invalid;
use windlass_postgres::{Options, PostgresStore};
use windlass_server::standalone::checks::check_validity;
use windlass_server::standalone::config::{Config, Sources};

use crate::clock;
use crate::output::Output;

/// Where the server's configuration and store are.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConfigArgs {
    /// The configuration file.
    #[arg(long, value_name = "FILE", env = "WINDLASS_CONFIG")]
    pub(crate) config: Option<PathBuf>,

    /// The directory of the embedded store.
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,

    /// The store: `sqlite:path`, `postgres://user@host/database` or `memory:`.
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
}

impl ConfigArgs {
    /// Everything that says something about settings.
    fn sources(&self) -> Result<Sources, Invalid> {
        let data = self.data.as_ref().map(|data| {
            let text = data.to_str().ok_or_else(|| no_text("--data"))?;
            Ok(("data", text.to_owned()))
        });
        let store = self.store.clone().map(|store| ("store", store));
        Ok(Sources {
            file: self.config.clone(),
            environment: environment()?,
            flags: data.transpose()?.into_iter().chain(store).collect(),
        })
    }

    pub(crate) fn load(&self) -> anyhow::Result<Config> {
        Ok(Config::load(&self.sources()?)?)
    }

    /// Opens the store that is configured, for a command that only looks: one that is not there is refused, not made.
    pub(crate) async fn open_existing(&self) -> anyhow::Result<(Config, Client)> {
        let config = self.load()?;
        anyhow::ensure!(
            store_exists(&config).await?,
            "there is no store {}: look at `--data`, `--store` and the configuration",
            config.store_shown()
        );
        let client = open_store(&config).await?;
        Ok((config, client))
    }

    /// Opens the store that is configured, for a command of one moment.
    pub(crate) async fn open_or_create(&self) -> anyhow::Result<(Config, Client)> {
        let config = self.load()?;
        let client = open_store(&config).await?;
        Ok((config, client))
    }
}

/// The variables that are text; one of ours that is not is refused, not overlooked.
fn environment() -> Result<Vec<(String, String)>, Invalid> {
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        match value.into_string() {
            Ok(value) => Some(Ok((name, value))),
            Err(_) if name.starts_with("WINDLASS_") => Some(Err(no_text(&name))),
            Err(_) => None,
        }
    });
    variables.collect()
}

fn no_text(name: &str) -> Invalid {
    Invalid::new(name, "must be UTF-8")
}

/// What a server is started with.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    #[command(flatten)]
    config: ConfigArgs,

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

impl ServerArgs {
    fn sources(&self) -> Result<Sources, Invalid> {
        let mut sources = self.config.sources()?;
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
        Ok(sources)
    }

    /// The configuration of a server, which also needs the files that it names.
    pub(crate) fn load(&self) -> anyhow::Result<Config> {
        Ok(Config::load_for_server(&self.sources()?)?)
    }

    /// The configuration, whether the files that it names are there or not.
    fn load_settings(&self) -> anyhow::Result<Config> {
        Ok(Config::load(&self.sources()?)?)
    }
}

/// Whether the store that is configured was made before. A memory store is there as soon as it is asked for.
pub(crate) async fn store_exists(config: &Config) -> anyhow::Result<bool> {
    let url = config.store_url();
    match url.split_once(':') {
        Some(("sqlite", path)) => Ok(Path::new(path.strip_prefix("//").unwrap_or(path)).exists()),
        Some(("postgres" | "postgresql", _)) => {
            let version = PostgresStore::schema_version(&Options::parse(&url)?).await;
            let version = version
                .with_context(|| format!("the store {} cannot be opened", config.store_shown()))?;
            Ok(version > 0)
        }
        _ => Ok(true),
    }
}

/// Opens the store that is configured.
pub(crate) async fn open_store(config: &Config) -> anyhow::Result<Client> {
    restrict_new_files();
    let recorder = Arc::new(PrometheusRecorder::new());
    Ok(config.open_store(recorder).await?)
}

/// Files that this process makes from now on are for their owner alone.
pub(crate) fn restrict_new_files() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Checks the configuration and the files that it names, and tells everything that is wrong.
    Check(ServerArgs),
    /// Prints every setting with its value and where that comes from. Secrets are hidden.
    Print(ServerArgs),
    /// Prints an example file with every setting at its default.
    Init,
}

pub(crate) fn run(command: &ConfigCommand, output: &Output) -> anyhow::Result<()> {
    match command {
        ConfigCommand::Check(server) => {
            let config = server.load()?;
            if let Some(files) = config.tls_files() {
                check_validity(&files, clock::now())?;
            }
            let mut text = String::from("the configuration is fine\n");
            for warning in &config.warnings {
                text.push_str(&format!("warning: {warning}\n"));
            }
            output.print(&serde_json::json!({"warnings": config.warnings}), text)
        }
        ConfigCommand::Print(server) => {
            let config = server.load_settings()?;
            output.print(&config.to_json(), config.to_text())
        }
        ConfigCommand::Init => {
            let example = Config::example();
            output.print(&serde_json::json!({"file": example}), &example)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Alone {
        #[command(flatten)]
        server: ServerArgs,
    }

    /// Where a server with these arguments would listen.
    fn bound(arguments: &[&str]) -> Option<SocketAddr> {
        let alone = Alone::try_parse_from([&["serve"], arguments].concat()).ok()?;
        let sources = Sources {
            environment: Vec::new(),
            ..alone.server.sources().ok()?
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
