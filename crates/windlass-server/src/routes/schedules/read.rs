//! Reads schedules and their past occurrences.

use axum::http::header::ETAG;
use windlass_api::{
    Occurrence, OccurrencePosition, Page, PageCursor, PageParams, ScheduleParams, SchedulePosition,
    ScheduleView,
};
use windlass_core::Timestamp;
use windlass_store::Schedule;

use super::{StoredSchedule, named};
use crate::call::Call;
use crate::endpoint::{Params, Reply};
use crate::problem::Problem;

const LIST_DEFAULT: usize = 50;

pub(super) async fn list(
    call: Call,
    Params(page): Params<PageParams<SchedulePosition>>,
    Params(filter): Params<ScheduleParams>,
) -> Result<Reply<Page<ScheduleView>>, Problem> {
    let (limit, after) = (page.limit_or(LIST_DEFAULT), page.after());
    let client = &call.app.client;
    let readable = client.schedules().await?.into_iter();
    let readable = readable.map(|one| StoredSchedule::Readable(Box::new(one)));
    let unreadable = client.unreadable_schedules().await?.into_iter();
    let mut schedules: Vec<StoredSchedule> = readable
        .chain(unreadable.map(StoredSchedule::Unreadable))
        .filter(|one| filter.matches(one.name(), one.definition()))
        .filter(|one| {
            let after = after.as_ref();
            after.is_none_or(|SchedulePosition(after)| one.name() > after.as_str())
        })
        .collect();
    schedules.sort_by(|one, other| one.name().cmp(other.name()));
    schedules.truncate(limit + 1);
    let content = call.content();
    let views = schedules.iter().map(|one| one.view(content)).collect();
    let page = Page::first(views, limit, |view: &ScheduleView| {
        SchedulePosition(view.name().to_owned())
    });
    let link = call.link(page.next_cursor.as_ref());
    Ok(Reply::ok(page).next(link))
}

pub(super) async fn get(call: Call) -> Result<Reply<ScheduleView>, Problem> {
    let stored = named(&call).await?;
    let reply = Reply::ok(stored.view(call.content()));
    Ok(reply.header(ETAG, stored.etag()?))
}

/// Lists what fired and what was skipped, newest first. A skipped range is listed at its first
/// occurrence.
pub(super) async fn occurrences(
    call: Call,
    Params(page): Params<PageParams<OccurrencePosition>>,
) -> Result<Reply<Page<Occurrence>>, Problem> {
    let limit = page.limit_or(LIST_DEFAULT);
    let before = page.after().and_then(|after| i64::try_from(after.0).ok());
    let before = before.and_then(Timestamp::from_micros);
    let schedule = named(&call).await?.readable()?;
    let client = &call.app.client;
    let mut rows = fired(&call, &schedule, before, limit).await?;
    let skipped = client
        .skipped_occurrences(schedule.id, before, limit)
        .await?;
    rows.extend(skipped.iter().map(Occurrence::skipped));
    rows.sort_by_key(|row| std::cmp::Reverse(row.scheduled_for));
    // Each source returned up to `limit` rows, and the next page starts before the last time of
    // this one. So rows of the same time stay on one page, which may exceed the limit.
    let last = rows.get(limit - 1).map(|row| row.scheduled_for);
    rows.retain(|row| last.is_none_or(|last| row.scheduled_for >= last));
    let micros = last.and_then(|last| u64::try_from(last.as_micros()).ok());
    let page = Page {
        data: rows,
        next_cursor: micros.map(|micros| PageCursor(OccurrencePosition(micros)).to_string()),
    };
    let link = call.link(page.next_cursor.as_ref());
    Ok(Reply::ok(page).next(link))
}

/// Returns the newest occurrences that fired before a time.
async fn fired(
    call: &Call,
    schedule: &Schedule,
    before: Option<Timestamp>,
    limit: usize,
) -> Result<Vec<Occurrence>, Problem> {
    let (client, name) = (&call.app.client, schedule.definition.name.as_str());
    let fired = client.occurrences(name, before, limit).await?;
    let ids: Vec<_> = fired.iter().filter_map(|one| one.job).collect();
    let jobs = client.get_many(&ids).await?;
    let rows = fired.iter().map(|one| {
        let job = jobs.iter().flatten().find(|job| Some(job.id) == one.job);
        Occurrence::fired(one.scheduled_for, one.job, job, call.now)
    });
    Ok(rows.collect())
}
