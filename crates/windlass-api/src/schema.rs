//! The shapes of the JSON, as JSON Schema: what `openapi.json` says is written here, beside the code that reads it.

mod jobs;
mod schedules;

use serde_json::{Map, Value, json};

/// The shape of a value.
#[derive(Debug, Clone)]
pub struct Schema(Value);

/// One field of an object.
#[derive(Debug, Clone)]
pub struct Field {
    name: &'static str,
    schema: Schema,
    required: bool,
}

impl Schema {
    /// A named shape.
    pub fn named(name: &str) -> Self {
        Schema(json!({"$ref": format!("#/components/schemas/{name}")}))
    }

    /// Any JSON at all.
    pub fn any() -> Self {
        Schema(json!({}))
    }

    /// Text.
    pub fn text() -> Self {
        Schema(json!({"type": "string"}))
    }

    /// Text of `min` to `max` characters.
    pub fn text_of(min: usize, max: usize) -> Self {
        Schema(json!({"type": "string", "minLength": min, "maxLength": max}))
    }

    /// Text that matches a pattern.
    pub fn pattern(pattern: &str) -> Self {
        Schema(json!({"type": "string", "pattern": pattern}))
    }

    /// One of a few words.
    pub fn word(words: &[&str]) -> Self {
        Schema(json!({"type": "string", "enum": words}))
    }

    /// True or false.
    pub fn flag() -> Self {
        Schema(json!({"type": "boolean"}))
    }

    /// A whole number.
    pub fn integer(min: i64, max: i64) -> Self {
        Schema(json!({"type": "integer", "minimum": min, "maximum": max}))
    }

    /// How many of something.
    pub fn count() -> Self {
        Schema(json!({"type": "integer", "minimum": 0}))
    }

    /// A number.
    pub fn number() -> Self {
        Schema(json!({"type": "number"}))
    }

    /// An instant in UTC.
    pub fn instant() -> Self {
        Schema(json!({"type": "string", "format": "date-time"}))
    }

    /// An id.
    pub fn id() -> Self {
        Schema(json!({"type": "string", "format": "uuid"}))
    }

    /// A duration as text.
    pub fn duration() -> Self {
        let pattern = "^([0-9]+ ?(ms|us|s|m|h|d) ?)+$";
        Schema(json!({"type": "string", "pattern": pattern, "examples": ["30s", "1m 30s"]}))
    }

    /// A list.
    pub fn list(of: Schema) -> Self {
        Schema(json!({"type": "array", "items": of.0}))
    }

    /// A list of `min` to `max` things.
    pub fn list_of(of: Schema, min: usize, max: usize) -> Self {
        Schema(json!({"type": "array", "items": of.0, "minItems": min, "maxItems": max}))
    }

    /// One of several shapes.
    pub fn either(shapes: Vec<Schema>) -> Self {
        let shapes: Vec<Value> = shapes.into_iter().map(|shape| shape.0).collect();
        Schema(json!({"anyOf": shapes}))
    }

    /// An object with these fields and no others.
    pub fn object(fields: Vec<Field>) -> Self {
        let required: Vec<&str> = fields
            .iter()
            .filter(|field| field.required)
            .map(|field| field.name)
            .collect();
        let required = json!(required);
        let properties = fields
            .into_iter()
            .map(|field| (field.name.to_owned(), field.schema.0));
        let properties: Map<String, Value> = properties.collect();
        Schema(json!({
            "type": "object", "properties": properties, "required": required,
            "additionalProperties": false,
        }))
    }

    /// An object with any fields.
    pub fn open_object() -> Self {
        Schema(json!({"type": "object"}))
    }

    /// A page of such things, with more fields if the list has them.
    pub fn page(of: Schema, more: Vec<Field>) -> Self {
        let mut fields = vec![
            Field::always("data", Schema::list(of)),
            Field::always("next_cursor", Schema::text().or_null()),
        ];
        fields.extend(more);
        Schema::object(fields)
    }

    /// The same, or `null`.
    pub fn or_null(self) -> Self {
        match self.0 {
            Value::Object(mut map) if map.get("type").is_some_and(Value::is_string) => {
                let kind = map.remove("type");
                map.insert("type".to_owned(), json!([kind, "null"]));
                if let Some(Value::Array(words)) = map.get_mut("enum") {
                    words.push(Value::Null);
                }
                Schema(Value::Object(map))
            }
            other => Schema(json!({"anyOf": [other, {"type": "null"}]})),
        }
    }

    /// The same, with a sentence about it.
    pub fn about(self, sentence: &str) -> Self {
        match self.0 {
            Value::Object(mut map) if !map.contains_key("$ref") => {
                map.insert("description".to_owned(), sentence.into());
                Schema(Value::Object(map))
            }
            other => Schema(json!({"allOf": [other], "description": sentence})),
        }
    }

    /// The same, with an example.
    pub fn example(mut self, example: impl Into<Value>) -> Self {
        if let Value::Object(map) = &mut self.0 {
            map.insert("examples".to_owned(), json!([example.into()]));
        }
        self
    }

    /// As JSON.
    pub fn into_json(self) -> Value {
        self.0
    }
}

impl Field {
    /// A field that is always there.
    pub fn always(name: &'static str, schema: Schema) -> Self {
        Field {
            name,
            schema,
            required: true,
        }
    }

    /// A field that may be missing.
    pub fn maybe(name: &'static str, schema: Schema) -> Self {
        Field {
            name,
            schema,
            required: false,
        }
    }

    /// A field that may be missing, or `null`, which is the same.
    pub fn optional(name: &'static str, schema: Schema) -> Self {
        Field::maybe(name, schema.or_null())
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether it must be there.
    pub fn is_required(&self) -> bool {
        self.required
    }

    /// Its shape.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }
}

/// Every shape that has a name.
pub fn components() -> Vec<(&'static str, Schema)> {
    let mut all = jobs::components();
    all.extend(schedules::components());
    all
}

/// The pattern of a queue's name.
pub(crate) fn queue_name() -> Schema {
    Schema::pattern(r"^(?!\.{1,2}$)[A-Za-z0-9_.-]{1,64}$")
}

/// The pattern of a kind.
pub(crate) fn kind() -> Schema {
    Schema::pattern("^[A-Za-z0-9_.:/-]{1,128}$")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) => {
                if let Some(name) = map.get("$ref").and_then(Value::as_str) {
                    found.insert(name.replace("#/components/schemas/", ""));
                }
                map.values().for_each(|inner| references(inner, found));
            }
            Value::Array(list) => list.iter().for_each(|inner| references(inner, found)),
            _ => {}
        }
    }

    #[test]
    fn every_shape_that_is_named_exists_once() {
        let all = components();
        let names: BTreeSet<String> = all.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(names.len(), all.len());
        let mut found = BTreeSet::new();
        for (_, schema) in all {
            references(&schema.into_json(), &mut found);
        }
        assert!(found.is_subset(&names), "{found:?}");
    }

    #[test]
    fn null_is_one_more_of_the_words() {
        let word = Schema::word(&["a"]).or_null().into_json();
        assert_eq!(
            word,
            json!({"type": ["string", "null"], "enum": ["a", null]})
        );
        let named = Schema::named("X").or_null().into_json();
        assert_eq!(named["anyOf"][1], json!({"type": "null"}));
    }
}
