//! `windlass replay start`.

use clap::Args;
use serde_json::{Value, json};
use windlass_api::{DurationText, FailureCount, NewReplay, Replay};
use windlass_core::{Invalid, QueueName, parse_duration};

use crate::action::{self, Action as _, Wait, action_body};
use crate::backend::{Api, ApiArgs};
use crate::body::{flag_of_field, given, json_flag};
use crate::change::{ChangeArgs, Failures, RevivalArgs, reason};
use crate::filter::FilterArgs;
use crate::output::{FormatArgs, Output};

#[derive(Debug, Args)]
pub(crate) struct StartReplay {
    /// Why, for the audit log and other operators: 1 to 500 characters.
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// How many jobs to revive first. The others follow when these have succeeded [default: 20].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    canary: Option<u32>,

    /// How long the canary may take, such as `10m`. A job without an outcome then counts as failed
    /// again [default: 5m].
    #[arg(long, value_name = "DURATION")]
    canary_timeout: Option<String>,

    /// Jobs to revive per second after the canary [default: 100].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,

    /// Most revived jobs without an outcome [default: the larger of the canary and what 2 s of the
    /// rate revive].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_pending: Option<u32>,

    /// Stop when a larger share of the jobs than this fails again, from 0 to 1 [default: 0.2].
    #[arg(long, value_name = "SHARE", value_parser = share)]
    stop_share: Option<f64>,

    /// Fewest outcomes after the canary that the share is computed over [default: 50].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    stop_min_sample: Option<u32>,

    /// Stop when this many jobs fail again with the cause that they had died of; 0 is never
    /// [default: 1 in the canary, never after it].
    #[arg(long, value_name = "N")]
    stop_same_fingerprint: Option<u32>,

    /// What happens to the failure count of each job: `reset` gives it all its attempts again, `keep`
    /// changes nothing [default: reset].
    #[arg(long, value_name = "WHAT", hide_possible_values = true)]
    failures: Option<Failures>,

    /// Patch of each payload: a JSON Patch (RFC 6902) if it is a list, otherwise a merge patch (RFC
    /// 7396).
    #[arg(long, value_name = "JSON")]
    payload_patch: Option<String>,

    /// Also revive at-most-once jobs that were lost and may have run.
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    changes: RevivalArgs,

    /// The queue to move each job to [default: each job stays in its queue].
    #[arg(long, value_name = "QUEUE")]
    to_queue: Option<QueueName>,

    /// New priority of each job, from -32768 to 32767.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i16>,

    /// Wait until the replay has ended or stopped. Exit code 1 if it did not finish.
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    change: ChangeArgs,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    filter: FilterArgs,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

impl StartReplay {
    fn new_replay(&self) -> anyhow::Result<NewReplay> {
        let filter = self.filter.to_action_filter()?;
        let timeout = self.canary_timeout.as_deref().map(parse_duration);
        let timeout = timeout.transpose();
        let timeout = timeout.map_err(|error| Invalid::new("--canary-timeout", error.rule()))?;
        let fields = json!({
            "reason": reason(&self.reason)?,
            "canary": object(json!({
                "jobs": self.canary,
                "timeout": timeout.map(DurationText),
            })),
            "rate": self.rate,
            "max_pending": self.max_pending,
            "stop": object(json!({
                "failed_share": self.stop_share,
                "min_sample": self.stop_min_sample,
                "same_fingerprint": self.stop_same_fingerprint,
            })),
            "failures": self.failures.map(FailureCount::from),
            "payload_patch": json_flag("--payload-patch", self.payload_patch.as_deref())?,
            "force": self.force.then_some(true),
            "max_attempts": self.changes.max_attempts,
            "retry": self.changes.retry()?,
            "queue": self.to_queue,
            "priority": self.priority,
        });
        action_body(fields, &filter, flag)
    }
}

/// Returns an object of the fields that are given, or null if there are none.
fn object(fields: Value) -> Value {
    let fields = given(fields);
    if fields.is_empty() {
        return Value::Null;
    }
    Value::Object(fields)
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok();
    let share = share.filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "must be a number from 0 to 1".to_owned())
}

/// Returns the flag of a field.
fn flag(field: &str) -> String {
    match field {
        "canary.jobs" => "--canary".to_owned(),
        "queue" => "--to-queue".to_owned(),
        "stop.failed_share" => "--stop-share".to_owned(),
        field if field.starts_with("payload_patch") => "--payload-patch".to_owned(),
        field => flag_of_field(field),
    }
}

pub(super) async fn start(start: &StartReplay, api: &Api, output: &Output) -> anyhow::Result<()> {
    let format = output.format(&start.format)?;
    let new = start.new_replay()?;
    let wait = Wait::of(start.wait);
    let printer = (output, format);
    let started = action::start::<Replay>(api, &new, "revive", &start.change, wait, printer);
    match started.await? {
        Some(started) => action::print_end(&started, output, format, || started.page(format)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Start {
        #[command(flatten)]
        start: StartReplay,
    }

    fn body(arguments: &[&str]) -> anyhow::Result<Value> {
        let arguments = [&["start"], arguments].concat();
        let new = Start::try_parse_from(arguments)?.start.new_replay()?;
        Ok(serde_json::to_value(new)?)
    }

    #[test]
    fn every_flag_is_a_field() {
        let arguments = [
            "--fingerprint 2123456789abcdef --canary 3 --canary-timeout 2m --rate 7 --max-pending 9",
            "--stop-share 0.5 --stop-min-sample 11 --stop-same-fingerprint 2 --failures keep",
            "--payload-patch {\"a\":null} --force --reason why",
        ];
        let arguments = arguments.join(" ");
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let expected = json!({
            "filter": {"fingerprint": "2123456789abcdef"},
            "canary": {"jobs": 3, "timeout": "2m"},
            "rate": 7,
            "max_pending": 9,
            "stop": {"failed_share": 0.5, "min_sample": 11, "same_fingerprint": 2},
            "failures": "keep",
            "payload_patch": {"a": null},
            "force": true,
            "reason": "why",
        });
        assert_eq!(body(&arguments).unwrap(), expected);
        let short = body(&["--queue", "q", "--reason", "r"]).unwrap();
        assert_eq!(short, json!({"filter": {"queue": "q"}, "reason": "r"}));
    }

    #[test]
    fn a_broken_rule_names_its_flag() {
        for (arguments, flag) in [
            (&["--queue", "a/b", "--reason", "r"][..], "--queue"),
            (&["--reason", "r"], "--queue"),
            (&["--queue", "q", "--reason", ""], "--reason"),
            (&["--queue", "q", "--reason", "exhausted"], "--reason"),
            (
                &["--queue", "q", "--reason", "r", "--canary-timeout", "x"],
                "--canary-timeout",
            ),
            (
                &["--queue", "q", "--reason", "r", "--payload-patch", "[1]"],
                "--payload-patch",
            ),
            (
                &["--queue", "q", "--reason", "r", "--payload-patch", "{"],
                "--payload-patch",
            ),
        ] {
            let refused = body(arguments).unwrap_err();
            let invalid = refused.downcast_ref::<Invalid>().unwrap();
            assert_eq!(invalid.field(), flag, "{arguments:?}: {invalid}");
        }
        for flag in ["--rate", "--canary", "--max-pending", "--stop-min-sample"] {
            let refused = body(&["--queue", "q", "--reason", "r", flag, "0"]).unwrap_err();
            assert!(refused.to_string().contains(flag), "{refused}");
        }
        for share in ["NaN", "1.1", "-0.1", "x"] {
            let share = format!("--stop-share={share}");
            let refused = body(&["--queue", "q", "--reason", "r", &share]).unwrap_err();
            assert!(refused.to_string().contains("--stop-share"), "{refused}");
        }
    }
}
