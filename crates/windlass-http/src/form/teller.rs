//! Logs what happens to jobs of the form, in the words that its users look for.

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

/// Failures that wait for their line.
const WAITING_MAX: usize = 4096;

/// Missing lines are reported at most once in this time.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Logs failures of jobs of the form. Only failures of HTTP jobs wait for it, so other events, however many, cost no line.
#[derive(Debug)]
pub struct Teller {
    failures: mpsc::Receiver<Arc<Event>>,
    filter: Arc<Filter>,
}

/// Picks the events that may need a line.
#[derive(Debug)]
struct Filter {
    failures: mpsc::Sender<Arc<Event>>,
    missed: AtomicU64,
}

impl Observer for Filter {
    fn event(&self, event: &Arc<Event>) {
        if needs_line(event) && self.failures.try_send(Arc::clone(event)).is_err() {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Teller {
    /// Listens to an engine from now on.
    pub fn listen(engine: &Engine) -> Self {
        let (sender, failures) = mpsc::channel(WAITING_MAX);
        let filter = Arc::new(Filter {
            failures: sender,
            missed: AtomicU64::new(0),
        });
        engine.observe(&filter);
        Teller { failures, filter }
    }

    /// Logs until it is told to stop.
    pub async fn run(mut self, engine: &Engine, stop: CancellationToken) {
        let mut reported_at = Timestamp::MIN;
        loop {
            let event = tokio::select! {
                Some(event) = self.failures.recv() => event,
                () = stop.cancelled() => return,
            };
            match line_of(engine, &event).await {
                Ok(Some(line)) => info!("{line}"),
                Ok(None) => {}
                Err(error) => warn!(%error, "cannot log a failed job of the scheduler form"),
            }
            let now = engine.now();
            if now.since(reported_at) >= REPORT_EVERY {
                let missed = self.filter.missed.swap(0, Ordering::Relaxed);
                if missed > 0 {
                    reported_at = now;
                    warn!(
                        missed,
                        "failures of HTTP jobs without a line of the scheduler form"
                    );
                }
            }
        }
    }
}

/// Whether an event may be about a job of the form that failed.
fn needs_line(event: &Event) -> bool {
    matches!(event, Event::Job { job, what: JobEvent::Retried { .. } | JobEvent::Dead { .. }, .. } if is_http(&job.kind))
}

/// The line of an event, if it is about a job of the form that failed. The form's users know the job by the id of its schedule.
pub async fn line_of(engine: &Engine, event: &Event) -> Result<Option<String>, StoreError> {
    let Event::Job { job, what, .. } = event else {
        return Ok(None);
    };
    if !needs_line(event) {
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
