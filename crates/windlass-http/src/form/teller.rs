//! Logs what happens to jobs of the form, in the words that its users look for.

use tracing::{info, warn};
use windlass_core::{Job, JobId};
use windlass_engine::{CancellationToken, Engine, Event, Heard, JobEvent, Subscription};
use windlass_store::{ScheduleRef, StoreError};

use super::{FORM_META, gave_up_line, retry_line};

/// Logs until it is told to stop. A listener that is too slow misses lines, never a job.
pub async fn tell(engine: &Engine, mut heard: Subscription, stop: CancellationToken) {
    loop {
        let next = tokio::select! {
            next = heard.next() => next,
            () = stop.cancelled() => return,
        };
        match next {
            None => return,
            Some(Heard::Missed(missed)) => warn!(missed, "events came too fast to be told"),
            Some(Heard::Event(event)) => match line_of(engine, &event).await {
                Ok(Some(line)) => info!("{line}"),
                Ok(None) => {}
                Err(error) => warn!(%error, "what became of a job could not be told"),
            },
        }
    }
}

/// The line of an event, if it is about a job of the form that failed. The form's users know the job by the id of its schedule.
pub async fn line_of(engine: &Engine, event: &Event) -> Result<Option<String>, StoreError> {
    let Event::Job { job, what, .. } = event else {
        return Ok(None);
    };
    if !job.kind.is_http() || !matches!(what, JobEvent::Retried { .. } | JobEvent::Dead { .. }) {
        return Ok(None);
    }
    let Some(job) = job_of_form(engine, job.id).await? else {
        return Ok(None);
    };
    let id = job.occurrence.map(|of| of.schedule_id.to_string());
    let id = id.unwrap_or_else(|| job.id.to_string());
    Ok(match what {
        JobEvent::Retried {
            run_at,
            delay,
            failures,
        } => {
            let most = job.max_attempts.map_or(*failures, |limit| limit.get() - 1);
            Some(retry_line(id, *failures, most, *delay, *run_at))
        }
        JobEvent::Dead { failures, .. } => {
            let next = match job.occurrence {
                None => None,
                Some(of) => {
                    let which = ScheduleRef::Id(of.schedule_id);
                    let schedule = engine.store().schedule(&which).await?;
                    schedule.and_then(|schedule| schedule.next_at)
                }
            };
            Some(gave_up_line(id, failures.saturating_sub(1), next))
        }
        _ => None,
    })
}

async fn job_of_form(engine: &Engine, id: JobId) -> Result<Option<Job>, StoreError> {
    let found = engine
        .store()
        .get(&[id])
        .await?
        .into_iter()
        .flatten()
        .next();
    Ok(found.filter(|job| job.meta.contains_key(FORM_META)))
}
