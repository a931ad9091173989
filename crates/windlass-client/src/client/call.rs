//! One request to the API: its method, path, query and body.

use std::time::Duration;

use hyper::body::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde_json::Value;

use crate::error::Error;

/// The HTTP method of a request, for [`Client::call`](super::Client::call).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Reads.
    Get,
    /// Creates something or performs an action.
    Post,
    /// Creates or replaces something.
    Put,
    /// Changes some fields of something.
    Patch,
    /// Deletes something.
    Delete,
}

impl Method {
    pub(super) fn name(self) -> hyper::Method {
        match self {
            Method::Get => hyper::Method::GET,
            Method::Post => hyper::Method::POST,
            Method::Put => hyper::Method::PUT,
            Method::Patch => hyper::Method::PATCH,
            Method::Delete => hyper::Method::DELETE,
        }
    }
}

/// One request to the API.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(super) method: Method,
    /// The path after the base URL, with its query.
    pub(super) path: String,
    pub(super) body: Bytes,
    pub(super) creates: bool,
    pub(super) repeatable: bool,
    /// How long the server may wait before it responds, in addition to the timeout.
    pub(super) server_wait: Duration,
}

impl Call {
    /// Creates a request to a path of the API. Escapes the parts of the path.
    pub(crate) fn new(method: Method, parts: &[&str]) -> Self {
        let parts = parts.iter().map(|part| format!("/{}", escaped(part)));
        Call::raw(method, format!("/api/v1{}", parts.collect::<String>()))
    }

    pub(crate) fn raw(method: Method, path: String) -> Self {
        Call {
            method,
            path,
            body: Bytes::new(),
            creates: false,
            repeatable: matches!(method, Method::Get | Method::Put | Method::Delete),
            server_wait: Duration::ZERO,
        }
    }

    pub(crate) fn body(mut self, body: &(impl Serialize + ?Sized)) -> Result<Self, Error> {
        let written = serde_json::to_vec(body).map_err(|error| Error::Invalid {
            what: "the body".to_owned(),
            rule: format!("must be JSON: {error}"),
        })?;
        self.body = written.into();
        Ok(self)
    }

    /// Adds every field that is not null as a query parameter.
    pub(crate) fn query(mut self, params: &impl Serialize) -> Self {
        let Ok(Value::Object(fields)) = serde_json::to_value(params) else {
            return self;
        };
        for (name, value) in fields {
            match value {
                Value::Null => {}
                Value::String(text) => self = self.param(&name, &text),
                other => self = self.param(&name, &other.to_string()),
            }
        }
        self
    }

    pub(crate) fn param(mut self, name: &str, value: &str) -> Self {
        let mark = if self.path.contains('?') { '&' } else { '?' };
        self.path.push(mark);
        self.path.push_str(&escaped(name));
        self.path.push('=');
        self.path.push_str(&escaped(value));
        self
    }

    /// Marks a request that creates something. It carries the client's idempotency key, if set.
    pub(crate) fn creates(mut self) -> Self {
        self.creates = true;
        self
    }

    /// Marks a request that the client may repeat, because a second one changes nothing more.
    pub(crate) fn repeatable(mut self) -> Self {
        self.repeatable = true;
        self
    }

    pub(crate) fn server_wait(mut self, wait: Duration) -> Self {
        self.server_wait = wait;
        self
    }
}

/// All characters except letters, digits and these four: others can have a meaning in a URL.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_and_parameters_are_escaped() {
        let call = Call::new(Method::Get, &["keys", "a/../b?c#d é%"]);
        assert_eq!(call.path, "/api/v1/keys/a%2F..%2Fb%3Fc%23d%20%C3%A9%25");
        let call = call.query(&json!({"a": null, "b": "x&y", "c": 5, "d": true}));
        let query = call.path.split_once('?').unwrap().1;
        assert_eq!(query, "b=x%26y&c=5&d=true");
    }
}
