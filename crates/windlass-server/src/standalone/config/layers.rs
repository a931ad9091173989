//! The sources of values in increasing precedence: defaults, a file, the environment, flags.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use strsim::levenshtein;
use toml_edit::{Document, Item, Table, Value};

use super::secret::{Privacy, Secret, privacy};
use super::settings::{SETTINGS, Setting};
use super::value::{BrokenRule, Environment, SettingValue};
use super::{Origin, Problem, Sources};

/// Variables that start with `WINDLASS_` but are not settings.
const OTHER_VARIABLES: [&str; 5] = [
    "WINDLASS_CONFIG",
    "WINDLASS_POSTGRES_URL",
    "WINDLASS_URL",
    "WINDLASS_KEY",
    "WINDLASS_CA",
];

/// The unparsed values of all sources.
#[derive(Debug, Default)]
pub(super) struct Layers {
    path: PathBuf,
    file: BTreeMap<String, (Value, usize)>,
    environment: Environment,
    flags: BTreeMap<&'static str, String>,
    pub(super) origins: BTreeMap<&'static str, Origin>,
    pub(super) warnings: Vec<String>,
}

impl Layers {
    pub(super) fn collect(sources: &Sources, problems: &mut Vec<Problem>) -> Self {
        let mut layers = Layers {
            environment: sources.environment.iter().cloned().collect(),
            flags: sources.flags.iter().cloned().collect(),
            ..Layers::default()
        };
        layers.check_variables(problems);
        if let Some(path) = &sources.file {
            layers.path.clone_from(path);
            match read_file(path) {
                Ok(text) => layers.parse(&text, problems),
                Err((line, rule)) => problems.push(layers.in_file(line, "", rule)),
            }
        }
        layers
    }

    fn in_file(&self, line: usize, key: &str, rule: impl Into<String>) -> Problem {
        Problem {
            origin: Origin::File {
                path: self.path.clone(),
                line,
            },
            key: key.to_owned(),
            rule: rule.into(),
        }
    }

    fn check_variables(&self, problems: &mut Vec<Problem>) {
        let mut refuse = |name: &str, rule: String| {
            problems.push(Problem {
                origin: Origin::Variable(name.to_owned()),
                key: String::new(),
                rule,
            });
        };
        let known: Vec<String> = SETTINGS.iter().flat_map(variables).collect();
        let candidates = self
            .environment
            .keys()
            .filter(|name| name.starts_with("WINDLASS_"));
        for name in candidates {
            let is_other =
                OTHER_VARIABLES.contains(&name.as_str()) || self.is_kubernetes_service(name);
            if !is_other && !known.contains(name) {
                let suggestion = suggestion(name, known.iter().map(String::as_str));
                refuse(name, format!("is not a setting{suggestion}"));
            }
            let plain = name.strip_suffix("_FILE").filter(|_| known.contains(name));
            if let Some(plain) = plain.filter(|plain| self.environment.contains_key(*plain)) {
                refuse(
                    name,
                    format!("conflicts with {plain}: set only one of them"),
                );
            }
        }
    }

    /// Whether Kubernetes set this variable to publish the address of a service.
    ///
    /// For a service called `windlass`, these variables start like settings. Kubernetes always sets
    /// the `_SERVICE_HOST` variable too, so a mistyped setting does not pass as one of them.
    fn is_kubernetes_service(&self, variable: &str) -> bool {
        let belongs_to = |host: &String| {
            let service = host.strip_suffix("_SERVICE_HOST")?;
            let rest = variable.strip_prefix(service)?;
            let numbered = rest.strip_prefix("_PORT_").unwrap_or_default();
            Some(
                matches!(rest, "_SERVICE_HOST" | "_PORT")
                    || rest.starts_with("_SERVICE_PORT")
                    || numbered.starts_with(|first: char| first.is_ascii_digit()),
            )
        };
        self.environment
            .keys()
            .any(|host| belongs_to(host) == Some(true))
    }

    fn parse(&mut self, text: &str, problems: &mut Vec<Problem>) {
        match Document::parse(text) {
            Ok(document) => self.flatten("", document.as_table(), text, problems),
            Err(error) => {
                let line = error.span().map_or(1, |span| line_at(text, span.start));
                problems.push(self.in_file(line, "", first_line(error.message())));
            }
        }
    }

    /// Collects the settings of a table. An unknown key is a problem that names the nearest
    /// setting.
    fn flatten(&mut self, section: &str, table: &Table, text: &str, problems: &mut Vec<Problem>) {
        for (name, item) in table.iter() {
            let path = match section {
                "" => name.to_owned(),
                section => format!("{section}.{name}"),
            };
            let span = table
                .key(name)
                .and_then(toml_edit::Key::span)
                .or_else(|| item.span());
            let line = span.map_or(1, |span| line_at(text, span.start));
            let is_setting = SETTINGS.iter().any(|setting| setting.key == path);
            let is_section = SETTINGS
                .iter()
                .any(|setting| setting.key.starts_with(&format!("{path}.")));
            match (item, is_setting, is_section) {
                (item, true, _) => match item.clone().into_value() {
                    Ok(value) => drop(self.file.insert(path, (value, line))),
                    Err(_) => problems.push(self.in_file(line, &path, "must be a value")),
                },
                (Item::Table(inner), false, true) => self.flatten(&path, inner, text, problems),
                (Item::Value(Value::InlineTable(inner)), false, true) => {
                    self.flatten(&path, &inner.clone().into_table(), text, problems);
                }
                (_, false, true) => {
                    problems.push(self.in_file(
                        line,
                        &path,
                        format!("is a section, not a setting: write `[{path}]`"),
                    ));
                }
                _ => {
                    let known = SETTINGS.iter().map(|setting| setting.key);
                    let rule = format!("is not a setting{}", suggestion(&path, known));
                    problems.push(self.in_file(line, &path, rule));
                }
            }
        }
    }

    /// Returns the source of a setting's value.
    pub(super) fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).cloned().unwrap_or(Origin::Default)
    }

    /// Reads a setting from the source with the highest precedence that has it.
    pub(super) fn read<T: SettingValue>(
        &mut self,
        key: &'static str,
        default: &'static str,
        rule: impl Fn(&T) -> Result<(), BrokenRule>,
        problems: &mut Vec<Problem>,
    ) -> Option<T> {
        let (origin, value) = self.read_unchecked::<T>(key, default);
        let checked = value.and_then(|value| rule(&value).map(|()| value));
        match checked {
            Ok(value) => {
                self.check_secret_exposure(key, &origin, &value, problems);
                self.origins.insert(key, origin);
                Some(value)
            }
            Err(rule) => {
                let key = key.to_owned();
                problems.push(Problem { origin, key, rule });
                None
            }
        }
    }

    fn read_unchecked<T: SettingValue>(
        &self,
        key: &'static str,
        default: &str,
    ) -> (Origin, Result<T, BrokenRule>) {
        if let Some(text) = self.flags.get(key) {
            return (Origin::Flag(flag_name(key)), T::from_text(text));
        }
        let variable = format!("WINDLASS_{}", key.replace('.', "_").to_uppercase());
        if let Some(text) = self.environment.get(&variable) {
            return (Origin::Variable(variable), T::from_text(text));
        }
        let file_variable = format!("{variable}_FILE");
        if let Some(path) = self.environment.get(&file_variable).filter(|_| T::SECRET) {
            let value = Secret::from_file(path).and_then(|secret| T::from_text(secret.reveal()));
            return (Origin::Variable(file_variable), value);
        }
        if let Some((value, line)) = self.file.get(key) {
            let path = self.path.clone();
            let origin = Origin::File { path, line: *line };
            return (origin, T::from_toml(value, &self.environment));
        }
        (Origin::Default, parse_default(default))
    }

    /// Warns about or refuses secrets that other users can read: in a file they may open, or on the
    /// command line.
    fn check_secret_exposure<T: SettingValue>(
        &mut self,
        key: &str,
        origin: &Origin,
        value: &T,
        problems: &mut Vec<Problem>,
    ) {
        let file_of_variable = match origin {
            Origin::Variable(name) if name.ends_with("_FILE") => self.environment.get(name),
            _ => None,
        };
        let files = value.secret_files().into_iter();
        for file in files.chain(file_of_variable.map(PathBuf::from)) {
            if privacy(&file) == Privacy::ExposedByEnvironment {
                self.warnings.push(Privacy::warning(key, &file));
            }
        }
        if !value.secrets_written_out() {
            return;
        }
        match (origin, privacy(&self.path)) {
            (Origin::File { .. }, Privacy::ExposedByEnvironment) => {
                self.warnings.push(Privacy::warning(key, &self.path));
            }
            (Origin::File { line, .. }, Privacy::Exposed) => {
                let rule = format!(
                    "is a secret in a file that other users may read: run `chmod 600 {}`, or use {{ file = … }} or {{ env = … }}",
                    self.path.display()
                );
                problems.push(self.in_file(*line, key, rule));
            }
            (Origin::Flag(flag), _) => {
                self.warnings.push(format!(
                    "{flag} contains a secret, and every user of this machine can see command lines: use an environment variable or a file"
                ));
            }
            _ => {}
        }
    }
}

/// Parses a default, which is in TOML syntax.
fn parse_default<T: SettingValue>(default: &str) -> Result<T, BrokenRule> {
    if default.is_empty() {
        return T::unset().ok_or_else(|| "must be set".to_owned());
    }
    let value: Value = default
        .parse()
        .map_err(|error| format!("has an invalid default: {error}"))?;
    T::from_toml(&value, &Environment::new())
}

/// Returns the command line flag of a setting.
fn flag_name(key: &str) -> String {
    match key {
        "http_jobs.allow_targets" => "--allow-target".to_owned(),
        key => format!("--{}", key.replace(['.', '_'], "-")),
    }
}

/// Returns the environment variables of a setting.
fn variables(setting: &Setting) -> Vec<String> {
    let variable = setting.variable();
    if setting.secret {
        vec![format!("{variable}_FILE"), variable]
    } else {
        vec![variable]
    }
}

fn read_file(path: &Path) -> Result<String, (usize, String)> {
    let bytes = std::fs::read(path).map_err(|error| (0, format!("cannot be read: {error}")))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let before = error.as_bytes().get(..valid).unwrap_or_default();
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        (line, "must be UTF-8".to_owned())
    })?;
    if text.trim().is_empty() {
        let rule = "is empty: run `windlass config init` for an example";
        return Err((1, rule.to_owned()));
    }
    Ok(text)
}

fn line_at(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().get(..offset).unwrap_or_default();
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().to_owned()
}

/// Returns `: did you mean …?` if a known name is similar, otherwise how to list all names.
fn suggestion<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> String {
    let no_match = || ": `windlass config print` lists all settings".to_owned();
    if given.len() > 80 {
        return no_match();
    }
    let last = given.rsplit('.').next().unwrap_or(given);
    let distance = |name: &&str| {
        let last_of_name = name.rsplit('.').next().unwrap_or(name);
        levenshtein(given, name).min(levenshtein(last, last_of_name) + 1)
    };
    let nearest = known.min_by_key(distance);
    match nearest.filter(|name| distance(name) <= 3.max(given.chars().count() / 4)) {
        Some(name) => format!(": did you mean `{name}`?"),
        None => no_match(),
    }
}
