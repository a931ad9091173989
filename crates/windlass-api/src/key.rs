//! API keys and secrets as clients write and read them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{Invalid, Timestamp, string_enum};

use crate::value::either_duration;
use crate::{Body, Checks, Count, DurationText, Millis};

/// The longest name of a key.
const NAME_CHARS_MAX: usize = 100;

/// What a key may do. Every route needs one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Create jobs.
    Enqueue,
    /// Claim, renew and settle jobs, as a worker does.
    Work,
    /// See jobs, queues and schedules, without payloads and error texts.
    Read,
    /// See payloads, results and error texts too. Includes `read`.
    ReadPayload,
    /// Change jobs, queues and schedules: cancel, revive, pause, edit, purge.
    Operate,
    /// Keys, secrets and the audit log. Includes everything else.
    Admin,
}

string_enum!(Scope {
    Enqueue = "enqueue",
    Work = "work",
    Read = "read",
    ReadPayload = "read-payload",
    Operate = "operate",
    Admin = "admin",
});

/// A key to create.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewKey {
    /// For people.
    #[schemars(required, length(min = 1, max = 100))]
    pub name: Option<String>,
    /// What it may do.
    #[schemars(required, length(min = 1, max = 6))]
    pub scopes: Option<Vec<Scope>>,
    /// After how long it expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<DurationText>,
    /// The same in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<Millis>,
    /// When it expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// A key to create that keeps the rules of its fields.
#[derive(Debug, Clone)]
pub struct CheckedNewKey {
    /// For people.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// When it expires.
    pub expires_at: Option<Timestamp>,
}

impl Body for NewKey {
    type Checked = CheckedNewKey;

    fn check(self, checks: &mut Checks) -> Option<CheckedNewKey> {
        let expires_in = either_duration(checks, "expires_in", self.expires_in, self.expires_in_ms);
        let expires_in = expires_in.map(|span| checks.now().saturating_add(span));
        let expires_at =
            checks.exclusive(("expires_at", self.expires_at), ("expires_in", expires_in));
        checks.keep(check_expiry(expires_at, checks.now()));
        let name = checks.required("name", self.name);
        if let Some(name) = &name {
            checks.keep(check_name(name));
        }
        let scopes = checks.required("scopes", self.scopes);
        if scopes.as_ref().is_some_and(Vec::is_empty) {
            checks.refuse("scopes", "must name at least one scope");
        }
        Some(CheckedNewKey {
            name: name?,
            scopes: scopes?,
            expires_at,
        })
    }
}

impl CheckedNewKey {
    /// Refuses a key that did not come as a body and breaks a rule.
    pub fn check(&self, now: Timestamp) -> Result<(), Invalid> {
        check_name(&self.name)?;
        check_expiry(self.expires_at, now)
    }
}

fn check_name(name: &str) -> Result<(), Invalid> {
    let sized = !name.trim().is_empty() && name.chars().count() <= NAME_CHARS_MAX;
    if !sized || name.contains(char::is_control) {
        let rule = format!("must be 1 to {NAME_CHARS_MAX} characters, none of them a control one");
        return Err(Invalid::new("name", rule));
    }
    Ok(())
}

fn check_expiry(expires_at: Option<Timestamp>, now: Timestamp) -> Result<(), Invalid> {
    match expires_at {
        Some(at) if at <= now => Err(Invalid::new("expires_at", "must be in the future")),
        _ => Ok(()),
    }
}

/// A key, without its secret.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Key {
    /// The part of the key that may be shown.
    pub id: String,
    /// For people.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it expires.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
    /// When it was last used, to the minute.
    pub last_used_at: Option<Timestamp>,
    /// The server cannot read the key, because a newer version wrote it or it is damaged: it opens
    /// nothing. Revoke it, or upgrade.
    pub unreadable: bool,
}

/// A key that was just created.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CreatedKey {
    /// The key itself. It is shown this once, and stored nowhere.
    pub key: String,
    /// What is stored about it.
    #[serde(flatten)]
    pub about: Key,
}

/// A secret to keep.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSecret {
    /// Its value, which is never shown again.
    #[schemars(required, length(min = 1, max = 65536))]
    pub value: Option<String>,
    /// The hosts that requests may be signed for: `api.example.com`, or `*.example.com` for every
    /// name below it; with `:port` if only that port is meant. Required unless `any_host` is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub hosts: Option<Vec<String>>,
    /// Sign requests to every host: anyone who may enqueue can then have anything signed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub any_host: Option<bool>,
}

impl std::fmt::Debug for NewSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("NewSecret");
        shown.field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// A secret, without its value.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Secret {
    /// Its name.
    pub name: String,
    /// The hosts that requests may be signed for.
    pub hosts: Vec<String>,
    /// Whether requests to every host may be signed.
    pub any_host: bool,
}

/// How many secrets were encrypted again.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
pub struct Rotated {
    /// How many.
    pub rotated: Count,
}
