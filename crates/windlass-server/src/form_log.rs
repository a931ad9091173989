//! Log lines about jobs of the scheduler form, in the words that its users look for.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use windlass_core::{Job, JobId};
use windlass_engine::{Engine, Event, Heard, JobEvent};
use windlass_http::form::{FORM_META, gave_up_line, retry_line};
use windlass_store::{ScheduleRef, StoreError};

/// Tells until it is told to stop.
pub(crate) async fn run(engine: Arc<Engine>, stop: CancellationToken) {
    let mut events = engine.subscribe();
    loop {
        let heard = tokio::select! {
            () = stop.cancelled() => return,
            heard = events.next() => heard,
        };
        match heard {
            None => return,
            Some(Heard::Missed(missed)) => info!(
                missed,
                "lines about forms were left out: too much happened at once"
            ),
            Some(Heard::Event(event)) => match line(&engine, &event).await {
                Ok(Some(line)) => warn!("{line}"),
                Ok(None) => {}
                Err(error) => info!(%error, "a line about a form was left out"),
            },
        }
    }
}

/// The line of an event, if it is about a form.
async fn line(engine: &Engine, event: &Event) -> Result<Option<String>, StoreError> {
    let Event::Job { job, what, .. } = event else {
        return Ok(None);
    };
    if !job.kind.is_http() || !matches!(what, JobEvent::Retried { .. } | JobEvent::Dead { .. }) {
        return Ok(None);
    }
    let Some(job) = form_job(engine, job.id).await? else {
        return Ok(None);
    };
    let Some(of) = job.occurrence else {
        return Ok(None);
    };
    let id = of.schedule_id;
    Ok(match what {
        JobEvent::Retried {
            run_at,
            delay,
            failures,
        } => {
            let most = job
                .meta
                .get(FORM_META)
                .and_then(|form| form.get("maxRetryCount"));
            let most = most.and_then(serde_json::Value::as_u64).unwrap_or_default();
            let most = u32::try_from(most).unwrap_or(u32::MAX);
            Some(retry_line(id, *failures, most, *delay, *run_at))
        }
        JobEvent::Dead { failures, .. } => {
            let schedule = engine.store().schedule(&ScheduleRef::Id(id)).await?;
            let next = schedule.and_then(|schedule| schedule.next_at);
            Some(gave_up_line(id, failures.saturating_sub(1), next))
        }
        _ => None,
    })
}

async fn form_job(engine: &Engine, id: JobId) -> Result<Option<Job>, StoreError> {
    let found = engine.store().get(&[id]).await?;
    let job = found.into_iter().flatten().next();
    Ok(job.filter(|job| job.meta.contains_key(FORM_META)))
}
