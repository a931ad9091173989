//! HTTP jobs as jobs: their kind, their defaults, and how a Rust program enqueues one.

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

/// The timeout of an HTTP job that names none.
pub const HTTP_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// The kind of HTTP jobs.
pub fn http_kind() -> Kind {
    Kind::new(HTTP_KIND).expect("it is a kind")
}

/// Whether jobs of a kind are HTTP jobs.
pub fn is_http(kind: &Kind) -> bool {
    kind.as_str() == HTTP_KIND
}

/// The retry policies of kinds where HTTP jobs run: `webhook` for them, unless they have their own.
pub fn kind_retry() -> BTreeMap<Kind, Arc<RetryPolicy>> {
    BTreeMap::from([(http_kind(), Arc::new(Preset::Webhook.policy()))])
}

/// The job with the defaults of HTTP jobs, if it is one: a timeout of 30 s.
#[must_use]
pub fn with_defaults(mut new: NewJob) -> NewJob {
    if is_http(&new.kind) {
        let timeout = Timeout::After(HTTP_TIMEOUT_DEFAULT);
        new.timeout = new.timeout.or(Some(timeout));
    }
    new
}

/// A request that a Rust program enqueues: `client.enqueue(HttpJob::post("https://…")).await?`.
///
/// It holds what the payload of kind `http` holds. A worker that [`HttpJobs`](crate::HttpJobs)
/// serves sends it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HttpJob {
    /// Where the request goes.
    pub url: String,
    /// Its method.
    pub method: String,
    /// Its headers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Its body: text as it is, anything else as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
}

impl HttpJob {
    /// A POST without a body.
    pub fn post(url: impl Into<String>) -> Self {
        HttpJob {
            url: url.into(),
            method: "POST".to_owned(),
            headers: BTreeMap::new(),
            body: None,
        }
    }

    /// With a body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Value>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// With a header.
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
