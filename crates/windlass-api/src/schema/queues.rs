//! Queues and policies.

use super::{Field, Schema, queue_name};

pub(super) fn components() -> Vec<(&'static str, Schema)> {
    vec![
        ("QueueSettings", settings()),
        ("Queue", queue()),
        ("Purge", purge()),
        ("Preset", preset()),
        ("ExplainRequest", explain_request()),
        ("Explanation", explanation()),
    ]
}

fn settings() -> Schema {
    let rate = Schema::object(vec![
        Field::always("count", Schema::integer(1, u32::MAX.into())),
        Field::maybe("period", Schema::duration()),
        Field::maybe("period_ms", Schema::integer(1, 315_360_000_000)),
    ]);
    let ratio = Schema::either(vec![Schema::number(), Schema::word(&["off"])]);
    Schema::object(vec![
        Field::optional("max_depth", Schema::integer(1, i64::MAX)),
        Field::optional("concurrency", Schema::integer(1, u32::MAX.into())),
        Field::optional("rate", rate),
        Field::optional(
            "retry",
            Schema::either(vec![Schema::text(), Schema::named("RetryPolicy")]),
        ),
        Field::optional("retry_fetch_ratio", ratio),
        Field::optional("fresh_reserve", Schema::integer(0, u32::MAX.into())),
        Field::optional("max_inflight_retries", Schema::integer(1, u32::MAX.into())),
        Field::optional(
            "retry_lane",
            Schema::integer(1, u32::MAX.into()).about(
                "In each worker, this many retries run at once in a pool of their own; over REST, at most this many of its jobs are retries.",
            ),
        ),
    ])
}

fn queue() -> Schema {
    let counts = [
        "scheduled",
        "ready",
        "retrying",
        "running",
        "succeeded",
        "dead",
        "cancelled",
    ];
    let counts = counts.map(|name| Field::always(name, Schema::count()));
    let rates = ["enqueued", "succeeded", "failed", "retried", "dead"];
    let rates = rates.map(|name| Field::always(name, Schema::count()));
    let paused = Schema::object(vec![
        Field::always("by", Schema::text()),
        Field::always("at", Schema::instant()),
    ]);
    Schema::object(vec![
        Field::always("name", queue_name()),
        Field::always("depth", Schema::count().about("Jobs that wait.")),
        Field::always("counts", Schema::object(counts.into())),
        Field::always(
            "last_minute",
            Schema::object(rates.into()).about("What this node saw in the last minute."),
        ),
        Field::always("oldest_ready_at", Schema::instant().or_null()),
        Field::always("oldest_ready_ms", Schema::count().or_null()),
        Field::always("paused", paused.or_null()),
        Field::always("settings", Schema::named("QueueSettings")),
        Field::always(
            "settings_unreadable",
            Schema::flag().about(
                "The server cannot read all settings of the queue: a newer version may have written them. Defaults hold for what it cannot read; PUT settings replaces them.",
            ),
        ),
    ])
}

fn purge() -> Schema {
    Schema::object(vec![
        Field::always("state", Schema::word(&["succeeded", "dead", "cancelled"])),
        Field::optional("finished_before", Schema::instant()),
        Field::optional("limit", Schema::integer(1, 1000)),
        Field::optional("cursor", Schema::text()),
    ])
}

fn preset() -> Schema {
    Schema::object(vec![
        Field::always("name", Schema::text()),
        Field::always("purpose", Schema::text()),
        Field::always("policy", Schema::named("RetryPolicy")),
    ])
}

fn explain_request() -> Schema {
    Schema::object(vec![
        Field::always(
            "policy",
            Schema::either(vec![Schema::text(), Schema::named("RetryPolicy")]).example("standard"),
        ),
        Field::optional("max_attempts", Schema::integer(1, 1000)),
        Field::optional("jobs", Schema::integer(1, u32::MAX.into())),
    ])
}

fn explanation() -> Schema {
    let span = || {
        let spans = ["min", "nominal", "max"];
        Schema::object(
            spans
                .map(|name| Field::always(name, Schema::count()))
                .into(),
        )
    };
    let attempt = Schema::object(vec![
        Field::always("attempt", Schema::count()),
        Field::always("delay_ms", span()),
        Field::always("at_ms", span()),
    ]);
    let herd = Schema::object(vec![
        Field::always("second", Schema::count()),
        Field::always("requests", Schema::count()),
    ]);
    Schema::object(vec![
        Field::always("policy", Schema::named("RetryPolicy")),
        Field::always("attempts", Schema::list(attempt)),
        Field::always("horizon_ms", span()),
        Field::always("herd", Schema::list(herd)),
        Field::always("herd_rest", Schema::count()),
    ])
}
