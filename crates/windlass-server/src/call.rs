//! A request that passed the access check, as its handler sees it.

use std::str::FromStr;

use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::http::header::{HeaderName, IF_NONE_MATCH};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};
use windlass_api::{Content, body_text};
use windlass_core::{Invalid, JobId, Timestamp};
use windlass_engine::{Ids, Origin};

use crate::access::{Caller, Scope};
use crate::app::App;
use crate::problem::Problem;
use crate::signing::Signers;

/// A request.
pub(crate) struct Call {
    pub(crate) app: App,
    pub(crate) caller: Caller,
    pub(crate) now: Timestamp,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The path at which the router is mounted.
    pub(crate) prefix: String,
    /// The path below `prefix`.
    pub(crate) path: String,
    pub(crate) params: Vec<(String, String)>,
    pub(crate) query: Map<String, Value>,
    /// The ids of a request with an `Idempotency-Key`: a repeated request generates the same ids.
    pub(crate) seeded: Option<Seeded>,
}

/// Generates the ids of a request with an `Idempotency-Key`.
pub(crate) struct Seeded {
    pub(crate) seed: u64,
    pub(crate) ids: Ids,
}

impl Seeded {
    pub(crate) fn new(seed: u64) -> Self {
        Seeded {
            seed,
            ids: Ids::seeded(seed),
        }
    }
}

impl Call {
    /// Parses a path parameter that is a name. An invalid name is refused.
    pub(crate) fn name<T: FromStr<Err = Invalid>>(&self, param: &str) -> Result<T, Problem> {
        let parsed = self.param(param).parse();
        Ok(parsed.map_err(|error: Invalid| error.within(param))?)
    }

    /// Parses the path parameter `id`. An invalid id is reported as not found.
    pub(crate) fn job_id(&self) -> Result<JobId, Problem> {
        let text = self.param("id");
        let id = text.parse();
        id.map_err(|_| Problem::not_found("such job: a job id is a UUID"))
    }

    pub(crate) fn param(&self, param: &str) -> &str {
        let pair = self.params.iter().find(|(name, _)| name == param);
        pair.map_or("", |(_, value)| value)
    }

    pub(crate) fn header(&self, name: &HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Whether the request may create but not replace something: `If-None-Match: *`.
    pub(crate) fn only_creates(&self) -> bool {
        self.headers.contains_key(IF_NONE_MATCH)
    }

    /// The text of the body, or `{}` if the request has no body.
    pub(crate) fn text(&self) -> Result<&str, Problem> {
        if self.body.is_empty() {
            Ok("{}")
        } else {
            Ok(body_text(&self.body)?)
        }
    }

    /// The URL of the page that starts at a cursor.
    pub(crate) fn link(&self, cursor: Option<&String>) -> Option<String> {
        let cursor = cursor?;
        let mut link = format!("{}{}?cursor={cursor}", self.prefix, self.path);
        for (name, value) in self.query.iter().filter(|(name, _)| *name != "cursor") {
            let value = value.as_str().unwrap_or_default();
            link.push_str(&format!("&{}={}", escaped(name), escaped(value)));
        }
        Some(link)
    }

    /// The URL path of a resource, including the prefix at which the router is mounted.
    pub(crate) fn address(&self, path: &str) -> String {
        format!("{}/api/v1{path}", self.prefix)
    }

    /// Refuses a caller whose key was revoked or expired while the request waited.
    pub(crate) async fn recheck(&self, needed: Scope) -> Result<(), Problem> {
        let now = self.app.client.now();
        Ok(self.app.access.recheck(&self.caller, needed, now).await?)
    }

    /// Whether the caller may see payloads, results and errors.
    pub(crate) fn content(&self) -> Content {
        if self.caller.may(Scope::ReadPayload) {
            Content::Shown
        } else {
            Content::Withheld
        }
    }

    /// Generates the id of a job that this request creates.
    pub(crate) fn new_job_id(&self) -> JobId {
        match &self.seeded {
            Some(seeded) => seeded.ids.job(self.now),
            None => self.app.ids().job(self.now),
        }
    }

    /// Checks which secrets may sign the requests of HTTP jobs.
    pub(crate) fn signers(&self) -> Signers<'_> {
        Signers::new(self.app.secrets.as_ref())
    }

    /// The time and the seed from which this request creates schedules and their jobs.
    pub(crate) fn origin(&self) -> Origin {
        let seeded = self.seeded.as_ref().map(|seeded| seeded.seed);
        Origin {
            now: self.now,
            seed: seeded.unwrap_or_else(|| self.app.ids().bits()),
            repeats: seeded.is_some(),
        }
    }

    /// Records a change by an operator in the audit log.
    pub(crate) async fn audit(&self, action: &str, target: &str, detail: Value) {
        let audit = &self.app.audit;
        let actor = self.caller.actor();
        audit.record(&actor, action, target, detail).await;
    }

    /// Records a change without details in the audit log.
    pub(crate) async fn audit_plain(&self, action: &str, target: &str) {
        self.audit(action, target, json!({})).await;
    }
}

/// All characters except letters, digits and these four can have a meaning in a URL.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Percent-encodes all characters that can have a meaning in a URL.
pub(crate) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_with_a_meaning_in_a_url_are_escaped() {
        assert_eq!(escaped("a/b c&é"), "a%2Fb%20c%26%C3%A9");
        assert_eq!(escaped("a-b_c.d~e"), "a-b_c.d~e");
    }
}
