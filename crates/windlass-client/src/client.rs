//! Requests to one server: how they are sent, answered and repeated.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Request, Response, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use windlass_api::Problem;

use crate::connection::{Connection, NotSent, Origin, send};
use crate::error::{Cause, Error};

/// The first wait before a request is repeated; each further one is twice as long.
pub(crate) const BACKOFF: Duration = Duration::from_millis(100);
/// The longest wait before a request is repeated, also if the server names a longer one.
pub(crate) const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// A client of one server. Clones share their connections.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    idempotency_key: Option<String>,
}

struct Shared {
    origin: Origin,
    authorization: Option<HeaderValue>,
    timeout: Duration,
    answer_bytes_max: usize,
    retries: u32,
}

/// How a [`Client`] speaks to its server.
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

impl Builder {
    /// The API key. A server without keys needs none.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Trusts these certificates (PEM) in addition to those of the operating system.
    #[must_use]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.roots.push(pem.into());
        self
    }

    /// How long connecting may take, the TLS handshake included. 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long an answer may take. A claim that waits for jobs gets that time in addition. 100 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The largest answer that is read. 256 MiB.
    #[must_use]
    pub fn answer_bytes_max(mut self, bytes: usize) -> Self {
        self.answer_bytes_max = bytes;
        self
    }

    /// How often a request is repeated that failed, if repeating it is safe: it was never sent, or
    /// doing it twice changes nothing more. A request that creates something is repeated only with
    /// an idempotency key. 2.
    #[must_use]
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// At most this many idle connections are kept for later requests. 32.
    #[must_use]
    pub fn idle_connections_max(mut self, connections: usize) -> Self {
        self.idle_max = connections;
        self
    }

    /// The client. It connects when the first request is sent.
    pub fn build(self) -> Result<Client, Error> {
        let origin = Origin::new(&self.url, &self.roots, self.connect_timeout, self.idle_max)?;
        let authorization = self.key.map(|key| {
            let mut value = HeaderValue::try_from(format!("Bearer {key}")).map_err(|_| {
                let (what, rule) = ("the key".to_owned(), "must be plain text".to_owned());
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

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.shared.origin.url)
    }
}

/// The method of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Looks.
    Get,
    /// Creates, or does something.
    Post,
    /// Writes the whole of something.
    Put,
    /// Changes parts of something.
    Patch,
    /// Removes.
    Delete,
}

impl Method {
    fn name(self) -> hyper::Method {
        match self {
            Method::Get => hyper::Method::GET,
            Method::Post => hyper::Method::POST,
            Method::Put => hyper::Method::PUT,
            Method::Patch => hyper::Method::PATCH,
            Method::Delete => hyper::Method::DELETE,
        }
    }
}

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    method: Method,
    /// The path behind the base, with its query.
    path: String,
    body: Bytes,
    creates: bool,
    repeatable: bool,
    /// How long the server may wait before it begins to answer.
    waits: Duration,
}

impl Call {
    /// A request to a path of the API, whose parts are escaped.
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
            waits: Duration::ZERO,
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

    /// Adds the fields of an object that have a value as parameters of the query.
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

    /// It creates something: with the idempotency key of the client, once.
    pub(crate) fn creates(mut self) -> Self {
        self.creates = true;
        self
    }

    /// Doing it twice changes nothing more.
    pub(crate) fn repeatable(mut self) -> Self {
        self.repeatable = true;
        self
    }

    pub(crate) fn waits(mut self, wait: Duration) -> Self {
        self.waits = wait;
        self
    }
}

/// An answer, as it came.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
    retry_after: Option<Duration>,
}

impl Answer {
    /// Why the server refused; none if it did not.
    fn problem(&self) -> Option<Problem> {
        if self.status.is_success() {
            return None;
        }
        let title = self.status.canonical_reason().unwrap_or_default();
        let problem = serde_json::from_slice(&self.body);
        Some(problem.unwrap_or_else(|_| Problem {
            type_uri: "about:blank".to_owned(),
            title: title.to_owned(),
            status: self.status.as_u16(),
            code: "unknown".to_owned(),
            detail: "it does not say why".to_owned(),
            hint: None,
            errors: Vec::new(),
            request_id: None,
        }))
    }
}

impl Client {
    /// A client of the server at this URL, without a key.
    pub fn new(url: &str) -> Result<Self, Error> {
        Client::builder(url).build()
    }

    /// How a client of the server at this URL speaks to it. A path in the URL is put before every
    /// path of the API.
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

    /// The same client, whose requests that create something carry this `Idempotency-Key`: sent
    /// again with the same key within 24 h, the request creates nothing more.
    #[must_use]
    pub fn idempotency_key(&self, key: impl Into<String>) -> Self {
        Client {
            idempotency_key: Some(key.into()),
            ..self.clone()
        }
    }

    /// Sends a request to any path, with JSON in and out. For routes that have no method here.
    pub async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + ?Sized + Sync)>,
    ) -> Result<T, Error> {
        let mut call = Call::raw(method, path.to_owned());
        if let Some(body) = body {
            call = call.body(body)?;
        }
        self.json(call).await
    }

    /// Sends a request whose answer has a body.
    pub(crate) async fn json<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        let answer = self.good(call).await?;
        self.read(&answer)
    }

    pub(crate) fn read<T: DeserializeOwned>(&self, answer: &Answer) -> Result<T, Error> {
        match answer.body.as_ref() {
            b"" => self.parse(b"null"),
            body => self.parse(body),
        }
    }

    pub(crate) fn parse<T: DeserializeOwned>(&self, json: &[u8]) -> Result<T, Error> {
        serde_json::from_slice(json).map_err(|error| Error::Unreadable {
            url: self.shared.origin.url.clone(),
            cause: error.into(),
        })
    }

    /// Sends a request whose answer says nothing more than that it was carried out.
    pub(crate) async fn done(&self, call: Call) -> Result<(), Error> {
        self.good(call).await.map(|_| ())
    }

    /// Sends a request that must succeed.
    pub(crate) async fn good(&self, call: Call) -> Result<Answer, Error> {
        let answer = self.answered(call).await?;
        match answer.problem() {
            None => Ok(answer),
            Some(problem) => Err(Error::Refused(Box::new(problem))),
        }
    }

    /// Sends a request, and repeats it where that is safe.
    pub(crate) async fn answered(&self, call: Call) -> Result<Answer, Error> {
        let key = self.idempotency_key.as_ref().filter(|_| call.creates);
        let repeatable = call.repeatable || key.is_some();
        let mut backoff = BACKOFF;
        for _ in 0..self.shared.retries {
            let answered = self.once(&call, key).await;
            let wait = match &answered {
                Ok(answer) if repeatable && answer.status == StatusCode::SERVICE_UNAVAILABLE => {
                    answer.retry_after
                }
                Err(Error::Connect { .. }) => Some(backoff),
                Err(Error::Broken { .. }) if repeatable => Some(backoff),
                _ => None,
            };
            match wait {
                None => return answered,
                Some(wait) => tokio::time::sleep(wait.min(BACKOFF_MAX)).await,
            }
            backoff *= 2;
        }
        self.once(&call, key).await
    }

    /// Sends a request once.
    async fn once(&self, call: &Call, key: Option<&String>) -> Result<Answer, Error> {
        let answering = async {
            let (connection, response) = self.respond(self.request(call, key)?).await?;
            self.collect(connection, response).await
        };
        self.in_time(call, answering).await
    }

    /// Sends a request whose answer is a stream. Returns the answer when it begins, with the
    /// connection that it comes on.
    pub(crate) async fn open(
        &self,
        call: &Call,
        header: Option<(&'static str, HeaderValue)>,
    ) -> Result<(Connection, Response<Incoming>), Error> {
        let answering = async {
            let mut request = self.request(call, None)?;
            request
                .headers_mut()
                .extend(header.map(|(name, value)| (HeaderName::from_static(name), value)));
            let (connection, response) = self.respond(request).await?;
            if response.status().is_success() {
                return Ok((connection, response));
            }
            let answer = self.collect(connection, response).await?;
            let problem = answer
                .problem()
                .map(|problem| Error::Refused(Box::new(problem)));
            Err(problem.unwrap_or_else(|| self.broken("the answer is no stream".into())))
        };
        self.in_time(call, answering).await
    }

    async fn in_time<T>(
        &self,
        call: &Call,
        answering: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let after = self.shared.timeout.saturating_add(call.waits);
        let answered = tokio::time::timeout(after, answering).await;
        answered.unwrap_or_else(|_| {
            let url = self.shared.origin.url.clone();
            Err(Error::TimedOut { url, after })
        })
    }

    /// Sends a request. An idle connection that the server had closed is replaced.
    async fn respond(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(Connection, Response<Incoming>), Error> {
        let origin = &self.shared.origin;
        while let Some(mut connection) = origin.idle() {
            match send(&mut connection, request).await {
                Ok(response) => return Ok((connection, response)),
                Err(NotSent::Unsent(unsent)) => request = *unsent,
                Err(NotSent::Broken(cause)) => return Err(self.broken(cause)),
            }
        }
        let mut connection = origin.dial().await?;
        match send(&mut connection, request).await {
            Ok(response) => Ok((connection, response)),
            Err(NotSent::Unsent(_)) => Err(Error::Connect {
                url: origin.url.clone(),
                cause: "the server closed the connection at once".into(),
            }),
            Err(NotSent::Broken(cause)) => Err(self.broken(cause)),
        }
    }

    pub(crate) fn retries(&self) -> u32 {
        self.shared.retries
    }

    pub(crate) fn answer_bytes_max(&self) -> usize {
        self.shared.answer_bytes_max
    }

    fn request(&self, call: &Call, key: Option<&String>) -> Result<Request<Full<Bytes>>, Error> {
        let origin = &self.shared.origin;
        let mut request = Request::builder()
            .method(call.method.name())
            .uri(format!("{}{}", origin.base, call.path))
            .header(HOST, &origin.authority);
        if !call.body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(authorization) = &self.shared.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let request = request.body(Full::new(call.body.clone()));
        request.map_err(|error| Error::Invalid {
            what: "the request".to_owned(),
            rule: format!("must have a path and headers of plain text: {error}"),
        })
    }

    async fn collect(
        &self,
        connection: Connection,
        response: Response<Incoming>,
    ) -> Result<Answer, Error> {
        let (head, body) = response.into_parts();
        let max = self.shared.answer_bytes_max;
        let body = Limited::new(body, max).collect().await;
        let body = body.map_err(
            |cause| match cause.is::<http_body_util::LengthLimitError>() {
                true => Error::TooLarge { max },
                false => self.broken(cause),
            },
        )?;
        self.shared.origin.keep(connection);
        let header = |name| head.headers.get(name)?.to_str().ok();
        let retry_after = header(RETRY_AFTER).and_then(|text| text.parse().ok());
        Ok(Answer {
            status: head.status,
            body: body.to_bytes(),
            retry_after: retry_after.map(Duration::from_secs),
        })
    }

    pub(crate) fn broken(&self, cause: Cause) -> Error {
        let url = self.shared.origin.url.clone();
        Error::Broken { url, cause }
    }
}

/// Everything but letters, digits and these four means something in a URL, or may.
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

    #[test]
    fn what_cannot_be_a_server_is_refused_at_once() {
        for (url, rule) in [
            ("127.0.0.1:8080", "must begin with http:// or https://"),
            ("ftp://a", "must begin with http:// or https://"),
            ("http:// a", "is no URL"),
        ] {
            let refused = Client::new(url).unwrap_err().to_string();
            assert!(refused.ends_with(rule), "{url}: {refused}");
        }
        assert!(Client::builder("http://a").key("a\nb").build().is_err());
        let bad = Client::builder("https://a").root_certificates("-----BEGIN CERTIFICATE-----\n?");
        assert!(bad.build().is_err());
    }
}
