//! The configuration of a server, as commands take it: a file, the environment, and flags.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use windlass::{Client, PrometheusRecorder};
use windlass_postgres::{Options, PostgresStore};
use windlass_server::config::{Config, Sources};

use crate::output::Output;

/// Where the server's configuration and store are.
#[derive(Debug, Clone, Args)]
pub(crate) struct SettingsArgs {
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

impl SettingsArgs {
    /// Everything that says something about settings.
    pub(crate) fn sources(&self) -> Sources {
        let data = self
            .data
            .as_ref()
            .map(|data| ("data", data.display().to_string()));
        let store = self.store.clone().map(|store| ("store", store));
        Sources {
            file: self.config.clone(),
            environment: std::env::vars_os()
                .filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                })
                .collect(),
            flags: data.into_iter().chain(store).collect(),
        }
    }

    pub(crate) fn load(&self) -> anyhow::Result<Config> {
        Ok(Config::load(&self.sources())?)
    }

    /// Opens the store that is configured, for a command that only looks: one that is not there is refused, not made.
    pub(crate) async fn open_existing(&self) -> anyhow::Result<(Config, Client)> {
        let config = self.load()?;
        anyhow::ensure!(
            store_exists(&config).await?,
            "there is no store {}: look at `--data`, `--store` and the configuration",
            config.store_shown()
        );
        let client = open(&config).await?;
        Ok((config, client))
    }

    /// Opens the store that is configured, for a command of one moment.
    pub(crate) async fn open(&self) -> anyhow::Result<(Config, Client)> {
        let config = self.load()?;
        let client = open(&config).await?;
        Ok((config, client))
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
pub(crate) async fn open(config: &Config) -> anyhow::Result<Client> {
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
    /// Checks the configuration, and tells everything that is wrong with it.
    Check(SettingsArgs),
    /// Prints every setting with its value and where that comes from. Secrets are hidden.
    Print(SettingsArgs),
    /// Prints an example file with every setting at its default.
    Init,
}

pub(crate) fn run(command: &ConfigCommand, output: &Output) -> anyhow::Result<()> {
    match command {
        ConfigCommand::Check(settings) => {
            let config = settings.load()?;
            let mut text = String::from("the configuration is fine\n");
            for warning in &config.warnings {
                text.push_str(&format!("warning: {warning}\n"));
            }
            output.print(&serde_json::json!({"warnings": config.warnings}), text)
        }
        ConfigCommand::Print(settings) => {
            let config = settings.load()?;
            output.print(&config.to_json(), config.to_text())
        }
        ConfigCommand::Init => {
            let example = Config::example();
            output.print(&serde_json::json!({"file": example}), &example)
        }
    }
}
