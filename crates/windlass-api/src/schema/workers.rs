//! What workers say and hear.

use super::{Field, Schema, kind, queue_name};

pub(super) fn components() -> Vec<(&'static str, Schema)> {
    vec![
        ("Claim", claim()),
        ("ClaimAnswer", claim_answer()),
        ("Outcomes", outcomes()),
        ("SettleAnswer", settle_answer()),
        ("Renewal", renewal()),
        ("RenewAnswer", renew_answer()),
        ("Progress", progress()),
        ("NewWorker", new_worker()),
        ("Worker", worker()),
    ]
}

fn millis() -> Schema {
    Schema::integer(0, 315_360_000_000)
}

fn worker_name() -> Schema {
    Schema::text_of(1, 128)
}

fn signal() -> Schema {
    Schema::word(&["quiet", "stop"])
        .or_null()
        .about("`quiet`: claim nothing more. `stop`: finish and end.")
}

fn claim() -> Schema {
    let weighted = Schema::object(vec![
        Field::always("name", queue_name()),
        Field::optional("weight", Schema::integer(1, 1000)),
    ]);
    let queue = Schema::either(vec![queue_name(), weighted]);
    Schema::object(vec![
        Field::optional("queue", queue_name()),
        Field::optional("queues", Schema::list_of(queue, 1, crate::CLAIM_QUEUES_MAX)),
        Field::optional("order", Schema::word(&["weighted", "strict"])),
        Field::optional("kinds", Schema::list_of(kind(), 1, 1000)),
        Field::optional("ids", Schema::list_of(Schema::id(), 1, 1000)),
        Field::optional("limit", Schema::integer(1, crate::CLAIM_LIMIT_MAX.into())),
        Field::optional("lease", Schema::duration()),
        Field::optional("lease_ms", millis()),
        Field::optional("claim_id", Schema::text_of(1, 128)),
        Field::optional("wait", Schema::duration()),
        Field::optional("wait_ms", millis()),
        Field::optional("worker", worker_name()),
        Field::optional("slots", Schema::integer(1, 1_000_000)),
        Field::optional("retries_running", Schema::integer(0, 1_000_000)),
    ])
}

fn claim_answer() -> Schema {
    Schema::object(vec![
        Field::always("data", Schema::list(Schema::named("Job"))),
        Field::always("signal", signal()),
    ])
}

fn lease_fields() -> Vec<Field> {
    vec![
        Field::maybe("id", Schema::id()),
        Field::maybe("job_id", Schema::id().about("The same as `id`.")),
        Field::always("attempt", Schema::integer(1, u32::MAX.into())),
    ]
}

fn outcomes() -> Schema {
    let error = Schema::object(vec![
        Field::always("message", Schema::text()),
        Field::maybe("causes", Schema::list(Schema::text())),
    ]);
    let mut outcome = lease_fields();
    let words = [
        "succeeded",
        "failed",
        "timed_out",
        "snoozed",
        "released",
        "cancelled",
    ];
    outcome.extend([
        Field::always("outcome", Schema::word(&words)),
        Field::maybe("result", Schema::any()),
        Field::optional("error", Schema::either(vec![Schema::text(), error])),
        Field::optional("unrecoverable", Schema::flag()),
        Field::optional("retry_after", Schema::duration()),
        Field::optional("retry_after_ms", millis()),
        Field::optional("until", Schema::instant()),
        Field::optional("delay", Schema::duration()),
        Field::optional("delay_ms", millis()),
        Field::optional("started", Schema::flag()),
        Field::optional(
            "log",
            Schema::list_of(Schema::text(), 0, windlass_core::LOG_LINES_MAX),
        ),
    ]);
    Schema::object(vec![
        Field::optional("worker", worker_name()),
        Field::always(
            "outcomes",
            Schema::list_of(Schema::object(outcome), 1, crate::OUTCOMES_MAX),
        ),
    ])
}

fn settle_answer() -> Schema {
    let settled = Schema::object(vec![
        Field::always("id", Schema::id()),
        Field::always("attempt", Schema::count()),
        Field::always(
            "status",
            Schema::word(&["done", "repeated", "timed_out", "lease_lost", "refused"]),
        ),
        Field::maybe("reason", lost()),
        Field::maybe("state", Schema::text()),
        Field::maybe("run_at", Schema::instant()),
        Field::maybe("dead_reason", Schema::text()),
        Field::maybe("failures", Schema::count()),
    ]);
    Schema::object(vec![Field::always("data", Schema::list(settled))])
}

/// Why an attempt is not the worker's.
fn lost() -> Schema {
    Schema::word(&["unknown", "over", "other_worker"])
}

fn renewal() -> Schema {
    Schema::object(vec![
        Field::optional("worker", worker_name()),
        Field::optional("lease", Schema::duration()),
        Field::optional("lease_ms", millis()),
        Field::maybe(
            "leases",
            Schema::list_of(Schema::object(lease_fields()), 0, 1000),
        ),
    ])
}

fn renew_answer() -> Schema {
    let renewed = Schema::object(vec![
        Field::always("id", Schema::id()),
        Field::always("attempt", Schema::count()),
        Field::always(
            "status",
            Schema::word(&["renewed", "lease_lost", "timed_out"]),
        ),
        Field::maybe("reason", lost()),
        Field::maybe("lease_until", Schema::instant()),
        Field::maybe("cancel_requested", Schema::flag()),
    ]);
    Schema::object(vec![
        Field::always("data", Schema::list(renewed)),
        Field::always("signal", signal()),
    ])
}

fn progress() -> Schema {
    let mut fields = lease_fields();
    fields.push(Field::optional("worker", worker_name()));
    fields.push(Field::always("progress", Schema::any()));
    Schema::object(fields)
}

fn new_worker() -> Schema {
    Schema::object(vec![
        Field::always("name", worker_name()),
        Field::optional("queues", Schema::list_of(queue_name(), 1, 100)),
        Field::optional("kinds", Schema::list_of(kind(), 1, 1000)),
        Field::optional("slots", Schema::integer(1, 1_000_000)),
        Field::optional("version", Schema::text_of(1, 128)),
    ])
}

fn worker() -> Schema {
    Schema::object(vec![
        Field::always("name", Schema::text()),
        Field::always("about", Schema::any()),
        Field::always("heartbeat_at", Schema::instant()),
        Field::always("heartbeat_age_ms", Schema::count()),
        Field::always(
            "alive",
            Schema::flag().about("Whether it sent a heartbeat in the last 60 s."),
        ),
        Field::always("signal", signal()),
    ])
}
