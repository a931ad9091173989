//! Ends attempts: by a report, or because the lease expired.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio_postgres::Row;
use windlass_core::retry::AttemptLimit;
use windlass_core::{
    Delivery, Job, JobId, Outcome, Payload, Random, Report, Running, Settlement, State, Timestamp,
    settle,
};
use windlass_store::refused::SweepPart;
use windlass_store::stored::LastAttempt;
use windlass_store::{Attempt, AttemptId, AttemptReport, Renewed, Settled, Swept};

use crate::error::{DriverError, DriverResult};
use crate::param::{Time, bigint, int, params};
use crate::read::{self, JOBS, find};
use crate::row::{self, ACTIVE_COLUMNS, uuids};
use crate::session::Session;
use crate::settings::Settings;
use crate::unique_key;
use crate::unreadable;
use crate::write::{self, Columns};

pub(crate) async fn renew(
    session: &mut Session,
    attempts: &[AttemptId],
    lease: Duration,
    now: Timestamp,
) -> DriverResult<Vec<Renewed>> {
    let until = now.saturating_add(lease);
    // All transactions lock jobs in the order of their ids, so they cannot deadlock.
    let mut sorted = attempts.to_vec();
    sorted.sort_unstable();
    let ids = uuids(sorted.iter().map(|attempt| attempt.job));
    let numbers: Vec<i32> = sorted.iter().map(|attempt| int(attempt.attempt)).collect();
    let sql = include_str!("../sql/renew.sql");
    let rows = session
        .single(sql, params![ids, numbers, Time(until)])
        .await?;
    let mut renewed = HashMap::with_capacity(rows.len());
    for found in &rows {
        renewed.insert(attempt_id(found)?, found.try_get::<_, bool>(2)?);
    }
    let answer = |attempt: &AttemptId| match renewed.get(attempt) {
        Some(cancel_requested) => Renewed::Until {
            until,
            cancel_requested: *cancel_requested,
        },
        None => Renewed::LeaseLost,
    };
    Ok(attempts.iter().map(answer).collect())
}

/// Reads the attempt in the first two columns of a row.
fn attempt_id(found: &Row) -> DriverResult<AttemptId> {
    Ok(AttemptId {
        job: row::id(found, 0)?,
        attempt: row::count(found, 1)?,
    })
}

/// Ends attempts. Successes are one statement. For other outcomes, the rows are locked and `core`
/// decides. Also returns the jobs that wait again.
pub(crate) async fn settle_all(
    session: &mut Session,
    settings: &Settings,
    reports: &[AttemptReport],
    now: Timestamp,
) -> DriverResult<(Vec<Settled>, Vec<Job>)> {
    let mut answers: Vec<Option<Settled>> = vec![None; reports.len()];
    // Only the first report of an attempt can end it.
    let mut seen = HashSet::with_capacity(reports.len());
    let first: Vec<usize> = reports
        .iter()
        .enumerate()
        .filter(|(_, report)| seen.insert(report.attempt_id))
        .map(|(position, _)| position)
        .collect();
    let (successes, others): (Vec<usize>, Vec<usize>) = first.into_iter().partition(|position| {
        let report = reports.get(*position).map(|report| &report.report);
        matches!(report, Some(Report::Succeeded(_)))
    });
    let only_successes = others.is_empty() && successes.len() == reports.len();
    let done = succeed(session, reports, &successes, only_successes, now).await?;
    for position in successes {
        let Some(report) = reports.get(position) else {
            continue;
        };
        if let (Some(settlement), Some(answer)) =
            (done.get(&report.attempt_id), answers.get_mut(position))
        {
            *answer = Some(Settled::Done(settlement.clone()));
        }
    }
    let waiting = fail(session, settings, reports, &others, &mut answers, now).await?;
    if !only_successes {
        session.commit().await?;
    }
    let unanswered = answers.iter().any(Option::is_none);
    let outcomes = if unanswered {
        ended_outcomes(session, settings, reports, &answers).await?
    } else {
        HashMap::new()
    };
    let answers = answers.into_iter().zip(reports).map(|(answer, report)| {
        let is_repeated =
            |outcome: &(Outcome, Delivery)| report.report.matches_outcome(outcome.0, outcome.1);
        answer.unwrap_or_else(|| {
            if outcomes.get(&report.attempt_id).is_some_and(is_repeated) {
                Settled::Repeated
            } else {
                Settled::LeaseLost
            }
        })
    });
    Ok((answers.collect(), waiting))
}

async fn succeed(
    session: &mut Session,
    reports: &[AttemptReport],
    positions: &[usize],
    own_transaction: bool,
    now: Timestamp,
) -> DriverResult<HashMap<AttemptId, Settlement>> {
    if positions.is_empty() {
        return Ok(HashMap::new());
    }
    let mut sorted: Vec<&AttemptReport> = positions
        .iter()
        .filter_map(|position| reports.get(*position))
        .collect();
    sorted.sort_unstable_by_key(|report| report.attempt_id);
    let in_order = || sorted.iter().copied();
    let ids = uuids(in_order().map(|report| report.attempt_id.job));
    let attempts: Vec<i32> = in_order()
        .map(|report| int(report.attempt_id.attempt))
        .collect();
    let result = |report: &AttemptReport| match &report.report {
        Report::Succeeded(result) => result.as_ref().map(|result| result.as_str().to_owned()),
        _ => None,
    };
    let results: Vec<Option<String>> = in_order().map(result).collect();
    let details: Vec<Option<String>> = in_order()
        .map(|report| report.detail.as_ref().map(ToString::to_string))
        .collect();
    let sql = include_str!("../sql/succeed.sql");
    let params = params![ids, attempts, results, details, Time(now)];
    let rows = if own_transaction {
        session.single(sql, params).await?
    } else {
        session.query(sql, params).await?
    };
    let mut done = HashMap::with_capacity(rows.len());
    let results: HashMap<AttemptId, Option<Payload>> = in_order()
        .map(|report| match &report.report {
            Report::Succeeded(result) => (report.attempt_id, result.clone()),
            _ => (report.attempt_id, None),
        })
        .collect();
    for found in &rows {
        let attempt = attempt_id(found)?;
        let result = results.get(&attempt).cloned().flatten();
        let (failures, snoozes) = (row::count(found, 2)?, row::count(found, 3)?);
        done.insert(attempt, success(failures, snoozes, result, now));
    }
    Ok(done)
}

/// Returns the settlement of a success. `core` does not look at the other fields for it.
fn success(failures: u32, snoozes: u32, result: Option<Payload>, now: Timestamp) -> Settlement {
    let running = Running {
        delivery: Delivery::AtLeastOnce,
        failures,
        snoozes,
        losses_in_a_row: 0,
        policy: None,
        effective_max: AttemptLimit::ONE,
        first_started_at: now,
        deadline: None,
        previous_delay: None,
        cancel_requested: false,
    };
    settle(&running, Report::Succeeded(result), now, 0)
}

/// Ends attempts that did not succeed. Returns the jobs that wait again.
async fn fail(
    session: &mut Session,
    settings: &Settings,
    reports: &[AttemptReport],
    positions: &[usize],
    answers: &mut [Option<Settled>],
    now: Timestamp,
) -> DriverResult<Vec<Job>> {
    if positions.is_empty() {
        return Ok(Vec::new());
    }
    let ids = uuids(
        positions
            .iter()
            .filter_map(|position| reports.get(*position))
            .map(|report| report.attempt_id.job),
    );
    let sql = format!(
        "select {ACTIVE_COLUMNS} from {JOBS} where id = any ($1) and lease_until is not null order by id for update"
    );
    let rows = session.query(&sql, params![ids]).await?;
    // An unreadable job is not ended here. A version that can read it does that when the lease
    // expires.
    let (jobs, unreadable) = read::active(session, settings, &rows).await?;
    unreadable::park(session, &unreadable).await?;
    let mut jobs: HashMap<JobId, Job> = jobs.into_iter().map(|job| (job.id, job)).collect();
    let mut ended = EndedAttempts::default();
    for position in positions {
        let Some(report) = reports.get(*position) else {
            continue;
        };
        let runs = jobs
            .get(&report.attempt_id.job)
            .is_some_and(|job| job.attempt == report.attempt_id.attempt);
        let running = if runs {
            jobs.remove(&report.attempt_id.job)
        } else {
            None
        };
        if let (Some(job), Some(answer)) = (running, answers.get_mut(*position)) {
            let settlement = ended.end(job, report, now);
            *answer = Some(Settled::Done(settlement));
        }
    }
    ended.write(session, now).await?;
    Ok(ended.waiting)
}

/// Ended attempts and their jobs, to be written together.
#[derive(Default)]
pub(crate) struct EndedAttempts {
    pub(crate) waiting: Vec<Job>,
    pub(crate) finished: Vec<(Job, LastAttempt)>,
    attempts: Vec<(JobId, Attempt)>,
}

impl EndedAttempts {
    /// Ends a running attempt as `core` decides.
    fn end(&mut self, mut job: Job, report: &AttemptReport, now: Timestamp) -> Settlement {
        let retry_count = job.failures;
        let settlement = job
            .decide(report.report.clone(), now, report.random)
            .expect("the job is running");
        job.settle(settlement.clone(), now)
            .expect("the job is running, and its row is locked");
        let detail = report.detail.clone();
        if job.state().is_final() {
            let outcome = Some(settlement.outcome);
            self.finished.push((job, LastAttempt { outcome, detail }));
            return settlement;
        }
        let attempt = Attempt {
            attempt: job.attempt,
            retry_count,
            outcome: settlement.outcome,
            started_at: job.started_at.unwrap_or(now),
            finished_at: now,
            worker: job.worker.clone(),
            error: settlement.error.clone(),
            detail,
        };
        self.attempts.push((job.id, attempt));
        self.waiting.push(job);
        settlement
    }

    pub(crate) async fn write(&self, session: &mut Session, now: Timestamp) -> DriverResult<()> {
        Columns::of(&self.waiting, now).update(session).await?;
        write::finish(session, &self.finished, JOBS).await?;
        let finished: Vec<&Job> = self.finished.iter().map(|(job, _)| job).collect();
        unique_key::release(session, &finished, now).await?;
        write::insert_attempts(session, &self.attempts).await
    }
}

/// Returns the outcome of attempts that no longer run, and the delivery of their jobs.
async fn ended_outcomes(
    session: &mut Session,
    settings: &Settings,
    reports: &[AttemptReport],
    answers: &[Option<Settled>],
) -> DriverResult<HashMap<AttemptId, (Outcome, Delivery)>> {
    let unanswered = reports
        .iter()
        .zip(answers)
        .filter(|(_, answer)| answer.is_none());
    let unanswered: Vec<AttemptId> = unanswered.map(|(report, _)| report.attempt_id).collect();
    let ids: Vec<JobId> = unanswered.iter().map(|attempt| attempt.job).collect();
    let found = find(session, settings, &ids, false).await?;
    let mut outcomes = HashMap::with_capacity(unanswered.len());
    for attempt in &unanswered {
        let Some(found) = found.jobs.get(&attempt.job) else {
            continue;
        };
        let last = found.last.row(&found.job);
        if let Some(last) = last.filter(|last| last.attempt == attempt.attempt) {
            outcomes.insert(*attempt, (last.outcome, found.job.delivery));
        }
    }
    let jobs = uuids(unanswered.iter().map(|attempt| attempt.job));
    let numbers: Vec<i32> = unanswered
        .iter()
        .map(|attempt| int(attempt.attempt))
        .collect();
    let sql = "select job, attempt, outcome from windlass.attempts
         where (job, attempt) in (select * from unnest($1::uuid[], $2::integer[]))";
    for row in session.read(sql, params![jobs, numbers]).await? {
        let attempt = attempt_id(&row)?;
        let outcome = row::outcome(row.try_get(2)?);
        if let (Some(found), Ok(outcome)) = (found.jobs.get(&attempt.job), outcome) {
            outcomes.insert(attempt, (outcome, found.job.delivery));
        }
    }
    Ok(outcomes)
}

/// The condition for attempts whose lease has expired.  $1 now
const EXPIRED: &str = "lease_until is not null and lease_until <= $1 and unreadable is null";
/// The condition for waiting jobs whose deadline has passed.  $1 now
const OVERDUE: &str =
    "deadline is not null and lease_until is null and unreadable is null and deadline < $1";

/// Returns the jobs that a sweep would take, without those in `except`.
pub(crate) async fn to_sweep(
    session: &mut Session,
    except: &[JobId],
    limit: usize,
    now: Timestamp,
) -> DriverResult<Vec<JobId>> {
    let sql = format!(
        "(select id from {JOBS} where {EXPIRED} and id <> all ($3) order by lease_until, id limit $2)
         union all
         (select id from {JOBS} where {OVERDUE} and id <> all ($3) order by deadline, id limit $2) limit $2"
    );
    let params = params![
        Time(now),
        bigint(limit as u64),
        uuids(except.iter().copied())
    ];
    let rows = session.read(&sql, params).await?;
    rows.iter().map(|found| row::id(found, 0)).collect()
}

/// Ends attempts whose lease has expired, and expires overdue jobs. Also returns the jobs that wait
/// again.
pub(crate) async fn sweep(
    session: &mut Session,
    settings: &Settings,
    part: &SweepPart,
    limit: usize,
    now: Timestamp,
    random: u64,
) -> DriverResult<(Swept, Vec<Job>)> {
    let mut random = Random::new(random);
    let (mut swept, mut ended) = (Swept::default(), EndedAttempts::default());
    let (except, only) = match part {
        SweepPart::AllExcept(except) => (uuids(except.iter().copied()), None),
        SweepPart::One(id) => (Vec::new(), Some(row::uuid(*id))),
    };
    let chosen = "id <> all ($3) and ($4::uuid is null or id = $4)";
    let sql = format!(
        "select {ACTIVE_COLUMNS} from {JOBS} where {EXPIRED} and {chosen}
         order by lease_until, id limit $2 for update skip locked"
    );
    let rows = session
        .query(&sql, params![Time(now), bigint(limit as u64), except, only])
        .await?;
    let (jobs, unreadable) = read::active(session, settings, &rows).await?;
    unreadable::park(session, &unreadable).await?;
    for job in jobs {
        let attempt = AttemptId {
            job: job.id,
            attempt: job.attempt,
        };
        let report = AttemptReport {
            attempt_id: attempt,
            report: Report::Lost,
            random: random.bits(),
            detail: None,
        };
        swept.lost.push((attempt, ended.end(job, &report, now)));
    }
    let left = limit.saturating_sub(swept.lost.len());
    let sql = format!(
        "select {ACTIVE_COLUMNS} from {JOBS} where {OVERDUE} and {chosen}
         order by deadline, id limit $2 for update skip locked"
    );
    let rows = session
        .query(&sql, params![Time(now), bigint(left as u64), except, only])
        .await?;
    let (jobs, unreadable) = read::active(session, settings, &rows).await?;
    unreadable::park(session, &unreadable).await?;
    for mut job in jobs {
        debug_assert_eq!(job.state(), State::Waiting);
        job.expire(now)
            .map_err(|conflict| DriverError::damaged(conflict.to_string()))?;
        swept.expired.push(job.id);
        ended.finished.push((job, LastAttempt::default()));
    }
    ended.write(session, now).await?;
    session.commit().await?;
    Ok((swept, ended.waiting))
}
