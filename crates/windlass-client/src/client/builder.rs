//! What a client is made of: the server, the key, timeouts and limits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderValue;

use super::{Client, Shared};
use crate::connection::Origin;
use crate::error::Error;

/// Configures a [`Client`]. Created by [`Client::builder`].
#[derive(Clone)]
pub struct Builder {
    url: String,
    key: Option<String>,
    roots: Vec<Vec<u8>>,
    connect_timeout: Duration,
    timeout: Duration,
    answer_bytes_max: usize,
    retries: u32,
    idle_max: usize,
}

impl Client {
    /// Returns a builder for a client of the server at this URL, such as
    /// `https://jobs.example.com`.
    ///
    /// If the URL has a path, the client puts it in front of every path of the API.
    pub fn builder(url: &str) -> Builder {
        Builder {
            url: url.to_owned(),
            key: None,
            roots: Vec::new(),
            connect_timeout: Duration::from_secs(10),
            timeout: Duration::from_secs(100),
            answer_bytes_max: 256 * 1024 * 1024,
            retries: 2,
            idle_max: 32,
        }
    }
}

impl Builder {
    /// Sets the API key, such as `wl_…`. A server without keys needs none.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Trusts these root certificates (PEM), in addition to those of the operating system. Can be
    /// called several times.
    #[must_use]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.roots.push(pem.into());
        self
    }

    /// Sets how long a connection attempt may take, including the TLS handshake. Default: 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long a request may take, until its response is complete. A request that waits for
    /// jobs gets its waiting time in addition. Default: 100 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the largest response that the client reads, in bytes. Default: 256 MiB.
    #[must_use]
    pub fn answer_bytes_max(mut self, bytes: usize) -> Self {
        self.answer_bytes_max = bytes;
        self
    }

    /// Sets how often the client repeats a failed request. Default: 2.
    ///
    /// The client repeats a request only if that is safe: the request was never sent, or a second
    /// one changes nothing more. It repeats a request that creates something only with an
    /// [idempotency key](Client::idempotency_key).
    #[must_use]
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Sets how many idle connections the client keeps for later requests. Default: 32.
    #[must_use]
    pub fn idle_connections_max(mut self, connections: usize) -> Self {
        self.idle_max = connections;
        self
    }

    /// Creates the client. It connects when it sends its first request.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the URL, the key or a root certificate is invalid.
    pub fn build(self) -> Result<Client, Error> {
        let origin = Origin::new(&self.url, &self.roots, self.connect_timeout, self.idle_max)?;
        let authorization = self.key.map(|key| {
            let mut value = HeaderValue::try_from(format!("Bearer {key}")).map_err(|_| {
                let what = "the key".to_owned();
                let rule = "must not contain control characters".to_owned();
                Error::Invalid { what, rule }
            })?;
            value.set_sensitive(true);
            Ok(value)
        });
        Ok(Client {
            shared: Arc::new(Shared {
                origin,
                authorization: authorization.transpose()?,
                timeout: self.timeout,
                answer_bytes_max: self.answer_bytes_max,
                retries: self.retries,
            }),
            idempotency_key: None,
        })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Builder({})", self.url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_refuses_an_invalid_url_key_or_certificate() {
        for (url, rule) in [
            ("127.0.0.1:8080", "must begin with http:// or https://"),
            ("ftp://a", "must begin with http:// or https://"),
            ("http:// a", "is not a URL"),
        ] {
            let refused = Client::new(url).unwrap_err().to_string();
            assert!(refused.ends_with(rule), "{url}: {refused}");
        }
        assert!(Client::builder("http://a").key("a\nb").build().is_err());
        for pem in ["-----BEGIN CERTIFICATE-----\n?", "no certificate", ""] {
            for url in ["https://a", "http://a"] {
                let bad = Client::builder(url).root_certificates(pem).build();
                let refused = bad.unwrap_err().to_string();
                assert!(
                    refused.starts_with("the root certificate must be a PEM file"),
                    "{refused}"
                );
            }
        }
    }
}
