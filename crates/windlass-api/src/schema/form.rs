//! The scheduler form, and requests that a target completes later.

use super::{Field, Schema};

pub(super) fn components() -> Vec<(&'static str, Schema)> {
    vec![
        ("SchedulerForm", form()),
        (
            "NewJobOrForm",
            Schema::either(vec![
                Schema::named("NewJob"),
                Schema::named("SchedulerForm"),
            ]),
        ),
        ("FormView", view()),
        ("FormSchedule", schedule()),
        ("FormAttempt", attempt()),
        ("Completion", completion()),
        (
            "CompletionTaken",
            Schema::object(vec![Field::always("id", Schema::id())]),
        ),
    ]
}

fn modes() -> Schema {
    Schema::word(&["AT_LEAST_ONCE", "AT_MOST_ONCE"])
}

fn sign() -> Schema {
    let name = || Schema::text_of(1, 128);
    Schema::either(vec![name(), Schema::list_of(name(), 0, 8)])
        .about("The name of the secret that signs each request, or up to 8 names.")
}

fn form() -> Schema {
    Schema::object(vec![
        Field::always(
            "schedule",
            Schema::text()
                .about("A cron expression, or `@every 90s`.")
                .example("*/10 * * * * *"),
        ),
        Field::always(
            "api",
            Schema::text()
                .about("The URL that is requested.")
                .example("https://example.com/hook"),
        ),
        Field::maybe("type", modes()),
        Field::maybe("isRecurring", Schema::flag()),
        Field::maybe("maxRetryCount", Schema::integer(0, 999)),
        Field::maybe("method", Schema::text()),
        Field::maybe("headers", Schema::open_object()),
        Field::maybe("body", Schema::any()),
        Field::maybe("sign", sign()),
    ])
}

fn when() -> Vec<Field> {
    vec![
        Field::always("next_run_at", Schema::instant().or_null()),
        Field::always("next_execution_time", Schema::instant().or_null()),
    ]
}

fn view() -> Schema {
    let mut fields = vec![
        Field::always("id", Schema::id()),
        Field::always("jobId", Schema::id()),
        Field::always("kind", Schema::text()),
        Field::always("queue", Schema::text()),
        Field::always("schedule", Schema::text()),
        Field::always("type", modes()),
        Field::always("isRecurring", Schema::flag()),
        Field::always("maxRetryCount", Schema::integer(0, 999)),
        Field::always("paused", Schema::flag()),
        Field::always("created_at", Schema::instant()),
        Field::always("finished", Schema::flag()),
        Field::maybe("payload_withheld", Schema::flag()),
        Field::maybe("api", Schema::text()),
        Field::maybe("method", Schema::text()),
        Field::maybe("headers", Schema::open_object()),
        Field::maybe("body", Schema::any()),
        Field::maybe("sign", sign()),
    ];
    fields.extend(when());
    Schema::object(fields)
}

fn schedule() -> Schema {
    let mut fields = vec![
        Field::always("id", Schema::id()),
        Field::always("jobId", Schema::id()),
        Field::always("schedule", Schema::text()),
        Field::always("isRecurring", Schema::flag()),
        Field::always("paused", Schema::flag()),
        Field::always("last_at", Schema::instant().or_null()),
        Field::always("next_at", Schema::instant().or_null()),
    ];
    fields.extend(when());
    Schema::object(fields)
}

fn attempt() -> Schema {
    let mut fields = vec![
        Field::always("job_id", Schema::id()),
        Field::always("scheduled_for", Schema::instant()),
        Field::always(
            "status",
            Schema::word(&["SUCCESS", "FAILED", "SNOOZED", "RELEASED", "CANCELLED"]),
        ),
        Field::always("execution_time", Schema::instant()),
    ];
    fields.extend(super::jobs::attempt_fields());
    Schema::object(fields)
}

fn completion() -> Schema {
    Schema::object(vec![
        Field::always("outcome", Schema::word(&["succeeded", "failed"])),
        Field::maybe("result", Schema::any().about("Of one that succeeded.")),
        Field::maybe("error", Schema::text().about("Of one that failed.")),
        Field::maybe(
            "retryable",
            Schema::flag().about("Of one that failed; true if not given."),
        ),
    ])
}
