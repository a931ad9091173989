//! Where values come from, the strongest last: defaults, a file, the environment, flags.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use strsim::levenshtein;
use toml_edit::{Document, Item, Table, Value};

use super::secret::{Privacy, Secret, privacy};
use super::settings::{SETTINGS, Setting};
use super::value::{Broken, Environment, Readable};
use super::{Origin, Problem, Sources};

/// Variables that begin like settings and are none.
const OTHER_VARIABLES: [&str; 4] = [
    "WINDLASS_CONFIG",
    "WINDLASS_POSTGRES_URL",
    "WINDLASS_URL",
    "WINDLASS_KEY",
];

/// Everything that was said, before it is read.
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
        let ours = self
            .environment
            .keys()
            .filter(|name| name.starts_with("WINDLASS_"));
        for name in ours {
            let other = OTHER_VARIABLES.contains(&name.as_str()) || self.tells_a_service(name);
            if !other && !known.contains(name) {
                let meant = meant(name, known.iter().map(String::as_str));
                refuse(name, format!("is not a setting{meant}"));
            }
            let plain = name.strip_suffix("_FILE").filter(|_| known.contains(name));
            if let Some(plain) = plain.filter(|plain| self.environment.contains_key(*plain)) {
                refuse(name, format!("says what {plain} says too: set one of them"));
            }
        }
    }

    /// Whether Kubernetes set a variable to tell where a service is: one called `windlass` has names that begin like settings.
    /// The host of the service is always told too, so a mistyped setting is not taken for one.
    fn tells_a_service(&self, variable: &str) -> bool {
        let of_service = |host: &String| {
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
            .any(|host| of_service(host) == Some(true))
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

    /// Takes what is a setting; what is none is a problem, with the nearest one that is.
    fn flatten(&mut self, within: &str, table: &Table, text: &str, problems: &mut Vec<Problem>) {
        for (name, item) in table.iter() {
            let path = match within {
                "" => name.to_owned(),
                within => format!("{within}.{name}"),
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
                        format!("is a section: write `[{path}]`"),
                    ));
                }
                _ => {
                    let known = SETTINGS.iter().map(|setting| setting.key);
                    let rule = format!("is not a setting{}", meant(&path, known));
                    problems.push(self.in_file(line, &path, rule));
                }
            }
        }
    }

    /// Where the value of a setting comes from.
    pub(super) fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).cloned().unwrap_or(Origin::Default)
    }

    /// Reads one setting from the strongest place that says it.
    pub(super) fn read<T: Readable>(
        &mut self,
        key: &'static str,
        default: &'static str,
        rule: impl Fn(&T) -> Result<(), Broken>,
        problems: &mut Vec<Problem>,
    ) -> Option<T> {
        let (origin, value) = self.strongest::<T>(key, default);
        let checked = value.and_then(|value| rule(&value).map(|()| value));
        match checked {
            Ok(value) => {
                self.look_at_secrets(key, &origin, &value, problems);
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

    fn strongest<T: Readable>(
        &self,
        key: &'static str,
        default: &str,
    ) -> (Origin, Result<T, Broken>) {
        if let Some(text) = self.flags.get(key) {
            return (Origin::Flag(flag_of(key)), T::from_text(text));
        }
        let variable = format!("WINDLASS_{}", key.replace('.', "_").to_uppercase());
        if let Some(text) = self.environment.get(&variable) {
            return (Origin::Variable(variable), T::from_text(text));
        }
        let by_file = format!("{variable}_FILE");
        if let Some(path) = self.environment.get(&by_file).filter(|_| T::SECRET) {
            let read = Secret::from_file(path).and_then(|secret| T::from_text(secret.reveal()));
            return (Origin::Variable(by_file), read);
        }
        if let Some((value, line)) = self.file.get(key) {
            let path = self.path.clone();
            let origin = Origin::File { path, line: *line };
            return (origin, T::from_toml(value, &self.environment));
        }
        (Origin::Default, default_of(default))
    }

    /// Secrets are neither for a file that others read, nor for the command line, which everybody on the machine sees.
    fn look_at_secrets<T: Readable>(
        &mut self,
        key: &str,
        origin: &Origin,
        value: &T,
        problems: &mut Vec<Problem>,
    ) {
        let by_variable = match origin {
            Origin::Variable(name) if name.ends_with("_FILE") => self.environment.get(name),
            _ => None,
        };
        let files = value.secret_files().into_iter();
        for file in files.chain(by_variable.map(PathBuf::from)) {
            if privacy(&file) == Privacy::OpenByOthers {
                self.warnings.push(Privacy::warning(key, &file));
            }
        }
        if !value.secrets_written_out() {
            return;
        }
        match (origin, privacy(&self.path)) {
            (Origin::File { .. }, Privacy::OpenByOthers) => {
                self.warnings.push(Privacy::warning(key, &self.path));
            }
            (Origin::File { line, .. }, Privacy::Open) => {
                let rule = format!(
                    "is a secret in a file that others may read: `chmod 600 {}`, or refer to it by {{ file = … }} or {{ env = … }}",
                    self.path.display()
                );
                problems.push(self.in_file(*line, key, rule));
            }
            (Origin::Flag(flag), _) => {
                let told = format!(
                    "{flag} has a secret in it, which everybody on this machine may see: use the environment or a file"
                );
                self.warnings.push(told);
            }
            _ => {}
        }
    }
}

/// The value of a default, which is written as in a file.
fn default_of<T: Readable>(default: &str) -> Result<T, Broken> {
    if default.is_empty() {
        return T::unset().ok_or_else(|| "must be given".to_owned());
    }
    let value: Value = default
        .parse()
        .map_err(|error| format!("has a bad default: {error}"))?;
    T::from_toml(&value, &Environment::new())
}

/// The flag that says a setting, as the command line calls it.
fn flag_of(key: &str) -> String {
    match key {
        "http_jobs.allow_targets" => "--allow-target".to_owned(),
        key => format!("--{}", key.replace(['.', '_'], "-")),
    }
}

/// The variables that say a setting.
fn variables(setting: &Setting) -> Vec<String> {
    let variable = setting.variable();
    match setting.secret {
        true => vec![format!("{variable}_FILE"), variable],
        false => vec![variable],
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
        let rule = "is empty: `windlass config init` prints an example";
        return Err((1, rule.to_owned()));
    }
    Ok(text)
}

fn line_at(text: &str, place: usize) -> usize {
    let before = text.as_bytes().get(..place).unwrap_or_default();
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().to_owned()
}

/// `: did you mean …?`, if one of the known names is near.
fn meant<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> String {
    let far = || ": `windlass config print` names them all".to_owned();
    if given.len() > 80 {
        return far();
    }
    let last = given.rsplit('.').next().unwrap_or(given);
    let distance = |name: &&str| {
        let of_name = name.rsplit('.').next().unwrap_or(name);
        levenshtein(given, name).min(levenshtein(last, of_name) + 1)
    };
    let nearest = known.min_by_key(distance);
    match nearest.filter(|name| distance(name) <= 3.max(given.chars().count() / 4)) {
        Some(name) => format!(": did you mean `{name}`?"),
        None => far(),
    }
}
