//! The audit log, and the payloads that changes replaced.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_core::{Payload, Timestamp};

use crate::{Count, plain_body};

/// Filters of the audit log. A record must match all that are given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditParams {
    /// Only records of this key: its id or its name.
    pub key: Option<String>,
    /// Only this action, such as `job.edit`, or all actions with a prefix that ends in a dot, such
    /// as `job.`.
    pub action: Option<String>,
    /// Only records of exactly this target, such as the id of a job or the name of a queue.
    pub target: Option<String>,
    /// Only records from this time or later.
    pub from: Option<Timestamp>,
    /// Only records from before this time.
    pub before: Option<Timestamp>,
}

/// A page of the audit log, newest first. A page can be empty although there is a next page.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct AuditPage {
    /// The matching records.
    pub data: Vec<AuditRecord>,
    /// Cursor of the next page. Null on the last page.
    pub next_cursor: Option<String>,
    /// How many records the server read for this page.
    pub scanned: Count,
    /// Time of the oldest record that the server read for this page.
    pub scanned_until: Option<Timestamp>,
}

/// A change by an operator, or the automatic removal of dead jobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditRecord {
    /// Number of the record, counted from 1.
    pub number: Count,
    /// When the change happened.
    pub at: Timestamp,
    /// Id of the key that made the change; `local` for a request without a key, `windlass` for the
    /// server itself.
    pub key: String,
    /// Name of the key.
    pub name: String,
    /// What was done, such as `queue.pause`.
    pub action: String,
    /// What was changed, such as the id of a job or the name of a queue.
    pub target: String,
    /// Details of the change. Its fields depend on `action`.
    pub detail: Value,
    /// Hash of the previous record.
    pub previous: String,
    /// Hash of all other fields of this record, `previous` included.
    pub hash: String,
}

/// Options of the verification.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyParams {
    /// A hash that you saved earlier. The verification fails unless a record still has it.
    pub known: Option<String>,
}

/// Result of verifying the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct VerifiedAudit {
    /// Number of records in the log.
    pub records: Count,
    /// Hash of the newest record. Save it outside the server to detect later changes.
    pub hash: String,
    /// What is wrong with the log. Null if the log is intact.
    pub broken: Option<String>,
}

/// A payload that a change replaced.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ReplacedPayload {
    /// SHA-256 hash of the payload, as in the audit log.
    pub sha256: String,
    /// Size of the payload in bytes.
    pub bytes: Count,
    /// The payload.
    pub payload: Payload,
    /// When the payload was replaced.
    pub replaced_at: Option<Timestamp>,
    /// When the server deletes the payload.
    pub kept_until: Option<Timestamp>,
}

plain_body!(AuditParams, VerifyParams);
