//! The health endpoints: liveness and readiness.

use std::time::Duration;

use axum::http::StatusCode;
use windlass_api::ServerStatus;
use windlass_core::Timestamp;
use windlass_engine::{Health, PATIENCE_DEFAULT};

use crate::call::Call;
use crate::endpoint::Reply;
use crate::problem::Problem;

/// The store is not ready if it does not answer within this time.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// `GET /livez`.
pub(crate) async fn live(_: Call) -> Result<Reply<ServerStatus>, Problem> {
    Ok(Reply::ok(ServerStatus::from(Vec::new())))
}

/// `GET /readyz`: whether the store answers and accepts writes, and no loop hangs.
///
/// The route needs no key, so the problems do not include the messages of a driver.
pub(crate) async fn ready(call: Call) -> Result<Reply<ServerStatus>, Problem> {
    let loops = call.app.engine().health();
    let writes = call.app.engine().writes();
    // Only a heartbeat of this process notices that the store has recovered. Without background
    // loops there is none, so ignore the failed write.
    let refused = writes.problem().filter(|_| !loops.is_empty());
    let stopped = || writes.stop_error().map(|error| error.to_string());
    let mut problems: Vec<String> = refused.or_else(stopped).into_iter().collect();
    match tokio::time::timeout(STORE_TIMEOUT, call.app.store().queues()).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) if problems.is_empty() => problems.push(error.to_string()),
        Ok(Err(_)) => {}
        Err(_) => problems.push("the store does not respond".to_owned()),
    }
    problems.extend(
        loops
            .iter()
            .filter(|health| hangs(health, call.now))
            .map(|health| format!("the loop {} hangs", health.name)),
    );
    let status = if problems.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    Ok(Reply::ok(ServerStatus::from(problems)).status(status))
}

fn hangs(health: &Health, now: Timestamp) -> bool {
    health
        .busy_since
        .is_some_and(|since| now.since(since) >= PATIENCE_DEFAULT)
}
