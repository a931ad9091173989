//! Cursors of lists, and filters in bodies and queries.

use std::str::FromStr as _;

use serde_json::Value;
use windlass_api::{
    AuditPosition, BodyRefused, BulkActionPosition, Content, DeadFilter, JobFilter, JobPosition,
    OccurrencePosition, PageCursor, Position, QueuePosition, ReplayPosition, SchedulePosition,
    WorkerPosition, params, query_pairs, read_body, read_query,
};
use windlass_core::{Filter, GroupCursor, Timestamp};

use crate::{fuzz, named};

#[test]
fn cursors() {
    let letters = [
        "j", "q", "s", "w", "o", "a", "r", "b", "f", ".", "00", "ff", "+1", "-1",
    ];
    fuzz("cursors")
        .tokens(&letters)
        .inputs(60_000)
        .run_text(|text| {
            let lists = [
                accepts::<JobPosition>(text),
                accepts::<QueuePosition>(text),
                accepts::<SchedulePosition>(text),
                accepts::<WorkerPosition>(text),
                accepts::<OccurrencePosition>(text),
                accepts::<AuditPosition>(text),
                accepts::<ReplayPosition>(text),
                accepts::<BulkActionPosition>(text),
                accepts::<GroupCursor>(text),
            ];
            let accepting = lists.iter().filter(|accepts| **accepts).count();
            assert!(accepting <= 1, "a cursor of two lists: {lists:?}");
            format!("{lists:?} {}", text.matches('.').count().min(4))
        });
}

/// Whether a list takes the cursor. If so, it is written as it was read.
fn accepts<C: Position + PartialEq>(text: &str) -> bool {
    match PageCursor::<C>::from_str(text) {
        Ok(cursor) => {
            let written = cursor.to_string();
            let again = PageCursor::<C>::from_str(&written);
            assert!(again.as_ref() == Ok(&cursor), "{written} is {again:?}");
            true
        }
        Err(invalid) => {
            named(&invalid);
            false
        }
    }
}

#[test]
fn filters() {
    let words = [
        "\"state\"",
        "\"ready\"",
        "\"dead\"",
        "\"queue\"",
        "\"kind\"",
        "\"tag\"",
        "\"reason\"",
        "\"fingerprint\"",
        "\"created_from\"",
        "\"finished_before\"",
        "\"payload_path\"",
        "\"payload_value\"",
        "\"error\"",
        "\"retrying\"",
        "true",
        "null",
        "\"2026-01-01T00:00:00Z\"",
        "\"/a/b\"",
        "state=",
        "&",
        "%22",
        "%00",
        "+",
        "queue=a",
    ];
    fuzz("filters")
        .tokens(&words)
        .inputs(30_000)
        .run_text(filter);
}

fn filter(text: &str) -> String {
    let now = Timestamp::UNIX_EPOCH;
    if !text.trim_start().starts_with('{') {
        return match query_pairs(text) {
            Ok(pairs) => match read_query::<DeadFilter>(&pairs, &params::<DeadFilter>(), now) {
                Ok(filter) => written_and_read(&filter),
                Err(problems) => problems.iter().map(named).collect(),
            },
            Err(invalid) => named(&invalid),
        };
    }
    match read_body::<JobFilter>(text, now) {
        Ok(filter) => written_and_read(&filter),
        Err(BodyRefused::Malformed(_)) => "no JSON".to_owned(),
        Err(BodyRefused::Invalid(problems)) => problems.iter().map(named).collect(),
    }
}

/// Returns the names of the conditions.
fn written_and_read(filter: &Filter) -> String {
    let written = JobFilter::new(filter, Content::Shown);
    let written = serde_json::to_value(written).unwrap();
    let again = read_body::<JobFilter>(&written.to_string(), Timestamp::UNIX_EPOCH);
    assert_eq!(again.ok().as_ref(), Some(filter), "{written}");
    let names = written.as_object().into_iter().flatten();
    let given = names.filter(|(_, value)| **value != Value::Null);
    given.map(|(name, _)| format!("{name} ")).collect()
}
