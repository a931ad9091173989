//! Logs the failures of jobs of the form, in the fixed wording of `lines`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tracing::{info, warn};
use windlass_core::{Job, JobId, Timestamp};
use windlass_engine::{CancellationToken, Engine, Event, JobEvent, Observer};
use windlass_store::{ScheduleRef, StoreError};

use super::{FORM_META, gave_up_line, retry_line};
use crate::job::is_http;

/// The most failures that wait to be logged.
const PENDING_MAX: usize = 4096;

/// The shortest time between two warnings about missed failures.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Logs the failures of jobs of the form.
///
/// It queues only failures of HTTP jobs, so a flood of other events does not make it miss one.
#[derive(Debug)]
pub struct FormFailureLog {
    failures: mpsc::Receiver<Arc<Event>>,
    filter: Arc<FailureFilter>,
}

/// Queues the events that may be failures of jobs of the form.
#[derive(Debug)]
struct FailureFilter {
    failures: mpsc::Sender<Arc<Event>>,
    missed: AtomicU64,
}

impl Observer for FailureFilter {
    fn event(&self, event: &Arc<Event>) {
        if is_http_failure(event) && self.failures.try_send(Arc::clone(event)).is_err() {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl FormFailureLog {
    /// Starts to collect failures of an engine.
    pub fn listen(engine: &Engine) -> Self {
        let (sender, failures) = mpsc::channel(PENDING_MAX);
        let filter = Arc::new(FailureFilter {
            failures: sender,
            missed: AtomicU64::new(0),
        });
        engine.observe(&filter);
        FormFailureLog { failures, filter }
    }

    /// Logs failures until `stop` is cancelled.
    pub async fn run(mut self, engine: &Engine, stop: CancellationToken) {
        let mut warned_at = Timestamp::MIN;
        loop {
            let event = tokio::select! {
                Some(event) = self.failures.recv() => event,
                () = stop.cancelled() => return,
            };
            match failure_line(engine, &event).await {
                Ok(Some(line)) => info!("{line}"),
                Ok(None) => {}
                Err(error) => warn!(%error, "could not log a failed job of the scheduler form"),
            }
            let now = engine.now();
            if now.since(warned_at) >= WARN_EVERY {
                let missed = self.filter.missed.swap(0, Ordering::Relaxed);
                if missed > 0 {
                    warned_at = now;
                    warn!(
                        missed,
                        "too many failures at once; some jobs of the scheduler form were not logged"
                    );
                }
            }
        }
    }
}

/// Whether an event is the failure of an HTTP job, and so perhaps of a job of the form.
fn is_http_failure(event: &Event) -> bool {
    matches!(event, Event::Job { job, what: JobEvent::Retried { .. } | JobEvent::Dead { .. }, .. } if is_http(&job.kind))
}

/// Returns the log line of an event, if it is the failure of a job of the form.
///
/// The line names the id of the schedule, because that is the id that users of the form know.
///
/// # Errors
///
/// [`StoreError`] if the job or its schedule cannot be read.
pub async fn failure_line(engine: &Engine, event: &Event) -> Result<Option<String>, StoreError> {
    let Event::Job { job, what, .. } = event else {
        return Ok(None);
    };
    if !is_http_failure(event) {
        return Ok(None);
    }
    let Some(job) = job_of_form(engine, job.id).await? else {
        return Ok(None);
    };
    let id = job
        .occurrence
        .map(|occurrence| occurrence.schedule_id.to_string());
    let id = id.unwrap_or_else(|| job.id.to_string());
    Ok(match what {
        JobEvent::Retried {
            run_at,
            delay,
            failures,
        } => {
            let retries_max = job.max_attempts.map_or(*failures, |limit| limit.get() - 1);
            Some(retry_line(id, *failures, retries_max, *delay, *run_at))
        }
        JobEvent::Dead { failures, .. } => {
            let next = match job.occurrence {
                None => None,
                Some(occurrence) => {
                    let reference = ScheduleRef::Id(occurrence.schedule_id);
                    let schedule = engine.store().schedule(&reference).await?;
                    schedule.and_then(|schedule| schedule.next_at)
                }
            };
            Some(gave_up_line(id, failures.saturating_sub(1), next))
        }
        _ => None,
    })
}

async fn job_of_form(engine: &Engine, id: JobId) -> Result<Option<Job>, StoreError> {
    let job = engine
        .store()
        .get(&[id])
        .await?
        .into_iter()
        .flatten()
        .next();
    Ok(job.filter(|job| job.meta.contains_key(FORM_META)))
}
