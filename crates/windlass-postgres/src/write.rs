//! Writes jobs and attempts, many in one statement.

use windlass_core::{Job, Lane, Timestamp};
use windlass_store::Attempt;
use windlass_store::stored::{LastAttempt, interventions_json, optional_fields_json, result_of};

use crate::claim::Claimable;
use crate::error::DriverResult;
use crate::param::{Time, int, params};
use crate::read::JOBS;
use crate::row::{self, cause, error_text, micros, uuid, uuids};
use crate::session::Session;
use crate::statement::Sql;

pub(crate) fn lane(job: &Job) -> i16 {
    match job.lane() {
        Lane::Fresh => 0,
        Lane::Retry => 1,
    }
}

pub(crate) fn rank(job: &Job) -> i32 {
    -i32::from(job.priority)
}

/// The queue, lane and claim order of a waiting job.
pub(crate) fn claimable(job: &Job) -> Claimable {
    let order = (rank(job), job.run_at, job.id);
    (job.queue.clone(), lane(job), order)
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
        sql: impl Into<Sql<'_>>,
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
            InsertMode::OwnTransaction => session.single(sql, params).await,
            InsertMode::WithinTransaction => session.query(sql, params).await,
        }
    }

    /// Writes the state of active jobs, which the transaction has locked, in the round trip of the
    /// next statement.
    pub(crate) fn update(
        &self,
        session: &mut Session,
        job_options: JobOptions,
    ) -> DriverResult<()> {
        if self.is_empty() {
            return Ok(());
        }
        // All transactions lock jobs in the order of their ids, so they cannot deadlock.
        let mut sorted = Columns {
            jobs: self.jobs.clone(),
            now: self.now,
        };
        sorted.jobs.sort_unstable_by_key(|job| job.id);
        sorted.update_in_order(session, job_options)
    }

    fn update_in_order(&self, session: &mut Session, job_options: JobOptions) -> DriverResult<()> {
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
        let causes = self.column(|job| job.fingerprint.map(cause));
        let interventions = self.column(|job| interventions_json(job));
        let waiting = self.column(|job| waiting_since(job));
        let patched = job_options == JobOptions::Write;
        let extras = self.column(|job| optional_fields_json(job).filter(|_| patched));
        session.queue(
            Sql::Kept("select windlass.update_jobs_v1(\
                $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)"),
                params![
                    ids,
                    queues,
                    lanes,
                    ranks,
                    run_ats,
                    due,
                    leases,
                    payloads,
                    failures,
                    snoozes,
                    losses,
                    delays,
                    errors,
                    failed_ats,
                    cancels,
                    causes,
                    interventions,
                    waiting,
                    patched,
                    extras,
                ],
            )
    }
}

/// Since when a job waits, as it is stored: nothing for a job that waits since its enqueue.
fn waiting_since(job: &Job) -> Option<Time> {
    (job.waiting_since != job.created_at).then_some(Time(job.waiting_since))
}

/// Whether an update also writes the options of jobs. Only a patch changes them. Otherwise they
/// stay as they are, with options that only a newer version knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobOptions {
    Keep,
    Write,
}

/// Whether an insert is a transaction of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InsertMode {
    OwnTransaction,
    WithinTransaction,
}

/// Stores revived jobs as active jobs, with what happened to them before.
pub(crate) async fn insert_revived(
    session: &mut Session,
    jobs: &[&Job],
    now: Timestamp,
) -> DriverResult<()> {
    if jobs.is_empty() {
        return Ok(());
    }
    let jobs = Columns::of(jobs.iter().copied(), now);
    let time = |at: Option<Timestamp>| at.map(Time);
    let unique = |job: &Job| job.unique.as_ref().map(|unique| unique.key.to_string());
    let concurrency = |job: &Job| Some(job.concurrency.as_ref()?.key.to_string());
    let limit = |job: &Job| Some(int(job.concurrency.as_ref()?.limit));
    let worker = |job: &Job| job.worker.as_ref().map(ToString::to_string);
    session
        .query(
            include_str!("../sql/insert_revived.sql"),
            params![
                jobs.column(|job| uuid(job.id)),
                jobs.column(|job| job.queue.as_str()),
                jobs.column(|job| job.kind.as_str()),
                jobs.column(|job| lane(job)),
                jobs.column(|job| rank(job)),
                jobs.column(|job| Time(job.run_at)),
                jobs.column(|job| Time(job.created_at)),
                jobs.column(|job| is_due(job, now)),
                jobs.column(|job| time(job.deadline)),
                jobs.column(|job| unique(job)),
                jobs.column(|job| time(job.key_until())),
                jobs.column(|job| concurrency(job)),
                jobs.column(|job| limit(job)),
                jobs.column(|job| job.payload.as_str()),
                jobs.column(|job| optional_fields_json(job)),
                jobs.column(|job| int(job.attempt)),
                jobs.column(|job| int(job.failures)),
                jobs.column(|job| int(job.snoozes)),
                jobs.column(|job| int(job.losses_in_a_row)),
                jobs.column(|job| job.previous_delay.map(micros)),
                jobs.column(|job| time(job.first_started_at)),
                jobs.column(|job| time(job.started_at)),
                jobs.column(|job| worker(job)),
                jobs.column(|job| job.last_error.as_ref().map(error_text)),
                jobs.column(|job| time(job.failed_at)),
                jobs.column(|job| job.fingerprint.map(cause)),
                jobs.column(|job| interventions_json(job)),
                jobs.column(|job| waiting_since(job)),
            ],
        )
        .await?;
    Ok(())
}

/// Writes what a patch changed in finished jobs of a table.
pub(crate) async fn patch_finished(
    session: &mut Session,
    jobs: &[&Job],
    table: &str,
    now: Timestamp,
) -> DriverResult<()> {
    if jobs.is_empty() {
        return Ok(());
    }
    let jobs = Columns::of(jobs.iter().copied(), now);
    let sql = include_str!("../sql/patch_finished.sql").replace("/* table */", table);
    session
        .query(
            &sql,
            params![
                jobs.column(|job| uuid(job.id)),
                jobs.column(|job| job.queue.as_str()),
                jobs.column(|job| rank(job)),
                jobs.column(|job| job.payload.as_str()),
                jobs.column(|job| optional_fields_json(job)),
                jobs.column(|job| job.fingerprint.map(cause)),
                jobs.column(|job| interventions_json(job)),
            ],
        )
        .await?;
    Ok(())
}

/// Subtracts jobs that leave `jobs` from the counts.
const LEAVE_JOBS: &str = "insert into windlass.queue_changes (queue, active, retries, future)
    select
        queue, -count(*), -count(*) filter (where lane = 1),
        -count(*) filter (where not due and lease_until is null and unreadable is null)
    from deleted group by queue";
/// Subtracts jobs that leave `dead` from the counts.
const LEAVE_DEAD: &str = "insert into windlass.queue_changes (queue, dead)
    select queue, -count(*) from deleted group by queue";

/// Moves finished jobs to `finished` or `dead`, in the round trip of the next statement.
pub(crate) fn finish(
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
        let causes: Vec<_> = ends
            .iter()
            .map(|(job, _)| job.fingerprint.map(cause))
            .collect();
        let interventions: Vec<_> = ends
            .iter()
            .map(|(job, _)| interventions_json(job))
            .collect();
        let leave = if from == JOBS { LEAVE_JOBS } else { LEAVE_DEAD };
        let sql = include_str!("../sql/finish_jobs.sql")
            .replace("/* from */", from)
            .replace("/* to */", to)
            .replace("/* count */", leave);
        session.queue(
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
                causes,
                interventions,
            ],
        )?;
    }
    Ok(())
}

/// Adds ended attempts to the history, in the round trip of the next statement.
pub(crate) fn insert_attempts(
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
    session.queue(
        Sql::Kept("select windlass.insert_attempts_v1($1, $2, $3, $4, $5, $6, $7, $8, $9)"),
        params![
            jobs, numbers, retries, outcomes, started, finished, workers, errors, details
        ],
    )
}
