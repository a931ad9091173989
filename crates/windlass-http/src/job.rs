//! The kind and the defaults of HTTP jobs, and how a Rust program enqueues one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass::{Job, Options};
use windlass_core::retry::{Preset, RetryPolicy};
use windlass_core::{Kind, NewJob, Timeout};

/// The kind of HTTP jobs.
pub const HTTP_KIND: &str = "http";

/// The timeout of an HTTP job that sets none.
pub const HTTP_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// Returns [`HTTP_KIND`] as a [`Kind`].
pub fn http_kind() -> Kind {
    Kind::new(HTTP_KIND).expect("`http` is a valid kind")
}

/// Whether jobs of this kind are HTTP jobs.
pub fn is_http(kind: &Kind) -> bool {
    kind.as_str() == HTTP_KIND
}

/// Returns the retry policy of HTTP jobs that have none of their own: the preset `webhook`.
pub fn kind_retry() -> BTreeMap<Kind, Arc<RetryPolicy>> {
    BTreeMap::from([(http_kind(), Arc::new(Preset::Webhook.policy()))])
}

/// Sets the defaults of HTTP jobs if this is one: a timeout of 30 s. Other jobs are unchanged.
#[must_use]
pub fn with_defaults(mut new: NewJob) -> NewJob {
    if is_http(&new.kind) {
        let timeout = Timeout::After(HTTP_TIMEOUT_DEFAULT);
        new.timeout = new.timeout.or(Some(timeout));
    }
    new
}

/// An HTTP job that a Rust program enqueues: `client.enqueue(HttpJob::post("https://…")).await?`.
///
/// A worker with [`HttpJobs::serve`](crate::HttpJobs::serve) sends the request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HttpJob {
    /// The URL.
    pub url: String,
    /// The method, in upper case.
    pub method: String,
    /// The headers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The body. A string is sent as plain text, any other value as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
}

impl HttpJob {
    /// Creates a `POST` request without a body.
    pub fn post(url: impl Into<String>) -> Self {
        HttpJob {
            url: url.into(),
            method: "POST".to_owned(),
            headers: BTreeMap::new(),
            body: None,
        }
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Value>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// Sets a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }
}

impl Job for HttpJob {
    const KIND: &'static str = HTTP_KIND;

    fn defaults() -> Options {
        Options::new().timeout(HTTP_TIMEOUT_DEFAULT)
    }
}
