//! Keys: made, listed and revoked. The secret part of a key is in one answer and nowhere else.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use windlass_api::ListPage;
use windlass_api::schema::Schema;
use windlass_core::fields::{Fields, RawFields, refuse_both};
use windlass_core::{Invalid, Timestamp};

use super::Route;
use crate::access::{KeyError, KeyInfo, Keys, NewKey, Scope, Scopes};
use crate::answer::Answer;
use crate::call::Call;
use crate::problem::Problem;

const TAG: &str = "keys";

pub(super) fn routes() -> Vec<Route> {
    let key = || Schema::named("Key");
    vec![
        Route::new(Method::POST, "/api/v1/keys", Scope::Admin, create)
            .says(TAG, "Makes a key. It is shown in this answer only.")
            .takes("NewKey")
            .answers(201, "The key.", Schema::named("NewKeyAnswer")),
        Route::new(Method::GET, "/api/v1/keys", Scope::Admin, list)
            .says(TAG, "Lists keys, revoked ones too, without their secrets.")
            .answers(
                200,
                "All keys, the oldest first.",
                Schema::page(key(), vec![]),
            ),
        Route::new(Method::DELETE, "/api/v1/keys/{id}", Scope::Admin, revoke)
            .says(
                TAG,
                "Revokes a key for good. It is refused everywhere within a second.",
            )
            .answers(200, "The key.", key()),
    ]
}

async fn create(call: Call) -> Result<Answer, Problem> {
    let new = call.read(|parts| read_new(&parts, call.now))?;
    let (key, info) = keys(&call)?.create(new, call.now).await?;
    let detail =
        json!({"name": info.name, "scopes": info.scopes.names(), "expires_at": info.expires_at});
    call.audit("key.create", &info.id, detail).await;
    let mut answer = view(&info);
    if let Value::Object(fields) = &mut answer {
        fields.insert("key".to_owned(), key.reveal().into());
    }
    Answer::json(StatusCode::CREATED, &answer)
}

fn read_new(parts: &RawFields, now: Timestamp) -> Result<NewKey, Invalid> {
    let map = parts.values()?;
    let mut fields = Fields::of(&map);
    let name = fields.text("name")?.map(str::to_owned);
    let name = name.ok_or_else(|| Invalid::new("name", "is required"))?;
    let scopes = fields.list("scopes")?;
    let scopes = scopes.ok_or_else(|| Invalid::new("scopes", "is required"))?;
    let scopes = scopes
        .iter()
        .map(|scope| scope.as_str().unwrap_or_default());
    let scopes = Scopes::from_names(&scopes.collect::<Vec<_>>())?;
    let expires_in = fields.duration("expires_in")?;
    let expires_at = fields.timestamp("expires_at")?;
    refuse_both(
        expires_in.is_some() && expires_at.is_some(),
        "expires_in",
        "expires_at",
    )?;
    fields.finish()?;
    let new = NewKey {
        name,
        scopes,
        expires_at: expires_at.or_else(|| expires_in.map(|span| now.saturating_add(span))),
    };
    new.check(now)?;
    Ok(new)
}

async fn list(call: Call) -> Result<Answer, Problem> {
    let listed = keys(&call)?.list().await?;
    let views: Vec<Value> = listed.iter().map(view).collect();
    Answer::ok(&ListPage::whole(views))
}

async fn revoke(call: Call) -> Result<Answer, Problem> {
    let info = keys(&call)?.revoke(call.param("id"), call.now).await?;
    call.audit("key.revoke", &info.id, json!({"name": info.name}))
        .await;
    Answer::ok(&view(&info))
}

/// A program that mounts the router and lets everybody in has no keys.
fn keys(call: &Call) -> Result<&Keys, Problem> {
    let keys = call.app.access.keys();
    keys.ok_or_else(|| Problem::not_found("keys here: this server checks none"))
}

fn view(key: &KeyInfo) -> Value {
    json!({
        "id": key.id, "name": key.name, "scopes": key.scopes.names(), "created_at": key.created_at,
        "expires_at": key.expires_at, "revoked_at": key.revoked_at, "last_used_at": key.last_used_at,
        "unreadable": key.unreadable,
    })
}

impl From<KeyError> for Problem {
    fn from(error: KeyError) -> Self {
        match error {
            KeyError::Invalid(invalid) => invalid.into(),
            KeyError::NotFound(id) => Problem::not_found(format!("key {id}")),
            KeyError::Store(error) => error.into(),
            error @ (KeyError::Random(_) | KeyError::Taken) => Problem::internal(&error),
        }
    }
}
