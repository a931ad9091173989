//! The plan of a replay: the fields of the form, as a request, a chart and a command.

use std::time::Duration;

use serde_json::{Map, Value, json};
use windlass_core::ReplayRules;

use super::super::purge::filter_json;
use super::super::{filters_of, flags, quoted};
use crate::draw::{self, Chart, Line, Tick};
use crate::failure::Failure;
use crate::fields::Fields;
use crate::markup::Markup;
use crate::show;

/// The fields of the plan, besides the filter. `why` is the reason of the person; `reason` would be
/// a filter.
const PLAN_FIELDS: [&str; 8] = [
    "patch",
    "canary",
    "canary_timeout",
    "rate",
    "failed_percent",
    "failures",
    "force",
    "why",
];

/// The filter and the plan, without the step.
pub(super) fn plan_query(fields: &Fields) -> Fields {
    let filters = filters_of(fields);
    let plan = fields
        .pairs()
        .filter(|(name, value)| PLAN_FIELDS.contains(name) && !value.is_empty());
    let plan = plan.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let filters = filters
        .pairs()
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    filters.chain(plan).collect()
}

/// The numbers of the plan, with the defaults of the server.
pub(super) struct Rules {
    pub(super) canary_jobs: u32,
    pub(super) rate: u32,
}

impl Rules {
    pub(super) fn read(fields: &Fields) -> Rules {
        let default = ReplayRules::default();
        let number = |name: &str, default: u32| {
            fields
                .get(name)
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(default)
        };
        Rules {
            canary_jobs: number("canary", default.canary_jobs),
            rate: number("rate", default.rate),
        }
    }
}

/// The request that the plan stands for. With `dry_run`, its reason.
pub(super) fn request(fields: &Fields, dry_run: Option<&str>) -> Result<Value, Failure> {
    let mut body = Map::new();
    body.insert(
        "filter".to_owned(),
        Value::Object(filter_json(&filters_of(fields))),
    );
    let reason = dry_run.or(fields.get("why")).unwrap_or_default();
    body.insert("reason".to_owned(), reason.into());
    if dry_run.is_some() {
        body.insert("dry_run".to_owned(), true.into());
    }
    let mut canary = Map::new();
    if let Some(jobs) = whole(fields, "canary")? {
        canary.insert("jobs".to_owned(), jobs.into());
    }
    if let Some(timeout) = fields.get("canary_timeout") {
        canary.insert("timeout".to_owned(), timeout.trim().into());
    }
    if !canary.is_empty() {
        body.insert("canary".to_owned(), Value::Object(canary));
    }
    if let Some(rate) = whole(fields, "rate")? {
        body.insert("rate".to_owned(), rate.into());
    }
    if let Some(percent) = fields.get("failed_percent") {
        let share: f64 = percent
            .trim()
            .trim_end_matches('%')
            .trim()
            .parse()
            .map_err(|_| Failure::invalid("stop: must be a number of percent from 0 to 100"))?;
        body.insert("stop".to_owned(), json!({"failed_share": share / 100.0}));
    }
    if fields.get("failures") == Some("keep") {
        body.insert("failures".to_owned(), "keep".into());
    }
    if fields.get("force").is_some() {
        body.insert("force".to_owned(), true.into());
    }
    if let Some(patch) = fields.get("patch") {
        let patch: Value = serde_json::from_str(patch.trim())
            .map_err(|error| Failure::invalid(format!("patch: must be JSON: {error}")))?;
        body.insert("payload_patch".to_owned(), patch);
    }
    Ok(Value::Object(body))
}

fn whole(fields: &Fields, name: &str) -> Result<Option<u32>, Failure> {
    let Some(text) = fields.get(name) else {
        return Ok(None);
    };
    let number = text.trim().replace(',', "").parse();
    number
        .map(Some)
        .map_err(|_| Failure::invalid(format!("{name}: must be a whole number of at least 1")))
}

/// How long the jobs after the canary take at the rate.
pub(super) fn takes(matched: u64, rules: &Rules) -> String {
    let rest = matched.saturating_sub(rules.canary_jobs.into());
    let seconds = rest.div_ceil(u64::from(rules.rate.max(1)));
    show::duration(Duration::from_secs(seconds))
}

/// The revived jobs over time, from the end of the canary on.
pub(super) fn plan_chart(matched: u64, rules: &Rules) -> Markup {
    let canary = u64::from(rules.canary_jobs).min(matched);
    let rest = matched - canary;
    let seconds = (rest as f64 / f64::from(rules.rate.max(1))).max(1.0);
    let count = |value: f64| show::count(value.round() as u64);
    let chart = Chart {
        label: &format!(
            "{canary} jobs first, then {rest} jobs within {}",
            takes(matched, rules)
        ),
        height: 96.0,
        scale: draw::nice_scale(matched as f64, 4.0, count),
        times: [0.0, 0.5, 1.0]
            .map(|at| Tick {
                at,
                text: match at {
                    at if at <= 0.0 => "after the canary".to_owned(),
                    at => show::millis((seconds * at * 1000.0).round()),
                },
            })
            .to_vec(),
        titles: Vec::new(),
        bound: None,
        marks: Vec::new(),
    };
    let values = [Some(canary as f64), Some(matched as f64)];
    draw::lines(
        &chart,
        &[Line {
            class: "s-accent",
            fill: Some("accent"),
            values: &values,
        }],
    )
}

/// The command that starts the same replay.
pub(super) fn command(fields: &Fields) -> String {
    let mut command = format!("windlass replay start{}", flags(fields));
    for (name, flag) in [
        ("canary", "--canary"),
        ("canary_timeout", "--canary-timeout"),
        ("rate", "--rate"),
        ("patch", "--payload-patch"),
    ] {
        if let Some(value) = fields.get(name) {
            command.push_str(&format!(" {flag} {}", quoted(value)));
        }
    }
    if let Some(share) = fields
        .get("failed_percent")
        .and_then(|text| text.parse::<f64>().ok())
    {
        command.push_str(&format!(" --stop-share {}", share / 100.0));
    }
    if fields.get("failures") == Some("keep") {
        command.push_str(" --failures keep");
    }
    if fields.get("force").is_some() {
        command.push_str(" --force");
    }
    let reason = fields.get("why").unwrap_or("…");
    command.push_str(&format!(" --reason {}", quoted(reason)));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_the_plan_reaches_the_request() {
        let fields = Fields::parse(
            "queue=mail&fingerprint=26f30b1c9d2e4a57&canary=5&canary_timeout=2m&rate=7&failed_percent=12.5&failures=keep&force=true&patch=%7B%22a%22%3A1%7D&why=up+again&step=review",
        );
        let expected = json!({
            "filter": {"queue": "mail", "fingerprint": "26f30b1c9d2e4a57"},
            "canary": {"jobs": 5, "timeout": "2m"}, "rate": 7, "stop": {"failed_share": 0.125},
            "failures": "keep", "force": true, "payload_patch": {"a": 1}, "reason": "up again",
        });
        assert_eq!(request(&fields, None).unwrap(), expected);
        let dry = request(&fields, Some("dry run")).unwrap();
        assert_eq!(
            (&dry["dry_run"], &dry["reason"]),
            (&json!(true), &json!("dry run"))
        );
    }

    #[test]
    fn what_was_not_chosen_is_left_to_the_server() {
        let body = request(&Fields::parse("queue=mail&why=r"), None).unwrap();
        assert_eq!(body, json!({"filter": {"queue": "mail"}, "reason": "r"}));
        for bad in ["canary=x", "rate=-1", "failed_percent=much", "patch=%7B"] {
            assert!(request(&Fields::parse(bad), None).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_plan_survives_from_step_to_step() {
        let fields = Fields::parse("queue=a&step=pace&rate=7&cursor=x");
        assert_eq!(plan_query(&fields).query(), "?queue=a&rate=7");
        assert_eq!(
            takes(
                1000,
                &Rules {
                    canary_jobs: 20,
                    rate: 10
                }
            ),
            "1\u{a0}m\u{a0}38\u{a0}s"
        );
    }

    #[test]
    fn the_command_names_the_same_plan() {
        let fields = Fields::parse("queue=mail&canary=5&rate=7&failed_percent=10&why=it%27s+up");
        assert_eq!(
            command(&fields),
            r"windlass replay start --queue mail --canary 5 --rate 7 --stop-share 0.1 --reason 'it'\''s up'"
        );
    }
}
