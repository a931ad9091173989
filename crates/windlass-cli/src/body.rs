//! Makes the body of a request from flags. Checks it as the server does, to name the flag that
//! breaks a rule.

use std::io::Read as _;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use windlass_api::{Body, BodyRefused, read_body};
use windlass_core::Invalid;

use crate::clock;

/// The most bytes of a file or of stdin that a flag reads.
const INPUT_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Returns the body of these fields. Leaves out nulls, which are the flags that are not given.
/// `flag` names the flag of a field.
pub(crate) fn body_of<B: Body + DeserializeOwned>(
    fields: Value,
    flag: impl Fn(&str) -> String,
) -> anyhow::Result<B> {
    body_with_nulls(Value::Object(given(fields)), flag)
}

/// Returns the body of these fields. A null resets a field.
pub(crate) fn body_with_nulls<B: Body + DeserializeOwned>(
    fields: Value,
    flag: impl Fn(&str) -> String,
) -> anyhow::Result<B> {
    let text = fields.to_string();
    let checked = read_body::<B>(&text, clock::now());
    checked.map_err(|refused| first_flag(refused, flag))?;
    Ok(serde_json::from_str(&text)?)
}

/// Returns the fields that are not null. Does not look into nested values, where null can have a
/// meaning: in a merge patch it removes a field.
pub(crate) fn given(fields: Value) -> Map<String, Value> {
    match fields {
        Value::Object(fields) => {
            let given = fields.into_iter().filter(|(_, value)| !value.is_null());
            given.collect()
        }
        _ => Map::new(),
    }
}

/// Returns the flag that is named like a field: `--max-depth` for `max_depth`.
pub(crate) fn flag_of_field(field: &str) -> String {
    format!("--{}", field.replace(['_', '.'], "-"))
}

/// Returns the JSON of a flag.
pub(crate) fn json_flag(flag: &str, text: Option<&str>) -> Result<Value, Invalid> {
    let Some(text) = text else {
        return Ok(Value::Null);
    };
    let json = serde_json::from_str(text);
    json.map_err(|error| Invalid::new(flag, format!("must be JSON: {error}")))
}

/// Returns the value of a flag that takes a plain word or JSON: a number, an object, a preset.
pub(crate) fn word_or_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// Returns the text of a file, or of stdin for `-`.
pub(crate) fn read_input(flag: &str, path: &Path) -> Result<String, Invalid> {
    let (mut text, is_stdin) = (String::new(), path == Path::new("-"));
    let read = if is_stdin {
        let stdin = std::io::stdin().lock();
        stdin.take(INPUT_BYTES_MAX + 1).read_to_string(&mut text)
    } else {
        let file = std::fs::File::open(path);
        file.and_then(|file| file.take(INPUT_BYTES_MAX + 1).read_to_string(&mut text))
    };
    let name = if is_stdin {
        "stdin".to_owned()
    } else {
        path.display().to_string()
    };
    read.map_err(|error| Invalid::new(flag, format!("cannot be read from {name}: {error}")))?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > INPUT_BYTES_MAX {
        let rule = format!("must be at most {INPUT_BYTES_MAX} bytes");
        return Err(Invalid::new(flag, rule));
    }
    Ok(text)
}

/// Names the flag of the first problem.
pub(crate) fn first_flag(refused: BodyRefused, flag: impl Fn(&str) -> String) -> Invalid {
    match refused {
        BodyRefused::Invalid(problems) => {
            let first = problems.into_iter().next();
            let first = first.unwrap_or_else(|| Invalid::new("", "is not valid"));
            Invalid::new(flag(first.field()), first.rule())
        }
        BodyRefused::Malformed(malformed) => {
            let text = malformed.to_string();
            Invalid::new("", text.strip_prefix("the body ").unwrap_or(&text))
        }
    }
}
