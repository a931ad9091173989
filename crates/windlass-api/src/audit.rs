//! The audit log, and the payloads that changes replaced.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_core::{Payload, Timestamp};

use crate::{Count, plain_body};

/// Which records of the audit log are listed; a parameter that is not given matches every record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditParams {
    /// Who acted: the id or the name of a key.
    pub key: Option<String>,
    /// An action such as `job.edit`, or a prefix that ends in a dot, such as `job.`.
    pub action: Option<String>,
    /// The target, exactly.
    pub target: Option<String>,
    /// At this instant or later.
    pub from: Option<Timestamp>,
    /// Before this instant.
    pub before: Option<Timestamp>,
}

/// A page of the audit log, newest first. It may be empty and have a next one.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct AuditPage {
    /// The records that match.
    pub data: Vec<AuditRecord>,
    /// Where the next page begins; null at the end of the list.
    pub next_cursor: Option<String>,
    /// How many records it looked at.
    pub scanned: Count,
    /// When the oldest of them was written.
    pub scanned_until: Option<Timestamp>,
}

/// Something that an operator did, or the removal of dead jobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditRecord {
    /// Its number, from 1.
    pub number: Count,
    /// When it happened.
    pub at: Timestamp,
    /// The id of a key; `local` without one, `windlass` for the janitor.
    pub key: String,
    /// The name of the key.
    pub name: String,
    /// What was done: `queue.pause`.
    pub action: String,
    /// To what.
    pub target: String,
    /// How.
    pub detail: Value,
    /// The hash of the record before it.
    pub previous: String,
    /// The hash of all the rest.
    pub hash: String,
}

/// How the audit log is checked.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyParams {
    /// A hash that was kept elsewhere: its record must still be there.
    pub known: Option<String>,
}

/// What a check of the audit log found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct VerifiedAudit {
    /// How many records there are.
    pub records: Count,
    /// The hash of the newest record: keep it elsewhere.
    pub hash: String,
    /// What is wrong, if anything is.
    pub broken: Option<String>,
}

/// A payload that a change replaced.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ReplacedPayload {
    /// Its hash, as the audit log has it.
    pub sha256: String,
    /// Its size.
    pub bytes: Count,
    /// The payload.
    pub payload: Payload,
    /// When it was replaced.
    pub replaced_at: Option<Timestamp>,
    /// Until when it is kept.
    pub kept_until: Option<Timestamp>,
}

plain_body!(AuditParams, VerifyParams);
