//! Remote workers report how their attempts ended.

use tracing::warn;
use windlass_core::{Job, JobId, Reported, Settlement, State, Timestamp, WorkerName};
use windlass_store::{AttemptId, Settled, StoreError};

use super::lease::{Claimed, Lost};
use super::{Remote, RemoteError, RemoteWorker};
use crate::attempt_end::{AttemptDetail, AttemptEnd};

/// How one attempt ended.
#[derive(Debug, Clone)]
pub struct RemoteOutcome {
    /// Which attempt.
    pub of: AttemptId,
    /// How.
    pub reported: Reported,
    /// Lines that are kept with it.
    pub log: Vec<String>,
}

/// What a reported outcome led to.
#[derive(Debug, Clone, PartialEq)]
pub enum RemoteSettled {
    /// The attempt has ended.
    Done(Settlement),
    /// The same was reported before. The job stands so now.
    Repeated {
        /// Its state.
        state: State,
        /// When it is due.
        run_at: Timestamp,
    },
    /// The worker does not hold the attempt. Nothing changed.
    LeaseLost(Lost),
    /// The database does not accept what it leads to. The attempt runs on.
    Refused,
}

impl Remote {
    /// Settles attempts. The answers are in the order of the outcomes.
    pub async fn settle(
        &self,
        worker: &RemoteWorker,
        outcomes: &[RemoteOutcome],
    ) -> Result<Vec<RemoteSettled>, RemoteError> {
        let ids: Vec<JobId> = outcomes.iter().map(|outcome| outcome.of.job).collect();
        let jobs = self.jobs_of(&ids).await?;
        let known = outcomes.iter().zip(&jobs);
        let known = known.map(|(outcome, job)| settles(worker.name(), outcome.of, job.as_ref()));
        let known: Vec<Result<&Job, Lost>> = known.collect();
        let mut ends = Vec::with_capacity(outcomes.len());
        for (outcome, job) in outcomes.iter().zip(&known) {
            if let Ok(job) = job {
                ends.push(self.end_of_outcome(outcome, job).await?);
            }
        }
        let settled = self.end(ends).await?;
        // An outcome may be reported twice in one request: then only the store knows where the job
        // stands now.
        let later = match settled.contains(&Settled::Repeated) {
            true => self.jobs_of(&ids).await?,
            false => Vec::new(),
        };
        let mut settled = settled.into_iter();
        let mut answers = Vec::with_capacity(outcomes.len());
        for (place, (outcome, job)) in outcomes.iter().zip(known).enumerate() {
            let answer = job.and_then(|job| Ok((job, settled.next().ok_or(Lost::Over)?)));
            answers.push(match answer {
                Err(reason) => RemoteSettled::LeaseLost(reason),
                Ok((_, Settled::LeaseLost)) => RemoteSettled::LeaseLost(Lost::Over),
                Ok((job, Settled::Refused { reason })) => {
                    warn!(job.id = %job.id, attempt = job.attempt, reason, "the store refused an outcome");
                    RemoteSettled::Refused
                }
                Ok((job, Settled::Repeated)) => {
                    let job = later.get(place).and_then(Option::as_ref).unwrap_or(job);
                    RemoteSettled::Repeated {
                        state: job.state(),
                        run_at: job.run_at,
                    }
                }
                Ok((_, Settled::Done(settlement))) => {
                    self.forget_progress(outcome.of.job).await?;
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
        let runs = job.lease().is_some() && job.attempt == outcome.of.attempt;
        let ran = runs.then(|| self.attempts.ran(job));
        let now = self.engine.now();
        let lines = outcome.log.iter().map(|line| (now, line.clone()));
        Ok(AttemptEnd {
            of: outcome.of,
            job,
            report: outcome.reported.report(job, ran),
            random: self.engine.ids().bits(),
            detail: AttemptDetail {
                lines: lines.collect(),
                progress: self.last_progress(outcome.of.job).await?,
                ..AttemptDetail::default()
            },
            ran: ran.unwrap_or_default(),
        })
    }
}

/// The job about which a worker may report. What it reports of an attempt that is over changes
/// nothing, but may have been reported before.
fn settles<'a>(worker: &WorkerName, of: AttemptId, job: Option<&'a Job>) -> Result<&'a Job, Lost> {
    match Claimed::by(worker, of, job) {
        Claimed::Not(reason) => Err(reason),
        Claimed::Running | Claimed::Over => job.ok_or(Lost::Unknown),
    }
}
