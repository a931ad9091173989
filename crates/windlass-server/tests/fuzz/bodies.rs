//! Bodies of requests.

use windlass_api::{
    Backfill, Body, BodyRefused, BulkSchedules, Claim, Completion, Edit, NewBulkAction, NewJob,
    NewKey, NewReplay, NewSchedule, Outcomes, PROBLEMS_MAX, Preview, Progress, PutHook,
    QueueSettings, Renewal, Revival, body_text, read_body,
};
use windlass_core::Timestamp;

use crate::{fuzz, named};

#[test]
fn bodies() {
    let words = [
        "\"kind\"",
        "\"payload\"",
        "\"queue\"",
        "\"priority\"",
        "\"run_at\"",
        "\"delay\"",
        "\"max_attempts\"",
        "\"max_retries\"",
        "\"retry\"",
        "\"timeout\"",
        "\"deadline\"",
        "\"unique_key\"",
        "\"unique_for\"",
        "\"concurrency_key\"",
        "\"tags\"",
        "\"meta\"",
        "\"http\"",
        "\"type\"",
        "\"AT_MOST_ONCE\"",
        "\"cron\"",
        "\"every\"",
        "\"filter\"",
        "\"reason\"",
        "\"action\"",
        "\"patch\"",
        "\"outcomes\"",
        "\"id\"",
        "\"attempt\"",
        "\"job\"",
        "\"1h\"",
        "\"none\"",
        "null",
        "true",
        "[]",
        "{}",
        "\\u0000",
        "\\ud800",
        "1e999",
        "-0",
    ];
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    fuzz("bodies")
        .tokens(&words)
        .inputs(6_000)
        .run(move |input| {
            let Ok(text) = body_text(input) else {
                return "no text".to_owned();
            };
            if let Ok(job) = read_body::<NewJob>(text, now) {
                let written = serde_json::to_string(&job).unwrap();
                let again = windlass_core::NewJob::from_json(&written);
                assert_eq!(again.as_ref(), Ok(&job), "{written}");
            }
            [
                read::<NewJob>(text, now),
                read::<Edit>(text, now),
                read::<Revival>(text, now),
                read::<Claim>(text, now),
                read::<Renewal>(text, now),
                read::<Outcomes>(text, now),
                read::<Progress>(text, now),
                read::<NewSchedule>(text, now),
                read::<BulkSchedules>(text, now),
                read::<Preview>(text, now),
                read::<Backfill>(text, now),
                read::<QueueSettings>(text, now),
                read::<NewBulkAction>(text, now),
                read::<NewReplay>(text, now),
                read::<PutHook>(text, now),
                read::<NewKey>(text, now),
                read::<Completion>(text, now),
            ]
            .concat()
        });
}

/// Reads a body; returns the kind of the result.
fn read<B: Body>(text: &str, now: Timestamp) -> String {
    match read_body::<B>(text, now) {
        Ok(_) => format!("{} ", std::any::type_name::<B>()),
        Err(BodyRefused::Malformed(_)) => {
            let json = serde_json::from_str::<serde_json::Value>(text);
            assert!(json.is_err(), "refused as no JSON");
            "no JSON ".to_owned()
        }
        Err(BodyRefused::Invalid(problems)) => {
            assert!((1..=PROBLEMS_MAX).contains(&problems.len()), "{problems:?}");
            problems.iter().take(2).map(named).collect()
        }
    }
}
