//! The reference of the REST API, made from its own description.

use std::collections::BTreeMap;

use askama::Template;
use axum::Router;
use serde_json::Value;

use crate::frame::{Frame, Section};
use crate::site::{PageResult, Site, page};
use crate::visit::Visit;

pub(super) fn routes() -> Router<Site> {
    Router::new().route("/reference", page(show))
}

#[derive(Template)]
#[template(path = "reference.html")]
struct ReferencePage {
    frame: Frame,
    version: String,
    groups: Vec<(String, Vec<Operation>)>,
    commands: Vec<String>,
}

struct Operation {
    id: String,
    method: String,
    path: String,
    about: String,
    params: Vec<FieldAbout>,
    body: Option<BodyAbout>,
    responses: Vec<(String, String)>,
}

impl Operation {
    /// The first sentence of its description.
    fn sentence(&self) -> &str {
        self.about
            .split_once(". ")
            .map_or(self.about.as_str(), |(first, _)| first)
    }
}

struct BodyAbout {
    name: String,
    fields: Vec<FieldAbout>,
}

struct FieldAbout {
    name: String,
    kind: String,
    required: bool,
    about: String,
}

async fn show(visit: Visit) -> PageResult {
    let api: Value = visit.get("/openapi.json").await?;
    let frame = Frame::new(&visit, "API", Section::Reference).await?;
    let version = at(at(&api, "info"), "version")
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let url = visit.site().backend().about().url.clone();
    visit.page(&ReferencePage {
        frame,
        version,
        groups: groups(&api),
        commands: vec![format!("curl {url}/openapi.json")],
    })
}

fn groups(api: &Value) -> Vec<(String, Vec<Operation>)> {
    let mut groups: BTreeMap<String, Vec<Operation>> = BTreeMap::new();
    let paths = at(api, "paths").as_object().into_iter().flatten();
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().into_iter().flatten() {
            let tag = first(at(operation, "tags"))
                .as_str()
                .unwrap_or("other")
                .to_owned();
            groups
                .entry(tag)
                .or_default()
                .push(read(api, path, method, operation));
        }
    }
    groups.into_iter().collect()
}

/// A field of an object, or null.
fn at<'a>(value: &'a Value, name: &str) -> &'a Value {
    value.get(name).unwrap_or(&Value::Null)
}

/// The first element of a list, or null.
fn first(value: &Value) -> &Value {
    value.get(0).unwrap_or(&Value::Null)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn read(api: &Value, path: &str, method: &str, operation: &Value) -> Operation {
    let params = at(operation, "parameters").as_array().into_iter().flatten();
    let params = params.map(|param| FieldAbout {
        name: format!("{} ({})", text(at(param, "name")), text(at(param, "in"))),
        kind: kind(at(param, "schema")),
        required: at(param, "required") == true,
        about: [
            at(at(param, "schema"), "description"),
            at(param, "description"),
        ]
        .into_iter()
        .map(text)
        .find(|about| !about.is_empty())
        .unwrap_or_default(),
    });
    let schema = at(
        at(
            at(at(operation, "requestBody"), "content"),
            "application/json",
        ),
        "schema",
    );
    let responses = at(operation, "responses").as_object().into_iter().flatten();
    let responses =
        responses.map(|(status, response)| (status.clone(), text(at(response, "description"))));
    Operation {
        id: text(at(operation, "operationId")),
        method: method.to_uppercase(),
        path: path.to_owned(),
        about: [at(operation, "description"), at(operation, "summary")]
            .into_iter()
            .map(text)
            .find(|about| !about.is_empty())
            .unwrap_or_default(),
        params: params.collect(),
        body: (!schema.is_null()).then(|| body(api, schema)),
        responses: responses
            .filter(|(status, _)| status.starts_with('2'))
            .collect(),
    }
}

/// The name of a schema that a reference leads to, and the schema.
fn resolved<'a>(api: &'a Value, schema: &'a Value) -> (String, &'a Value) {
    let name = at(schema, "$ref")
        .as_str()
        .and_then(|link| link.rsplit('/').next());
    match name {
        Some(name) => (
            name.to_owned(),
            at(at(at(api, "components"), "schemas"), name),
        ),
        None => (String::new(), schema),
    }
}

fn body(api: &Value, schema: &Value) -> BodyAbout {
    let (name, schema) = resolved(api, schema);
    let required: Vec<&str> = at(schema, "required")
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let fields = at(schema, "properties").as_object().into_iter().flatten();
    let fields = fields.map(|(field, schema)| FieldAbout {
        name: field.clone(),
        kind: kind(schema),
        required: required.contains(&field.as_str()),
        about: text(at(schema, "description")),
    });
    BodyAbout {
        name,
        fields: fields.collect(),
    }
}

/// The type of a value in a few words.
fn kind(schema: &Value) -> String {
    if let Some(link) = at(schema, "$ref").as_str() {
        return link.rsplit('/').next().unwrap_or_default().to_owned();
    }
    let of_list = |schemas: &Value| {
        let kinds: Vec<String> = schemas
            .as_array()
            .into_iter()
            .flatten()
            .map(kind)
            .filter(|kind| kind != "null")
            .collect();
        kinds.join(" or ")
    };
    let word = match at(schema, "type") {
        Value::String(word) => word.clone(),
        Value::Array(words) => {
            let words: Vec<&str> = words
                .iter()
                .filter_map(Value::as_str)
                .filter(|word| *word != "null")
                .collect();
            words.join(" or ")
        }
        _ if at(schema, "anyOf").is_array() => of_list(at(schema, "anyOf")),
        _ if at(schema, "oneOf").is_array() => of_list(at(schema, "oneOf")),
        _ if at(schema, "enum").is_array() => "word".to_owned(),
        _ => String::new(),
    };
    if word == "array" {
        format!("list of {}", kind(at(schema, "items")))
    } else {
        word
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn types_are_named_in_a_few_words() {
        assert_eq!(kind(&json!({"type": ["string", "null"]})), "string");
        assert_eq!(
            kind(&json!({"type": "array", "items": {"$ref": "#/components/schemas/Job"}})),
            "list of Job"
        );
        assert_eq!(
            kind(&json!({"anyOf": [{"type": "number"}, {"enum": ["off"]}]})),
            "number or word"
        );
        assert_eq!(kind(&json!({})), "");
    }
}
