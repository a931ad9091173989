//! Settles ended attempts, for workers in this process and for remote ones.
//!
//! Invariant: only [`Engine::settle`] writes the history of reported attempts, and it emits the
//! events of each of them once.

use std::time::Duration;

use serde_json::{Map, Value, json};
use windlass_core::{AttemptLog, Job, Report};
use windlass_store::{AttemptId, AttemptReport, Settled, StoreError};

use crate::engine::Engine;

/// An ended attempt that is ready to be settled.
#[derive(Debug)]
pub(crate) struct AttemptEnd<'a> {
    pub(crate) attempt_id: AttemptId,
    pub(crate) job: &'a Job,
    pub(crate) report: Report,
    pub(crate) random: u64,
    pub(crate) detail: AttemptDetail,
    /// How long the attempt ran.
    pub(crate) ran: Duration,
}

/// What the history stores about an attempt besides its outcome.
#[derive(Debug, Default)]
pub(crate) struct AttemptDetail {
    pub(crate) log: AttemptLog,
    pub(crate) progress: Option<Value>,
    /// The values that the handler stored, by name.
    pub(crate) kept: Map<String, Value>,
}

impl AttemptDetail {
    fn into_json(self) -> Option<Value> {
        let mut detail = self.kept;
        if !self.log.is_empty() || self.progress.is_some() {
            detail.extend(self.log.to_json());
            detail.insert("progress".to_owned(), json!(self.progress));
        }
        (!detail.is_empty()).then_some(Value::Object(detail))
    }
}

impl Engine {
    /// Settles attempts in one step and emits an event for each attempt that this step ended.
    /// Returns the answers in the order of `ends`.
    pub(crate) async fn settle(
        &self,
        ends: Vec<AttemptEnd<'_>>,
    ) -> Result<Vec<Settled>, StoreError> {
        if ends.is_empty() {
            return Ok(Vec::new());
        }
        let split = ends.into_iter().map(|end| {
            let report = AttemptReport {
                attempt_id: end.attempt_id,
                report: end.report,
                random: end.random,
                detail: end.detail.into_json(),
            };
            (report, (end.job, end.attempt_id.attempt, end.ran))
        });
        let (reports, ended): (Vec<_>, Vec<_>) = split.unzip();
        let now = self.now();
        let answers = self.store().settle(reports, now).await?;
        for ((job, attempt, ran), answer) in ended.into_iter().zip(&answers) {
            if let Settled::Done(settlement) = answer {
                self.emit_ended(job, attempt, settlement, ran, now);
            }
        }
        Ok(answers)
    }
}
