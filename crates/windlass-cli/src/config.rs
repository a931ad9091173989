//! The flags that select a configuration and a store, and the command `windlass config`.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use windlass::Client;
use windlass::prometheus::PrometheusRecorder;
use windlass_core::Invalid;
use windlass_postgres::{Options, PostgresStore};
use windlass_server::standalone::StartError;
use windlass_server::standalone::checks::check_validity;
use windlass_server::standalone::config::{Config, Sources};
use windlass_store::StoreError;

use crate::clock;
use crate::output::Output;

/// The flags that select a configuration file and a store.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConfigArgs {
    /// The configuration file (TOML).
    #[arg(long, value_name = "FILE", env = "WINDLASS_CONFIG")]
    pub(crate) config: Option<PathBuf>,

    /// The directory of the embedded store [default: windlass-data].
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,

    /// The store: `sqlite:path`, `postgres://user@host/database` or `memory:` (not durable)
    /// [default: windlass.db in the data directory].
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
}

impl ConfigArgs {
    /// Collects the configuration file, the environment and the flags.
    fn sources(&self) -> Result<Sources, Invalid> {
        let data = self.data.as_ref().map(|data| {
            let text = data.to_str().ok_or_else(|| not_utf8("--data"))?;
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

    /// Opens the configured store. Fails if it does not exist.
    pub(crate) async fn open_existing(&self) -> anyhow::Result<(Config, Client)> {
        let config = self.load()?;
        anyhow::ensure!(
            store_exists(&config).await?,
            "the store {} does not exist; check `--data`, `--store` and the configuration",
            config.store_shown()
        );
        let client = open_store(&config).await?;
        Ok((config, client))
    }

    /// Opens the configured store, and creates it if it does not exist.
    pub(crate) async fn open_or_create(&self) -> anyhow::Result<(Config, Client)> {
        let config = self.load()?;
        let client = open_store(&config).await?;
        Ok((config, client))
    }
}

/// Returns all environment variables that are UTF-8. Refuses a `WINDLASS_` variable that is not,
/// because ignoring it would ignore a setting.
fn environment() -> Result<Vec<(String, String)>, Invalid> {
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        match value.into_string() {
            Ok(value) => Some(Ok((name, value))),
            Err(_) if name.starts_with("WINDLASS_") => Some(Err(not_utf8(&name))),
            Err(_) => None,
        }
    });
    variables.collect()
}

fn not_utf8(name: &str) -> Invalid {
    Invalid::new(name, "must be UTF-8")
}

/// The flags of a server.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    #[command(flatten)]
    config: ConfigArgs,

    /// The address to listen on; port 0 selects a free port [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<String>,

    /// Allow HTTP jobs to call private addresses in this range, such as 10.1.0.0/16. Can be given
    /// several times [default: only public addresses].
    #[arg(long, value_name = "CIDR")]
    allow_target: Vec<String>,

    /// Allow other machines to connect without TLS and without API keys.
    #[arg(long)]
    insecure: bool,

    /// The format of log lines: `text` or `json` [default: text].
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,

    /// The log level: `error`, `warn`, `info`, `debug`, `trace`, or a filter such as
    /// `info,windlass_server=debug` [default: info].
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

    /// Loads the configuration and checks that the files in it exist.
    pub(crate) fn load(&self) -> anyhow::Result<Config> {
        Ok(Config::load_for_server(&self.sources()?)?)
    }

    /// Loads the configuration without a check of the files in it.
    fn load_without_files(&self) -> anyhow::Result<Config> {
        Ok(Config::load(&self.sources()?)?)
    }
}

/// Returns whether the configured store exists. A store in memory always does.
pub(crate) async fn store_exists(config: &Config) -> anyhow::Result<bool> {
    if let Some(path) = store_path(config) {
        let exists = path.try_exists();
        return exists.with_context(|| {
            let shown = config.store_shown();
            format!("cannot look for the store {shown}; run the command as the user that owns it")
        });
    }
    let url = config.store_url();
    match url.split_once(':') {
        Some(("postgres" | "postgresql", _)) => {
            let version = PostgresStore::schema_version(&Options::parse(&url)?).await;
            let version = version
                .with_context(|| format!("cannot open the store {}", config.store_shown()))?;
            Ok(version > 0)
        }
        _ => Ok(true),
    }
}

/// Returns the path of the configured store, if it is a SQLite file.
pub(crate) fn store_path(config: &Config) -> Option<PathBuf> {
    let url = config.store_url();
    let path = url.strip_prefix("sqlite:")?;
    Some(path.strip_prefix("//").unwrap_or(path).into())
}

/// Opens the configured store, and creates it if it does not exist.
pub(crate) async fn open_store(config: &Config) -> anyhow::Result<Client> {
    restrict_new_files();
    let recorder = Arc::new(PrometheusRecorder::new());
    Ok(config.open_store(recorder).await?)
}

/// Returns the error of a store that another process has open; `None` for another error.
pub(crate) fn store_in_use(error: &anyhow::Error) -> Option<&StoreError> {
    let StartError::Store { cause, .. } = error.downcast_ref()? else {
        return None;
    };
    match &**cause {
        windlass::Error::Store(in_use @ StoreError::InUse { .. }) => Some(in_use),
        _ => None,
    }
}

/// From now on, only the owner can read the files that this process creates.
pub(crate) fn restrict_new_files() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the configuration and the files in it, and print all problems.
    Check(ServerArgs),
    /// Print the value of every setting and where it comes from. Secrets are hidden.
    Print(ServerArgs),
    /// Print an example file with the default of every setting.
    Init,
}

pub(crate) fn run(command: &ConfigCommand, output: &Output) -> anyhow::Result<()> {
    match command {
        ConfigCommand::Check(server) => {
            let config = server.load()?;
            if let Some(files) = config.tls_files() {
                check_validity(&files, clock::now())?;
            }
            let mut text = String::from("the configuration is valid\n");
            for warning in &config.warnings {
                text.push_str(&format!("warning: {warning}\n"));
            }
            output.print(&serde_json::json!({"warnings": config.warnings}), text)
        }
        ConfigCommand::Print(server) => {
            let config = server.load_without_files()?;
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
    struct ServeArguments {
        #[command(flatten)]
        server: ServerArgs,
    }

    /// Returns the address that a server with these arguments listens on.
    fn bind_address(arguments: &[&str]) -> Option<SocketAddr> {
        let parsed = ServeArguments::try_parse_from([&["serve"], arguments].concat()).ok()?;
        let sources = Sources {
            environment: Vec::new(),
            ..parsed.server.sources().ok()?
        };
        Some(Config::load(&sources).ok()?.bind)
    }

    #[test]
    fn the_default_is_loopback_and_a_public_address_needs_insecure() {
        assert_eq!(bind_address(&[]), "127.0.0.1:8080".parse().ok());
        assert_eq!(
            bind_address(&["--bind", "127.0.0.1:1"]),
            "127.0.0.1:1".parse().ok()
        );
        assert_eq!(bind_address(&["--bind", "0.0.0.0:1"]), None);
        assert_eq!(
            bind_address(&["--bind", "0.0.0.0:1", "--insecure"]),
            "0.0.0.0:1".parse().ok()
        );
    }
}
