//! Policies.

use super::{Field, Schema};

pub(super) fn components() -> Vec<(&'static str, Schema)> {
    vec![
        ("Preset", preset()),
        ("ExplainRequest", explain_request()),
        ("Explanation", explanation()),
    ]
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
