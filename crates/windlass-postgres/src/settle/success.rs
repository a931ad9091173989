//! Successes: ended in one statement, without a lock before it.

use std::collections::HashMap;

use tokio_postgres::Row;
use uuid::Uuid;
use windlass_core::retry::AttemptLimit;
use windlass_core::{Delivery, Payload, Report, Running, Settlement, Timestamp, settle};
use windlass_store::{AttemptId, AttemptReport};

use super::{LOCK, attempt_id};
use crate::claim::Claimable;
use crate::concurrency_key;
use crate::error::DriverResult;
use crate::param::{Time, int, params};
use crate::row::{self, uuids};
use crate::session::Session;
use crate::statement::Sql;

/// The reports of successes, in the order of their jobs.
pub(super) struct Successes<'a> {
    pub(super) positions: Vec<usize>,
    reports: Vec<&'a AttemptReport>,
}

/// What the statement has done.
#[derive(Default)]
pub(super) struct Done {
    /// The attempts that it ended.
    pub(super) settlements: HashMap<AttemptId, Settlement>,
    /// Jobs whose concurrency key became free.
    pub(super) unparked: Vec<Claimable>,
}

/// The columns of the statement that ends them.
struct Columns {
    ids: Vec<Uuid>,
    attempts: Vec<i32>,
    results: Vec<Option<String>>,
    details: Vec<Option<String>>,
}

impl<'a> Successes<'a> {
    pub(super) fn new(reports: &'a [AttemptReport], positions: Vec<usize>) -> Self {
        let of_positions = positions
            .iter()
            .filter_map(|position| reports.get(*position));
        let mut reports: Vec<&AttemptReport> = of_positions.collect();
        reports.sort_unstable_by_key(|report| report.attempt_id);
        Successes { positions, reports }
    }

    /// Ends all of them in a transaction of their own.
    pub(super) async fn end(&self, session: &mut Session, now: Timestamp) -> DriverResult<Done> {
        if self.reports.is_empty() {
            return Ok(Done::default());
        }
        let Columns {
            ids,
            attempts,
            results,
            details,
        } = self.columns();
        let params = params![ids, attempts, results, details, Time(now)];
        let rows = session.single(SUCCEED, params).await?;
        self.done(&rows, now)
    }

    /// Ends all of them, and locks other running jobs in the same round trip. Returns the rows of
    /// these.
    pub(super) async fn end_and_lock(
        &self,
        session: &mut Session,
        others: Vec<Uuid>,
        now: Timestamp,
    ) -> DriverResult<(Done, Vec<Row>)> {
        if self.reports.is_empty() {
            let rows = session.query(Sql::Kept(&LOCK), params![others]).await?;
            return Ok((Done::default(), rows));
        }
        let Columns {
            ids,
            attempts,
            results,
            details,
        } = self.columns();
        let params = params![ids, attempts, results, details, Time(now)];
        let [done, locked] = session
            .queries([(SUCCEED, params), (Sql::Kept(&LOCK), params![others])])
            .await?;
        Ok((self.done(&done, now)?, locked))
    }

    fn columns(&self) -> Columns {
        let reports = || self.reports.iter();
        let attempts = reports().map(|report| int(report.attempt_id.attempt));
        let results = reports().map(|report| result_of(report).map(|it| it.as_str().to_owned()));
        let details = reports().map(|report| report.detail.as_ref().map(ToString::to_string));
        Columns {
            ids: uuids(reports().map(|report| report.attempt_id.job)),
            attempts: attempts.collect(),
            results: results.collect(),
            details: details.collect(),
        }
    }

    /// Reads what the statement has done.
    fn done(&self, rows: &[Row], now: Timestamp) -> DriverResult<Done> {
        let (ended, unparked): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|found| {
            found
                .try_get::<_, Option<Uuid>>(0)
                .is_ok_and(|id| id.is_some())
        });
        let results = self.reports.iter();
        let results: HashMap<AttemptId, Option<&Payload>> = results
            .map(|report| (report.attempt_id, result_of(report)))
            .collect();
        let mut settlements = HashMap::with_capacity(ended.len());
        for found in ended {
            let attempt = attempt_id(found)?;
            let result = results.get(&attempt).copied().flatten().cloned();
            let (failures, snoozes) = (row::count(found, 2)?, row::count(found, 3)?);
            settlements.insert(attempt, success(failures, snoozes, result, now));
        }
        Ok(Done {
            settlements,
            unparked: concurrency_key::unparked(unparked, 4),
        })
    }
}

const SUCCEED: Sql<'static> =
    Sql::Kept("select * from windlass.succeed_keyed_v1($1, $2, $3, $4, $5)");

fn result_of(report: &AttemptReport) -> Option<&Payload> {
    match &report.report {
        Report::Succeeded(result) => result.as_ref(),
        _ => None,
    }
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
