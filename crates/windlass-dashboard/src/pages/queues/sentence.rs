//! The first sentence of a queue: what holds it back, made by rules from data.

use std::time::Duration;

use windlass_api::{Activity, Queue};

use super::lanes::{Lanes, ratio_of, retry_share};
use crate::show;

/// A queue whose jobs start within this time is not slow.
const FAST: Duration = Duration::from_secs(1);

/// Returns sentences about a queue, the most important first.
pub(super) fn lead(queue: &Queue, recent: Option<&Activity>, lanes: &Lanes) -> Vec<String> {
    let mut sentences = Vec::new();
    let counts = &queue.counts;
    if let Some(pause) = &queue.paused {
        let reason = pause
            .reason
            .as_deref()
            .map(|reason| format!(": “{}”", show::visible(reason)));
        sentences.push(format!(
            "Paused by {}{}. Running jobs continue; no other job starts.",
            show::visible(&pause.by),
            reason.unwrap_or_default()
        ));
        return sentences;
    }
    if queue.settings_unreadable {
        sentences.push("This server cannot read the settings of the queue, because a newer version may have written them. Save the settings again to replace them.".to_owned());
    }
    let wait = recent.and_then(|activity| activity.wait.p95_ms);
    let oldest = queue
        .oldest_ready_ms
        .map(Duration::from_millis)
        .unwrap_or_default();
    let concurrency = queue.settings.concurrency.map(|limit| limit.to::<u64>());
    let is_slow = oldest > FAST || wait.is_some_and(|wait| wait > FAST.as_millis() as f64);
    if let Some(limit) = concurrency.filter(|limit| counts.running >= *limit) {
        sentences.push(format!(
            "All {limit} slots of the queue are in use; {} jobs wait for one.",
            show::count(counts.ready)
        ));
    } else if is_slow && counts.running == 0 && counts.ready > 0 {
        sentences.push(format!(
            "{} jobs are ready and none runs: no worker takes from this queue, or none has a handler for their kinds.",
            show::count(counts.ready)
        ));
    } else if is_slow && counts.ready > 0 {
        sentences.push(format!(
            "{} jobs are ready while {} run; the oldest has been ready for {}.",
            show::count(counts.ready),
            show::count(counts.running),
            show::duration(oldest)
        ));
    }
    if lanes.retries > 0
        && let (Some(share), Some(allowed)) = (recent.and_then(retry_share), ratio_of(queue))
        && share > allowed * 0.8
    {
        sentences.push(format!(
            "Retries take {} of {} running slots and {} of the attempts started; {} are allowed while new jobs wait.",
            lanes.retries,
            lanes.retries + lanes.fresh,
            show::percent(Some(share)),
            show::percent(Some(allowed)),
        ));
    }
    if let Some(wait) = wait {
        sentences.push(format!(
            "95 % of the jobs start within {} once they are due.",
            show::millis(wait)
        ));
    }
    if sentences.is_empty() {
        sentences.push(match counts.ready + counts.running {
            0 => "Nothing waits and nothing runs.".to_owned(),
            _ => "The queue keeps up.".to_owned(),
        });
    }
    sentences
}
