//! Keys, secrets and the audit log.

use super::{Field, Schema};

/// The words for scopes.
const SCOPES: [&str; 6] = [
    "enqueue",
    "work",
    "read",
    "read-payload",
    "operate",
    "admin",
];

pub(super) fn components() -> Vec<(&'static str, Schema)> {
    vec![
        ("NewKey", new_key()),
        ("Key", Schema::object(key())),
        ("NewKeyAnswer", new_key_answer()),
        ("NewSecret", new_secret()),
        ("Secret", secret()),
        ("AuditRecord", audit_record()),
        ("ReplacedPayload", replaced_payload()),
    ]
}

fn scopes() -> Schema {
    Schema::list_of(Schema::word(&SCOPES), 1, SCOPES.len())
}

fn new_key() -> Schema {
    Schema::object(vec![
        Field::always("name", Schema::text_of(1, 100)),
        Field::always("scopes", scopes()),
        Field::maybe("expires_in", Schema::duration()),
        Field::maybe("expires_in_ms", Schema::integer(1, 315_360_000_000)),
        Field::maybe("expires_at", Schema::instant()),
    ])
}

fn key() -> Vec<Field> {
    vec![
        Field::always(
            "id",
            Schema::text().about("The part of the key that may be shown."),
        ),
        Field::always("name", Schema::text()),
        Field::always("scopes", Schema::list_of(Schema::word(&SCOPES), 0, SCOPES.len())),
        Field::always("created_at", Schema::instant()),
        Field::always("expires_at", Schema::instant().or_null()),
        Field::always("revoked_at", Schema::instant().or_null()),
        Field::always("last_used_at", Schema::instant().or_null()),
        Field::always(
            "unreadable",
            Schema::flag().about(
                "This server cannot read the key, because a newer version wrote it or it is damaged: it opens nothing. Revoke it, or upgrade.",
            ),
        ),
    ]
}

fn new_key_answer() -> Schema {
    let mut fields = key();
    let about = "The key itself. It is shown this once, and stored nowhere.";
    fields.push(Field::always("key", Schema::text().about(about)));
    Schema::object(fields)
}

fn new_secret() -> Schema {
    let hosts = "The hosts that requests may be signed for: `api.example.com`, or `*.example.com` for every name below it; \
                 with `:port` if only that port is meant. Required unless `any_host` is true.";
    let any_host =
        "Sign requests to every host: whoever may enqueue can then have anything signed.";
    Schema::object(vec![
        Field::always("value", Schema::text_of(1, 65_536)),
        Field::maybe(
            "hosts",
            Schema::list_of(Schema::text_of(1, 260).example("api.example.com"), 1, 32).about(hosts),
        ),
        Field::maybe("any_host", Schema::flag().about(any_host)),
    ])
}

fn secret() -> Schema {
    Schema::object(vec![
        Field::always("name", Schema::text()),
        Field::always("hosts", Schema::list(Schema::text())),
        Field::always("any_host", Schema::flag()),
    ])
}

fn audit_record() -> Schema {
    Schema::object(vec![
        Field::always("number", Schema::count()),
        Field::always("at", Schema::instant()),
        Field::always(
            "key",
            Schema::text()
                .about("The id of a key; `local` without one, `windlass` for the janitor."),
        ),
        Field::always("name", Schema::text()),
        Field::always("action", Schema::text()),
        Field::always("target", Schema::text()),
        Field::always("detail", Schema::any()),
        Field::always("previous", Schema::text()),
        Field::always("hash", Schema::text()),
    ])
}

fn replaced_payload() -> Schema {
    Schema::object(vec![
        Field::always("sha256", Schema::text()),
        Field::always("bytes", Schema::count()),
        Field::always("payload", Schema::any()),
        Field::always("replaced_at", Schema::instant()),
        Field::always("kept_until", Schema::instant()),
    ])
}
