//! The figures of the recorder, for Prometheus.

use axum::http::StatusCode;

use crate::answer::Answer;
use crate::call::Call;
use crate::problem::Problem;

/// `GET /metrics`.
pub(crate) async fn metrics(call: Call) -> Result<Answer, Problem> {
    let Some(recorder) = &call.app.metrics else {
        let detail = "this program keeps no metrics";
        return Err(Problem::new(StatusCode::NOT_FOUND, "no_metrics", detail)
            .hint("open the client with a recorder, and give it to the app"));
    };
    // Counts are taken now and then; a reader of metrics wants those of this moment.
    let counts = call.app.store().counts(call.now).await?;
    windlass_engine::Recorder::counts(&**recorder, &counts, call.now);
    if let Some(log) = &call.app.log {
        recorder.log_lines_dropped(log.dropped());
    }
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(Answer::other(kind, recorder.text()))
}
