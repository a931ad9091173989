//! One request, after it was let in: what a route may look at.

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

/// One request.
pub(crate) struct Call {
    pub(crate) app: App,
    pub(crate) caller: Caller,
    pub(crate) now: Timestamp,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Where the router is mounted.
    pub(crate) prefix: String,
    /// The path behind that.
    pub(crate) path: String,
    pub(crate) params: Vec<(String, String)>,
    pub(crate) query: Map<String, Value>,
    /// Ids of a request that may come again: it makes the same ones each time.
    pub(crate) seeded: Option<Seeded>,
}

/// Where the ids of a request come from that may be sent again.
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
    /// A part of the path, which is a name: one that breaks its rule is refused.
    pub(crate) fn name<T: FromStr<Err = Invalid>>(&self, param: &str) -> Result<T, Problem> {
        let parsed = self.param(param).parse();
        Ok(parsed.map_err(|error: Invalid| error.within(param))?)
    }

    /// A part of the path, which is an id: what cannot be one names nothing.
    pub(crate) fn job_id(&self) -> Result<JobId, Problem> {
        let text = self.param("id");
        let id = text.parse();
        id.map_err(|_| Problem::not_found("such job: its id is a UUID"))
    }

    pub(crate) fn param(&self, param: &str) -> &str {
        let found = self.params.iter().find(|(name, _)| name == param);
        found.map_or("", |(_, value)| value)
    }

    pub(crate) fn header(&self, name: &HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Whether the request may create something, and replace nothing: `If-None-Match: *`.
    pub(crate) fn only_creates(&self) -> bool {
        self.headers.contains_key(IF_NONE_MATCH)
    }

    /// The text of the body; that of an empty object if there is none.
    pub(crate) fn text(&self) -> Result<&str, Problem> {
        match self.body.is_empty() {
            true => Ok("{}"),
            false => Ok(body_text(&self.body)?),
        }
    }

    /// The URL of the same list from a cursor on.
    pub(crate) fn link(&self, cursor: Option<&String>) -> Option<String> {
        let cursor = cursor?;
        let mut link = format!("{}{}?cursor={cursor}", self.prefix, self.path);
        for (name, value) in self.query.iter().filter(|(name, _)| *name != "cursor") {
            let value = value.as_str().unwrap_or_default();
            link.push_str(&format!("&{}={}", escaped(name), escaped(value)));
        }
        Some(link)
    }

    /// The address of something, wherever the router is mounted.
    pub(crate) fn address(&self, path: &str) -> String {
        format!("{}/api/v1{path}", self.prefix)
    }

    /// Refuses a caller whose key was revoked or has expired while its request waited.
    pub(crate) async fn recheck(&self, needed: Scope) -> Result<(), Problem> {
        let now = self.app.client.now();
        Ok(self.app.access.recheck(&self.caller, needed, now).await?)
    }

    /// Whether this caller sees what jobs carry.
    pub(crate) fn content(&self) -> Content {
        if self.caller.may(Scope::ReadPayload) {
            Content::Shown
        } else {
            Content::Withheld
        }
    }

    /// The id of a job that is made by this request.
    pub(crate) fn new_job_id(&self) -> JobId {
        match &self.seeded {
            Some(seeded) => seeded.ids.job(self.now),
            None => self.app.ids().job(self.now),
        }
    }

    /// Says what the jobs of this request may be signed with.
    pub(crate) fn signers(&self) -> Signers<'_> {
        Signers::new(self.app.secrets.as_ref())
    }

    /// When and from which seed this request makes something else than single jobs.
    pub(crate) fn origin(&self) -> Origin {
        let seeded = self.seeded.as_ref().map(|seeded| seeded.seed);
        Origin {
            now: self.now,
            seed: seeded.unwrap_or_else(|| self.app.ids().bits()),
            repeats: seeded.is_some(),
        }
    }

    /// Records what an operator did.
    pub(crate) async fn audit(&self, action: &str, target: &str, detail: Value) {
        let audit = &self.app.audit;
        let actor = self.caller.actor();
        audit.record(&actor, action, target, detail).await;
    }

    /// Records what an operator did, where there is no more to say.
    pub(crate) async fn audit_plain(&self, action: &str, target: &str) {
        self.audit(action, target, json!({})).await;
    }
}

/// Everything but letters, digits and these four means something in a URL, or may.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Text with everything escaped that means something in a URL.
pub(crate) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_something_in_a_url_is_escaped() {
        assert_eq!(escaped("a/b c&é"), "a%2Fb%20c%26%C3%A9");
        assert_eq!(escaped("a-b_c.d~e"), "a-b_c.d~e");
    }
}
