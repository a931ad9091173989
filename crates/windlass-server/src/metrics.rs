//! The metrics endpoint for Prometheus.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use axum::http::header::{ACCEPT, VARY};
use windlass::prometheus::MetricsFormat;
use windlass_engine::is_alive;

use crate::answer::Answer;
use crate::call::Call;
use crate::endpoint::RawReply;
use crate::problem::Problem;

/// `GET /metrics`, in the format that `Accept` asks for.
pub(crate) async fn metrics(call: Call) -> Result<RawReply<String>, Problem> {
    let Some(recorder) = &call.app.metrics else {
        let detail = "this program does not record metrics";
        return Err(Problem::new(StatusCode::NOT_FOUND, "no_metrics", detail)
            .hint("open the client with `Client::open_with_recorder` and pass the recorder to `App::metrics`"));
    };
    // The engine updates job counts only periodically; metrics show the current ones.
    let counts = call.app.store().counts(call.now).await?;
    windlass_engine::Recorder::counts(&**recorder, &counts, call.now);
    call.app.engine().record_slots();
    recorder.workers(&alive_workers(&call).await?);
    if let Some(log) = &call.app.log {
        recorder.log_lines_dropped(log.dropped());
    }
    let format = MetricsFormat::accepted(call.header(&ACCEPT).unwrap_or_default());
    let answer = Answer::other(format.content_type(), recorder.text_in(format));
    Ok(answer.header(VARY, "Accept").into())
}

/// Counts active workers: `rest` for remote workers, `sdk` for Rust programs, `server` for servers.
async fn alive_workers(call: &Call) -> Result<BTreeMap<&'static str, u64>, Problem> {
    let mut alive = BTreeMap::from([("rest", 0), ("sdk", 0), ("server", 0)]);
    let nodes = call.app.store().nodes().await?;
    for node in nodes.iter().filter(|node| is_alive(node, call.now)) {
        let role = node.about.get("role").and_then(serde_json::Value::as_str);
        let kind = match role {
            Some("server") => "server",
            _ => "sdk",
        };
        *alive.entry(kind).or_default() += 1;
    }
    let (roster, now) = (call.app.remote.roster(), call.now);
    let remote = roster.count(|node| is_alive(node, now), now).await?;
    alive.insert("rest", u64::try_from(remote).unwrap_or(u64::MAX));
    Ok(alive)
}
