//! Lists of jobs. Each list walks an index and stops after a bounded number of jobs.

use std::ops::RangeInclusive;

use rusqlite::Row;
use windlass_core::Timestamp;
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
        let finished_at = finished_at.map_or(i64::MAX, Timestamp::as_micros);
        let cause = filter.fingerprint.map(|cause| cause.bits().cast_signed());
        let limit = sql_limit(SCAN_MAX);
        let sql = wanted.sql(page.order, cause.is_some());
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = match page.order {
            ListOrder::Finished if wanted.is_bad_end() => statement.query((finished_at, id))?,
            ListOrder::Finished => {
                let bad_limit = if filter.state.is_none() { limit } else { 0 };
                statement.query((finished_at, id, limit, bad_limit))?
            }
            ListOrder::Created => match cause {
                Some(cause) => statement.query((id, cause))?,
                None => statement.query([id])?,
            },
        };
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
struct Wanted {
    queue: Option<u32>,
    kind: Option<u32>,
    states: RangeInclusive<i64>,
}

impl Wanted {
    /// Returns `None` if the queue or kind is unknown and so no job can match.
    fn new(filter: &Filter, names: &Names) -> Option<Self> {
        let number = |text: Option<&str>| match text {
            Some(text) => names.known(text).map(Some),
            None => Some(None),
        };
        Some(Wanted {
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

    fn may_match(&self, row: &Row<'_>) -> DriverResult<bool> {
        let (queue, kind) = (row.get::<_, u32>(1)?, row.get::<_, u32>(2)?);
        Ok(self.queue.is_none_or(|wanted| wanted == queue)
            && self.kind.is_none_or(|wanted| wanted == kind)
            && self.states.contains(&row.get(3)?))
    }
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
