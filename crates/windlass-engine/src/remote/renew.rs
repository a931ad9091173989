//! Remote workers go on: leases are prolonged.

use std::time::Duration;

use windlass_core::{CANCEL_GRACE, Job, JobId, Report, Timeout, Timestamp, WorkerName};
use windlass_store::{AttemptId, Renewed};

use super::lease::{Claimed, Lost};
use super::{Remote, RemoteError, RemoteWorker, Signal};
use crate::worker_description::WorkerAbout;

/// What a renewal found.
#[derive(Debug)]
pub struct RemoteRenewal {
    /// One for each lease, in their order.
    pub leases: Vec<RemoteRenewed>,
    /// What an operator wants of the worker.
    pub signal: Option<Signal>,
}

/// What happened to one lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteRenewed {
    /// It lasts longer.
    Until {
        /// Its new end.
        until: Timestamp,
        /// Someone cancelled the job: its worker should stop.
        cancel_requested: bool,
    },
    /// The attempt has used up its timeout, and has ended.
    TimedOut,
    /// The worker does not hold it.
    LeaseLost(Lost),
}

impl Remote {
    /// Prolongs leases, and takes the heartbeat of their worker. An attempt that has used up its
    /// timeout is ended instead.
    pub async fn renew(
        &self,
        worker: &RemoteWorker,
        leases: &[AttemptId],
        lease: Option<Duration>,
    ) -> Result<RemoteRenewal, RemoteError> {
        let lease = self.lease(lease)?;
        let listed = worker.listed();
        self.roster.hear(listed, WorkerAbout::default).await?;
        let ids: Vec<JobId> = leases.iter().map(|of| of.job).collect();
        let jobs = self.jobs_of(&ids).await?;
        let fate =
            |(of, job): (&AttemptId, &Option<Job>)| self.fate(*of, job.as_ref(), worker.name());
        let fates: Vec<Fate> = leases.iter().zip(&jobs).map(fate).collect();
        let attempts = || jobs.iter().zip(&fates);
        let over = attempts().filter_map(|(job, fate)| match *fate {
            Fate::TimedOut(timeout) => {
                let grace = CANCEL_GRACE;
                Some(self.end_of(job.as_ref()?, Report::TimedOut { timeout, grace }))
            }
            _ => None,
        });
        self.end(over.collect()).await?;
        let live = attempts().filter(|(_, fate)| matches!(fate, Fate::Renew));
        let live = live.filter_map(|(job, _)| job.as_ref());
        let renewed = self.prolong(live, lease, self.engine.now()).await?;
        let answer = |(of, fate): (&AttemptId, &Fate)| match fate {
            Fate::Lost(reason) => RemoteRenewed::LeaseLost(*reason),
            Fate::TimedOut(_) => RemoteRenewed::TimedOut,
            Fate::Renew => match renewed.get(&of.job) {
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
            leases: leases.iter().zip(&fates).map(answer).collect(),
            signal: self.signals.get(worker.listed()).await?,
        })
    }

    fn fate(&self, of: AttemptId, job: Option<&Job>, worker: &WorkerName) -> Fate {
        let job = match Claimed::running(worker, of, job) {
            Ok(job) => job,
            Err(reason) => return Fate::Lost(reason),
        };
        match job.timeout {
            Timeout::After(timeout) if self.attempts.ran(job) >= timeout => Fate::TimedOut(timeout),
            _ => Fate::Renew,
        }
    }
}

/// What is done about one lease.
enum Fate {
    Renew,
    TimedOut(Duration),
    Lost(Lost),
}
