//! `openapi.json`, generated from the table of routes.

use std::sync::LazyLock;

use axum::body::Bytes;
use schemars::SchemaGenerator;
use schemars::generate::{Contract, SchemaSettings};
use serde_json::{Map, Value, json};

use crate::answer::Answer;
use crate::call::Call;
use crate::endpoint::RawReply;
use crate::problem::Problem;
use crate::routes::{Needs, Route, table};

/// Returns the OpenAPI description of the REST API.
pub fn openapi() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    let mut shapes = Shapes::new();
    for route in table() {
        let path = paths
            .entry(route.path.to_owned())
            .or_insert_with(|| json!({}));
        if let Some(path) = path.as_object_mut() {
            path.insert(
                route.method.as_str().to_lowercase(),
                operation(&route, &mut shapes),
            );
        }
    }
    let problem = shapes.answers.subschema_for::<windlass_api::Problem>();
    let mut schemas = shapes.answers.take_definitions(true);
    // The schema of a type that is both sent and received is that of the request: its fields are
    // optional.
    schemas.extend(shapes.bodies.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Windlass", "version": env!("CARGO_PKG_VERSION"),
            "description": "A durable job queue and scheduler.",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Problem": {
                    "description": "The request was refused or failed. `code` says why.",
                    "content": {"application/problem+json": {"schema": problem}},
                },
            },
        },
    })
}

/// The schemas of request bodies and responses that were generated so far.
struct Shapes {
    bodies: SchemaGenerator,
    answers: SchemaGenerator,
}

impl Shapes {
    fn new() -> Self {
        let generator = |contract| {
            let mut settings = SchemaSettings::draft2020_12();
            settings.definitions_path = "/components/schemas".into();
            settings.contract = contract;
            SchemaGenerator::new(settings)
        };
        Shapes {
            bodies: generator(Contract::Deserialize),
            answers: generator(Contract::Serialize),
        }
    }
}

fn operation(route: &Route, shapes: &mut Shapes) -> Value {
    let mut operation = json!({
        "operationId": operation_id(route),
        "tags": [route.tag],
        "summary": route.summary,
        "parameters": parameters(route),
        "responses": responses(route, shapes),
        "security": [],
    });
    let Some(map) = operation.as_object_mut() else {
        return operation;
    };
    if let Needs::Scope(scope) = route.needs {
        let summary = format!("{} Needs the scope `{scope}`.", route.summary);
        map.insert("description".to_owned(), summary.into());
        map.insert("security".to_owned(), json!([{"key": []}]));
    }
    if let Some((_, schema)) = &route.signature.body {
        let body = json!({
            "required": route.body_required,
            "content": {"application/json": {"schema": schema(&mut shapes.bodies)}},
        });
        map.insert("requestBody".to_owned(), body);
    }
    operation
}

/// The method and the words of the path, such as `get_jobs_id_history`.
fn operation_id(route: &Route) -> String {
    let path = route.path.trim_start_matches("/api/v1");
    let words = path
        .split(['/', '{', '}', '-', '.'])
        .filter(|word| !word.is_empty());
    let mut id = route.method.as_str().to_lowercase();
    for word in words {
        id.push('_');
        id.push_str(word);
    }
    id
}

fn parameters(route: &Route) -> Vec<Value> {
    let names = route
        .path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let in_path = names.map(|name| {
        let schema = match name {
            "id" => json!({"type": "string", "format": "uuid"}),
            _ => json!({"type": "string"}),
        };
        json!({"name": name, "in": "path", "required": true, "schema": schema})
    });
    let mut all: Vec<Value> = in_path.collect();
    all.extend(route.signature.query.iter().map(|param| {
        json!({
            "name": param.name, "in": "query", "required": param.required, "schema": param.schema,
        })
    }));
    let header = |name: &str, schema: &Value| json!({"name": name, "in": "header", "required": false, "schema": schema});
    let headers = route.headers.iter();
    all.extend(headers.map(|(name, schema)| header(name, schema)));
    if route.idempotent {
        let about = "Repeating the request with the same key within 24 h returns the first response and creates nothing.";
        let key = json!({
            "type": "string", "minLength": 1, "maxLength": 255, "description": about,
        });
        all.push(header("Idempotency-Key", &key));
    }
    all
}

fn responses(route: &Route, shapes: &mut Shapes) -> Value {
    let mut responses = Map::new();
    let returned = route.signature.returns;
    let returned = returned.map(|schema| schema(&mut shapes.answers).to_value());
    for (status, about) in &route.statuses {
        let mut response = json!({"description": about});
        if let (Some(schema), Some(response)) = (&returned, response.as_object_mut()) {
            let mut content = json!({route.content_type: {"schema": schema}});
            if let (Some(text), Some(content)) = (route.text_type, content.as_object_mut()) {
                content.insert(text.to_owned(), json!({"schema": {"type": "string"}}));
            }
            response.insert("content".to_owned(), content);
        }
        responses.insert(status.to_string(), response);
    }
    let problem = json!({"$ref": "#/components/responses/Problem"});
    responses.insert("4XX".to_owned(), problem.clone());
    responses.insert("5XX".to_owned(), problem);
    Value::Object(responses)
}

/// `GET /openapi.json`. The document is generated once.
pub(crate) async fn describe(_: Call) -> Result<RawReply<Map<String, Value>>, Problem> {
    static WRITTEN: LazyLock<Bytes> = LazyLock::new(|| openapi().to_string().into());
    Ok(Answer::other("application/json", WRITTEN.clone()).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_route_is_described_once() {
        let api = openapi();
        let mut ids = BTreeSet::new();
        for route in table() {
            let method = route.method.as_str().to_lowercase();
            let operation = &api["paths"][route.path][&method];
            assert!(
                !operation["summary"].as_str().unwrap().is_empty(),
                "{route:?}"
            );
            assert!(
                ids.insert(operation["operationId"].as_str().unwrap().to_owned()),
                "{route:?}"
            );
            assert!(!route.statuses.is_empty(), "{route:?}");
        }
    }
}
