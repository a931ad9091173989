//! Jobs, their history, and what becomes of a request about them.

use super::{Field, Schema, kind, queue_name};
use crate::filter::STATES;
use serde_json::json;
use windlass_core::{DeadReason, Outcome};

pub(super) fn components() -> Vec<(&'static str, Schema)> {
    vec![
        ("NewJob", new_job()),
        ("Job", job(Vec::new())),
        ("CreatedJob", created_job()),
        ("JobFilter", Schema::object(filter_fields())),
        ("Bulk", bulk()),
        ("Receipt", receipt()),
        ("BulkAnswer", bulk_answer()),
        ("Attempt", attempt()),
        ("Edit", edit()),
        ("HttpRequest", http_request()),
        ("Revival", revival(Vec::new())),
        ("Why", why()),
        ("ReviveByFilter", revival(by_filter())),
        ("RunNowByFilter", Schema::object(by_filter())),
        ("PassAnswer", pass_answer()),
        ("DeadGroup", dead_group()),
        ("RetryPolicy", Schema::open_object().about("`max_attempts`, `backoff`, `jitter`, `max_elapsed`, or `preset` with single values.")),
    ]
}

fn text_of_key() -> Schema {
    Schema::text_of(1, 256)
}

fn delivery() -> Schema {
    Schema::word(&["at_least_once", "at_most_once"])
}

fn retry() -> Schema {
    let preset = Schema::text().example("standard");
    Schema::either(vec![preset, Schema::named("RetryPolicy")])
}

fn millis() -> Schema {
    Schema::integer(0, 315_360_000_000)
}

/// What a client may say about a job. Aliases are not listed: they are for clients of other systems.
fn new_job_fields() -> Vec<Field> {
    vec![
        Field::maybe(
            "payload",
            Schema::either(vec![Schema::named("HttpRequest"), Schema::any()]).about(
                "Any JSON, at most 1 MiB unless configured. Of the kind `http`, an `HttpRequest`.",
            ),
        ),
        Field::optional("queue", queue_name()),
        Field::optional("priority", Schema::integer(-32768, 32767)),
        Field::optional("run_at", Schema::instant()),
        Field::optional("delay", Schema::duration()),
        Field::optional("delay_ms", millis()),
        Field::optional("delivery", delivery()),
        Field::optional("max_attempts", Schema::integer(0, 1000)),
        Field::optional("max_retries", Schema::integer(0, 999)),
        Field::optional("retry", retry()),
        Field::optional("timeout", Schema::text()),
        Field::optional("timeout_ms", millis()),
        Field::optional("deadline", Schema::instant()),
        Field::optional("expires_in", Schema::duration()),
        Field::optional("expires_in_ms", millis()),
        Field::optional("unique_key", text_of_key()),
        Field::optional("unique_for", Schema::duration()),
        Field::optional("unique_for_ms", millis()),
        Field::optional("on_duplicate", Schema::word(&["keep", "replace"])),
        Field::optional("concurrency_key", text_of_key()),
        Field::optional("limit", Schema::integer(1, u32::MAX.into())),
        Field::optional("tags", Schema::list_of(Schema::text_of(1, 64), 0, 32)),
        Field::optional("meta", Schema::open_object()),
    ]
}

/// The payload of an HTTP job.
fn http_request() -> Schema {
    let methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    let secret = || Schema::text_of(1, 128);
    let secrets = Schema::either(vec![secret(), Schema::list_of(secret(), 0, 8)]);
    Schema::object(vec![
        Field::always("url", Schema::text().example("https://example.com/hook")),
        Field::optional("method", Schema::word(&methods)),
        Field::optional("headers", Schema::open_object()),
        Field::optional("body", Schema::any()),
        Field::optional("permanent_statuses", Schema::list(Schema::any())),
        Field::optional("async", Schema::flag()),
        Field::optional("complete_within", Schema::duration()),
        Field::optional("complete_within_ms", millis()),
        Field::optional("sign", secrets),
        Field::optional("idempotency_key", text_of_key()),
    ])
}

fn new_job() -> Schema {
    let mut fields = vec![
        Field::maybe("kind", kind().about("Required, unless `type` names it.")),
        Field::maybe(
            "type",
            Schema::text().about("The kind, or a delivery mode."),
        ),
        Field::maybe(
            "maxRetryCount",
            Schema::integer(0, 999).about("The same as `max_retries`."),
        ),
        Field::maybe("retry_at", Schema::instant().about("The same as `run_at`.")),
        Field::maybe("http", Schema::named("HttpRequest")),
    ];
    fields.extend(new_job_fields());
    Schema::object(fields)
}

fn job(more: Vec<Field>) -> Schema {
    let reasons = DeadReason::ALL.map(DeadReason::name);
    let mut fields = vec![
        Field::always("id", Schema::id()),
        Field::always("kind", kind()),
        Field::always("queue", queue_name()),
        Field::always("state", Schema::word(&STATES)),
        Field::maybe("payload", Schema::any()),
        Field::maybe("result", Schema::any()),
        Field::maybe(
            "payload_withheld",
            Schema::flag().about("The key may not read payloads."),
        ),
        Field::maybe(
            "progress",
            Schema::any().about("What the running attempt last told."),
        ),
        Field::always("priority", Schema::integer(-32768, 32767)),
        Field::always("run_at", Schema::instant().or_null()),
        Field::always("delivery", delivery()),
        Field::always("max_attempts", Schema::integer(1, 1000).or_null()),
        Field::always("retry", retry().or_null()),
        Field::always("timeout", Schema::text()),
        Field::always("deadline", Schema::instant().or_null()),
        Field::always("unique_key", Schema::text().or_null()),
        Field::always("unique_for", Schema::duration().or_null()),
        Field::always("concurrency_key", Schema::text().or_null()),
        Field::always("limit", Schema::count().or_null()),
        Field::always("tags", Schema::list(Schema::text())),
        Field::always("meta", Schema::open_object()),
        Field::always("attempt", Schema::count().about("Claims so far; fences.")),
        Field::always("failures", Schema::count()),
        Field::always("last_error", Schema::text().or_null()),
        error_withheld(),
        Field::always("failed_at", Schema::instant().or_null()),
        Field::always("created_at", Schema::instant()),
        Field::always("started_at", Schema::instant().or_null()),
        Field::always("finished_at", Schema::instant().or_null()),
        Field::always("lease_until", Schema::instant().or_null()),
        Field::always("worker", Schema::text().or_null()),
        Field::always("dead_reason", Schema::word(&reasons).or_null()),
        Field::always("schedule_id", Schema::id().or_null()),
        Field::always("scheduled_for", Schema::instant().or_null()),
        Field::always("cancel_requested", Schema::flag()),
    ];
    fields.extend(more);
    Schema::object(fields)
}

fn error_withheld() -> Field {
    let about = "There is an error, and the key may not read its text.";
    Field::maybe("error_withheld", Schema::flag().about(about))
}

fn duplicate_fields() -> Vec<Field> {
    vec![
        Field::always(
            "duplicate",
            Schema::flag().about("Its unique key was taken: this is the job that was there first."),
        ),
        Field::always(
            "payload_differs",
            Schema::flag().or_null().about(
                "Whether the job that was there first has another payload. Null if the key may not read payloads.",
            ),
        ),
        Field::always("replaced", Schema::flag()),
    ]
}

fn created_job() -> Schema {
    job(duplicate_fields())
}

/// What a list or a pass may ask of jobs.
fn filter_fields() -> Vec<Field> {
    let reasons = DeadReason::ALL.map(DeadReason::name);
    vec![
        Field::maybe("state", Schema::word(&STATES)),
        Field::maybe("queue", queue_name()),
        Field::maybe("kind", kind()),
        Field::maybe("tag", Schema::text_of(1, 64)),
        Field::maybe("unique_key", text_of_key()),
        Field::maybe("schedule", Schema::id()),
        Field::maybe("reason", Schema::word(&reasons).about("Why it is dead.")),
        Field::maybe("created_from", Schema::instant()),
        Field::maybe("created_before", Schema::instant()),
        Field::maybe("finished_from", Schema::instant()),
        Field::maybe("finished_before", Schema::instant()),
        Field::maybe(
            "error",
            Schema::text_of(1, 200)
                .about("Text in the last error. Needs the scope `read-payload`."),
        ),
        Field::maybe("fingerprint", Schema::pattern("^[0-9a-fA-F]{16}$")),
        Field::maybe(
            "payload_path",
            Schema::text().about("A JSON pointer into the payload; with `payload_value`."),
        ),
        Field::maybe(
            "payload_value",
            Schema::text().about("What must be there, as JSON or text."),
        ),
    ]
}

/// The parameters of lists of jobs.
pub fn filter_params() -> Vec<Field> {
    filter_fields()
}

fn bulk() -> Schema {
    Schema::object(vec![
        Field::optional("mode", Schema::word(&["all_or_none", "each"])),
        Field::always(
            "jobs",
            Schema::list_of(Schema::named("NewJob"), 1, crate::BULK_MAX),
        ),
    ])
}

fn receipt() -> Schema {
    let mut fields = vec![Field::always("id", Schema::id())];
    fields.extend(duplicate_fields());
    Schema::object(fields)
}

fn bulk_answer() -> Schema {
    let refused = Schema::object(vec![Field::always("problem", Schema::named("Problem"))]);
    Schema::object(vec![
        Field::always(
            "data",
            Schema::list(Schema::either(vec![Schema::named("Receipt"), refused])),
        ),
        Field::always("created", Schema::count()),
        Field::always("duplicates", Schema::count()),
        Field::always("refused", Schema::count()),
    ])
}

fn attempt() -> Schema {
    Schema::object(attempt_fields())
}

/// One row of history.
pub(super) fn attempt_fields() -> Vec<Field> {
    let error = Schema::object(vec![
        Field::always("message", Schema::text()),
        Field::maybe("causes", Schema::list(Schema::text())),
    ]);
    vec![
        Field::always("attempt", Schema::count()),
        Field::always("retry_count", Schema::count().about("Failures before it.")),
        Field::always("outcome", Schema::word(&Outcome::ALL.map(Outcome::name))),
        Field::always("started_at", Schema::instant()),
        Field::always("finished_at", Schema::instant()),
        Field::always("worker", Schema::text().or_null()),
        Field::always("error", error.or_null()),
        error_withheld(),
        Field::always(
            "http",
            Schema::any().about("Of an HTTP job: status, timings, answer."),
        ),
        Field::maybe(
            "log",
            Schema::any().about("Needs the scope `read-payload`."),
        ),
        Field::maybe("progress", Schema::any()),
    ]
}

fn edit() -> Schema {
    Schema::object(vec![
        Field::maybe("payload", Schema::any()),
        Field::optional("priority", Schema::integer(-32768, 32767)),
        Field::optional("run_at", Schema::instant()),
        Field::optional("delay", Schema::duration()),
        Field::optional("delay_ms", millis()),
        Field::optional("queue", queue_name()),
    ])
}

fn revival(more: Vec<Field>) -> Schema {
    let mut fields = vec![
        Field::optional("failures", Schema::word(&["reset", "keep"])),
        Field::optional("run_at", Schema::instant()),
        Field::optional("delay", Schema::duration()),
        Field::optional("delay_ms", millis()),
        Field::maybe("payload", Schema::any()),
        Field::optional(
            "force",
            Schema::flag().about("Also a lost at-most-once job, which may have run."),
        ),
    ];
    fields.extend(more);
    Schema::object(fields)
}

fn by_filter() -> Vec<Field> {
    let filter = Schema::named("JobFilter").or_null();
    vec![
        Field::maybe("filter", filter.example(json!({"queue": "default"}))),
        Field::optional("ids", Schema::list_of(Schema::id(), 1, 1000)),
        Field::optional("limit", Schema::integer(1, 1000)),
        Field::optional("cursor", Schema::text()),
    ]
}

fn pass_answer() -> Schema {
    Schema::object(vec![
        Field::always("changed", Schema::count()),
        Field::always(
            "conflicts",
            Schema::count().about("Jobs to which it does not apply, and jobs that cannot be read."),
        ),
        Field::always(
            "unreadable",
            Schema::list(Schema::id()).about(
                "Jobs that were named in `ids` and cannot be read (`job_unreadable`). The others were changed.",
            ),
        ),
        Field::always("scanned", Schema::count()),
        Field::always(
            "next_cursor",
            Schema::text()
                .or_null()
                .about("Where the next pass goes on."),
        ),
    ])
}

fn dead_group() -> Schema {
    Schema::object(vec![
        Field::always("fingerprint", Schema::text()),
        Field::always("kind", kind()),
        Field::always(
            "pattern",
            Schema::text()
                .or_null()
                .about("The error without its details. Null if the key may not read errors."),
        ),
        Field::always("count", Schema::count()),
        Field::always("example", Schema::id()),
        Field::always("first_at", Schema::instant()),
        Field::always("last_at", Schema::instant()),
        Field::always("reasons", Schema::open_object()),
    ])
}

fn why() -> Schema {
    let reason = Schema::object(vec![
        Field::always("code", Schema::text()),
        Field::always("text", Schema::text()),
    ]);
    let about_death = "Why it is dead. Only of a dead job.";
    let about_revive = "What reviving it would do. Only of a dead or cancelled job.";
    Schema::object(vec![
        Field::always("id", Schema::id()),
        Field::always("state", Schema::word(&STATES)),
        Field::always("reasons", Schema::list(reason.clone())),
        Field::maybe("death", death().about(about_death)),
        Field::maybe("revive", revival_forecast(reason).about(about_revive)),
    ])
}

/// The policy that a claim through this server gives a job.
fn resolved_policy() -> Schema {
    let sources = ["job", "kind", "queue", "default", "none"];
    Schema::object(vec![
        Field::always("source", Schema::word(&sources)),
        Field::always("retry", retry().or_null()),
    ])
}

fn death() -> Schema {
    let reasons = DeadReason::ALL.map(DeadReason::name);
    Schema::object(vec![
        Field::always("reason", Schema::word(&reasons)),
        Field::always("text", Schema::text()),
        Field::always("at", Schema::instant().or_null()),
        Field::always("attempts", Schema::count()),
        Field::always("failures", Schema::count()),
        Field::always("max_attempts", Schema::count()),
        Field::always("deadline", Schema::instant().or_null()),
        Field::always("last_error", Schema::text().or_null()),
        Field::maybe("error_withheld", Schema::flag()),
        Field::always("failed_at", Schema::instant().or_null()),
        Field::always("policy", resolved_policy()),
    ])
}

fn revival_forecast(refusal: Schema) -> Schema {
    Schema::object(vec![
        Field::always("allowed", Schema::flag()),
        Field::always("refusals", Schema::list(refusal)),
        Field::always("run_at", Schema::instant()),
        Field::always("deadline", Schema::instant().or_null()),
        Field::always("attempts_left", Schema::count()),
        Field::always("policy", resolved_policy()),
    ])
}
