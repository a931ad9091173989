//! Settles attempts that remote workers report.

use tracing::warn;
use windlass_core::{Job, JobId, Settlement, State, Timestamp, WorkerName, WorkerReport};
use windlass_store::{AttemptId, Settled, StoreError};

use super::lease::{LeaseCheck, Lost};
use super::{Remote, RemoteError, RemoteWorker};
use crate::attempt_end::{AttemptDetail, AttemptEnd};

/// A reported outcome.
#[derive(Debug, Clone)]
pub struct RemoteOutcome {
    /// The attempt.
    pub attempt_id: AttemptId,
    /// How it ended.
    pub reported: WorkerReport,
    /// Log lines to store with the attempt.
    pub log: Vec<String>,
}

/// The result of a reported outcome.
#[derive(Debug, Clone, PartialEq)]
pub enum RemoteSettled {
    /// The attempt has ended.
    Done(Settlement),
    /// The same outcome was reported before. Holds the current state of the job.
    Repeated {
        /// The state of the job.
        state: State,
        /// When the job is due.
        run_at: Timestamp,
    },
    /// The worker does not hold the attempt. Nothing changed.
    LeaseLost(Lost),
    /// The store refused the outcome. The attempt keeps running.
    Refused,
}

impl Remote {
    /// Settles attempts. Returns the results in the order of `outcomes`.
    pub async fn settle(
        &self,
        worker: &RemoteWorker,
        outcomes: &[RemoteOutcome],
    ) -> Result<Vec<RemoteSettled>, RemoteError> {
        let ids: Vec<JobId> = outcomes
            .iter()
            .map(|outcome| outcome.attempt_id.job)
            .collect();
        let jobs = self.jobs_of(&ids).await?;
        let checked = outcomes.iter().zip(&jobs);
        let checked = checked
            .map(|(outcome, job)| reportable_job(worker.name(), outcome.attempt_id, job.as_ref()));
        let checked: Vec<Result<&Job, Lost>> = checked.collect();
        let mut ends = Vec::with_capacity(outcomes.len());
        for (outcome, job) in outcomes.iter().zip(&checked) {
            if let Ok(job) = job {
                ends.push(self.end_of_outcome(outcome, job).await?);
            }
        }
        let settled = self.end(ends).await?;
        // A request may contain the same outcome twice. Then only the store knows the current state
        // of the job.
        let later = if settled.contains(&Settled::Repeated) {
            self.jobs_of(&ids).await?
        } else {
            Vec::new()
        };
        let mut settled = settled.into_iter();
        let mut answers = Vec::with_capacity(outcomes.len());
        for (index, (outcome, job)) in outcomes.iter().zip(checked).enumerate() {
            let answer = job.and_then(|job| Ok((job, settled.next().ok_or(Lost::Over)?)));
            answers.push(match answer {
                Err(reason) => RemoteSettled::LeaseLost(reason),
                Ok((_, Settled::LeaseLost)) => RemoteSettled::LeaseLost(Lost::Over),
                Ok((job, Settled::Refused { reason })) => {
                    warn!(job.id = %job.id, attempt = job.attempt, reason, "the store refused an outcome");
                    RemoteSettled::Refused
                }
                Ok((job, Settled::Repeated)) => {
                    let job = later.get(index).and_then(Option::as_ref).unwrap_or(job);
                    RemoteSettled::Repeated {
                        state: job.state(),
                        run_at: job.run_at,
                    }
                }
                Ok((_, Settled::Done(settlement))) => {
                    self.forget_reports(outcome.attempt_id).await?;
                    RemoteSettled::Done(settlement)
                }
            });
        }
        Ok(answers)
    }

    async fn end_of_outcome<'a>(
        &self,
        outcome: &RemoteOutcome,
        job: &'a Job,
    ) -> Result<AttemptEnd<'a>, StoreError> {
        let runs = job.lease().is_some() && job.attempt == outcome.attempt_id.attempt;
        let ran = runs.then(|| self.attempt_times.ran(job));
        let now = self.engine.now();
        let (progress, mut log) = self.reports(outcome.attempt_id).await?;
        for line in &outcome.log {
            log.push(now, line);
        }
        Ok(AttemptEnd {
            attempt_id: outcome.attempt_id,
            job,
            report: outcome.reported.report(job, ran),
            random: self.engine.ids().bits(),
            detail: AttemptDetail {
                log,
                progress,
                ..AttemptDetail::default()
            },
            ran: ran.unwrap_or_default(),
        })
    }
}

/// Returns the job if the worker may report about this attempt. A report about an ended attempt
/// changes nothing, but may be a repetition.
fn reportable_job<'a>(
    worker: &WorkerName,
    attempt_id: AttemptId,
    job: Option<&'a Job>,
) -> Result<&'a Job, Lost> {
    match LeaseCheck::new(worker, attempt_id, job) {
        LeaseCheck::NotHeld(reason) => Err(reason),
        LeaseCheck::Held | LeaseCheck::Ended => job.ok_or(Lost::Unknown),
    }
}
