//! Converts between TOML and JSON values.

use serde_json::{Map, Value as Json};
use toml_edit::{Array, InlineTable, Value};

/// Converts a TOML value to JSON. A date becomes text; no setting takes one.
pub(super) fn to_json(value: &Value) -> Json {
    match value {
        Value::String(text) => text.value().as_str().into(),
        Value::Integer(number) => (*number.value()).into(),
        Value::Float(number) => (*number.value()).into(),
        Value::Boolean(truth) => (*truth.value()).into(),
        Value::Datetime(instant) => instant.value().to_string().into(),
        Value::Array(items) => items.iter().map(to_json).collect(),
        Value::InlineTable(table) => {
            let fields = table.iter();
            let fields = fields.map(|(name, value)| (name.to_owned(), to_json(value)));
            Json::Object(fields.collect::<Map<_, _>>())
        }
    }
}

/// Converts a JSON value to TOML. Omits fields that are `null`, which TOML does not have.
pub(super) fn to_toml(json: &Json) -> Option<Value> {
    Some(match json {
        Json::Null => return None,
        Json::Bool(truth) => (*truth).into(),
        Json::Number(number) => match number.as_i64() {
            Some(whole) => whole.into(),
            None => number.as_f64()?.into(),
        },
        Json::String(text) => text.into(),
        Json::Array(items) => Value::Array(items.iter().filter_map(to_toml).collect::<Array>()),
        Json::Object(fields) => {
            let fields = fields.iter();
            let fields = fields.filter_map(|(name, value)| Some((name, to_toml(value)?)));
            Value::InlineTable(fields.collect::<InlineTable>())
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_survive_a_round_trip() {
        let json = json!({"a": 1, "b": [0.5, "x", true], "c": {"d": -2}});
        let toml = to_toml(&json).unwrap();
        assert_eq!(
            toml.to_string(),
            r#"{ a = 1, b = [0.5, "x", true], c = { d = -2 } }"#
        );
        assert_eq!(to_json(&toml), json);
        assert_eq!(to_toml(&json!({"a": null})).unwrap().to_string(), "{}");
    }
}
