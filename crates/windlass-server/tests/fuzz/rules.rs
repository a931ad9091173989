//! Cron expressions, durations and retry policies.

use serde_json::Value;
use windlass_core::retry::RetryPolicy;
use windlass_core::schedule::{Expression, Recurrence, Zone};
use windlass_core::{DURATION_MAX, Timestamp, format_duration, parse_duration};

use crate::{fuzz, kind_of, named};

#[test]
fn cron_expressions() {
    let words = [
        "*", "?", "/", "-", ",", "#", "L", "W", "LW", "L-3", "15W", "MON", "fri", "JAN", "0", "59",
        "2099", "*/5", "1-5", "@hourly", "@every ", "90s", "at ",
    ];
    fuzz("cron").tokens(&words).inputs(30_000).run_text(cron);
}

fn cron(text: &str) -> String {
    let expression = match text.parse::<Expression>() {
        Ok(expression) => expression,
        Err(invalid) => return named(&invalid),
    };
    let written = expression.to_string();
    assert_eq!(written.parse::<Expression>().as_ref(), Ok(&expression));
    let words = expression.words().unwrap_or_default();
    assert!(words.len() < 1000, "{words}");
    // In spring, the clocks skip an hour an hour and a half later.
    let start: Timestamp = "2026-03-28T23:30:00Z".parse().unwrap();
    let zone = Zone::new("Europe/Berlin").unwrap();
    let recurrence = Recurrence::new(expression, zone, start);
    let mut last = start;
    for firing in recurrence.after(start).take(3) {
        assert!(firing.at > last, "{} after {last}", firing.at);
        assert_eq!(recurrence.last(firing.at), Some(firing.at));
        last = firing.at;
    }
    kind_of(&words)
}

#[test]
fn durations() {
    let units = [
        "w",
        "d",
        "h",
        "m",
        "s",
        "ms",
        "us",
        "µs",
        "1h 30m",
        "1.5",
        "0.000001s",
        "-",
    ];
    fuzz("durations")
        .tokens(&units)
        .inputs(100_000)
        .run_text(duration);
}

fn duration(text: &str) -> String {
    let duration = match parse_duration(text) {
        Ok(duration) => duration,
        Err(invalid) => return named(&invalid),
    };
    assert!(duration <= DURATION_MAX, "{duration:?}");
    let written = format_duration(duration);
    assert_eq!(parse_duration(&written), Ok(duration), "{written}");
    let units = written.chars().filter(|letter| !letter.is_ascii_digit());
    units.collect()
}

#[test]
fn retry_policies() {
    let words = [
        "\"preset\"",
        "\"standard\"",
        "\"webhook\"",
        "\"max_attempts\"",
        "\"max_retries\"",
        "\"backoff\"",
        "\"jitter\"",
        "\"max_elapsed\"",
        "\"type\"",
        "\"exponential\"",
        "\"polynomial\"",
        "\"linear\"",
        "\"constant\"",
        "\"steps\"",
        "\"delays\"",
        "\"base\"",
        "\"base_ms\"",
        "\"step\"",
        "\"multiplier\"",
        "\"power\"",
        "\"max\"",
        "\"ratio\"",
        "\"proportional\"",
        "\"decorrelated\"",
        "\"full\"",
        "\"1s\"",
        "\"200ms\"",
        "null",
        "[",
        "{",
        ":",
        ",",
    ];
    fuzz("policies")
        .tokens(&words)
        .inputs(30_000)
        .run_text(policy);
}

fn policy(text: &str) -> String {
    let Ok(json) = serde_json::from_str::<Value>(text) else {
        return "no JSON".to_owned();
    };
    let policy = match RetryPolicy::from_json(&json) {
        Ok(policy) => policy,
        Err(invalid) => return named(&invalid),
    };
    assert_eq!(
        RetryPolicy::from_json(&policy.to_json()).as_ref(),
        Ok(&policy)
    );
    let mut previous = None;
    for failures in [1, 2, 3, 10, 1000, 1 << 31, u32::MAX] {
        let range = policy.delay_range(failures, previous);
        assert!(
            range.min <= range.nominal && range.nominal <= range.max,
            "{range:?}"
        );
        let mut last = None;
        for random in [0, u64::MAX / 3, u64::MAX] {
            let delay = policy.delay(failures, previous, random);
            assert!(
                range.min <= delay && delay <= range.max,
                "{delay:?} of {range:?}"
            );
            last = Some(delay);
        }
        previous = last;
    }
    let kind = policy.to_json();
    format!("{} {}", kind["backoff"]["type"], kind["jitter"])
}
