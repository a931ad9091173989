//! Lists of jobs. Each list walks an index and stops after a bounded number of jobs.

use std::ops::RangeInclusive;

use rusqlite::{Row, params};
use windlass_core::{AttemptError, Fingerprint, Timestamp};
use windlass_store::{Filter, ListCursor, ListOrder, Listed, ListedState, Lister, Page, SCAN_MAX};

use super::Reader;
use crate::error::{DriverResult, if_readable};
use crate::names::Names;
use crate::row::{self, id_of, sql_limit, timestamp};
use crate::writer::ActivePage;

impl Reader {
    pub(crate) fn list(
        &mut self,
        filter: &Filter,
        page: Page,
        now: Timestamp,
    ) -> DriverResult<Listed> {
        let Some(wanted) = Wanted::new(filter, &self.names) else {
            return Ok(Listed::default());
        };
        let id = page
            .after
            .map_or([u8::MAX; 16], |after| row::blob(after.id));
        let finished_at = page.after.and_then(|after| after.finished_at);
        let cause = filter.fingerprint.map(cause_number);
        let limit = sql_limit(SCAN_MAX);
        let sql = wanted.sql(page.order, cause.is_some());
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params![
            id,
            cause,
            finished_at.map_or(i64::MAX, Timestamp::as_micros),
            limit,
            if filter.state.is_none() { limit } else { 0 },
            filter.error.is_some(),
            filter.payload.is_some(),
        ])?;
        let mut list = Lister::new(page);
        while !list.is_full()
            && let Some(row) = rows.next()?
        {
            let id = id_of(row, 0)?;
            let finished_at = match page.order {
                ListOrder::Created => None,
                ListOrder::Finished => Some(timestamp(row.get(4)?)?),
            };
            let job = if wanted.may_match(row)? {
                if_readable(row::find(&self.connection, &mut self.names, id))?
            } else {
                None
            };
            let job = job.flatten().map(|(job, _)| job);
            let job = job.filter(|job| filter.matches(job, now));
            list.look(ListCursor { finished_at, id }, job);
        }
        Ok(list.finish())
    }

    /// Reads jobs that the writer found in its index, and keeps those that match.
    pub(crate) fn list_active(
        &mut self,
        active: &ActivePage,
        filter: &Filter,
        page: Page,
        now: Timestamp,
    ) -> DriverResult<Listed> {
        let mut list = Lister::new(page);
        let mut ids = active.ids.iter();
        while !list.is_full()
            && let Some(id) = ids.next()
        {
            let job = self.find(*id)?;
            list.look((*id).into(), job.filter(|job| filter.matches(job, now)));
        }
        let listed = list.finish();
        let next = match ids.next() {
            Some(_) => listed.next,
            None => active.next.map(ListCursor::from),
        };
        Ok(Listed {
            next,
            examined: active.examined,
            ..listed
        })
    }
}

/// What a list can check before it reads a job.
struct Wanted<'a> {
    filter: &'a Filter,
    queue: Option<u32>,
    kind: Option<u32>,
    states: RangeInclusive<i64>,
}

impl<'a> Wanted<'a> {
    /// Returns `None` if the queue or kind is unknown and so no job can match.
    fn new(filter: &'a Filter, names: &Names) -> Option<Self> {
        let number = |text: Option<&str>| match text {
            Some(text) => names.known(text).map(Some),
            None => Some(None),
        };
        Some(Wanted {
            filter,
            queue: number(filter.queue.as_ref().map(|queue| queue.as_str()))?,
            kind: number(filter.kind.as_ref().map(|kind| kind.as_str()))?,
            states: states(filter),
        })
    }

    /// Whether only dead or cancelled jobs can match.
    fn is_bad_end(&self) -> bool {
        self.states.start() > &row::SUCCEEDED
    }

    /// Returns the query that examines the fewest jobs.
    fn sql(&self, order: ListOrder, has_cause: bool) -> &'static str {
        match order {
            ListOrder::Created if has_cause => include_str!("../../sql/list_by_cause.sql"),
            ListOrder::Created if self.is_bad_end() => {
                include_str!("../../sql/list_dead_and_cancelled.sql")
            }
            ListOrder::Created => include_str!("../../sql/list.sql"),
            ListOrder::Finished if self.is_bad_end() => {
                include_str!("../../sql/list_dead_and_cancelled_by_time.sql")
            }
            ListOrder::Finished => include_str!("../../sql/list_by_time.sql"),
        }
    }

    /// Whether the columns of a row fit the filter.
    fn may_match(&self, row: &Row<'_>) -> DriverResult<bool> {
        let (queue, kind) = (row.get::<_, u32>(1)?, row.get::<_, u32>(2)?);
        Ok(self.queue.is_none_or(|wanted| wanted == queue)
            && self.kind.is_none_or(|wanted| wanted == kind)
            && self.states.contains(&row.get(3)?)
            && self.may_match_failure(row)?
            && self.may_match_text(row)?)
    }

    fn may_match_failure(&self, row: &Row<'_>) -> DriverResult<bool> {
        let filter = self.filter;
        let cause = filter.fingerprint.map(cause_number);
        Ok((cause.is_none() || cause == row.get(6)?)
            && in_window(filter.finished_from, filter.finished_before, row.get(4)?)
            && in_window(filter.created_from, filter.created_before, row.get(5)?)
            && in_window(filter.failed_from, filter.failed_before, row.get(7)?))
    }

    /// Checks the last error and the payload, which are null if the filter has no such condition.
    fn may_match_text(&self, row: &Row<'_>) -> DriverResult<bool> {
        let text = |column| -> DriverResult<Option<&str>> {
            let text = row.get_ref(column)?.as_str_or_null();
            Ok(text.map_err(rusqlite::Error::from)?)
        };
        let payload = text(9)?;
        let error: Option<AttemptError> = match text(8)?.map(serde_json::from_str) {
            Some(Ok(error)) => Some(error),
            Some(Err(_)) => return Ok(true), // the read of the whole job reports it
            None => None,
        };
        Ok(self.filter.matches_error(error.as_ref())
            && payload.is_none_or(|payload| self.filter.matches_payload(payload)))
    }
}

fn cause_number(cause: Fingerprint) -> i64 {
    cause.bits().cast_signed()
}

fn in_window(from: Option<Timestamp>, before: Option<Timestamp>, at: Option<i64>) -> bool {
    from.is_none_or(|from| at.is_some_and(|at| at >= from.as_micros()))
        && before.is_none_or(|before| at.is_some_and(|at| at < before.as_micros()))
}

/// Returns the numbers of the states that a filter can match.
fn states(filter: &Filter) -> RangeInclusive<i64> {
    if let Some(reason) = filter.reason {
        let number = row::dead_number(reason);
        return number..=number;
    }
    match filter.state {
        None => row::WAITING..=i64::MAX,
        Some(ListedState::Scheduled | ListedState::Ready) => row::WAITING..=row::WAITING,
        Some(ListedState::Running) => row::RUNNING..=row::RUNNING,
        Some(ListedState::Succeeded) => row::SUCCEEDED..=row::SUCCEEDED,
        Some(ListedState::Cancelled) => row::CANCELLED..=row::CANCELLED,
        Some(ListedState::Dead) => row::DEAD_FROM..=i64::MAX,
    }
}
