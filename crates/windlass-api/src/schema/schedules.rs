//! Schedules and their occurrences.

use super::{Field, Schema};

pub(super) fn components() -> Vec<(&'static str, Schema)> {
    let mut new = vec![
        Field::always(
            "name",
            Schema::pattern(r"^(?!\.{1,2}$)[A-Za-z0-9_.:/-]{1,128}$"),
        ),
        Field::always("job", Schema::named("NewJob")),
    ];
    new.extend(definition());
    let mut patch = vec![Field::maybe("job", Schema::named("NewJob"))];
    patch.extend(definition());
    let mut put = vec![
        Field::maybe(
            "name",
            Schema::text().about("As in the path, if it is given."),
        ),
        Field::always("job", Schema::named("NewJob")),
    ];
    put.extend(definition());
    vec![
        ("NewSchedule", Schema::object(new)),
        ("PutSchedule", Schema::object(put)),
        ("SchedulePatch", Schema::object(patch)),
        ("Schedule", schedule()),
        ("Occurrence", occurrence()),
        ("Firing", firing()),
        ("Preview", preview()),
        ("Backfill", backfill()),
        ("BackfillAnswer", backfill_answer()),
        ("RunAnswer", run_answer()),
    ]
}

fn millis() -> Schema {
    Schema::integer(0, 315_360_000_000)
}

fn catch_up_max() -> Schema {
    let about = "At most this many occurrences fire together, the newest ones. 100 if not given.";
    Schema::integer(1, 1000).about(about)
}

fn definition() -> Vec<Field> {
    vec![
        Field::optional("cron", Schema::text().example("0 2 * * *")),
        Field::optional("every", Schema::duration()),
        Field::optional("every_ms", millis()),
        Field::optional("at", Schema::instant()),
        Field::optional("timezone", Schema::text()),
        Field::optional("missed", Schema::word(&["skip", "once", "all"])),
        Field::optional("missed_after", Schema::duration()),
        Field::optional("missed_after_ms", millis()),
        Field::optional("catch_up_max", catch_up_max()),
        Field::optional(
            "overlap",
            Schema::word(&["skip", "queue", "allow", "cancel_running"]),
        ),
        Field::optional("splay", Schema::duration()),
        Field::optional("splay_ms", millis()),
        Field::optional("starts_at", Schema::instant()),
        Field::optional("ends_at", Schema::instant()),
        Field::optional("paused", Schema::flag()),
    ]
}

fn schedule() -> Schema {
    Schema::object(vec![
        Field::always("id", Schema::id()),
        Field::always("name", Schema::text()),
        Field::maybe("cron", Schema::text()),
        Field::maybe("every", Schema::duration()),
        Field::maybe("at", Schema::instant()),
        Field::always("timezone", Schema::text()),
        Field::maybe("missed", Schema::text()),
        Field::always("missed_after", Schema::duration()),
        Field::maybe("catch_up_max", catch_up_max()),
        Field::always("overlap", Schema::text()),
        Field::always("splay", Schema::duration()),
        Field::always("starts_at", Schema::instant().or_null()),
        Field::always("ends_at", Schema::instant().or_null()),
        Field::always("paused", Schema::flag()),
        Field::always("job", Schema::open_object()),
        Field::always("created_at", Schema::instant()),
        Field::always("last_at", Schema::instant().or_null()),
        Field::always("next_at", Schema::instant().or_null()),
        Field::always("finished", Schema::flag().about("It will not fire again.")),
        Field::maybe(
            "error",
            Schema::text().about(
                "Why it cannot be read any more, and does not fire; the other fields are as they were written.",
            ),
        ),
        Field::maybe("payload_withheld", Schema::flag()),
    ])
}

fn occurrence() -> Schema {
    Schema::object(vec![
        Field::always("scheduled_for", Schema::instant()),
        Field::always("fired", Schema::flag()),
        Field::maybe("job_id", Schema::id()),
        Field::maybe("state", Schema::text()),
        Field::maybe("finished_at", Schema::instant().or_null()),
        Field::maybe(
            "last",
            Schema::instant().about("The last of a skipped range."),
        ),
        Field::maybe("count", Schema::count().or_null()),
        Field::maybe("reason", Schema::text()),
    ])
}

fn firing() -> Schema {
    Schema::object(vec![
        Field::always("at", Schema::instant()),
        Field::always("local", Schema::text()),
        Field::maybe(
            "note",
            Schema::text().about("What a change of the clocks did to it."),
        ),
    ])
}

fn preview() -> Schema {
    Schema::object(vec![
        Field::optional("cron", Schema::text().example("0 2 * * *")),
        Field::optional("every", Schema::duration()),
        Field::optional("every_ms", millis()),
        Field::optional("at", Schema::instant()),
        Field::optional("timezone", Schema::text()),
        Field::optional("starts_at", Schema::instant()),
        Field::optional("ends_at", Schema::instant()),
        Field::optional("after", Schema::instant()),
        Field::optional("count", Schema::integer(1, 1000)),
    ])
}

fn backfill() -> Schema {
    Schema::object(vec![
        Field::always("from", Schema::instant()),
        Field::always(
            "to",
            Schema::instant().about("Included; not in the future."),
        ),
    ])
}

fn backfill_answer() -> Schema {
    Schema::object(vec![Field::always("created", Schema::count())])
}

fn run_answer() -> Schema {
    Schema::object(vec![Field::always("job_id", Schema::id())])
}
