//! Prints the configuration: current values, an example file, and the reference page.

use std::fmt::Write as _;

use serde_json::{Value, json};
use windlass_api::ServerSetting;

use super::json::to_json;
use super::{Config, SETTINGS, Setting};

impl Config {
    /// Returns every setting with its value and source as text. Hides secrets.
    pub fn to_text(&self) -> String {
        let shown = self.shown();
        let width = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or(0).min(40);
        let keys = width(&mut shown.iter().map(|(key, _)| key.len()));
        let values = width(&mut shown.iter().map(|(_, value)| value.len()));
        let mut text = String::new();
        for (key, value) in shown {
            let origin = self.origin(key);
            writeln!(text, "{key:keys$} = {value:values$}  # {origin}")
                .expect("a String takes every write");
        }
        text
    }

    /// Returns every setting with its value and source as JSON. Hides secrets.
    pub fn to_json(&self) -> Value {
        let settings = SETTINGS.iter().zip(self.shown());
        let settings = settings.map(|(setting, (key, shown))| {
            let value = shown.parse().map(|value| to_json(&value));
            let value = match value {
                // In a file, "none" stands for an optional setting without a value.
                Ok(Value::String(text)) if setting.default.is_empty() && text == "none" => {
                    Value::Null
                }
                Ok(value) => value,
                Err(_) => shown.into(),
            };
            let origin = self.origin(key).to_string();
            (key.to_owned(), json!({"value": value, "origin": origin}))
        });
        Value::Object(settings.collect())
    }

    /// Returns every setting for people: its value, its source and what it does. Hides secrets.
    pub fn to_settings(&self) -> Vec<ServerSetting> {
        let settings = SETTINGS.iter().zip(self.shown());
        let settings = settings.map(|(setting, (key, value))| ServerSetting {
            key: key.to_owned(),
            value,
            origin: self.origin(key).to_string(),
            default: setting.default.to_owned(),
            doc: setting.doc.to_owned(),
        });
        settings.collect()
    }

    /// Returns a setting in TOML syntax. Hides secrets.
    pub(crate) fn shown_of(&self, key: &str) -> Option<String> {
        let mut shown = self.shown().into_iter();
        shown.find_map(|(name, value)| (name == key).then_some(value))
    }

    /// Returns an example file: every setting with its documentation and default, commented out.
    pub fn example() -> String {
        let mut text = String::from(
            "# Configuration of a Windlass server: `windlass serve --config windlass.toml`.\n\
             # Every setting shows its default. Environment variables override this file; flags override both.\n",
        );
        let mut section = "";
        for setting in SETTINGS {
            let (setting_section, name) = split_key(setting);
            if setting_section != section {
                section = setting_section;
                writeln!(text, "\n[{section}]").expect("a String takes every write");
            }
            writeln!(text, "\n# {}", setting.doc).expect("a String takes every write");
            writeln!(text, "# {name} = {}", written_default(setting))
                .expect("a String takes every write");
        }
        text
    }

    /// Returns the tables of the reference page, one for each section.
    pub fn reference() -> String {
        let mut text = String::new();
        let mut section = None;
        for setting in SETTINGS {
            let (setting_section, _) = split_key(setting);
            if section != Some(setting_section) {
                section = Some(setting_section);
                let title = if setting_section.is_empty() {
                    "Top level"
                } else {
                    setting_section
                };
                writeln!(
                    text,
                    "\n## {title}\n\n| setting | default | meaning |\n|---|---|---|"
                )
                .expect("a String takes every write");
            }
            let default = match setting.default {
                "" => "none".to_owned(),
                default => format!("`{default}`"),
            };
            let (key, variable, doc) = (setting.key, setting.variable(), setting.doc);
            let kind = capitalized(setting.kind);
            writeln!(
                text,
                "| `{key}`<br>`{variable}` | {default} | {doc} {kind}. |"
            )
            .expect("a String takes every write");
        }
        text
    }
}

/// Returns the section and the name of a setting.
fn split_key(setting: &Setting) -> (&'static str, &'static str) {
    setting.key.rsplit_once('.').unwrap_or(("", setting.key))
}

fn written_default(setting: &Setting) -> &'static str {
    match setting.default {
        "" => "\"none\"",
        default => default,
    }
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}
