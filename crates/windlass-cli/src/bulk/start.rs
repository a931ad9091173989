//! `windlass bulk start`.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value, json};
use windlass_api::{BulkAction, BulkActionName, FailureCount, NewBulkAction};
use windlass_core::{Invalid, QueueName, Timestamp};

use crate::action::{self, Action as _, Wait, action_body, words};
use crate::backend::{Api, ApiArgs};
use crate::body::{flag_of_field, json_flag, read_input};
use crate::change::{ChangeArgs, Failures, RevivalArgs, reason};
use crate::filter::FilterArgs;
use crate::output::{FormatArgs, Output};

#[derive(Debug, Args)]
pub(crate) struct StartBulk {
    /// What to do with each job: revive, run_now, cancel, delete, move, reprioritise, resolve or
    /// patch.
    #[arg(long, value_name = "ACTION")]
    action: BulkActionName,

    /// Why, for the audit log and other operators: 1 to 500 characters.
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// Most jobs to change per second [default: no limit].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,

    /// For `move` and `revive`: the queue to move the jobs to. Also changes the queue with `patch`.
    #[arg(long, value_name = "QUEUE")]
    to_queue: Option<QueueName>,

    /// For `reprioritise` and `revive`: the new priority, from -32768 to 32767. Also changes it with
    /// `patch`.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i16>,

    /// For `patch`: the fields to change, such as `{"tags": ["eu"], "retry": "patient"}`.
    #[arg(long, value_name = "JSON", conflicts_with = "patch_file")]
    patch: Option<String>,

    /// For `patch`: a file with the fields to change, or `-` for stdin.
    #[arg(long, value_name = "FILE")]
    patch_file: Option<PathBuf>,

    /// For `revive` and `patch`: patch of each payload, a JSON Patch (RFC 6902) if it is a list,
    /// otherwise a merge patch (RFC 7396).
    #[arg(long, value_name = "JSON")]
    payload_patch: Option<String>,

    /// For `revive`: what happens to the failure count of each job, `reset` or `keep` [default:
    /// reset].
    #[arg(long, value_name = "WHAT", hide_possible_values = true)]
    failures: Option<Failures>,

    /// For `revive`: the earliest start, such as 2026-01-01T00:00:00Z [default: now].
    #[arg(long, value_name = "TIME")]
    run_at: Option<Timestamp>,

    /// For `revive`: also revive at-most-once jobs that were lost and may have run.
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    changes: RevivalArgs,

    /// Wait until the bulk action has ended.
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

impl StartBulk {
    fn new_action(&self) -> anyhow::Result<NewBulkAction> {
        let filter = self.filter.to_action_filter()?;
        let mut fields = json!({
            "action": self.action,
            "reason": reason(&self.reason)?,
            "rate": self.rate,
            "failures": self.failures.map(FailureCount::from),
            "run_at": self.run_at,
            "force": self.force.then_some(true),
            "max_attempts": self.changes.max_attempts,
            "retry": self.changes.retry()?,
        });
        let given = [
            ("queue", "queue", json!(self.to_queue)),
            ("priority", "priority", json!(self.priority)),
            (
                "payload_patch",
                "payload",
                json_flag("--payload-patch", self.payload_patch.as_deref())?,
            ),
        ];
        let mut patch = self.patch()?;
        for (field, field_of_patch, value) in given {
            // Null is no value, and a patch of the payload that is null makes no sense either.
            if value.is_null() {
                continue;
            }
            if self.action == BulkActionName::Patch {
                let fields = patch.get_or_insert_default();
                fields.insert(field_of_patch.to_owned(), value);
            } else if let Some(slot) = fields.as_object_mut() {
                slot.insert(field.to_owned(), value);
            }
        }
        if let (Some(slot), Some(patch)) = (fields.as_object_mut(), patch) {
            slot.insert("patch".to_owned(), Value::Object(patch));
        }
        action_body(fields, &filter, flag)
    }

    /// Returns the fields of `--patch` or `--patch-file`.
    fn patch(&self) -> anyhow::Result<Option<Map<String, Value>>> {
        let (flag, text) = match (&self.patch, &self.patch_file) {
            (Some(text), _) => ("--patch", text.clone()),
            (None, Some(path)) => ("--patch-file", read_input("--patch-file", path)?),
            (None, None) => return Ok(None),
        };
        match json_flag(flag, Some(&text))? {
            Value::Object(fields) => Ok(Some(fields)),
            _ => {
                let rule = "must be an object, such as `{\"priority\": 5}`; `--payload-patch` takes a patch of the payload";
                Err(Invalid::new(flag, rule).into())
            }
        }
    }
}

/// Returns the flag of a field.
fn flag(field: &str) -> String {
    match field.split('.').next().unwrap_or_default() {
        "queue" => "--to-queue".to_owned(),
        "patch" => match field.strip_prefix("patch.") {
            Some(inner) if inner.starts_with("payload") => "--payload-patch".to_owned(),
            _ => "--patch".to_owned(),
        },
        field => flag_of_field(field),
    }
}

pub(super) async fn start(start: &StartBulk, api: &Api, output: &Output) -> anyhow::Result<()> {
    let format = output.format(&start.format)?;
    let new = start.new_action()?;
    let (verb, _) = words(start.action);
    let wait = Wait::of(start.wait);
    let printer = (output, format);
    let started = action::start::<BulkAction>(api, &new, verb, &start.change, wait, printer);
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
        start: StartBulk,
    }

    fn body(arguments: &[&str]) -> anyhow::Result<Value> {
        let arguments = [&["start", "--reason", "why", "--kind", "k"], arguments].concat();
        let new = Start::try_parse_from(arguments)?.start.new_action()?;
        Ok(serde_json::to_value(new)?)
    }

    #[test]
    fn every_flag_is_a_field() {
        let revive = body(&[
            "--action",
            "revive",
            "--rate",
            "7",
            "--failures",
            "keep",
            "--force",
            "--run-at",
            "2030-01-01T00:00:00Z",
            "--payload-patch",
            r#"{"a": null}"#,
        ]);
        let expected = json!({
            "action": "revive", "filter": {"kind": "k"}, "rate": 7, "reason": "why",
            "failures": "keep", "force": true, "run_at": "2030-01-01T00:00:00Z",
            "payload_patch": {"a": null},
        });
        assert_eq!(revive.unwrap(), expected);
        let moved = body(&["--action", "move", "--to-queue", "q"]).unwrap();
        assert_eq!(moved["queue"], "q");
        let priority = body(&["--action", "reprioritise", "--priority", "-5"]).unwrap();
        assert_eq!(priority["priority"], -5);
        let patch = body(&[
            "--action",
            "patch",
            "--patch",
            r#"{"tags": ["eu"], "retry": "patient"}"#,
            "--payload-patch",
            r#"[{"op": "remove", "path": "/a"}]"#,
            "--priority",
            "3",
            "--to-queue",
            "q",
        ]);
        let expected = json!({
            "tags": ["eu"], "retry": "patient", "priority": 3, "queue": "q",
            "payload": [{"op": "remove", "path": "/a"}],
        });
        assert_eq!(patch.unwrap()["patch"], expected);
    }

    #[test]
    fn a_broken_rule_names_its_flag() {
        for (arguments, flag) in [
            (&["--action", "delete"][..], "--state"),
            (&["--action", "move"], "--to-queue"),
            (&["--action", "reprioritise"], "--priority"),
            (&["--action", "patch"], "--patch"),
            (&["--action", "patch", "--patch", "{}"], "--patch"),
            (&["--action", "patch", "--patch", "[]"], "--patch"),
            (&["--action", "patch", "--patch", "{"], "--patch"),
            (
                &["--action", "patch", "--patch", r#"{"more": 1}"#],
                "--patch",
            ),
            (
                &["--action", "patch", "--payload-patch", "[1]"],
                "--payload-patch",
            ),
            (
                &["--action", "cancel", "--payload-patch", "{}"],
                "--payload-patch",
            ),
            (&["--action", "cancel", "--priority", "1"], "--priority"),
            (&["--action", "cancel", "--failures", "keep"], "--failures"),
            (&["--action", "cancel", "--force"], "--force"),
            (&["--action", "cancel", "--retrying", "x"], "--retrying"),
        ] {
            let refused = body(arguments).unwrap_err();
            let invalid = refused.downcast_ref::<Invalid>().unwrap();
            assert_eq!(invalid.field(), flag, "{arguments:?}: {invalid}");
        }
    }
}
