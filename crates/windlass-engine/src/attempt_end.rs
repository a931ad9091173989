//! The end of an attempt on its way to the store, for workers in this process and for remote ones.
//!
//! Invariant: only this writes the history of attempts that were reported, and it announces each of
//! them once.

use std::time::Duration;

use serde_json::{Map, Value, json};
use windlass_core::{Job, Report, Timestamp};
use windlass_store::{AttemptId, AttemptReport, Settled, StoreError};

use crate::engine::Engine;

/// How an attempt ended.
#[derive(Debug)]
pub(crate) struct AttemptEnd<'a> {
    pub(crate) of: AttemptId,
    pub(crate) job: &'a Job,
    pub(crate) report: Report,
    pub(crate) random: u64,
    pub(crate) detail: AttemptDetail,
    /// How long it ran.
    pub(crate) ran: Duration,
}

/// What is kept in the history of an attempt next to its outcome.
#[derive(Debug, Default)]
pub(crate) struct AttemptDetail {
    pub(crate) lines: Vec<(Timestamp, String)>,
    pub(crate) lines_dropped: usize,
    pub(crate) progress: Option<Value>,
    /// What the handler kept, each under a name of its own.
    pub(crate) kept: Map<String, Value>,
}

impl AttemptDetail {
    fn into_json(self) -> Option<Value> {
        let mut detail = self.kept;
        if !self.lines.is_empty() || self.progress.is_some() {
            let line = |(at, line): &(Timestamp, String)| json!({"at": at, "line": line});
            let lines: Vec<Value> = self.lines.iter().map(line).collect();
            detail.insert("log".to_owned(), lines.into());
            detail.insert("log_lines_dropped".to_owned(), self.lines_dropped.into());
            detail.insert("progress".to_owned(), json!(self.progress));
        }
        (!detail.is_empty()).then_some(Value::Object(detail))
    }
}

impl Engine {
    /// Settles attempts in one step, and announces those that have ended by it. The answers are in
    /// the order of the ends.
    pub(crate) async fn settle(
        &self,
        ends: Vec<AttemptEnd<'_>>,
    ) -> Result<Vec<Settled>, StoreError> {
        if ends.is_empty() {
            return Ok(Vec::new());
        }
        let split = ends.into_iter().map(|end| {
            let report = AttemptReport {
                of: end.of,
                report: end.report,
                random: end.random,
                detail: end.detail.into_json(),
            };
            (report, (end.job, end.of.attempt, end.ran))
        });
        let (reports, ended): (Vec<_>, Vec<_>) = split.unzip();
        let now = self.now();
        let answers = self.store().settle(reports, now).await?;
        for ((job, attempt, ran), answer) in ended.into_iter().zip(&answers) {
            if let Settled::Done(settlement) = answer {
                self.announce_end(job, attempt, settlement, ran, now);
            }
        }
        Ok(answers)
    }
}
