//! Looks at schedules, and at what they did and will do.

use serde_json::{Value, json};
use windlass_api::{Cursor, ListPage};
use windlass_core::fields::{Fields, RawFields};
use windlass_core::schedule::{Firing, NewSchedule, Recurrence, Zone};
use windlass_core::{Invalid, NewJob, Timestamp};
use windlass_store::{Fire, PAGE_MAX, RECORDS_MAX, RecordRange, Schedule, read_skipped};

use super::{Found, found, named};
use crate::answer::Answer;
use crate::call::Call;
use crate::problem::Problem;

const LIST_DEFAULT: usize = 50;
const PREVIEW_DEFAULT: usize = 10;

/// Those that will fire again, are paused, or cannot be read.
pub(super) async fn list(call: Call) -> Result<Answer, Problem> {
    let limit = call.limit(LIST_DEFAULT, PAGE_MAX)?;
    let after = call.query().parsed("cursor", Cursor::name)?;
    let client = &call.app.client;
    let (read, unreadable) = (
        client.schedules().await?,
        client.unreadable_schedules().await?,
    );
    let read = read.into_iter().map(|one| Found::Read(Box::new(one)));
    let mut all: Vec<Found> = read
        .chain(unreadable.into_iter().map(Found::Unreadable))
        .filter(|one| after.as_deref().is_none_or(|after| one.name() > after))
        .collect();
    all.sort_by(|one, other| one.name().cmp(other.name()));
    let more = all.len() > limit;
    all.truncate(limit);
    let last = all.last().filter(|_| more);
    let next_cursor = last.map(|last| Cursor::Name(last.name().to_owned()).to_string());
    let link = call.link(next_cursor.as_ref());
    let data: Vec<_> = all.iter().map(|one| one.view(&call)).collect();
    Ok(Answer::ok(&ListPage { data, next_cursor })?.next(link))
}

pub(super) async fn get(call: Call) -> Result<Answer, Problem> {
    let found = found(&call).await?;
    Ok(Answer::ok(&found.view(&call))?.etag(&found.etag()?))
}

/// What was fired and what was skipped, newest first: a skipped range stands at its first occurrence.
pub(super) async fn occurrences(call: Call) -> Result<Answer, Problem> {
    let limit = call.limit(LIST_DEFAULT, PAGE_MAX)?;
    let place = call.query().parsed("cursor", Cursor::place)?;
    let before = place.and_then(|place| i64::try_from(place).ok());
    let before = before.and_then(Timestamp::from_micros);
    let schedule = named(&call).await?;
    let mut rows = fired(&call, &schedule, before, limit).await?;
    rows.extend(skipped(&call, &schedule, before, limit).await?);
    rows.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    // Both have as many as fit: what one page leaves out is on the next. What has the same instant stays together.
    let last = rows.get(limit - 1).map(|(at, _)| *at);
    let end = rows
        .iter()
        .position(|(at, _)| last.is_some_and(|last| *at < last));
    let full = rows.len() >= limit;
    rows.truncate(end.unwrap_or(rows.len()));
    let last = last.filter(|_| full);
    let place = last.and_then(|last| u64::try_from(last.as_micros()).ok());
    let next_cursor = place.map(|place| Cursor::Place(place).to_string());
    let link = call.link(next_cursor.as_ref());
    let data: Vec<Value> = rows.into_iter().map(|(_, row)| row).collect();
    Ok(Answer::ok(&ListPage { data, next_cursor })?.next(link))
}

type Rows = Vec<(Timestamp, Value)>;

/// The newest occurrences that were fired before an instant.
async fn fired(
    call: &Call,
    schedule: &Schedule,
    before: Option<Timestamp>,
    limit: usize,
) -> Result<Rows, Problem> {
    let store = call.app.store();
    let fired = store.occurrences(schedule.id, before, limit).await?;
    let ids: Vec<_> = fired.iter().filter_map(|one| one.job).collect();
    let jobs = store.get(&ids).await?;
    let rows = fired.iter().map(|one| {
        let job = jobs.iter().flatten().find(|job| Some(job.id) == one.job);
        let mut row = json!({"scheduled_for": one.scheduled_for, "fired": one.job.is_some()});
        if let (Some(row), Some(job)) = (row.as_object_mut(), job) {
            let state = job.state().name(job.run_at, call.now);
            row.insert("job_id".to_owned(), json!(job.id));
            row.insert("state".to_owned(), json!(state));
            row.insert("finished_at".to_owned(), json!(job.finished_at()));
        }
        (one.scheduled_for, row)
    });
    Ok(rows.collect())
}

/// The newest ranges of skipped occurrences that begin before an instant.
async fn skipped(
    call: &Call,
    schedule: &Schedule,
    before: Option<Timestamp>,
    limit: usize,
) -> Result<Rows, Problem> {
    let topic = Fire::skipped_topic(schedule.id);
    let (mut cursor, mut rows) = (None, Rows::new());
    while rows.len() < limit {
        let store = call.app.store();
        let page = store
            .records(
                &topic,
                RecordRange::Before(cursor.unwrap_or(u64::MAX)),
                RECORDS_MAX,
            )
            .await?;
        let Some(oldest) = page.last() else { break };
        cursor = Some(oldest.cursor);
        let ranges = page.iter().filter_map(|record| read_skipped(&record.value));
        for range in ranges.filter(|range| before.is_none_or(|before| range.first < before)) {
            let row = json!({
                "scheduled_for": range.first, "fired": false, "last": range.last,
                "count": range.count, "reason": range.reason.name(),
            });
            rows.push((range.first, row));
        }
    }
    rows.truncate(limit);
    Ok(rows)
}

/// The next occurrences of a schedule.
pub(super) async fn upcoming(call: Call) -> Result<Answer, Problem> {
    let most = u64::try_from(PAGE_MAX).unwrap_or(u64::MAX);
    let count = call.query().integer("count", 1, most)?;
    let count = count
        .and_then(|count| count.try_into().ok())
        .unwrap_or(PREVIEW_DEFAULT);
    let schedule = named(&call).await?;
    let name = schedule.definition.name.as_str();
    let firings = call.app.client.preview_schedule(name, count).await?;
    let zone = &schedule.definition.timezone;
    Answer::ok(&ListPage::whole(
        firings.iter().map(|one| firing(one, zone)).collect(),
    ))
}

/// When a rule would fire that is not stored.
pub(super) async fn preview(call: Call) -> Result<Answer, Problem> {
    let read = |parts: RawFields| {
        let map = parts.values()?;
        let mut fields = Fields::of(&map);
        let after = fields.timestamp("after")?.unwrap_or(call.now);
        let most = i64::try_from(PAGE_MAX).unwrap_or(i64::MAX);
        let count = fields.integer("count", 1, most)?;
        let count = count
            .and_then(|count| count.try_into().ok())
            .unwrap_or(PREVIEW_DEFAULT);
        Ok((after, count, rule(parts, call.now)?))
    };
    let (after, count, recurrence) = call.read(read)?;
    let firings = recurrence.after(after).take(count);
    let zone = &recurrence.zone;
    Answer::ok(&ListPage::whole(
        firings.map(|one| firing(&one, zone)).collect(),
    ))
}

/// The rule of a preview, read as that of a schedule is.
fn rule(mut parts: RawFields, now: Timestamp) -> Result<Recurrence, Invalid> {
    for ours in ["after", "count"] {
        parts.take(ours);
    }
    for other in [
        "name",
        "job",
        "missed",
        "missed_after",
        "missed_after_ms",
        "overlap",
        "splay",
        "splay_ms",
        "paused",
    ] {
        if parts.has(other) {
            return Err(Invalid::new(other, "does not change when a rule fires"));
        }
    }
    let name = RawFields::parse(r#"{"name":"preview"}"#)?.take("name");
    if let Some(name) = name {
        parts.put("name", name);
    }
    let job = NewJob::from_json(r#"{"kind":"preview"}"#)?;
    let schedule = NewSchedule::from_parts(&parts, job)?;
    Ok(schedule.recurrence(now))
}

fn firing(firing: &Firing, zone: &Zone) -> Value {
    let mut json = json!({"at": firing.at, "local": zone.local(firing.at)});
    if let (Some(note), Some(json)) = (&firing.note, json.as_object_mut()) {
        json.insert("note".to_owned(), note.to_string().into());
    }
    json
}
