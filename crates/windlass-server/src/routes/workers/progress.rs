//! Workers tell how far they are.

use std::time::Duration;

use serde_json::json;
use windlass_api::read_progress;
use windlass_engine::PROGRESS;
use windlass_store::{Expected, Written};

use super::lease::{Claimed, Lost, speaker};
use crate::answer::Answer;
use crate::call::Call;
use crate::problem::Problem;

/// What is told of progress is at most so large.
const PROGRESS_BYTES_MAX: usize = 16 * 1024;
/// A job tells of its progress no more often than this.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// `POST /api/v1/progress`.
pub(super) async fn progress(call: Call) -> Result<Answer, Problem> {
    let (of, worker, value) = call.read(|parts| read_progress(&parts))?;
    let app = &call.app;
    let size = value.to_string().len();
    if size > PROGRESS_BYTES_MAX {
        let detail = format!("`progress` must be at most {PROGRESS_BYTES_MAX} bytes, got {size}");
        return Err(Problem::too_large("progress_too_large", detail));
    }
    let worker = speaker(&call, worker.as_ref())?;
    let job = app.client.get(of.id).await?;
    let job = match (Claimed::by(&worker, of, job.as_ref()), job) {
        (Claimed::Running, Some(job)) => job,
        (Claimed::Not(reason), _) => return Err(lost(reason)),
        _ => return Err(lost(Lost::Over)),
    };
    if !app.claims.may_tell(job.id, PROGRESS_EVERY, call.now) {
        let status = axum::http::StatusCode::TOO_MANY_REQUESTS;
        let detail = "a job tells of its progress at most ten times a second";
        return Err(
            Problem::new(status, "too_many_requests", detail).retry_after(Duration::from_secs(1))
        );
    }
    let name = job.id.to_string();
    let told = json!({"attempt": job.attempt, "progress": value});
    for _ in 0..10 {
        let before = app.store().document(PROGRESS, &name, call.now).await?;
        let newest = before
            .as_ref()
            .and_then(|one| one.value.get("attempt")?.as_u64());
        if newest.is_some_and(|attempt| attempt > u64::from(job.attempt)) {
            return Err(lost(Lost::Over));
        }
        let expected = before.map_or(Expected::Absent, |one| Expected::Version(one.version));
        let written = app
            .store()
            .put_document(PROGRESS, &name, &told, expected, None, call.now);
        if let Written::Version(_) = written.await? {
            return Ok(Answer::empty());
        }
    }
    let detail = "others report the progress of this job at the same time";
    Err(Problem::conflict("progress_busy", detail).retry_after(Duration::from_secs(1)))
}

fn lost(reason: Lost) -> Problem {
    let detail = match reason {
        Lost::Unknown => "there is no such attempt",
        Lost::Over => "the attempt is over",
        Lost::OtherWorker => "the attempt was claimed under another worker's name",
    };
    Problem::conflict("lease_lost", detail).hint("stop: nothing it does is counted any more")
}
