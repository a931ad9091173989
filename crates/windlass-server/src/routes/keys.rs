//! API keys. Only the response that creates a key contains its secret part.

use serde_json::json;
use windlass_api::{CreatedKey, Key, NewKey, Page};
use windlass_core::Invalid;

use super::Route;
use crate::access::{KeyError, Keys, Scope};
use crate::call::Call;
use crate::endpoint::{JsonBody, Reply};
use crate::idempotency::IDEMPOTENCY_KEY;
use crate::problem::Problem;

const TAG: &str = "keys";

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/api/v1/keys", Scope::Admin, create)
            .summary(
                TAG,
                "Creates an API key. Only this response contains the key.",
            )
            .status(201, "The key."),
        Route::get("/api/v1/keys", Scope::Admin, list)
            .summary(
                TAG,
                "Lists API keys without their secret part, revoked keys included.",
            )
            .status(200, "All keys, oldest first."),
        Route::delete("/api/v1/keys/{id}", Scope::Admin, revoke)
            .summary(
                TAG,
                "Revokes an API key permanently. All servers refuse it within a second.",
            )
            .status(200, "The key."),
    ]
}

async fn create(call: Call, JsonBody(new): JsonBody<NewKey>) -> Result<Reply<CreatedKey>, Problem> {
    if call.headers.contains_key(IDEMPOTENCY_KEY) {
        // A repeated response would need the secret part of the key, which the server does not store.
        let rule = "must not be given: the server cannot show a key twice; if a response is lost, list the keys, revoke the new one and create another";
        return Err(Invalid::new(IDEMPOTENCY_KEY.as_str(), rule).into());
    }
    let (key, info) = keys(&call)?.create(new, call.now).await?;
    let about = Key::from(&info);
    let detail =
        json!({"name": about.name, "scopes": about.scopes, "expires_at": about.expires_at});
    call.audit("key.create", &info.id, detail).await;
    let key = key.reveal();
    Ok(Reply::created(CreatedKey { key, about }))
}

async fn list(call: Call) -> Result<Reply<Page<Key>>, Problem> {
    let listed = keys(&call)?.list().await?;
    Ok(Reply::ok(Page::single(
        listed.iter().map(Key::from).collect(),
    )))
}

async fn revoke(call: Call) -> Result<Reply<Key>, Problem> {
    let info = keys(&call)?.revoke(call.param("id"), call.now).await?;
    call.audit("key.revoke", &info.id, json!({"name": info.name}))
        .await;
    Ok(Reply::ok(Key::from(&info)))
}

/// Returns the keys. A program that mounts the router without access checks has none.
fn keys(call: &Call) -> Result<&Keys, Problem> {
    let keys = call.app.access.keys();
    keys.ok_or_else(|| Problem::not_found("key store: this server does not check keys"))
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
