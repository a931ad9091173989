//! Ends attempts: by a report, or because the lease expired.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use windlass_core::{Job, JobId, Outcome, Random, Report, Settlement, Timestamp};
use windlass_store::refused::SweepPart;
use windlass_store::stored::LastAttempt;
use windlass_store::{Attempt, AttemptId, AttemptReport, Expired, Renewed, Settled, Swept};

use super::{Answer, Writer};
use crate::error::{DriverError, DriverResult, if_readable};
use crate::index::{Entry, Hold, Running};
use crate::row;

impl Writer<'_> {
    pub(crate) fn renew(
        &mut self,
        attempts: &[AttemptId],
        lease: Duration,
        now: Timestamp,
    ) -> Answer<Vec<Renewed>> {
        let until = now.saturating_add(lease);
        let mut answers = Vec::with_capacity(attempts.len());
        for attempt in attempts {
            answers.push(self.renew_one(*attempt, until)?);
        }
        Ok(Ok(answers))
    }

    fn renew_one(&mut self, attempt: AttemptId, until: Timestamp) -> DriverResult<Renewed> {
        let Some(running) = self.index.running_attempt(attempt).cloned() else {
            return Ok(Renewed::LeaseLost);
        };
        let Running {
            mut job,
            queue,
            kind,
        } = running;
        job.renew(until)
            .map_err(|conflict| DriverError::damaged(conflict.to_string()))?;
        let cancel_requested = job.lease().is_some_and(|lease| lease.cancel_requested);
        let mut statement = self
            .connection
            .prepare_cached(include_str!("../../sql/renew.sql"))?;
        statement.execute(rusqlite::params![
            row::blob(attempt.job),
            attempt.attempt,
            until.as_micros()
        ])?;
        drop(statement);
        self.index.take(attempt.job);
        self.index.put(
            attempt.job,
            Entry::Running(Arc::new(Running { job, queue, kind })),
        );
        Ok(Renewed::Until {
            until,
            cancel_requested,
        })
    }

    pub(crate) fn settle(
        &mut self,
        reports: &[AttemptReport],
        now: Timestamp,
    ) -> Answer<Vec<Settled>> {
        self.index.promote(now);
        let mut answers = Vec::with_capacity(reports.len());
        for report in reports {
            answers.push(self.settle_one(report, now)?);
        }
        Ok(Ok(answers))
    }

    fn settle_one(&mut self, report: &AttemptReport, now: Timestamp) -> DriverResult<Settled> {
        if let Some(running) = self.index.take_attempt(report.attempt_id) {
            let settlement = self.end(
                &running,
                report.report.clone(),
                report.detail.clone(),
                now,
                report.random,
            )?;
            return Ok(Settled::Done(settlement));
        }
        let Some((job, last)) = if_readable(self.find(report.attempt_id.job))?.flatten() else {
            return Ok(Settled::LeaseLost);
        };
        match self.ended_attempt(report.attempt_id, &job, &last)? {
            Some(row) if report.report.matches_outcome(row.outcome, job.delivery) => {
                Ok(Settled::Repeated)
            }
            _ => Ok(Settled::LeaseLost),
        }
    }

    fn ended_attempt(
        &mut self,
        attempt: AttemptId,
        job: &Job,
        last: &LastAttempt,
    ) -> DriverResult<Option<Attempt>> {
        if let Some(row) = last.row(job).filter(|row| row.attempt == attempt.attempt) {
            return Ok(Some(row));
        }
        let rows = row::attempts(self.connection, &mut self.names, attempt.job, usize::MAX)?;
        Ok(rows.into_iter().find(|row| row.attempt == attempt.attempt))
    }

    pub(crate) fn sweep(
        &mut self,
        part: &SweepPart,
        limit: usize,
        now: Timestamp,
        random: u64,
    ) -> Answer<Swept> {
        self.index.promote(now);
        let mut swept = Swept::default();
        if let SweepPart::AllExcept(_) = part {
            self.remove_ended_holds(now, limit)?;
            let count = self.lost_at_opening.len().min(limit);
            swept.lost.extend(self.lost_at_opening.drain(..count));
        }
        let from_opening = swept.lost.len();
        match self.sweep_chosen(part, limit, now, random, &mut swept) {
            Ok(()) => Ok(Ok(swept)),
            Err(error) => {
                // The caller does not get this result: the next sweep reports them.
                let unreported = swept.lost.drain(..from_opening);
                self.lost_at_opening.splice(..0, unreported);
                Err(error)
            }
        }
    }

    fn sweep_chosen(
        &mut self,
        part: &SweepPart,
        limit: usize,
        now: Timestamp,
        random: u64,
        swept: &mut Swept,
    ) -> DriverResult<()> {
        let mut random = Random::new(random);
        let left = limit - swept.lost.len();
        for id in self.index.expired_leases(now, left, |id| chosen(part, id)) {
            swept.lost.push(self.lose(id, now, random.bits())?);
        }
        let left = limit - swept.lost.len();
        for id in self.index.overdue(now, left, |id| chosen(part, id)) {
            let found = self.find(id);
            if let Some((mut job, last)) = self.skip_unreadable(id, found)?.flatten() {
                let before = job.clone();
                job.expire(now)
                    .map_err(|conflict| DriverError::damaged(conflict.to_string()))?;
                let is_new_group = self.tallies.count_failure(&mut job, now);
                self.tallies.count_change(&before, Some(&mut job));
                self.index.take(id);
                self.finish(&mut job, &last, now)?;
                swept.expired.push(Expired {
                    job: id,
                    is_new_group,
                });
            }
        }
        Ok(())
    }

    /// Returns the jobs that a sweep would take, without those in `except`.
    pub(crate) fn to_sweep(&self, except: &[JobId], limit: usize, now: Timestamp) -> Vec<JobId> {
        let chosen = |id: JobId| !except.contains(&id);
        let mut ids = self.index.expired_leases(now, limit, chosen);
        ids.extend(self.index.overdue(now, limit - ids.len(), chosen));
        ids
    }

    /// Removes ended holds of unique keys. They outlast their jobs, so only the sweep removes them.
    fn remove_ended_holds(&mut self, now: Timestamp, limit: usize) -> DriverResult<()> {
        let limit = row::sql_limit(limit);
        let ended: Vec<(u32, String)> = self
            .connection
            .prepare_cached("select queue, key from holds where until <= ?1 limit ?2")?
            .query_map((now.as_micros(), limit), |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?
            .collect::<Result<_, _>>()?;
        for (queue, text) in ended {
            self.connection
                .prepare_cached("delete from holds where queue = ?1 and key = ?2")?
                .execute((queue, &text))?;
            if let Ok(key) = text.parse() {
                self.index.end_hold(queue, key, now);
            }
        }
        Ok(())
    }

    /// Ends the running attempt of a job as lost.
    pub(super) fn lose(
        &mut self,
        id: JobId,
        now: Timestamp,
        random: u64,
    ) -> DriverResult<(AttemptId, Settlement)> {
        let Some(Entry::Running(running)) = self.index.take(id) else {
            return Err(DriverError::damaged(format!("job {id} is not running")));
        };
        let settlement = self.end(&running, Report::Lost, None, now, random)?;
        let attempt = running.job.attempt;
        Ok((AttemptId { job: id, attempt }, settlement))
    }

    /// Ends an attempt that was taken out of the index, as `core` decides. Writes its history.
    fn end(
        &mut self,
        running: &Running,
        report: Report,
        detail: Option<Value>,
        now: Timestamp,
        random: u64,
    ) -> DriverResult<Settlement> {
        let mut job = running.job.clone();
        let retry_count = job.failures;
        let mut settlement = job.decide(report, now, random).expect("the job is running");
        job.settle(settlement.clone(), now)
            .expect("the job is running, and no one else writes");
        if settlement.fingerprint.is_some() {
            settlement.is_new_group = self.tallies.count_failure(&mut job, now);
            settlement.fingerprint = job.fingerprint;
        }
        self.tallies.count_change(&running.job, Some(&mut job));
        let last = LastAttempt {
            outcome: Some(settlement.outcome),
            detail,
        };
        if job.state().is_final() {
            self.write_end(&job, &last)?;
            self.index_job(&mut job, running.queue, running.kind, true);
            self.free_key(&job, now)?;
            return Ok(settlement);
        }
        let attempt = Attempt {
            attempt: job.attempt,
            retry_count,
            outcome: settlement.outcome,
            started_at: job.started_at.unwrap_or(now),
            finished_at: now,
            worker: job.worker.clone(),
            error: settlement.error.clone(),
            detail: last.detail,
        };
        row::insert_attempt(self.connection, &mut self.names, job.id, &attempt)?;
        row::end_state(self.connection, &job, &LastAttempt::default())?;
        self.index_job(&mut job, running.queue, running.kind, true);
        Ok(settlement)
    }

    /// Writes the end of an attempt that finished its job. Success has a faster statement.
    fn write_end(&mut self, job: &Job, last: &LastAttempt) -> DriverResult<()> {
        match last.outcome {
            Some(Outcome::Succeeded) if job.interventions.revived.is_none() => {
                row::succeed_state(&mut self.statements.succeed_state, job, last)
            }
            _ => row::end_state(self.connection, job, last),
        }
    }

    /// Writes a finished job, and frees its unique key.
    pub(super) fn finish(
        &mut self,
        job: &mut Job,
        last: &LastAttempt,
        now: Timestamp,
    ) -> DriverResult<()> {
        self.write(job, last)?;
        self.free_key(job, now)
    }

    /// Frees the unique key of a finished job, unless the key outlasts the job.
    fn free_key(&mut self, job: &Job, now: Timestamp) -> DriverResult<()> {
        let Some(unique) = &job.unique else {
            return Ok(());
        };
        let queue = self.names.number(self.connection, job.queue.as_str())?;
        // A dead job can be resolved long after it died. Another job may hold the key by now.
        let holder = self.index.hold(queue, &unique.key, now);
        if holder.is_some_and(|holder| holder.id != job.id) {
            return Ok(());
        }
        if !job.holds_key(now) {
            return self.remove_hold(queue, &unique.key);
        }
        let hold = Hold {
            id: job.id,
            until: job.key_until(),
        };
        self.index.set_hold(queue, unique.key.clone(), Some(hold));
        self.write_hold(job, queue)
    }
}

/// Whether this part of a sweep includes a job.
fn chosen(part: &SweepPart, id: JobId) -> bool {
    match part {
        SweepPart::AllExcept(except) => !except.contains(&id),
        SweepPart::One(one) => *one == id,
    }
}
