//! Ends attempts: by a report, or because the lease expired.

mod success;

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::Value;
use tokio_postgres::Row;
use windlass_core::{Delivery, Job, JobId, Outcome, Random, Report, Settlement, State, Timestamp};
use windlass_store::refused::SweepPart;
use windlass_store::stored::LastAttempt;
use windlass_store::{Attempt, AttemptId, AttemptReport, Expired, Renewed, Settled, Swept};

use success::Successes;

use crate::claim::Claimable;
use crate::concurrency_key;
use crate::error::{DriverError, DriverResult};
use crate::failure_group::{Entry, Groups};
use crate::param::{Time, bigint, int, params};
use crate::read::{self, JOBS, find};
use crate::row::{self, ACTIVE_COLUMNS, uuids};
use crate::session::Session;
use crate::settings::Settings;
use crate::statement::Sql;
use crate::tally_change::TallyChanges;
use crate::unique_key;
use crate::unreadable;
use crate::write::{self, Columns, JobOptions};

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
    let sql = Sql::Kept("select * from windlass.renew_v1($1, $2, $3)");
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

/// Ends attempts. Successes are one statement. For other outcomes, and for jobs that operators
/// changed, the rows are locked and `core` decides. Also returns the jobs that wait again, or whose
/// concurrency key became free.
pub(crate) async fn settle_all(
    session: &mut Session,
    settings: &Settings,
    groups: &Groups,
    reports: &[AttemptReport],
    now: Timestamp,
) -> DriverResult<(Vec<Settled>, Vec<Claimable>)> {
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
    let successes = Successes::new(reports, successes);
    let mut ended = EndedJobs::default();
    let done = if others.is_empty() {
        successes.end(session, now).await?
    } else {
        let (done, rows) = successes
            .end_and_lock(session, job_ids(reports, &others), now)
            .await?;
        ended
            .end_running(session, settings, (reports, &others), &rows, now)
            .await?;
        done
    };
    // Operators may have changed the other jobs, so `core` decides about them. If the successes
    // were a transaction of their own, this is a second one.
    let mut undone = Vec::new();
    for position in successes.positions {
        let Some(report) = reports.get(position) else {
            continue;
        };
        match (
            done.settlements.get(&report.attempt_id),
            answers.get_mut(position),
        ) {
            (Some(settlement), Some(answer)) => *answer = Some(Settled::Done(settlement.clone())),
            _ => undone.push(position),
        }
    }
    if !undone.is_empty() {
        let rows = session
            .query(Sql::Kept(&LOCK), params![job_ids(reports, &undone)])
            .await?;
        ended
            .end_running(session, settings, (reports, &undone), &rows, now)
            .await?;
    }
    let mut claimable = done.unparked;
    claimable.extend(ended.write_and_commit(session, groups, now).await?);
    for (position, ended) in ended.positions.into_iter().zip(ended.jobs) {
        if let (Some(answer), Some((settlement, _))) = (answers.get_mut(position), ended.attempt) {
            *answer = Some(Settled::Done(settlement));
        }
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
    Ok((answers.collect(), claimable))
}

/// Locks running jobs.  $1 ids
static LOCK: LazyLock<String> =
    LazyLock::new(|| format!("select {ACTIVE_COLUMNS} from windlass.lock_running_v1($1)"));

fn job_ids(reports: &[AttemptReport], positions: &[usize]) -> Vec<uuid::Uuid> {
    let reports = positions
        .iter()
        .filter_map(|position| reports.get(*position));
    uuids(reports.map(|report| report.attempt_id.job))
}

/// Jobs whose attempt ended, and jobs that expired, to be written together.
#[derive(Default)]
pub(crate) struct EndedJobs {
    jobs: Vec<EndedJob>,
    /// The positions of the reports that ended them.
    positions: Vec<usize>,
}

struct EndedJob {
    before: Job,
    job: Job,
    /// The end of the attempt with details for the history; `None` if the job expired.
    attempt: Option<(Settlement, Option<Value>)>,
    is_new_group: bool,
}

impl EndedJobs {
    /// Ends attempts whose rows are locked, as `core` decides.
    async fn end_running(
        &mut self,
        session: &mut Session,
        settings: &Settings,
        (reports, positions): (&[AttemptReport], &[usize]),
        rows: &[Row],
        now: Timestamp,
    ) -> DriverResult<()> {
        // An unreadable job is not ended here. A version that can read it does that when the lease
        // expires.
        let (jobs, unreadable) = read::active(session, settings, rows).await?;
        unreadable::set_aside(session, &unreadable).await?;
        let mut jobs: HashMap<JobId, Job> = jobs.into_iter().map(|job| (job.id, job)).collect();
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
            if let Some(job) = running {
                self.end(job, report, now);
                self.positions.push(*position);
            }
        }
        Ok(())
    }

    /// Ends a running attempt as `core` decides.
    fn end(&mut self, mut job: Job, report: &AttemptReport, now: Timestamp) {
        let before = job.clone();
        let settlement = job
            .decide(report.report.clone(), now, report.random)
            .expect("the job is running");
        job.settle(settlement.clone(), now)
            .expect("the job is running, and its row is locked");
        self.jobs.push(EndedJob {
            before,
            job,
            attempt: Some((settlement, report.detail.clone())),
            is_new_group: false,
        });
    }

    fn expire(&mut self, mut job: Job, now: Timestamp) -> DriverResult<()> {
        debug_assert_eq!(job.state(), State::Waiting);
        let before = job.clone();
        job.expire(now)
            .map_err(|conflict| DriverError::damaged(conflict.to_string()))?;
        self.jobs.push(EndedJob {
            before,
            job,
            attempt: None,
            is_new_group: false,
        });
        Ok(())
    }

    /// Writes all jobs and commits. Returns the jobs that wait again, or whose concurrency key
    /// became free.
    async fn write_and_commit(
        &mut self,
        session: &mut Session,
        groups: &Groups,
        now: Timestamp,
    ) -> DriverResult<Vec<Claimable>> {
        let before = || self.jobs.iter().map(|ended| &ended.before);
        let expired = before().filter(|job| job.state() == State::Waiting);
        concurrency_key::before_change(session, expired)?;
        let changes = self.enter_groups(session, groups, now).await?;
        let active = self.jobs.iter().map(|ended| &ended.job);
        let active = active.filter(|job| !job.state().is_final());
        Columns::of(active, now).update(session, JobOptions::Keep)?;
        let finished = self
            .jobs
            .iter()
            .filter(|ended| ended.job.state().is_final());
        let finished: Vec<(Job, LastAttempt)> = finished
            .map(|ended| (ended.job.clone(), ended.last_attempt()))
            .collect();
        write::finish(session, &finished, JOBS)?;
        let finished: Vec<&Job> = finished.iter().map(|(job, _)| job).collect();
        unique_key::release(session, &finished, now).await?;
        let attempts = self.jobs.iter().filter_map(|ended| ended.history_row(now));
        let attempts: Vec<(JobId, Attempt)> = attempts.collect();
        write::insert_attempts(session, &attempts)?;
        changes.write(session)?;
        let keys = concurrency_key::keys(self.jobs.iter().map(|ended| &ended.before));
        let mut claimable = concurrency_key::unpark_and_commit(session, keys, now).await?;
        groups.remember(changes.failed(), now);
        let jobs = self.jobs.iter().map(|ended| &ended.job);
        let waiting = jobs.filter(|job| !job.state().is_final());
        claimable.extend(waiting.map(write::claimable));
        Ok(claimable)
    }

    /// Puts jobs that failed into their failure groups.
    async fn enter_groups(
        &mut self,
        session: &mut Session,
        groups: &Groups,
        now: Timestamp,
    ) -> DriverResult<TallyChanges> {
        let failed = self.jobs.iter_mut().filter(|ended| ended.has_failed());
        let mut failed: Vec<&mut Job> = failed.map(|ended| &mut ended.job).collect();
        let mut new = groups
            .enter(session, &mut failed, Entry::Failed, now)
            .await?;
        let mut changes = TallyChanges::default();
        for ended in &mut self.jobs {
            changes.count(&ended.before, Some(&ended.job));
            if !ended.has_failed() {
                continue;
            }
            changes.count_failure(&ended.job, now);
            let key = ended.job.group().map(|(key, _)| key);
            ended.is_new_group = key.is_some_and(|key| new.remove(&key));
            if let Some((settlement, _)) = &mut ended.attempt {
                settlement.fingerprint = ended.job.fingerprint;
                settlement.is_new_group = ended.is_new_group;
            }
        }
        Ok(changes)
    }
}

impl EndedJob {
    fn has_failed(&self) -> bool {
        let settlement = self.attempt.as_ref().map(|(settlement, _)| settlement);
        settlement.is_none_or(|settlement| settlement.fingerprint.is_some())
    }

    /// How the last attempt ended, for the row of a finished job.
    fn last_attempt(&self) -> LastAttempt {
        let attempt = self.attempt.as_ref();
        attempt.map_or_else(LastAttempt::default, |(settlement, detail)| LastAttempt {
            outcome: Some(settlement.outcome),
            detail: detail.clone(),
        })
    }

    /// The history row of an attempt that did not finish its job.
    fn history_row(&self, now: Timestamp) -> Option<(JobId, Attempt)> {
        let (settlement, detail) = self.attempt.as_ref()?;
        let row = Attempt {
            attempt: self.job.attempt,
            retry_count: self.before.failures,
            outcome: settlement.outcome,
            started_at: self.job.started_at.unwrap_or(now),
            finished_at: now,
            worker: self.job.worker.clone(),
            error: settlement.error.clone(),
            detail: detail.clone(),
        };
        (!self.job.state().is_final()).then_some((self.job.id, row))
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
/// again, or whose concurrency key became free.
pub(crate) async fn sweep(
    session: &mut Session,
    settings: &Settings,
    groups: &Groups,
    part: &SweepPart,
    limit: usize,
    now: Timestamp,
    random: u64,
) -> DriverResult<(Swept, Vec<Claimable>)> {
    let mut random = Random::new(random);
    let mut ended = EndedJobs::default();
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
    unreadable::set_aside(session, &unreadable).await?;
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
        ended.end(job, &report, now);
    }
    let left = limit.saturating_sub(ended.jobs.len());
    let sql = format!(
        "select {ACTIVE_COLUMNS} from {JOBS} where {OVERDUE} and {chosen}
         order by deadline, id limit $2 for update skip locked"
    );
    let rows = session
        .query(&sql, params![Time(now), bigint(left as u64), except, only])
        .await?;
    let (jobs, unreadable) = read::active(session, settings, &rows).await?;
    unreadable::set_aside(session, &unreadable).await?;
    for job in jobs {
        ended.expire(job, now)?;
    }
    let claimable = ended.write_and_commit(session, groups, now).await?;
    let mut swept = Swept::default();
    for ended in ended.jobs {
        let (job, attempt) = (ended.job.id, ended.job.attempt);
        match ended.attempt {
            Some((settlement, _)) => swept.lost.push((AttemptId { job, attempt }, settlement)),
            None => swept.expired.push(Expired {
                job,
                is_new_group: ended.is_new_group,
            }),
        }
    }
    Ok((swept, claimable))
}
