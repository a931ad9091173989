//! Single-use login links for the dashboard.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::json;
use windlass_api::LoginLink;

use super::Route;
use crate::access::{LOGIN_LINK_SCOPE, LoginLinkError, LoginLinks};
use crate::call::Call;
use crate::endpoint::Reply;
use crate::problem::Problem;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/api/v1/login-links", LOGIN_LINK_SCOPE, create)
            .summary(
                "keys",
                "Creates a single-use login link, valid for 60 s, with the scopes of the caller.",
            )
            .status(201, "The link. Only this response contains it."),
    ]
}

async fn create(call: Call) -> Result<Reply<LoginLink>, Problem> {
    let links = LoginLinks::new(call.app.engine().clone());
    let new = links.create(&call.caller, call.now).await?;
    let detail = json!({"expires_at": new.expires_at});
    call.audit("login_link.create", &call.caller.id, detail)
        .await;
    Ok(Reply::created(LoginLink {
        path: format!("{}/login?link={}", call.prefix, new.link),
        expires_at: new.expires_at,
    }))
}

impl From<LoginLinkError> for Problem {
    fn from(error: LoginLinkError) -> Self {
        match error {
            LoginLinkError::TooMany => {
                let (status, detail) = (StatusCode::TOO_MANY_REQUESTS, error.to_string());
                Problem::new(status, "too_many_login_links", detail)
                    .retry_after(Duration::from_secs(60))
            }
            LoginLinkError::Store(error) => error.into(),
            LoginLinkError::Random(_) => Problem::internal(&error),
        }
    }
}
