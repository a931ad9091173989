//! Jobs, their history, and what becomes of a request about them.

use super::{Field, Schema, kind, queue_name};

pub(super) fn components() -> Vec<(&'static str, Schema)> {
    vec![
        ("NewJob", new_job()),
        ("HttpRequest", http_request()),
        ("RetryPolicy", Schema::open_object()),
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
