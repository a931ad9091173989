//! The filter of jobs, as it is in the URL.

use serde_json::{Map, Value};
use windlass_core::{JobId, Timestamp};

use super::job_path;
use crate::fields::Fields;
use crate::show::{self, Zone};
use crate::snapshot::Snapshot;

/// The conditions, with their words and the flags of the command line.
const CONDITIONS: [(&str, &str, &str); 19] = [
    ("state", "state", "--state"),
    ("queue", "queue", "--queue"),
    ("kind", "kind", "--kind"),
    ("tag", "tag", "--tag"),
    ("error", "error", "--error"),
    ("fingerprint", "cause", "--fingerprint"),
    ("reason", "dead reason", "--dead-reason"),
    ("retrying", "retrying", "--retrying"),
    ("unique_key", "unique key", "--unique-key"),
    ("schedule", "schedule", "--schedule"),
    ("replay", "replay", "--replay"),
    ("created_from", "created from", "--created-from"),
    ("created_before", "created before", "--created-before"),
    ("failed_from", "failed from", "--failed-from"),
    ("failed_before", "failed before", "--failed-before"),
    ("finished_from", "finished from", "--finished-from"),
    ("finished_before", "finished before", "--finished-before"),
    ("payload_path", "payload path", ""),
    ("payload_value", "payload value", ""),
];

/// Returns the conditions of a page.
pub(super) fn of(query: &Fields) -> Fields {
    let known = CONDITIONS
        .iter()
        .filter_map(|(name, ..)| Some(((*name).to_owned(), query.get(name)?.to_owned())));
    known.collect()
}

/// Returns the filter as JSON, for bulk actions.
pub(super) fn to_json(filters: &Fields) -> Value {
    let value = |name: &str, value: &str| match (name, value) {
        ("retrying", "true") => Value::Bool(true),
        ("retrying", "false") => Value::Bool(false),
        _ => Value::from(value),
    };
    let fields = filters
        .pairs()
        .map(|(name, text)| (name.to_owned(), value(name, text)));
    Value::Object(fields.collect::<Map<_, _>>())
}

/// Returns the command that uses the same filter.
pub(super) fn command(command: &str, filters: &Fields) -> String {
    let mut words = vec![command.to_owned()];
    for (name, value) in filters.pairs() {
        let flag = CONDITIONS
            .iter()
            .find(|(known, ..)| *known == name)
            .map_or("", |(.., flag)| flag);
        if !flag.is_empty() {
            words.push(format!("{flag} {}", quoted(value)));
        }
    }
    if let Some((path, value)) = filters
        .get("payload_path")
        .zip(filters.get("payload_value"))
    {
        words.push(format!("--payload {}", quoted(&format!("{path}={value}"))));
    }
    words.join(" ")
}

/// Quotes a word for a shell, if it needs that.
pub(super) fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.:/=@%+".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A condition in force.
pub(super) struct Chip {
    pub(super) name: &'static str,
    pub(super) value: String,
    pub(super) without: String,
}

/// Returns the conditions in force, without those that the tabs show.
pub(super) fn chips(filters: &Fields, base: &str, zone: &Zone, now: Timestamp) -> Vec<Chip> {
    let shown = CONDITIONS
        .iter()
        .filter(|(name, ..)| !matches!(*name, "state" | "retrying"));
    let chip = |(name, words, _): &(&'static str, &'static str, _)| {
        let value = filters.get(name)?;
        let time = value
            .parse::<Timestamp>()
            .ok()
            .filter(|_| name.ends_with("_from") || name.ends_with("_before"));
        let value = time.map_or_else(|| show::clipped(value, 60), |at| zone.short(at, now));
        let without = filters.without(&[name]);
        let without = if name.starts_with("payload_") {
            without.without(&["payload_path", "payload_value"])
        } else {
            without
        };
        Some(Chip {
            name: words,
            value,
            without: format!("{base}/jobs{}", without.query()),
        })
    };
    shown.filter_map(chip).collect()
}

/// A condition that can be added.
pub(super) struct Addition {
    pub(super) name: &'static str,
    /// The fields: name, label, placeholder.
    pub(super) fields: Vec<(&'static str, &'static str, &'static str)>,
    /// Values to choose from.
    pub(super) values: Vec<String>,
}

/// Returns the conditions that can be added.
pub(super) fn additions(filters: &Fields, snapshot: &Snapshot) -> Vec<Addition> {
    let one = |name, label, placeholder, values| Addition {
        name,
        fields: vec![(name, label, placeholder)],
        values,
    };
    let queues = snapshot
        .queues
        .iter()
        .map(|queue| queue.name.to_string())
        .take(200)
        .collect();
    let all = vec![
        one("queue", "Queue", "payments", queues),
        one("kind", "Kind", "email:send", Vec::new()),
        one("error", "The last error contains", "503", Vec::new()),
        one("tag", "Tag", "customer:17", Vec::new()),
        Addition {
            name: "payload",
            fields: vec![
                ("payload_path", "JSON pointer", "/customer/id"),
                ("payload_value", "Value", "17"),
            ],
            values: Vec::new(),
        },
        Addition {
            name: "created",
            fields: vec![
                ("created_from", "From (RFC 3339)", "2026-03-17T02:00:00Z"),
                ("created_before", "Before", "2026-03-17T03:00:00Z"),
            ],
            values: Vec::new(),
        },
    ];
    let unused = |addition: &Addition| {
        addition
            .fields
            .iter()
            .all(|(name, ..)| filters.get(name).is_none())
    };
    all.into_iter().filter(unused).collect()
}

/// Returns the page for the text of the search field: a job by its id, `name:value` for a condition,
/// or an error text.
pub(super) fn found(query: &Fields, text: &str) -> String {
    let text = text.trim();
    if text.parse::<JobId>().is_ok() {
        return job_path(text);
    }
    let filters = of(query);
    let condition = text.split_once(':').filter(|(name, value)| {
        !value.is_empty() && CONDITIONS.iter().any(|(known, ..)| known == name)
    });
    let filters = match condition {
        Some((name, value)) => filters.with(name, value.trim()),
        None => filters.with("error", text),
    };
    format!("/jobs{}", filters.query())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_field_finds_ids_conditions_and_errors() {
        let query = Fields::parse("queue=a&cursor=x&q=z");
        assert_eq!(
            found(&query, "kind:email:send"),
            "/jobs?queue=a&kind=email:send"
        );
        assert_eq!(found(&query, " 503 "), "/jobs?queue=a&error=503");
        assert_eq!(
            found(&query, "https://x"),
            "/jobs?queue=a&error=https:%2F%2Fx"
        );
        let id = "01890a5d-ac96-774b-bcce-b302099a8057";
        assert_eq!(found(&query, id), format!("/jobs/{id}"));
    }

    #[test]
    fn a_filter_becomes_json_and_a_command() {
        let filters = of(&Fields::parse(
            "state=dead&error=it's&payload_path=/a&payload_value=1&retrying=true&x=1",
        ));
        let json = to_json(&filters);
        assert_eq!(json["retrying"], true);
        assert_eq!(json["state"], "dead");
        assert!(json.get("x").is_none());
        assert_eq!(
            command("windlass jobs list", &filters),
            r"windlass jobs list --state dead --error 'it'\''s' --retrying true --payload /a=1"
        );
    }
}
