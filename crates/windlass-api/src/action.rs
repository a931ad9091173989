//! Bulk actions: one change to all jobs that match a filter.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use windlass_core::{
    ActionId, ActionState, BulkChange, BulkRevival, Filter, JobId, Patch, PayloadPatch, QueueName,
    SkipReason, Tag, Timestamp, WaitingFor, string_enum,
};

use crate::change::revival_changes;
use crate::read::request;
use crate::{
    Body, BoundedInt, Checks, Count, FailureCount, Job, JobFilter, Json, List, Retry, Text,
};

/// Why an operator does something.
pub type Reason = Text<1, 500>;

/// What a bulk action does to each job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BulkActionName {
    /// Makes dead or cancelled jobs run again.
    Revive,
    /// Makes waiting jobs due now.
    RunNow,
    /// Cancels waiting jobs, and asks running ones to stop.
    Cancel,
    /// Removes finished jobs with their history.
    Delete,
    /// Moves waiting jobs to another queue.
    Move,
    /// Gives waiting jobs another priority.
    Reprioritise,
    /// Marks lost at-most-once jobs as succeeded.
    Resolve,
    /// Changes fields of jobs that wait, are dead or are cancelled.
    Patch,
}

string_enum!(BulkActionName {
    Revive = "revive",
    RunNow = "run_now",
    Cancel = "cancel",
    Delete = "delete",
    Move = "move",
    Reprioritise = "reprioritise",
    Resolve = "resolve",
    Patch = "patch",
});

request! {
    /// A bulk action to create: what to do with which jobs.
    pub struct NewBulkAction {
        /// What to do with each job.
        #[schemars(required)]
        pub action: BulkActionName,
        /// Selects jobs that match all conditions. At least one condition is required. `revive` and
        /// `resolve` mean dead jobs unless `state` is given; `delete` needs a final `state`.
        #[schemars(with = "JobFilter", example = serde_json::json!({"queue": "default"}))]
        pub filter: JobFilter,
        /// Most jobs to change per second. Default: no limit.
        pub rate: BoundedInt<1, { u32::MAX as i64 }>,
        /// Why, for the audit log and other operators: 1 to 500 characters.
        #[schemars(required)]
        pub reason: Reason,
        /// Return what the action would do, and create nothing. Default: `false`.
        pub dry_run: bool,
        /// For `revive`: what happens to the failure count of each job. Default: `reset`.
        pub failures: FailureCount,
        /// For `revive`: patch of each payload, a JSON Patch (RFC 6902) if it is a list, otherwise
        /// a merge patch (RFC 7396).
        pub payload_patch: Json,
        /// For `revive`: earliest start of the next attempt. Default: now.
        pub run_at: Timestamp,
        /// For `revive`: also revive at-most-once jobs that were lost and may have run. Default:
        /// `false`.
        pub force: bool,
        /// For `revive`: new limit of attempts that may fail in all. With `failures: keep`, those
        /// that failed before count.
        pub max_attempts: BoundedInt<1, 1000>,
        /// For `revive`: new retry policy.
        pub retry: Retry,
        /// For `move` and `revive`: the queue to move the jobs to.
        pub queue: QueueName,
        /// For `reprioritise` and `revive`: the priority, from -32768 to 32767.
        pub priority: i16,
        /// For `patch`: the fields to change.
        pub patch: JobPatch,
    }
}

request! {
    /// Changes to fields of jobs. Fields that are not given keep their value.
    pub struct JobPatch {
        /// Patch of the payload: a JSON Patch (RFC 6902) if it is a list, otherwise a merge patch
        /// (RFC 7396). A job to which it does not apply is skipped.
        pub payload: Json,
        /// New priority, from -32768 to 32767.
        pub priority: i16,
        /// Queue to move the job to.
        pub queue: QueueName,
        /// New tags, in place of the old ones: at most 32.
        pub tags: List<Tag, 0, 32>,
        /// New retry policy.
        pub retry: Retry,
    }
}

/// A checked bulk action.
#[derive(Debug, Clone)]
pub struct CheckedBulkAction {
    /// What to do with each job.
    pub change: BulkChange,
    /// Which jobs.
    pub filter: Filter,
    /// The most jobs per second.
    pub rate: Option<u32>,
    /// Why.
    pub reason: String,
    /// Whether to create nothing.
    pub dry_run: bool,
}

impl Body for NewBulkAction {
    type Checked = CheckedBulkAction;

    fn check(mut self, checks: &mut Checks) -> Option<CheckedBulkAction> {
        let reason = checks.required("reason", self.reason.take());
        let action = checks.required("action", self.action);
        let filter = self.filter.take();
        let Some(action) = action else {
            // The rules of the filter depend on the action; its fields are checked anyway.
            checks.within("filter", |checks| filter.unwrap_or_default().check(checks));
            return None;
        };
        let (rate, dry_run) = (self.rate, self.dry_run);
        self.check_fields(checks, action);
        let change = self.change(checks, action)?;
        let filter = action_filter(checks, filter, &change);
        Some(CheckedBulkAction {
            change,
            filter: filter?,
            rate: rate.map(BoundedInt::to),
            reason: reason?.into_string(),
            dry_run: dry_run.unwrap_or_default(),
        })
    }
}

impl NewBulkAction {
    /// Refuses fields of other actions.
    fn check_fields(&self, checks: &mut Checks, action: BulkActionName) {
        let revive = &[BulkActionName::Revive][..];
        for (field, is_given, owners) in [
            ("failures", self.failures.is_some(), revive),
            ("payload_patch", self.payload_patch.is_some(), revive),
            ("run_at", self.run_at.is_some(), revive),
            ("force", self.force.is_some(), revive),
            ("max_attempts", self.max_attempts.is_some(), revive),
            ("retry", self.retry.is_some(), revive),
            (
                "queue",
                self.queue.is_some(),
                &[BulkActionName::Move, BulkActionName::Revive],
            ),
            (
                "priority",
                self.priority.is_some(),
                &[BulkActionName::Reprioritise, BulkActionName::Revive],
            ),
            ("patch", self.patch.is_some(), &[BulkActionName::Patch]),
        ] {
            if is_given && !owners.contains(&action) {
                let names: Vec<String> = owners.iter().map(|one| format!("`{one}`")).collect();
                let rule = format!("is only allowed with the action {}", names.join(" or "));
                checks.refuse(field, rule);
            }
        }
    }

    fn change(self, checks: &mut Checks, action: BulkActionName) -> Option<BulkChange> {
        Some(match action {
            BulkActionName::Revive => BulkChange::Revive(BulkRevival {
                keep_failures: self.failures == Some(FailureCount::Keep),
                payload_patch: payload_patch(checks, "payload_patch", self.payload_patch),
                run_at: self.run_at,
                force: self.force.unwrap_or_default(),
                changes: revival_changes(
                    checks,
                    self.max_attempts,
                    self.retry,
                    self.queue,
                    self.priority,
                ),
            }),
            BulkActionName::RunNow => BulkChange::RunNow,
            BulkActionName::Cancel => BulkChange::Cancel,
            BulkActionName::Delete => BulkChange::Delete,
            BulkActionName::Resolve => BulkChange::Resolve,
            BulkActionName::Move => {
                let queue = checks.required("queue", self.queue)?;
                checks.keep(queue.check_unreserved())?;
                BulkChange::Move { queue }
            }
            BulkActionName::Reprioritise => BulkChange::Reprioritise {
                priority: checks.required("priority", self.priority)?,
            },
            BulkActionName::Patch => {
                let patch = checks.required("patch", self.patch)?;
                let patch = checks.within("patch", |checks| patch.check(checks))?;
                BulkChange::Patch { patch }
            }
        })
    }
}

impl JobPatch {
    fn check(self, checks: &mut Checks) -> Option<Patch> {
        let retry = self.retry;
        let retry = checks.within("retry", |checks| retry.map(|retry| retry.check(checks)));
        if let Some(queue) = &self.queue {
            checks.keep(queue.check_unreserved());
        }
        let patch = Patch {
            payload: payload_patch(checks, "payload", self.payload),
            priority: self.priority,
            queue: self.queue,
            tags: self.tags.map(|tags| tags.0),
            retry: retry.flatten().map(|retry| (*retry).clone()),
        };
        if patch == Patch::default() && !checks.is_refused("") {
            checks.refuse("", "must change at least one field");
        }
        Some(patch)
    }
}

/// Reads the patch of a payload.
pub(crate) fn payload_patch(
    checks: &mut Checks,
    field: &str,
    json: Option<Json>,
) -> Option<PayloadPatch> {
    let value: Value = json?.0.decode().unwrap_or_default();
    let patch = PayloadPatch::new(value).map_err(|problem| problem.within(field));
    checks.keep(patch)
}

/// Checks the filter of an action.
pub(crate) fn action_filter(
    checks: &mut Checks,
    filter: Option<JobFilter>,
    change: &BulkChange,
) -> Option<Filter> {
    let filter = checks.required("filter", filter)?;
    let filter = checks.within("filter", |checks| filter.check(checks))?;
    if checks.is_refused("filter") {
        return None;
    }
    checks.keep(change.check_filter(filter))
}

impl From<&BulkChange> for BulkActionName {
    fn from(change: &BulkChange) -> Self {
        match change {
            BulkChange::Revive(_) => BulkActionName::Revive,
            BulkChange::RunNow => BulkActionName::RunNow,
            BulkChange::Cancel => BulkActionName::Cancel,
            BulkChange::Delete => BulkActionName::Delete,
            BulkChange::Move { .. } => BulkActionName::Move,
            BulkChange::Reprioritise { .. } => BulkActionName::Reprioritise,
            BulkChange::Resolve => BulkActionName::Resolve,
            BulkChange::Patch { .. } => BulkActionName::Patch,
        }
    }
}

/// A bulk action. `matched` is the sum of `to_do`, `done` and `skipped`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct BulkAction {
    /// Id of the bulk action.
    pub id: ActionId,
    /// What it does with each job.
    pub action: BulkActionName,
    /// State of the bulk action.
    pub state: ActionState,
    /// Number of jobs that matched when it was created. Grows while `waiting_for` is `counting`.
    pub matched: Count,
    /// Number of jobs that it has not touched yet.
    pub to_do: Count,
    /// Number of jobs that it changed.
    pub done: Count,
    /// Number of jobs that it left alone.
    pub skipped: Count,
    /// Number of jobs that it left alone, by reason.
    pub skipped_by: BTreeMap<SkipReason, Count>,
    /// What it waits for. Null if it does not wait.
    pub waiting_for: Option<WaitingFor>,
    /// Queue that it waits for, if it is full.
    pub waiting_queue: Option<QueueName>,
    /// Which jobs it changes.
    pub filter: JobFilter,
    /// Most jobs to change per second. Null if there is no limit.
    pub rate: Option<u32>,
    /// The fields of the action.
    #[serde(flatten, deserialize_with = "read_fields")]
    pub fields: BulkActionFields,
    /// Why, in the words of the operator.
    pub reason: String,
    /// When it was created. Jobs that are newer, or whose state changed later, are left alone.
    pub created_at: Timestamp,
    /// Who created it.
    pub created_by: String,
    /// When it ended. Null until then.
    pub ended_at: Option<Timestamp>,
    /// The first 100 jobs that could not be changed.
    pub item_failures: Vec<ItemFailure>,
}

request! {
    /// The fields of one action, as in the request.
    pub struct BulkActionFields {
        /// For `revive`: what happens to the failure count of each job.
        pub failures: FailureCount,
        /// For `revive`: patch of each payload. Only with the scope `read-payload`.
        pub payload_patch: Json,
        /// For `revive`: earliest start of the next attempt.
        pub run_at: Timestamp,
        /// For `revive`: whether at-most-once jobs that were lost and may have run are revived too.
        pub force: bool,
        /// For `revive`: the new limit of attempts.
        pub max_attempts: BoundedInt<1, 1000>,
        /// For `revive`: the new retry policy.
        pub retry: Retry,
        /// For `move` and `revive`: the queue.
        pub queue: QueueName,
        /// For `reprioritise` and `revive`: the priority.
        pub priority: i16,
        /// For `patch`: the fields. The patch of the payload only with the scope `read-payload`.
        pub patch: JobPatch,
    }
}

/// The names of the fields of [`BulkActionFields`].
const FIELDS: [&str; 9] = [
    "failures",
    "payload_patch",
    "run_at",
    "force",
    "max_attempts",
    "retry",
    "queue",
    "priority",
    "patch",
];

/// Reads the fields of one action from the other fields of its object. Serde buffers the fields of a
/// flattened struct, and patches, which are raw JSON, cannot be read from that buffer.
fn read_fields<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BulkActionFields, D::Error> {
    let mut fields = serde_json::Map::<String, Value>::deserialize(deserializer)?;
    fields.retain(|name, _| FIELDS.contains(&name.as_str()));
    serde_json::from_value(Value::Object(fields)).map_err(D::Error::custom)
}

/// A job that an action could not change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ItemFailure {
    /// Id of the job.
    pub job_id: JobId,
    /// Why it was left alone.
    pub reason: SkipReason,
    /// What went wrong. Null if the key lacks the scope `read-payload`.
    pub error: Option<String>,
}

/// What an action would do.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ActionPreview {
    /// Number of jobs that match.
    pub matched: Count,
    /// Whether all jobs were examined. If not, more may match.
    pub complete: bool,
    /// The first jobs that match.
    pub samples: Vec<Job>,
    /// What the action would change in each of them.
    pub diff: Vec<JobDiff>,
}

/// What an action would change in one job: `changes`, or `refused` if it would change nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobDiff {
    /// Id of the job.
    pub job_id: JobId,
    /// Old and new value of each field that changes. A removed job has only `state`, whose new
    /// value is null. Payloads only with the scope `read-payload`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<BTreeMap<String, FieldChange>>,
    /// Why the action would leave the job alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// The old and the new value of a field.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FieldChange {
    /// The value before the action.
    pub from: Value,
    /// The value after the action.
    pub to: Value,
}

impl JobDiff {
    /// The differences between a job before and after an action. `None` stands for a removed job.
    pub fn between(before: &Job, after: Option<&Job>) -> Self {
        let changes = match after {
            Some(after) => changes(before, after),
            None => {
                let from = serde_json::to_value(before.state).unwrap_or_default();
                let to = Value::Null;
                BTreeMap::from([("state".to_owned(), FieldChange { from, to })])
            }
        };
        JobDiff {
            job_id: before.id,
            changes: Some(changes),
            refused: None,
        }
    }

    /// A job that the action would leave alone.
    pub fn refused(job_id: JobId, why: impl Into<String>) -> Self {
        JobDiff {
            job_id,
            changes: None,
            refused: Some(why.into()),
        }
    }
}

fn changes(before: &Job, after: &Job) -> BTreeMap<String, FieldChange> {
    let fields = |job: &Job| match serde_json::to_value(job) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let (mut old, new) = (fields(before), fields(after));
    let mut changes = BTreeMap::new();
    for (name, to) in new {
        let from = old.remove(&name).unwrap_or_default();
        if from != to {
            changes.insert(name, FieldChange { from, to });
        }
    }
    for (name, from) in old {
        let to = Value::Null;
        changes.insert(name, FieldChange { from, to });
    }
    changes
}

/// The created bulk action, or what it would do.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum BulkActionAnswer {
    /// The created bulk action.
    Created(Box<BulkAction>),
    /// What the bulk action would do, because `dry_run` was set.
    Preview(ActionPreview),
}

#[cfg(test)]
mod tests;
