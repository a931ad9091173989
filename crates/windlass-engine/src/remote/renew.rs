//! Renews the leases of remote workers.

use std::time::Duration;

use windlass_core::{CANCEL_GRACE, Job, JobId, Report, Timeout, Timestamp, WorkerName};
use windlass_store::{AttemptId, Renewed};

use super::lease::{LeaseCheck, Lost};
use super::{Remote, RemoteError, RemoteWorker, Signal};
use crate::worker_description::WorkerDescription;

/// The response to a renewal.
#[derive(Debug)]
pub struct RemoteRenewal {
    /// The result for each lease, in the order of the request.
    pub leases: Vec<RemoteRenewed>,
    /// The signal of an operator to the worker.
    pub signal: Option<Signal>,
}

/// The result for one lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteRenewed {
    /// The lease was renewed.
    Until {
        /// Its new end.
        until: Timestamp,
        /// Someone cancelled the job, so the worker should stop it.
        cancel_requested: bool,
    },
    /// The attempt has used up its timeout and has ended.
    TimedOut,
    /// The worker does not hold the lease.
    LeaseLost(Lost),
}

impl Remote {
    /// Renews leases and records a heartbeat of the worker. Ends attempts that have used up their
    /// timeout.
    pub async fn renew(
        &self,
        worker: &RemoteWorker,
        leases: &[AttemptId],
        lease: Option<Duration>,
    ) -> Result<RemoteRenewal, RemoteError> {
        let lease = self.lease(lease)?;
        let listed = worker.listed();
        self.roster
            .record_heartbeat(listed, WorkerDescription::default)
            .await?;
        let ids: Vec<JobId> = leases.iter().map(|attempt_id| attempt_id.job).collect();
        let jobs = self.jobs_of(&ids).await?;
        let decision = |(attempt_id, job): (&AttemptId, &Option<Job>)| {
            self.decide(*attempt_id, job.as_ref(), worker.name())
        };
        let decisions: Vec<RenewalDecision> = leases.iter().zip(&jobs).map(decision).collect();
        let attempts = || jobs.iter().zip(&decisions);
        let timed_out = attempts().filter_map(|(job, decision)| match *decision {
            RenewalDecision::TimedOut(timeout) => {
                let grace = CANCEL_GRACE;
                Some(self.end_of(job.as_ref()?, Report::TimedOut { timeout, grace }))
            }
            _ => None,
        });
        self.end(timed_out.collect()).await?;
        let renewable =
            attempts().filter(|(_, decision)| matches!(decision, RenewalDecision::Renew));
        let renewable = renewable.filter_map(|(job, _)| job.as_ref());
        let renewed = self
            .renew_leases(renewable, lease, self.engine.now())
            .await?;
        let answer = |(attempt_id, decision): (&AttemptId, &RenewalDecision)| match decision {
            RenewalDecision::Lost(reason) => RemoteRenewed::LeaseLost(*reason),
            RenewalDecision::TimedOut(_) => RemoteRenewed::TimedOut,
            RenewalDecision::Renew => match renewed.get(&attempt_id.job) {
                Some(Renewed::Until {
                    until,
                    cancel_requested,
                }) => RemoteRenewed::Until {
                    until: *until,
                    cancel_requested: *cancel_requested,
                },
                Some(Renewed::LeaseLost) | None => RemoteRenewed::LeaseLost(Lost::Over),
            },
        };
        Ok(RemoteRenewal {
            leases: leases.iter().zip(&decisions).map(answer).collect(),
            signal: self.signals.get(worker.listed()).await?,
        })
    }

    fn decide(
        &self,
        attempt_id: AttemptId,
        job: Option<&Job>,
        worker: &WorkerName,
    ) -> RenewalDecision {
        let job = match LeaseCheck::running_job(worker, attempt_id, job) {
            Ok(job) => job,
            Err(reason) => return RenewalDecision::Lost(reason),
        };
        match job.timeout {
            Timeout::After(timeout) if self.attempt_times.ran(job) >= timeout => {
                RenewalDecision::TimedOut(timeout)
            }
            _ => RenewalDecision::Renew,
        }
    }
}

/// What to do about one lease.
enum RenewalDecision {
    Renew,
    TimedOut(Duration),
    Lost(Lost),
}
