//! Configuration: defaults, then a file, then the environment, then flags; the last one wins.
//!
//! All problems are told at once, each with the file, line and nearest name. Every setting is declared once, in `settings`.

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
use settings::Partial;

/// Where values may come from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// A TOML file.
    pub file: Option<PathBuf>,
    /// The variables of the environment; those that begin with `WINDLASS_` are looked at.
    pub environment: Vec<(String, String)>,
    /// What the command line says, by the names of the settings.
    pub flags: Vec<(&'static str, String)>,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// The file.
    File {
        /// Which.
        path: PathBuf,
        /// In which line; 0 where the whole file is meant.
        line: usize,
    },
    /// A variable of the environment.
    Variable(String),
    /// The command line.
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

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where it was said.
    pub origin: Origin,
    /// Which setting; empty where it is none.
    pub key: String,
    /// The rule that it breaks, as a sentence that follows its name.
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

/// The configuration cannot be used: everything that is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError(pub Vec<Problem>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        let problems = if count == 1 { "a problem" } else { "problems" };
        write!(f, "the configuration has {problems}")?;
        self.0
            .iter()
            .try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl Config {
    /// Reads everything, checks it, and tells all problems at once.
    pub fn load(sources: &Sources) -> Result<Config, ConfigError> {
        Config::load_with(sources, |_, _| Vec::new())
    }

    /// The same for a server, which also needs the files that settings name.
    pub fn load_for_server(sources: &Sources) -> Result<Config, ConfigError> {
        Config::load_with(sources, |read, layers| {
            let mut warnings = std::mem::take(&mut layers.warnings);
            let problems = read.broken_files(|key| layers.origin(key), &mut warnings);
            layers.warnings = warnings;
            problems
        })
    }

    fn load_with(
        sources: &Sources,
        look: impl FnOnce(&Partial, &mut Layers) -> Vec<Problem>,
    ) -> Result<Config, ConfigError> {
        let mut problems = Vec::new();
        let mut layers = Layers::collect(sources, &mut problems);
        let read = Partial::read(&mut layers, &mut problems);
        problems.extend(read.broken_rules(|key| layers.origin(key)));
        problems.extend(look(&read, &mut layers));
        match read.whole(layers) {
            Some(config) if problems.is_empty() => Ok(config),
            _ => Err(ConfigError(problems)),
        }
    }

    /// Where the value of a setting comes from.
    pub fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).cloned().unwrap_or(Origin::Default)
    }
}

#[cfg(test)]
mod tests;
