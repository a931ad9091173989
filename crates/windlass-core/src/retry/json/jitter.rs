//! Jitters as JSON: `"full"`, or `{"type": "proportional", "ratio": 0.2}`.

use serde_json::{Value, json};

use super::required;
use crate::Invalid;
use crate::fields::{Fields, one_of};
use crate::retry::Jitter;

pub(super) fn from_json(value: &Value) -> Result<Jitter, Invalid> {
    let plain = json!({ "type": value });
    let mut fields = Fields::new(if value.is_string() { &plain } else { value })?;
    let name = required(fields.text("type")?, "type")?;
    let jitter = match name {
        "proportional" => Jitter::Proportional {
            ratio: required(fields.number("ratio")?, "ratio")?,
        },
        "upward" => Jitter::Upward {
            ratio: required(fields.number("ratio")?, "ratio")?,
        },
        other => {
            const PLAIN: [(&str, Jitter); 6] = [
                ("none", Jitter::None),
                ("proportional", Jitter::None),
                ("full", Jitter::Full),
                ("equal", Jitter::Equal),
                ("upward", Jitter::None),
                ("decorrelated", Jitter::Decorrelated),
            ];
            one_of(other, &PLAIN).map_err(|error| error.within("type"))?
        }
    };
    fields.finish()?;
    Ok(jitter)
}

pub(super) fn to_json(jitter: Jitter) -> Value {
    match jitter {
        Jitter::None => json!({"type": "none"}),
        Jitter::Proportional { ratio } => json!({"type": "proportional", "ratio": ratio}),
        Jitter::Full => json!({"type": "full"}),
        Jitter::Equal => json!({"type": "equal"}),
        Jitter::Upward { ratio } => json!({"type": "upward", "ratio": ratio}),
        Jitter::Decorrelated => json!({"type": "decorrelated"}),
    }
}
