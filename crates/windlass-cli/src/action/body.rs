//! Makes the body of a request from flags. Checks it as the server does, to name the flag that
//! breaks a rule.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use windlass_api::{Body, BodyRefused, JobFilter, read_body};
use windlass_core::Invalid;

use crate::clock;
use crate::filter::flag_of;

/// Returns the body of these fields with the filter. `flag` names the flag of a field; fields of the
/// filter are known.
pub(crate) fn action_body<B: Body + DeserializeOwned>(
    fields: Value,
    filter: &JobFilter,
    flag: fn(&str) -> String,
) -> anyhow::Result<B> {
    let mut fields = match without_nulls(fields) {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    fields.insert("filter".to_owned(), serde_json::to_value(filter)?);
    let text = Value::Object(fields).to_string();
    read_body::<B>(&text, clock::now()).map_err(|refused| first_flag(refused, flag))?;
    Ok(serde_json::from_str(&text)?)
}

/// Returns the JSON of a flag.
pub(crate) fn json_flag(flag: &str, text: Option<&str>) -> Result<Value, Invalid> {
    let Some(text) = text else {
        return Ok(Value::Null);
    };
    let json = serde_json::from_str(text);
    json.map_err(|error| Invalid::new(flag, format!("must be JSON: {error}")))
}

/// Removes the fields of flags that are not given. Does not look into patches, where null removes a
/// field.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(mut fields) => {
            fields.retain(|_, value| !value.is_null());
            Value::Object(fields)
        }
        other => other,
    }
}

/// Names the flag of the first problem.
fn first_flag(refused: BodyRefused, flag: fn(&str) -> String) -> Invalid {
    match refused {
        BodyRefused::Invalid(problems) => {
            let first = problems.into_iter().next();
            let first = first.unwrap_or_else(|| Invalid::new("", "is not valid"));
            let field = first.field();
            let flag = field
                .strip_prefix("filter.")
                .map_or_else(|| flag(field), flag_of);
            Invalid::new(flag, first.rule())
        }
        BodyRefused::Malformed(malformed) => Invalid::new("", malformed.to_string()),
    }
}
