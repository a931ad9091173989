//! Backoffs as JSON: `{"type": "exponential", "base": "1s", …}`.

use std::time::Duration;

use serde_json::{Value, json};

use super::required;
use crate::Invalid;
use crate::duration::format_duration;
use crate::fields::{Fields, duration_of, millis_of, one_of, refuse_both};
use crate::retry::{BACKOFF_MAX_DEFAULT, Backoff};

pub(super) fn from_json(value: &Value) -> Result<Backoff, Invalid> {
    const TYPES: [(&str, ()); 5] = [
        ("constant", ()),
        ("linear", ()),
        ("exponential", ()),
        ("polynomial", ()),
        ("steps", ()),
    ];
    let mut fields = Fields::new(value)?;
    let name = required(fields.text("type")?, "type")?;
    one_of(name, &TYPES).map_err(|error| error.within("type"))?;
    let backoff = match name {
        "constant" => Backoff::Constant {
            delay: required(fields.duration("delay")?, "delay")?,
        },
        "linear" => Backoff::Linear {
            base: required(fields.duration("base")?, "base")?,
            step: required(fields.duration("step")?, "step")?,
            max: fields.duration("max")?.unwrap_or(BACKOFF_MAX_DEFAULT),
        },
        "exponential" => Backoff::Exponential {
            base: required(fields.duration("base")?, "base")?,
            multiplier: fields.number("multiplier")?.unwrap_or(2.0),
            max: fields.duration("max")?.unwrap_or(BACKOFF_MAX_DEFAULT),
        },
        "polynomial" => Backoff::Polynomial {
            base: required(fields.duration("base")?, "base")?,
            power: required(fields.number("power")?, "power")?,
            max: fields.duration("max")?.unwrap_or(BACKOFF_MAX_DEFAULT),
        },
        _ => Backoff::Steps {
            delays: steps_from_json(&mut fields)?,
        },
    };
    fields.finish()?;
    Ok(backoff)
}

/// Reads `delays` (texts) or `delays_ms` (whole milliseconds).
fn steps_from_json(fields: &mut Fields<'_>) -> Result<Vec<Duration>, Invalid> {
    let (name, list, read): (&str, _, fn(&Value) -> _) = match fields.list("delays_ms")? {
        Some(list) => {
            refuse_both(fields.list("delays")?.is_some(), "delays_ms", "delays")?;
            ("delays_ms", list, millis_of)
        }
        None => (
            "delays",
            required(fields.list("delays")?, "delays")?,
            duration_of,
        ),
    };
    let read_one = |(index, delay): (usize, &Value)| {
        read(delay).map_err(|error| error.within(&format!("{name}[{index}]")))
    };
    list.iter().enumerate().map(read_one).collect()
}

pub(super) fn to_json(backoff: &Backoff) -> Value {
    let name = type_name(backoff);
    let text = |duration: &Duration| format_duration(*duration);
    match backoff {
        Backoff::Constant { delay } => json!({"type": name, "delay": text(delay)}),
        Backoff::Linear { base, step, max } => {
            json!({"type": name, "base": text(base), "step": text(step), "max": text(max)})
        }
        Backoff::Exponential {
            base,
            multiplier,
            max,
        } => {
            json!({"type": name, "base": text(base), "multiplier": multiplier, "max": text(max)})
        }
        Backoff::Polynomial { base, power, max } => {
            json!({"type": name, "base": text(base), "power": power, "max": text(max)})
        }
        Backoff::Steps { delays } => {
            json!({"type": name, "delays": delays.iter().map(text).collect::<Vec<_>>()})
        }
    }
}

pub(super) fn type_name(backoff: &Backoff) -> &'static str {
    match backoff {
        Backoff::Constant { .. } => "constant",
        Backoff::Linear { .. } => "linear",
        Backoff::Exponential { .. } => "exponential",
        Backoff::Polynomial { .. } => "polynomial",
        Backoff::Steps { .. } => "steps",
    }
}
