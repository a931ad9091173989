//! Audit records about changed jobs and schedules, and the payloads that changes replaced.
//!
//! A record contains the hash and the size of a payload, never its content. The server keeps a
//! replaced payload in a document that expires, for callers who may read payloads.

mod schedules;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use windlass_api::ReplacedPayload;
use windlass_core::{Edit, Job, JobId, Payload, Revival, State, Timestamp};
use windlass_store::{Changed, Expected};

use crate::call::Call;
use crate::problem::Problem;

pub(crate) use schedules::{schedule_changes, schedule_owner};

/// The collection of replaced payloads. The name of a document is its owner (the id of a job, or a
/// schedule) and the hash.
const REPLACED: &str = "replaced_payloads";
/// The largest replaced payload that is kept: 1 MiB.
const KEPT_BYTES_MAX: usize = 1024 * 1024;
/// The most replaced payloads that one request writes concurrently.
const KEPT_AT_ONCE: usize = 16;
/// The most jobs in one record. A change of more jobs writes several records.
const JOBS_PER_RECORD: usize = 100;

/// A job before an operator's change, and the audit entry of its replaced payload.
pub(crate) struct Before {
    job: Job,
    /// When the request arrived.
    now: Timestamp,
    payload: Option<Value>,
}

impl Before {
    /// Keeps the payload that a change is about to replace, if `new` differs from it.
    pub(crate) async fn keep(
        call: &Call,
        job: Job,
        new: Option<&Payload>,
    ) -> Result<Self, Problem> {
        let payload = match new.filter(|new| **new != job.payload) {
            Some(new) => Some(replaced(call, &job.id.to_string(), &job.payload, new).await?),
            None => None,
        };
        let now = call.now;
        Ok(Before { job, now, payload })
    }

    /// Keeps the payloads of many jobs.
    pub(crate) async fn keep_all(
        call: &Call,
        jobs: impl IntoIterator<Item = Job>,
        new: Option<&Payload>,
    ) -> Result<Vec<Self>, Problem> {
        let keeping = jobs.into_iter().map(|job| Before::keep(call, job, new));
        let keeping: Vec<_> = keeping.collect();
        stream::iter(keeping)
            .buffered(KEPT_AT_ONCE)
            .try_collect()
            .await
    }

    pub(crate) fn id(&self) -> JobId {
        self.job.id
    }

    /// Returns the changes of each job that the store changed.
    pub(crate) fn changes_of(
        before: &[Before],
        changed: &[Changed],
        changes: impl Fn(&Before, State) -> Value,
    ) -> Vec<(JobId, Value)> {
        let pairs = before.iter().zip(changed);
        let changed_jobs = pairs.filter_map(|(before, changed)| match changed {
            Changed::Now(state) => Some((before.id(), changes(before, *state))),
            _ => None,
        });
        changed_jobs.collect()
    }

    /// Returns the changes of an edit.
    pub(crate) fn edited(&self, edit: &Edit, state: State) -> Value {
        self.changes(state, |job| {
            job.queue = edit.queue.clone().unwrap_or_else(|| job.queue.clone());
            job.priority = edit.priority.unwrap_or(job.priority);
            job.run_at = edit.run_at.unwrap_or(job.run_at);
        })
    }

    /// Returns the changes of a revival.
    pub(crate) fn revived(&self, revival: &Revival, state: State) -> Value {
        // If the job was not revivable when it was read, the record has only the state and the
        // payload.
        self.changes(state, |job| {
            let _ = job.revive(revival.clone(), None, self.now);
        })
    }

    /// Returns the changes of making the job due.
    pub(crate) fn made_due(&self, state: State) -> Value {
        self.changes(state, |job| job.run_at = job.run_at.min(self.now))
    }

    /// Returns the changes of a cancellation: a waiting job ended, or a running job was asked to
    /// stop.
    pub(crate) fn cancelled(&self, state: State) -> Value {
        self.changes(state, |job| {
            let _ = job.cancel(self.now); // on failure, `state` from the store is still right
        })
    }

    /// Returns the changes if only the state changed.
    pub(crate) fn resolved(&self, state: State) -> Value {
        self.changes(state, |_| {})
    }

    /// Returns the old and new value of each field that `change` changes, and of the state. `state`
    /// is the new state that the store returned.
    fn changes(&self, state: State, change: impl FnOnce(&mut Job)) -> Value {
        let (old, mut new) = (&self.job, self.job.clone());
        change(&mut new);
        let mut changes = Map::new();
        let old_state = old.state();
        let name_of = |state: State, job: &Job| state.name(job.run_at, self.now);
        for (name, old, new) in [
            (
                "state",
                json!(name_of(old_state, old)),
                json!(name_of(state, &new)),
            ),
            ("reason", reason(old_state), reason(state)),
            (
                "cancel_requested",
                json!(is_cancel_requested(old)),
                json!(is_cancel_requested(&new)),
            ),
            ("queue", json!(old.queue), json!(new.queue)),
            ("priority", json!(old.priority), json!(new.priority)),
            ("run_at", json!(old.run_at), json!(new.run_at)),
            ("failures", json!(old.failures), json!(new.failures)),
            ("deadline", json!(old.deadline), json!(new.deadline)),
            (
                "max_attempts",
                json!(old.max_attempts),
                json!(new.max_attempts),
            ),
            (
                "retry",
                json!(old.retry.as_deref()),
                json!(new.retry.as_deref()),
            ),
        ] {
            if old != new {
                changes.insert(name.to_owned(), json!({"old": old, "new": new}));
            }
        }
        if let Some(payload) = &self.payload {
            changes.insert("payload".to_owned(), payload.clone());
        }
        Value::Object(changes)
    }
}

/// Returns the audit entry of a removed job.
pub(crate) fn removed(job: &Job, now: Timestamp) -> Value {
    let state = job.state();
    json!({
        "kind": job.kind, "queue": job.queue, "state": state.name(job.run_at, now),
        "reason": reason(state), "payload": digest(&job.payload),
    })
}

/// Records the changes of many jobs. Each record has the fields of `about` and up to 100 jobs.
pub(crate) async fn record_pass(
    call: &Call,
    action: &str,
    about: Value,
    changed: Vec<(JobId, Value)>,
) {
    let jobs = changed.into_iter();
    let jobs: Vec<Value> = jobs
        .map(|(id, changes)| json!({"job": id, "changes": changes}))
        .collect();
    let mut parts: Vec<&[Value]> = jobs.chunks(JOBS_PER_RECORD).collect();
    if parts.is_empty() {
        parts.push(&[]);
    }
    for part in parts {
        let mut detail = about.clone();
        if let Some(fields) = detail.as_object_mut() {
            fields.insert("jobs".to_owned(), json!(part));
        }
        call.audit(action, "jobs", detail).await;
    }
}

/// Keeps a payload that a change replaces. Returns its audit entry.
async fn replaced(
    call: &Call,
    owner: &str,
    payload: &Payload,
    new: &Payload,
) -> Result<Value, Problem> {
    let (hash, bytes) = (sha256(payload.as_str()), payload.as_str().len());
    let mut old = digest(payload);
    let retention = call.app.settings.replaced_payload_retention;
    let (name, value) = if retention.is_zero() {
        ("not_kept", json!("`retention.replaced_payloads` is 0"))
    } else if bytes > KEPT_BYTES_MAX {
        (
            "not_kept",
            json!(format!("larger than {KEPT_BYTES_MAX} bytes")),
        )
    } else {
        let until = call.now.saturating_add(retention);
        let text = json!({"payload": payload.as_str(), "replaced_at": call.now});
        let name = document_name(owner, &hash);
        let store = call.app.store();
        store
            .put_document(REPLACED, &name, &text, Expected::Any, Some(until), call.now)
            .await?;
        ("kept_until", json!(until))
    };
    if let Some(fields) = old.as_object_mut() {
        fields.insert(name.to_owned(), value);
    }
    Ok(json!({"old": old, "new": digest(new)}))
}

/// Returns the replaced payload of an owner with the hash in the path, if it is still kept.
pub(crate) async fn replaced_payload(call: &Call, owner: &str) -> Result<ReplacedPayload, Problem> {
    let missing =
        || Problem::not_found("such replaced payload: it may have expired, or was not kept");
    let hash = call.param("sha256");
    if hash.len() != 64 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(missing());
    }
    let name = document_name(owner, hash);
    let found = call.app.store().document(REPLACED, &name, call.now).await?;
    let found = found.ok_or_else(missing)?;
    let field = |name: &str| found.value.get(name).and_then(Value::as_str);
    let text = field("payload").ok_or_else(missing)?;
    Ok(ReplacedPayload {
        sha256: hash.to_owned(),
        bytes: u64::try_from(text.len()).unwrap_or(u64::MAX),
        payload: Payload::from_stored(text),
        replaced_at: field("replaced_at").and_then(|at| at.parse().ok()),
        kept_until: found.expires_at,
    })
}

fn reason(state: State) -> Value {
    match state {
        State::Dead(reason) => reason.name().into(),
        _ => Value::Null,
    }
}

fn is_cancel_requested(job: &Job) -> bool {
    job.lease().is_some_and(|lease| lease.cancel_requested)
}

fn document_name(owner: &str, hash: &str) -> String {
    format!("{owner}/{hash}")
}

/// Returns the hash and size of a payload, without its content.
fn digest(payload: &Payload) -> Value {
    digest_of(payload.as_str())
}

fn digest_of(text: &str) -> Value {
    json!({"sha256": sha256(text), "bytes": text.len()})
}

fn sha256(text: &str) -> String {
    let hash = Sha256::digest(text.as_bytes());
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}
