//! API keys and secrets as clients write and read them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{Invalid, Timestamp, string_enum};

use crate::value::either_duration;
use crate::{Body, Checks, Count, DurationText, Millis};

/// The maximum length of the name of a key, in characters.
const NAME_CHARS_MAX: usize = 100;

/// What a key may do. Every route requires one scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Create jobs.
    Enqueue,
    /// Claim, renew and settle jobs.
    Work,
    /// Read jobs, queues and schedules, without payloads and error texts.
    Read,
    /// Read payloads, results and error texts too. Includes `read`.
    ReadPayload,
    /// Change jobs, queues and schedules: cancel, revive, pause, edit, delete, replay.
    Operate,
    /// Manage keys, secrets and the audit log. Includes all other scopes.
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

/// An API key to create.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewKey {
    /// Name of the key, for people: 1 to 100 characters.
    #[schemars(required, length(min = 1, max = 100))]
    pub name: Option<String>,
    /// What the key may do.
    #[schemars(required, length(min = 1, max = 6))]
    pub scopes: Option<Vec<Scope>>,
    /// Lifetime of the key. Default: it does not expire. Excludes `expires_at`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<DurationText>,
    /// `expires_in` in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<Millis>,
    /// When the key expires. Must be in the future. Excludes `expires_in`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// A key to create that was checked.
#[derive(Debug, Clone)]
pub struct CheckedNewKey {
    /// The name, for people.
    pub name: String,
    /// What the key may do.
    pub scopes: Vec<Scope>,
    /// When the key expires.
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
    /// Checks a key that was not read from a request body.
    pub fn check(&self, now: Timestamp) -> Result<(), Invalid> {
        check_name(&self.name)?;
        check_expiry(self.expires_at, now)
    }
}

fn check_name(name: &str) -> Result<(), Invalid> {
    let sized = !name.trim().is_empty() && name.chars().count() <= NAME_CHARS_MAX;
    if !sized || name.contains(char::is_control) {
        let rule = format!("must be 1 to {NAME_CHARS_MAX} characters without control characters");
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

/// An API key, without its secret part.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Key {
    /// Public part of the key, which identifies it.
    pub id: String,
    /// Name of the key, for people.
    pub name: String,
    /// What the key may do.
    pub scopes: Vec<Scope>,
    /// When the key was created.
    pub created_at: Timestamp,
    /// When the key expires. Null if it does not expire.
    pub expires_at: Option<Timestamp>,
    /// When the key was revoked. Null if it was not revoked.
    pub revoked_at: Option<Timestamp>,
    /// When the key was last used, accurate to the minute.
    pub last_used_at: Option<Timestamp>,
    /// True if the server cannot read the stored key, because a newer version wrote it or it is
    /// damaged. The server refuses such a key. Revoke it, or upgrade the server.
    pub unreadable: bool,
}

/// A new API key.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CreatedKey {
    /// The key. Save it now: the server does not store it and never shows it again.
    pub key: String,
    /// What the server stores about the key.
    #[serde(flatten)]
    pub about: Key,
}

/// A secret to store.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSecret {
    /// Value of the secret: 1 to 65536 bytes. The server stores it encrypted and never shows it
    /// again.
    #[schemars(required, length(min = 1, max = 65536))]
    pub value: Option<String>,
    /// Hosts to which requests may be signed with this secret: `api.example.com`, or
    /// `*.example.com` for all its subdomains. Add `:port` to allow only that port. Required,
    /// unless `any_host` is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub hosts: Option<Vec<String>>,
    /// Allow signing requests to every host. Anyone who may enqueue jobs can then sign any request.
    /// Default: `false`.
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
    /// Name of the secret.
    pub name: String,
    /// Hosts to which requests may be signed with this secret.
    pub hosts: Vec<String>,
    /// Whether requests to every host may be signed.
    pub any_host: bool,
}

/// Result of rotating the secrets.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
pub struct Rotated {
    /// How many secrets were encrypted again.
    pub rotated: Count,
}
