//! The configuration for people: as it is, as an example file, and as a page of the documentation.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::json::to_json;
use super::{Config, SETTINGS, Setting};

impl Config {
    /// Every setting with its value and where that comes from; nothing secret.
    pub fn to_text(&self) -> String {
        let shown = self.shown();
        let wide = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or(0).min(40);
        let keys = wide(&mut shown.iter().map(|(key, _)| key.len()));
        let values = wide(&mut shown.iter().map(|(_, value)| value.len()));
        let mut text = String::new();
        for (key, value) in shown {
            let origin = self.origin(key);
            writeln!(text, "{key:keys$} = {value:values$}  # {origin}")
                .expect("a String takes every write");
        }
        text
    }

    /// The same for programs.
    pub fn to_json(&self) -> Value {
        let settings = SETTINGS.iter().zip(self.shown());
        let settings = settings.map(|(setting, (key, shown))| {
            let value = shown.parse().map(|value| to_json(&value));
            let value = match value {
                // What may be unset is written so in a file.
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

    /// One setting as it would be written in a file; nothing secret.
    pub(crate) fn shown_of(&self, key: &str) -> Option<String> {
        let mut shown = self.shown().into_iter();
        shown.find_map(|(name, value)| (name == key).then_some(value))
    }

    /// An example file: every setting with its meaning and default, commented out.
    pub fn example() -> String {
        let mut text = String::from(
            "# The configuration of a Windlass server: `windlass serve --config windlass.toml`.\n\
             # Everything here is at its default. Variables of the environment win over this file, flags over both.\n",
        );
        let mut section = "";
        for setting in SETTINGS {
            let (within, name) = split(setting);
            if within != section {
                section = within;
                writeln!(text, "\n[{section}]").expect("a String takes every write");
            }
            writeln!(text, "\n# {}", setting.doc).expect("a String takes every write");
            writeln!(text, "# {name} = {}", written_default(setting))
                .expect("a String takes every write");
        }
        text
    }

    /// The tables of the reference page.
    pub fn reference() -> String {
        let mut text = String::new();
        let mut section = None;
        for setting in SETTINGS {
            let (within, _) = split(setting);
            if section != Some(within) {
                section = Some(within);
                let title = if within.is_empty() {
                    "At the top"
                } else {
                    within
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
            let kind = sentence(setting.kind);
            writeln!(
                text,
                "| `{key}`<br>`{variable}` | {default} | {doc} {kind}. |"
            )
            .expect("a String takes every write");
        }
        text
    }
}

/// The section and the name of a setting.
fn split(setting: &Setting) -> (&'static str, &'static str) {
    setting.key.rsplit_once('.').unwrap_or(("", setting.key))
}

fn written_default(setting: &Setting) -> &'static str {
    match setting.default {
        "" => "\"none\"",
        default => default,
    }
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}
