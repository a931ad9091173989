//! Whether the server lives, and whether it can do its work.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::json;
use windlass_core::Timestamp;
use windlass_engine::{Health, PATIENCE_DEFAULT};

use crate::answer::Answer;
use crate::call::Call;
use crate::problem::Problem;

/// A store that does not answer for so long is taken for away.
const STORE_PATIENCE: Duration = Duration::from_secs(2);

/// `GET /livez`.
pub(crate) async fn live(_: Call) -> Result<Answer, Problem> {
    Answer::ok(&json!({"status": "ok"}))
}

/// `GET /readyz`. What is wrong with the store is told in words of ours: this is for everybody.
pub(crate) async fn ready(call: Call) -> Result<Answer, Problem> {
    let mut problems = Vec::new();
    match tokio::time::timeout(STORE_PATIENCE, call.app.store().queues()).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => problems.push(error.to_string()),
        Err(_) => problems.push("the store does not answer".to_owned()),
    }
    let hang = call.app.engine().health();
    problems.extend(
        hang.iter()
            .filter(|one| hangs(one, call.now))
            .map(|one| format!("the loop {} hangs", one.name)),
    );
    if problems.is_empty() {
        return Answer::ok(&json!({"status": "ok"}));
    }
    let told = json!({"status": "not_ready", "problems": problems});
    Answer::json(StatusCode::SERVICE_UNAVAILABLE, &told)
}

fn hangs(health: &Health, now: Timestamp) -> bool {
    health
        .busy_since
        .is_some_and(|since| now.since(since) >= PATIENCE_DEFAULT)
}
