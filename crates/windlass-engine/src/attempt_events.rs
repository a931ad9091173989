//! Emits the events of attempts, for workers in this process and for remote ones.

use std::time::Duration;

use windlass_core::{Job, Outcome, Settlement, Timestamp, Verdict};

use crate::engine::Engine;
use crate::event::{Event, JobEvent, JobRef};

impl Engine {
    /// Emits that a worker claimed a job.
    pub(crate) fn emit_claimed(&self, job: &Job, now: Timestamp) {
        let waited = waited(job, now);
        let lane = job.lane();
        self.emit_job(now, &JobRef::of(job), JobEvent::Claimed { waited, lane });
    }

    /// Emits and counts that the handler of a claimed job starts.
    pub(crate) fn emit_started(&self, job: &Job, now: Timestamp) {
        self.collector().count(&job.queue, now, |queue| {
            queue.attempt_started(job.lane(), waited(job, now));
        });
        self.emit(|| Event::Job {
            at: now,
            job: JobRef::of(job),
            what: JobEvent::Started,
        });
    }

    /// Emits, counts and logs the end of an attempt that ran for `ran`, and what happens to its job.
    pub(crate) fn emit_ended(
        &self,
        job: &Job,
        attempt: u32,
        settlement: &Settlement,
        ran: Duration,
        now: Timestamp,
    ) {
        if let Verdict::Waiting { run_at } = settlement.verdict {
            self.due_at(run_at, now);
        }
        self.job_log().attempt_ended(job, attempt, settlement, now);
        self.collector().count(&job.queue, now, |queue| {
            queue.attempt_ended(settlement, ran)
        });
        let named = JobRef {
            attempt,
            ..JobRef::of(job)
        };
        let emit = |what: JobEvent| self.emit_job(now, &named, what);
        let error = || settlement.error.clone();
        match settlement.outcome {
            Outcome::Succeeded => emit(JobEvent::Succeeded { ran }),
            Outcome::Failed => emit(JobEvent::Failed {
                ran,
                error: error(),
            }),
            Outcome::TimedOut => emit(JobEvent::TimedOut { ran }),
            Outcome::Lost => emit(JobEvent::Lost),
            Outcome::Released => emit(JobEvent::Released),
            // The event of the verdict below says it all.
            Outcome::Snoozed | Outcome::Cancelled => {}
        }
        if let Some(fingerprint) = settlement.fingerprint.filter(|_| settlement.is_new_group) {
            self.new_groups().add(job, fingerprint, now);
            emit(JobEvent::FailureGroupCreated { fingerprint });
        }
        match (settlement.verdict, settlement.outcome) {
            (Verdict::Waiting { run_at }, Outcome::Snoozed) => {
                emit(JobEvent::Snoozed { until: run_at });
            }
            (Verdict::Waiting { run_at }, _) => {
                if let Some(delay) = settlement.delay {
                    emit(JobEvent::Retried {
                        run_at,
                        delay,
                        failures: settlement.failures,
                    });
                }
            }
            (Verdict::Dead(reason), _) => emit(JobEvent::Dead {
                reason,
                failures: settlement.failures,
            }),
            (Verdict::Cancelled, _) => emit(JobEvent::Cancelled),
            (Verdict::Succeeded, _) => {}
        }
    }
}

/// How long a claimed job was due.
fn waited(job: &Job, now: Timestamp) -> Duration {
    now.since(job.run_at.max(job.created_at))
}
