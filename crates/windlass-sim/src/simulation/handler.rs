//! The handler of all simulated jobs. The payload says what each attempt does.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use windlass_core::{AttemptError, Failure, Report};
use windlass_engine::{Handler, Running, RunningAttempt};

use super::tap::Tap;
use crate::history::{Event, digest_of};

/// The payload of a simulated job.
#[derive(Debug, Clone, Deserialize, serde::Serialize)]
pub(crate) struct Script {
    /// The number of the job.
    pub(crate) n: u32,
    /// What each attempt does, one letter for each; the last letter counts for all further ones.
    pub(crate) acts: String,
    /// How long an attempt works, in milliseconds.
    pub(crate) ms: u64,
}

impl Script {
    /// What an attempt does.
    pub(crate) fn act(&self, attempt: u32) -> Option<u8> {
        let acts = self.acts.as_bytes();
        let number = attempt.saturating_sub(1) as usize;
        acts.get(number).or(acts.last()).copied()
    }
}

/// Longer than a lease.
pub(crate) const SLOW: Duration = Duration::from_secs(5);

/// Runs scripts on one node.
pub(crate) struct ScriptHandler(pub(crate) Arc<Tap>);

/// Records the end of a handler, however it ends.
struct Ending {
    tap: Arc<Tap>,
    attempt: Arc<RunningAttempt>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        if !self.tap.is_dead() {
            let attempt = self.attempt.id();
            self.tap.record(Event::Returned { attempt });
        }
    }
}

impl Handler for ScriptHandler {
    fn run(&self, attempt: Arc<RunningAttempt>) -> Running {
        let tap = Arc::clone(&self.0);
        Box::pin(async move {
            if tap.is_dead() {
                return std::future::pending().await;
            }
            let payload = digest_of(attempt.job().payload.as_str());
            let id = attempt.id();
            tap.record(Event::Started {
                attempt: id,
                payload,
            });
            let _ending = Ending {
                tap: Arc::clone(&tap),
                attempt: Arc::clone(&attempt),
            };
            act(&tap, &attempt).await
        })
    }
}

async fn act(tap: &Tap, attempt: &RunningAttempt) -> Report {
    let failed = |message: &str| Report::Failed(Failure::retryable(AttemptError::new(message)));
    let Ok(script) = attempt.job().payload.decode::<Script>() else {
        return failed("unreadable script");
    };
    let act = script.act(attempt.job().attempt);
    let clock = Arc::clone(attempt.engine().clock());
    let work = Duration::from_millis(script.ms);
    if !work.is_zero() {
        clock.sleep(work).await;
    }
    match act {
        Some(b'f') => return failed("simulated"),
        Some(b'u') => {
            return Report::Failed(Failure::unrecoverable(AttemptError::new("never again")));
        }
        // Without the panic hook, which would print each of them.
        Some(b'p') => std::panic::resume_unwind(Box::new("simulated panic")),
        Some(b'h') => std::future::pending::<()>().await,
        Some(b'w') => clock.sleep(SLOW).await,
        Some(b'c') => {
            attempt.stop().wait().await;
            return failed("asked to stop");
        }
        Some(b'z') => {
            let until = clock.now().saturating_add(Duration::from_millis(700));
            return Report::Snoozed { until };
        }
        _ => {}
    }
    if tap.is_dead() {
        return std::future::pending().await;
    }
    let attempt = attempt.id();
    tap.record(Event::Effect { attempt });
    Report::Succeeded(None)
}
