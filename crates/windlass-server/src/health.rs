//! Whether the server lives, and whether it can do its work.

use std::time::Duration;

use axum::http::StatusCode;
use windlass_api::ServerStatus;
use windlass_core::Timestamp;
use windlass_engine::{Health, PATIENCE_DEFAULT};

use crate::call::Call;
use crate::endpoint::Reply;
use crate::problem::Problem;

/// A store that does not answer for so long is taken for away.
const STORE_PATIENCE: Duration = Duration::from_secs(2);

/// `GET /livez`.
pub(crate) async fn live(_: Call) -> Result<Reply<ServerStatus>, Problem> {
    Ok(Reply::ok(ServerStatus::from(Vec::new())))
}

/// `GET /readyz`: whether the store answers and accepts writes, and no loop hangs. Anyone may ask,
/// so the problems are listed in our own words, without the driver's.
pub(crate) async fn ready(call: Call) -> Result<Reply<ServerStatus>, Problem> {
    let loops = call.app.engine().health();
    let writes = call.app.engine().writes();
    // Without a heartbeat in this process, no write would ever find out that the store is well
    // again.
    let refused = writes.problem().filter(|_| !loops.is_empty());
    let stopped = || writes.stop_error().map(|error| error.to_string());
    let mut problems: Vec<String> = refused.or_else(stopped).into_iter().collect();
    match tokio::time::timeout(STORE_PATIENCE, call.app.store().queues()).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) if problems.is_empty() => problems.push(error.to_string()),
        Ok(Err(_)) => {}
        Err(_) => problems.push("the store does not answer".to_owned()),
    }
    problems.extend(
        loops
            .iter()
            .filter(|one| hangs(one, call.now))
            .map(|one| format!("the loop {} hangs", one.name)),
    );
    let status = match problems.is_empty() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    Ok(Reply::ok(ServerStatus::from(problems)).status(status))
}

fn hangs(health: &Health, now: Timestamp) -> bool {
    health
        .busy_since
        .is_some_and(|since| now.since(since) >= PATIENCE_DEFAULT)
}
