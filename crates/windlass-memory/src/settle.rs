//! Renewing leases, and ending attempts by report or because the lease expired.

use std::time::Duration;

use serde_json::Value;
use windlass_core::{Job, Random, Report, Settlement, State as JobState, Timestamp, has_expired};
use windlass_store::{Attempt, AttemptId, AttemptReport, Expired, Renewed, Settled, Swept};

use crate::state::State;

impl State {
    pub(crate) fn renew(
        &mut self,
        attempts: &[AttemptId],
        lease: Duration,
        now: Timestamp,
    ) -> Vec<Renewed> {
        let until = now.saturating_add(lease);
        let renew_one = |attempt: &AttemptId| {
            let Some(mut job) = self.running_attempt(*attempt).cloned() else {
                return Renewed::LeaseLost;
            };
            job.renew(until)
                .expect("the attempt is running, and the lock is held");
            let cancel_requested = job.lease().is_some_and(|lease| lease.cancel_requested);
            self.put(job);
            Renewed::Until {
                until,
                cancel_requested,
            }
        };
        attempts.iter().map(renew_one).collect()
    }

    pub(crate) fn settle(&mut self, reports: Vec<AttemptReport>, now: Timestamp) -> Vec<Settled> {
        reports
            .into_iter()
            .map(|report| self.settle_one(report, now))
            .collect()
    }

    fn settle_one(&mut self, report: AttemptReport, now: Timestamp) -> Settled {
        if let Some(job) = self.running_attempt(report.attempt_id).cloned() {
            let settlement = self.end(job, report.report, report.detail, now, report.random);
            return Settled::Done(settlement);
        }
        let Some(delivery) = self
            .jobs
            .get(&report.attempt_id.job)
            .map(|job| job.delivery)
        else {
            return Settled::LeaseLost;
        };
        let before = self
            .attempts
            .get(&(report.attempt_id.job, report.attempt_id.attempt));
        match before {
            Some(row) if report.report.matches_outcome(row.outcome, delivery) => Settled::Repeated,
            _ => Settled::LeaseLost,
        }
    }

    pub(crate) fn sweep(&mut self, limit: usize, now: Timestamp, random: u64) -> Swept {
        let mut random = Random::new(random);
        let mut lost: Vec<Job> = self
            .running()
            .filter(|job| lease_end(job) <= Some(now))
            .cloned()
            .collect();
        lost.sort_by_key(|job| (lease_end(job), job.id));
        lost.truncate(limit);
        let overdue =
            |job: &&Job| job.state() == JobState::Waiting && has_expired(job.deadline, now);
        let mut expired: Vec<Job> = self.jobs.values().filter(overdue).cloned().collect();
        expired.sort_by_key(|job| (job.deadline, job.id));
        expired.truncate(limit - lost.len());
        self.holds.retain(|_, (_, until)| *until > now);
        let mut swept = Swept::default();
        for job in lost {
            let attempt = AttemptId {
                job: job.id,
                attempt: job.attempt,
            };
            let settlement = self.end(job, Report::Lost, None, now, random.bits());
            swept.lost.push((attempt, settlement));
        }
        for mut job in expired {
            job.expire(now)
                .expect("the job waits, and the lock is held");
            let is_new_group = self.count_failure(&mut job, now);
            swept.expired.push(Expired {
                job: job.id,
                is_new_group,
            });
            self.put(job);
        }
        swept
    }

    /// Ends the running attempt of a job and adds its history row.
    fn end(
        &mut self,
        mut job: Job,
        report: Report,
        detail: Option<Value>,
        now: Timestamp,
        random: u64,
    ) -> Settlement {
        let mut settlement = job
            .decide(report, now, random)
            .expect("the attempt is running");
        let row = Attempt {
            attempt: job.attempt,
            retry_count: job.failures,
            outcome: settlement.outcome,
            started_at: job.started_at.unwrap_or(now),
            finished_at: now,
            worker: job.worker.clone(),
            error: settlement.error.clone(),
            detail,
        };
        self.attempts.insert((job.id, job.attempt), row);
        job.settle(settlement.clone(), now)
            .expect("the attempt is running");
        if settlement.fingerprint.is_some() {
            settlement.is_new_group = self.count_failure(&mut job, now);
            settlement.fingerprint = job.fingerprint;
        }
        self.put(job);
        settlement
    }

    pub(crate) fn running_attempt(&self, attempt: AttemptId) -> Option<&Job> {
        let job = self.jobs.get(&attempt.job)?;
        (job.state() == JobState::Running && job.attempt == attempt.attempt).then_some(job)
    }
}

fn lease_end(job: &Job) -> Option<Timestamp> {
    job.lease().map(|lease| lease.until)
}
