//! Looks at schedules, and at what they did and will do.

use serde_json::{Value, json};
use windlass_api::{Cursor, ListPage};
use windlass_core::fields::{Fields, RawFields};
use windlass_core::schedule::{Firing, NewSchedule, Recurrence, Zone};
use windlass_core::{Invalid, NewJob, Timestamp};
use windlass_store::{Fire, PAGE_MAX, RECORDS_MAX, Schedule};

use super::{answer, named, view};
use crate::answer::Answer;
use crate::call::Call;
use crate::problem::Problem;

const LIST_DEFAULT: usize = 50;
const PREVIEW_DEFAULT: usize = 10;
/// So many records of skipped occurrences are looked at.
const SKIPPED_LOOKED_AT_MAX: usize = 10_000;

pub(super) async fn list(call: Call) -> Result<Answer, Problem> {
    let limit = call.limit(LIST_DEFAULT, PAGE_MAX)?;
    let place = match call.query().parsed("cursor", str::parse)? {
        None => 0,
        Some(Cursor::Place(place)) => usize::try_from(place).unwrap_or(usize::MAX),
        Some(Cursor::Job(_)) => {
            return Err(Invalid::new("cursor", "must be a `next_cursor` of this list").into());
        }
    };
    let all = call.app.client.schedules().await?;
    let data: Vec<_> = all
        .iter()
        .skip(place)
        .take(limit)
        .map(|one| view(&call, one))
        .collect();
    let end = place.saturating_add(data.len());
    let next = u64::try_from(end)
        .ok()
        .filter(|_| end < all.len() && !data.is_empty());
    let next_cursor = next.map(|place| Cursor::Place(place).to_string());
    let link = call.link(next_cursor.as_ref());
    Ok(Answer::ok(&ListPage { data, next_cursor })?.next(link))
}

pub(super) async fn get(call: Call) -> Result<Answer, Problem> {
    let schedule = named(&call).await?;
    answer(&call, &schedule)
}

/// What was fired, newest first; on the first page, what was skipped in between too.
pub(super) async fn occurrences(call: Call) -> Result<Answer, Problem> {
    let limit = call.limit(LIST_DEFAULT, PAGE_MAX)?;
    let before = match call.query().parsed("cursor", str::parse)? {
        None => None,
        Some(Cursor::Place(place)) => i64::try_from(place).ok().and_then(Timestamp::from_micros),
        Some(Cursor::Job(_)) => {
            return Err(Invalid::new("cursor", "must be a `next_cursor` of this list").into());
        }
    };
    let schedule = named(&call).await?;
    let store = call.app.store();
    let fired = store.occurrences(schedule.id, before, limit).await?;
    let ids: Vec<_> = fired.iter().filter_map(|one| one.job).collect();
    let jobs = store.get(&ids).await?;
    let mut rows: Vec<(Timestamp, Value)> = Vec::new();
    for one in &fired {
        let job = jobs.iter().flatten().find(|job| Some(job.id) == one.job);
        let mut row = json!({"scheduled_for": one.scheduled_for, "fired": one.job.is_some()});
        if let (Some(row), Some(job)) = (row.as_object_mut(), job) {
            let state = job.state().name(job.run_at, call.now);
            row.insert("job_id".to_owned(), json!(job.id));
            row.insert("state".to_owned(), json!(state));
            row.insert("finished_at".to_owned(), json!(job.finished_at()));
        }
        rows.push((one.scheduled_for, row));
    }
    let oldest = fired
        .last()
        .map(|one| one.scheduled_for)
        .filter(|_| fired.len() == limit);
    for (first, row) in skipped(&call, &schedule).await? {
        let fits = before.is_none_or(|before| first < before)
            && oldest.is_none_or(|oldest| first >= oldest);
        if fits {
            rows.push((first, row));
        }
    }
    rows.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    let data: Vec<Value> = rows.into_iter().map(|(_, row)| row).collect();
    let place = oldest.and_then(|oldest| u64::try_from(oldest.as_micros()).ok());
    let next_cursor = place.map(|place| Cursor::Place(place).to_string());
    let link = call.link(next_cursor.as_ref());
    Ok(Answer::ok(&ListPage { data, next_cursor })?.next(link))
}

async fn skipped(call: &Call, schedule: &Schedule) -> Result<Vec<(Timestamp, Value)>, Problem> {
    let id = schedule.id.to_string();
    let (mut after, mut found, mut looked_at) = (0, Vec::new(), 0);
    while looked_at < SKIPPED_LOOKED_AT_MAX {
        let page = call
            .app
            .store()
            .records(Fire::SKIPPED_TOPIC, after, RECORDS_MAX)
            .await?;
        let Some(last) = page.last() else { break };
        after = last.cursor;
        looked_at += page.len();
        for record in page {
            let told = |name: &str| record.value.get(name).cloned().unwrap_or(Value::Null);
            let first = told("first").as_str().and_then(|first| first.parse().ok());
            let Some(first) = first.filter(|_| told("schedule_id") == id.as_str()) else {
                continue;
            };
            let row = json!({
                "scheduled_for": first, "fired": false, "last": told("last"),
                "count": told("count"), "reason": told("reason"),
            });
            found.push((first, row));
        }
    }
    Ok(found)
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
    let map = call.map()?;
    let mut fields = Fields::of(&map);
    let after = fields.timestamp("after")?.unwrap_or(call.now);
    let most = i64::try_from(PAGE_MAX).unwrap_or(i64::MAX);
    let count = fields.integer("count", 1, most)?;
    let count = count
        .and_then(|count| count.try_into().ok())
        .unwrap_or(PREVIEW_DEFAULT);
    let recurrence = rule(&call)?;
    let firings = recurrence.after(after).take(count);
    let zone = &recurrence.zone;
    Answer::ok(&ListPage::whole(
        firings.map(|one| firing(&one, zone)).collect(),
    ))
}

/// The rule of a preview, read as that of a schedule is.
fn rule(call: &Call) -> Result<Recurrence, Problem> {
    let mut parts: RawFields = call.parts()?;
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
            return Err(Invalid::new(other, "does not change when a rule fires").into());
        }
    }
    let name = RawFields::parse(r#"{"name":"preview"}"#)?.take("name");
    if let Some(name) = name {
        parts.put("name", name);
    }
    let job = NewJob::from_json(r#"{"kind":"preview"}"#)?;
    let schedule = NewSchedule::from_parts(&parts, job)?;
    Ok(schedule.recurrence(call.now))
}

fn firing(firing: &Firing, zone: &Zone) -> Value {
    let mut json = json!({"at": firing.at, "local": zone.local(firing.at)});
    if let (Some(note), Some(json)) = (&firing.note, json.as_object_mut()) {
        json.insert("note".to_owned(), note.to_string().into());
    }
    json
}
