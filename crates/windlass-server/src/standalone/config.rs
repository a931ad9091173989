//! Loads the configuration from defaults, a file, the environment and flags. Later sources override
//! earlier ones.
//!
//! Loading reports all problems at once, each with its file, line and the nearest known name. The
//! module `settings` declares every setting once.

mod files;
mod json;
mod layers;
mod print;
mod rules;
mod secret;
mod settings;
mod value;

use std::fmt;
use std::path::PathBuf;

pub use secret::{Secret, StoreUrl};
pub use settings::{Config, SETTINGS, Setting};
pub use value::LogFormat;

use layers::Layers;
use settings::PartialConfig;

/// The sources of the configuration.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The TOML file, if any.
    pub file: Option<PathBuf>,
    /// The environment variables. Settings are those that start with `WINDLASS_`.
    pub environment: Vec<(String, String)>,
    /// The flags of the command line, by the key of the setting.
    pub flags: Vec<(&'static str, String)>,
}

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The built-in default.
    Default,
    /// The configuration file.
    File {
        /// The path of the file.
        path: PathBuf,
        /// The line, counted from 1; 0 means the whole file.
        line: usize,
    },
    /// The environment variable with this name.
    Variable(String),
    /// The command line flag with this name.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line: 0 } => write!(f, "{}", path.display()),
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Variable(name) | Origin::Flag(name) => f.write_str(name),
        }
    }
}

/// A problem with the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The source of the invalid value.
    pub origin: Origin,
    /// The key of the setting; empty if the problem is not about a setting.
    pub key: String,
    /// The broken rule, worded to follow the name of the setting.
    pub rule: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.origin, self.key.as_str()) {
            (Origin::Default, key) => write!(f, "`{key}` {}", self.rule),
            (origin, "") => write!(f, "{origin}: {}", self.rule),
            (origin, key) => write!(f, "{origin}: `{key}` {}", self.rule),
        }
    }
}

/// The configuration is invalid. Lists all its problems.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError(pub Vec<Problem>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        let problems = if count == 1 { "problem" } else { "problems" };
        write!(f, "the configuration has {count} {problems}:")?;
        self.0
            .iter()
            .try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl Config {
    /// Reads and checks the configuration.
    ///
    /// # Errors
    ///
    /// Returns all problems at once.
    pub fn load(sources: &Sources) -> Result<Config, ConfigError> {
        Config::load_with(sources, |_, _| Vec::new())
    }

    /// Reads and checks the configuration of a server. Also checks the files that settings name.
    ///
    /// # Errors
    ///
    /// Returns all problems at once.
    pub fn load_for_server(sources: &Sources) -> Result<Config, ConfigError> {
        Config::load_with(sources, |partial, layers| {
            let mut warnings = std::mem::take(&mut layers.warnings);
            let problems = partial.broken_files(|key| layers.origin(key), &mut warnings);
            layers.warnings = warnings;
            problems
        })
    }

    fn load_with(
        sources: &Sources,
        check_more: impl FnOnce(&PartialConfig, &mut Layers) -> Vec<Problem>,
    ) -> Result<Config, ConfigError> {
        let mut problems = Vec::new();
        let mut layers = Layers::collect(sources, &mut problems);
        let partial = PartialConfig::read(&mut layers, &mut problems);
        problems.extend(partial.broken_rules(|key| layers.origin(key)));
        problems.extend(check_more(&partial, &mut layers));
        match partial.complete(layers) {
            Some(config) if problems.is_empty() => Ok(config),
            _ => Err(ConfigError(problems)),
        }
    }

    /// Returns the source of a setting's value.
    pub fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).cloned().unwrap_or(Origin::Default)
    }
}

#[cfg(test)]
mod tests;
