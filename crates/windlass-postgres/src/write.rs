//! Writes jobs and attempts, many in one statement.

use windlass_core::{Job, Lane, Timestamp};
use windlass_store::Attempt;
use windlass_store::stored::{LastAttempt, optional_fields_json, result_of};

use crate::error::DriverResult;
use crate::param::{Time, int, params};
use crate::row::{self, error_text, micros, uuid, uuids};
use crate::session::Session;

pub(crate) fn lane(job: &Job) -> i16 {
    match job.lane() {
        Lane::Fresh => 0,
        Lane::Retry => 1,
    }
}

pub(crate) fn rank(job: &Job) -> i32 {
    -i32::from(job.priority)
}

/// Whether the job goes into the index of due jobs.
fn is_due(job: &Job, now: Timestamp) -> bool {
    job.due_at().is_some_and(|due_at| due_at <= now)
}

/// Jobs as arrays of column values, for statements with `unnest`.
pub(crate) struct Columns<'a> {
    jobs: Vec<&'a Job>,
    now: Timestamp,
}

impl<'a> Columns<'a> {
    pub(crate) fn of(jobs: impl IntoIterator<Item = &'a Job>, now: Timestamp) -> Self {
        let jobs = jobs.into_iter().collect();
        Columns { jobs, now }
    }

    fn column<T>(&self, value: impl FnMut(&&'a Job) -> T) -> Vec<T> {
        self.jobs.iter().map(value).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Stores new jobs, except those whose id an active job has. Returns the rows of the statement.
    /// In a transaction of its own, fails if one of the ids belongs to a finished job.
    pub(crate) async fn insert(
        &self,
        session: &mut Session,
        sql: &str,
        mode: InsertMode,
    ) -> DriverResult<Vec<tokio_postgres::Row>> {
        let time = |at: Option<Timestamp>| at.map(Time);
        let ids = self.column(|job| uuid(job.id));
        let queues = self.column(|job| job.queue.as_str());
        let kinds = self.column(|job| job.kind.as_str());
        let lanes = self.column(|job| lane(job));
        let ranks = self.column(|job| rank(job));
        let run_ats = self.column(|job| Time(job.run_at));
        let created_ats = self.column(|job| Time(job.created_at));
        let due = self.column(|job| is_due(job, self.now));
        let deadlines = self.column(|job| time(job.deadline));
        let keys = self.column(|job| job.unique.as_ref().map(|unique| unique.key.as_str()));
        let key_until_times = self.column(|job| time(job.key_until()));
        let concurrency = self.column(|job| {
            job.concurrency
                .as_ref()
                .map(|concurrency| concurrency.key.as_str())
        });
        let limits = self.column(|job| {
            job.concurrency
                .as_ref()
                .map(|concurrency| int(concurrency.limit))
        });
        let payloads = self.column(|job| job.payload.as_str());
        let extras = self.column(|job| optional_fields_json(job));
        let params = params![
            ids,
            queues,
            kinds,
            lanes,
            ranks,
            run_ats,
            created_ats,
            due,
            deadlines,
            keys,
            key_until_times,
            concurrency,
            limits,
            payloads,
            extras,
        ];
        match mode {
            InsertMode::OwnTransaction => {
                let refuse = include_str!("../sql/refuse_finished_ids.sql");
                session
                    .single_with_check(sql, params, refuse, params![ids])
                    .await
            }
            InsertMode::WithinTransaction => session.query(sql, params).await,
        }
    }

    /// Writes the state of active jobs.
    pub(crate) async fn update(&self, session: &mut Session) -> DriverResult<()> {
        if self.is_empty() {
            return Ok(());
        }
        // All transactions lock jobs in the order of their ids, so they cannot deadlock.
        let mut sorted = Columns {
            jobs: self.jobs.clone(),
            now: self.now,
        };
        sorted.jobs.sort_unstable_by_key(|job| job.id);
        sorted.update_in_order(session).await
    }

    async fn update_in_order(&self, session: &mut Session) -> DriverResult<()> {
        let time = |at: Option<Timestamp>| at.map(Time);
        let ids = self.column(|job| uuid(job.id));
        let queues = self.column(|job| job.queue.as_str());
        let lanes = self.column(|job| lane(job));
        let ranks = self.column(|job| rank(job));
        let run_ats = self.column(|job| Time(job.run_at));
        let due = self.column(|job| is_due(job, self.now));
        let leases = self.column(|job| time(job.lease().map(|lease| lease.until)));
        let payloads = self.column(|job| job.payload.as_str());
        let failures = self.column(|job| int(job.failures));
        let snoozes = self.column(|job| int(job.snoozes));
        let losses = self.column(|job| int(job.losses_in_a_row));
        let delays = self.column(|job| job.previous_delay.map(micros));
        let errors = self.column(|job| job.last_error.as_ref().map(error_text));
        let failed_ats = self.column(|job| time(job.failed_at));
        let cancels = self.column(|job| job.lease().is_some_and(|lease| lease.cancel_requested));
        session
            .query(
                include_str!("../sql/update_jobs.sql"),
                params![
                    ids, queues, lanes, ranks, run_ats, due, leases, payloads, failures, snoozes,
                    losses, delays, errors, failed_ats, cancels,
                ],
            )
            .await?;
        Ok(())
    }
}

/// Whether an insert is a transaction of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InsertMode {
    OwnTransaction,
    WithinTransaction,
}

/// Stores revived jobs as active jobs, with their attempt count and times.
pub(crate) async fn insert_revived(
    session: &mut Session,
    jobs: &[&Job],
    now: Timestamp,
) -> DriverResult<()> {
    if jobs.is_empty() {
        return Ok(());
    }
    let columns = Columns::of(jobs.iter().copied(), now);
    columns
        .insert(
            session,
            include_str!("../sql/insert_absent_jobs.sql"),
            InsertMode::WithinTransaction,
        )
        .await?;
    let ids = uuids(jobs.iter().map(|job| job.id));
    let attempts: Vec<i32> = jobs.iter().map(|job| int(job.attempt)).collect();
    let first: Vec<_> = jobs
        .iter()
        .map(|job| job.first_started_at.map(Time))
        .collect();
    let started: Vec<_> = jobs.iter().map(|job| job.started_at.map(Time)).collect();
    let workers: Vec<_> = jobs
        .iter()
        .map(|job| job.worker.as_ref().map(|worker| worker.as_str()))
        .collect();
    session
        .query(
            include_str!("../sql/restore_attempt_columns.sql"),
            params![ids, attempts, first, started, workers],
        )
        .await?;
    columns.update(session).await
}

/// Moves finished jobs to `finished` or `dead`.
pub(crate) async fn finish(
    session: &mut Session,
    ends: &[(Job, LastAttempt)],
    from: &str,
) -> DriverResult<()> {
    let (dead, finished): (Vec<_>, Vec<_>) = ends
        .iter()
        .partition(|(job, _)| matches!(job.state(), windlass_core::State::Dead(_)));
    for (ends, to) in [(finished, "windlass.finished"), (dead, "windlass.dead")] {
        if ends.is_empty() {
            continue;
        }
        let ids = uuids(ends.iter().map(|(job, _)| job.id));
        let run_ats: Vec<_> = ends.iter().map(|(job, _)| Time(job.run_at)).collect();
        let failures: Vec<_> = ends.iter().map(|(job, _)| int(job.failures)).collect();
        let snoozes: Vec<_> = ends.iter().map(|(job, _)| int(job.snoozes)).collect();
        let losses: Vec<_> = ends
            .iter()
            .map(|(job, _)| int(job.losses_in_a_row))
            .collect();
        let delays: Vec<_> = ends
            .iter()
            .map(|(job, _)| job.previous_delay.map(micros))
            .collect();
        let errors: Vec<_> = ends
            .iter()
            .map(|(job, _)| job.last_error.as_ref().map(error_text))
            .collect();
        let failed_ats: Vec<_> = ends
            .iter()
            .map(|(job, _)| job.failed_at.map(Time))
            .collect();
        let words = ends.iter().map(|(job, _)| row::state_words(job.state()));
        let (states, reasons): (Vec<_>, Vec<_>) = words.unzip();
        let finished_ats: Vec<_> = ends
            .iter()
            .map(|(job, _)| job.finished_at().map(Time))
            .collect();
        let results: Vec<_> = ends.iter().map(|(job, _)| result_of(job)).collect();
        let outcomes: Vec<_> = ends
            .iter()
            .map(|(_, last)| last.outcome.map(windlass_core::Outcome::name))
            .collect();
        let details: Vec<_> = ends
            .iter()
            .map(|(_, last)| last.detail.as_ref().map(ToString::to_string))
            .collect();
        let sql = include_str!("../sql/finish_jobs.sql")
            .replace("/* from */", from)
            .replace("/* to */", to);
        session
            .query(
                &sql,
                params![
                    ids,
                    run_ats,
                    failures,
                    snoozes,
                    losses,
                    delays,
                    errors,
                    failed_ats,
                    states,
                    reasons,
                    finished_ats,
                    results,
                    outcomes,
                    details,
                ],
            )
            .await?;
    }
    Ok(())
}

/// Adds ended attempts to the history.
pub(crate) async fn insert_attempts(
    session: &mut Session,
    attempts: &[(windlass_core::JobId, Attempt)],
) -> DriverResult<()> {
    if attempts.is_empty() {
        return Ok(());
    }
    let jobs = uuids(attempts.iter().map(|(job, _)| *job));
    let numbers: Vec<_> = attempts.iter().map(|(_, of)| int(of.attempt)).collect();
    let retries: Vec<_> = attempts.iter().map(|(_, of)| int(of.retry_count)).collect();
    let outcomes: Vec<_> = attempts.iter().map(|(_, of)| of.outcome.name()).collect();
    let started: Vec<_> = attempts.iter().map(|(_, of)| Time(of.started_at)).collect();
    let finished: Vec<_> = attempts
        .iter()
        .map(|(_, of)| Time(of.finished_at))
        .collect();
    let workers: Vec<_> = attempts
        .iter()
        .map(|(_, of)| of.worker.as_ref().map(|worker| worker.as_str()))
        .collect();
    let errors: Vec<_> = attempts
        .iter()
        .map(|(_, of)| of.error.as_ref().map(error_text))
        .collect();
    let details: Vec<_> = attempts
        .iter()
        .map(|(_, of)| of.detail.as_ref().map(ToString::to_string))
        .collect();
    session
        .query(
            include_str!("../sql/insert_attempts.sql"),
            params![
                jobs, numbers, retries, outcomes, started, finished, workers, errors, details
            ],
        )
        .await?;
    Ok(())
}
