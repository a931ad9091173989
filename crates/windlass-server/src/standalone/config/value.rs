//! Parses and shows the values of settings.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use toml_edit::Value;
use windlass_core::retry::{Preset, RetryPolicy};
use windlass_core::{QueueName, format_duration, parse_duration};

use windlass_dashboard::Colour;

use super::json::{to_json, to_toml};
use super::secret::Secret;
use crate::access::{Scope, Scopes};

/// The environment variables, which values can refer to.
pub(super) type Environment = BTreeMap<String, String>;

/// The rule that a value breaks, worded to follow the name of the setting.
pub(super) type BrokenRule = String;

/// The type of a setting.
pub(super) trait SettingValue: Sized {
    /// The name of the type in documentation.
    const KIND: &'static str;
    /// Whether values are secrets, which are never printed.
    const SECRET: bool = false;

    /// Parses the value of a flag or an environment variable.
    fn from_text(text: &str) -> Result<Self, BrokenRule>;

    /// Parses the value from a file.
    fn from_toml(value: &Value, _environment: &Environment) -> Result<Self, BrokenRule> {
        match value {
            Value::String(text) => Self::from_text(text.value()),
            other => Err(wrong_type(Self::KIND, other)),
        }
    }

    /// Returns the value of a setting that is not set and has no default, if the type allows that.
    fn unset() -> Option<Self> {
        None
    }

    /// Returns the value in TOML syntax. Hides secrets.
    fn show(&self) -> String;

    /// Whether the source contains a secret itself, not a reference to one.
    fn secrets_written_out(&self) -> bool {
        false
    }

    /// Returns the files that secrets were read from.
    fn secret_files(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}

pub(super) fn wrong_type(expected: &str, got: &Value) -> BrokenRule {
    format!(
        "must be {expected}, got {} {}",
        article(got.type_name()),
        got.type_name()
    )
}

fn article(word: &str) -> &'static str {
    if word.starts_with(['a', 'e', 'i', 'o', 'u']) {
        "an"
    } else {
        "a"
    }
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string().trim().to_owned()
}

/// Quotes a text for a message: at most 40 characters, control characters escaped.
fn excerpt(text: &str) -> String {
    let short: String = text.chars().take(40).collect();
    format!("{short:?}")
}

impl SettingValue for bool {
    const KIND: &'static str = "true or false";

    fn from_text(text: &str) -> Result<Self, BrokenRule> {
        match text {
            "true" | "1" | "yes" => Ok(true),
            "false" | "0" | "no" => Ok(false),
            _ => Err(format!("must be true or false, got {}", excerpt(text))),
        }
    }

    fn from_toml(value: &Value, _: &Environment) -> Result<Self, BrokenRule> {
        value.as_bool().ok_or_else(|| wrong_type(Self::KIND, value))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for u64 {
    const KIND: &'static str = "a whole number";

    fn from_text(text: &str) -> Result<Self, BrokenRule> {
        let unreadable = |_| {
            format!(
                "must be a whole number of at least 0, got {}",
                excerpt(text)
            )
        };
        text.replace('_', "").parse().map_err(unreadable)
    }

    fn from_toml(value: &Value, _: &Environment) -> Result<Self, BrokenRule> {
        let number = value
            .as_integer()
            .ok_or_else(|| wrong_type(Self::KIND, value))?;
        number
            .try_into()
            .map_err(|_| "must be at least 0".to_owned())
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for Duration {
    const KIND: &'static str = "a duration like \"1m 30s\"";

    fn from_text(text: &str) -> Result<Self, BrokenRule> {
        parse_duration(text).map_err(|invalid| invalid.rule().to_owned())
    }

    fn show(&self) -> String {
        quoted(&format_duration(*self))
    }
}

impl SettingValue for String {
    const KIND: &'static str = "text";

    fn from_text(text: &str) -> Result<Self, BrokenRule> {
        Ok(text.to_owned())
    }

    fn show(&self) -> String {
        quoted(self)
    }
}

impl SettingValue for PathBuf {
    const KIND: &'static str = "a path";

    fn from_text(text: &str) -> Result<Self, BrokenRule> {
        match text {
            "" => Err("must not be empty".to_owned()),
            text => Ok(text.into()),
        }
    }

    fn show(&self) -> String {
        quoted(&self.display().to_string())
    }
}

impl SettingValue for SocketAddr {
    const KIND: &'static str = "an address like \"127.0.0.1:8080\"";

    fn from_text(text: &str) -> Result<Self, BrokenRule> {
        let named = text
            .strip_prefix("localhost:")
            .map(|port| format!("127.0.0.1:{port}"));
        let unreadable = |_| {
            format!(
                "must be an address and a port like 127.0.0.1:8080, got {}",
                excerpt(text)
            )
        };
        named.as_deref().unwrap_or(text).parse().map_err(unreadable)
    }

    fn show(&self) -> String {
        quoted(&self.to_string())
    }
}

impl SettingValue for Vec<String> {
    const KIND: &'static str = "a list of strings";

    fn from_text(text: &str) -> Result<Self, BrokenRule> {
        let items = text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty());
        Ok(items.map(str::to_owned).collect())
    }

    fn from_toml(value: &Value, _: &Environment) -> Result<Self, BrokenRule> {
        let items = value
            .as_array()
            .ok_or_else(|| wrong_type(Self::KIND, value))?;
        let texts = items.iter().map(|item| {
            let text = item.as_str().map(str::to_owned);
            text.ok_or_else(|| wrong_type(Self::KIND, item))
        });
        texts.collect()
    }

    fn show(&self) -> String {
        let items: Vec<_> = self.iter().map(|item| quoted(item)).collect();
        format!("[{}]", items.join(", "))
    }
}

impl SettingValue for BTreeMap<QueueName, Duration> {
    const KIND: &'static str = "a table of durations by queue";

    fn from_text(text: &str) -> Result<Self, BrokenRule> {
        let pairs = text.split(',').filter(|pair| !pair.trim().is_empty());
        let read = pairs.map(|pair| {
            let unreadable = || {
                format!(
                    "must be like \"mail=14d,reports=30d\", got {}",
                    excerpt(text)
                )
            };
            let (queue, duration) = pair.split_once('=').ok_or_else(unreadable)?;
            read_pair(queue.trim(), duration.trim())
        });
        read.collect()
    }

    fn from_toml(value: &Value, environment: &Environment) -> Result<Self, BrokenRule> {
        let table = value
            .as_inline_table()
            .ok_or_else(|| wrong_type(Self::KIND, value))?;
        let read = table.iter().map(|(queue, value)| {
            let duration = Duration::from_toml(value, environment)
                .map_err(|broken| format!("has an invalid value for queue {queue}: {broken}"))?;
            Ok((read_queue(queue)?, duration))
        });
        read.collect()
    }

    fn show(&self) -> String {
        let pairs = self
            .iter()
            .map(|(queue, duration)| format!("{} = {}", quoted(queue.as_str()), duration.show()));
        let pairs: Vec<_> = pairs.collect();
        if pairs.is_empty() {
            "{}".to_owned()
        } else {
            format!("{{ {} }}", pairs.join(", "))
        }
    }
}

fn read_pair(queue: &str, duration: &str) -> Result<(QueueName, Duration), BrokenRule> {
    Ok((read_queue(queue)?, Duration::from_text(duration)?))
}

fn read_queue(name: &str) -> Result<QueueName, BrokenRule> {
    QueueName::new(name)
        .map_err(|invalid| format!("has an invalid queue name, which {}", invalid.rule()))
}

/// What people may do, by name and by group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeopleTable(pub BTreeMap<String, Scopes>);

impl PeopleTable {
    fn row(name: &str, scopes: &str) -> Result<(String, Scopes), BrokenRule> {
        let names: Vec<&str> = scopes.split([',', '+']).map(str::trim).collect();
        let scopes = Scopes::from_names(&names);
        let scopes = scopes.map_err(|invalid| {
            format!(
                "has an invalid row for {name:?}: the scopes {}",
                invalid.rule()
            )
        })?;
        Ok((name.trim().to_owned(), scopes))
    }
}

impl SettingValue for PeopleTable {
    const KIND: &'static str = "a table of scopes by person or group";

    fn from_text(text: &str) -> Result<Self, BrokenRule> {
        let rows = text.split(',').filter(|row| !row.trim().is_empty());
        let read = rows.map(|row| {
            let (name, scopes) = row.rsplit_once('=').ok_or_else(|| {
                format!(
                    "must be like \"mara=read+operate,group:ops=admin\", got {}",
                    excerpt(text)
                )
            })?;
            PeopleTable::row(name, scopes)
        });
        Ok(PeopleTable(read.collect::<Result<_, _>>()?))
    }

    fn from_toml(value: &Value, _: &Environment) -> Result<Self, BrokenRule> {
        let wrong = || wrong_type(Self::KIND, value);
        let table = value.as_inline_table().ok_or_else(wrong)?;
        let read = table
            .iter()
            .map(|(name, scopes)| PeopleTable::row(name, scopes.as_str().ok_or_else(wrong)?));
        Ok(PeopleTable(read.collect::<Result<_, _>>()?))
    }

    fn show(&self) -> String {
        let row = |(name, scopes): (&String, &Scopes)| {
            let names: Vec<_> = scopes.given().into_iter().map(Scope::name).collect();
            format!("{} = {}", quoted(name), quoted(&names.join(",")))
        };
        let rows: Vec<_> = self.0.iter().map(row).collect();
        if rows.is_empty() {
            "{}".to_owned()
        } else {
            format!("{{ {} }}", rows.join(", "))
        }
    }
}

impl SettingValue for Colour {
    const KIND: &'static str = "the name of a colour";

    fn from_text(text: &str) -> Result<Self, BrokenRule> {
        let known = Colour::ALL.into_iter().find(|colour| colour.name() == text);
        known.ok_or_else(|| {
            let names: Vec<_> = Colour::ALL.into_iter().map(Colour::name).collect();
            format!("must be one of {}, got {}", names.join(", "), excerpt(text))
        })
    }

    fn show(&self) -> String {
        quoted(self.name())
    }
}

impl SettingValue for RetryPolicy {
    const KIND: &'static str = "the name of a retry policy, or a table of its values";

    fn from_text(text: &str) -> Result<Self, BrokenRule> {
        if text.trim_start().starts_with('{') {
            let json = serde_json::from_str(text);
            return read_policy(&json.map_err(|error| format!("must be JSON: {error}"))?);
        }
        let preset = Preset::ALL.into_iter().find(|preset| preset.name() == text);
        let preset = preset.ok_or_else(|| {
            let names = Preset::ALL.map(|preset| preset.name()).join(", ");
            format!("must be one of {names}, or a table, got {}", excerpt(text))
        });
        Ok(preset?.policy())
    }

    fn from_toml(value: &Value, _: &Environment) -> Result<Self, BrokenRule> {
        match value {
            Value::String(text) => Self::from_text(text.value()),
            Value::InlineTable(_) => read_policy(&to_json(value)),
            other => Err(wrong_type(Self::KIND, other)),
        }
    }

    fn show(&self) -> String {
        match self.preset() {
            Some(preset) => quoted(preset.name()),
            None => to_toml(&self.to_json()).map_or_else(String::new, |table| table.to_string()),
        }
    }
}

fn read_policy(json: &serde_json::Value) -> Result<RetryPolicy, BrokenRule> {
    RetryPolicy::from_json(json).map_err(|invalid| match invalid.field() {
        "" => invalid.rule().to_owned(),
        field => format!("is invalid: `{field}` {}", invalid.rule()),
    })
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

impl SettingValue for LogFormat {
    const KIND: &'static str = "\"text\" or \"json\"";

    fn from_text(text: &str) -> Result<Self, BrokenRule> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err(format!("must be `text` or `json`, got {}", excerpt(text))),
        }
    }

    fn show(&self) -> String {
        quoted(match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        })
    }
}

impl<T: SettingValue> SettingValue for Option<T> {
    const KIND: &'static str = T::KIND;
    const SECRET: bool = T::SECRET;

    fn from_text(text: &str) -> Result<Self, BrokenRule> {
        match text {
            "" | "none" => Ok(None),
            text => T::from_text(text).map(Some),
        }
    }

    fn from_toml(value: &Value, environment: &Environment) -> Result<Self, BrokenRule> {
        match value.as_str() {
            Some("" | "none") => Ok(None),
            _ => T::from_toml(value, environment).map(Some),
        }
    }

    fn unset() -> Option<Self> {
        Some(None)
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "\"none\"".to_owned(), T::show)
    }

    fn secrets_written_out(&self) -> bool {
        self.as_ref().is_some_and(T::secrets_written_out)
    }

    fn secret_files(&self) -> Vec<PathBuf> {
        self.as_ref().map(T::secret_files).unwrap_or_default()
    }
}

impl SettingValue for Vec<Secret> {
    const KIND: &'static str = "a list of secrets";
    const SECRET: bool = true;

    fn from_text(text: &str) -> Result<Self, BrokenRule> {
        let items = text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty());
        items.map(Secret::from_text).collect()
    }

    fn from_toml(value: &Value, environment: &Environment) -> Result<Self, BrokenRule> {
        let items = value
            .as_array()
            .ok_or_else(|| wrong_type(Self::KIND, value))?;
        items
            .iter()
            .map(|item| Secret::from_toml(item, environment))
            .collect()
    }

    fn show(&self) -> String {
        let items: Vec<_> = self.iter().map(SettingValue::show).collect();
        format!("[{}]", items.join(", "))
    }

    fn secrets_written_out(&self) -> bool {
        self.iter().any(SettingValue::secrets_written_out)
    }

    fn secret_files(&self) -> Vec<PathBuf> {
        self.iter().flat_map(SettingValue::secret_files).collect()
    }
}
