//! Sends requests to one server and repeats them where that is safe.

mod builder;
mod call;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Request, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_api::Problem;

use crate::connection::{Connection, Origin, SendError, send_on};
use crate::error::{Cause, Error};

pub use builder::Builder;
pub(crate) use call::Call;
pub use call::Method;

/// The wait before a request is repeated for the first time. Every further wait is twice as long.
pub(crate) const BACKOFF: Duration = Duration::from_millis(100);
/// The longest wait before a request is repeated, even if the server asks for a longer one.
pub(crate) const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// A client of one server. Clones are cheap and share their connections.
///
/// Every method sends one request and returns the response as a type of [`api`](crate::api). A list
/// is a [`Pager`](crate::Pager).
///
/// # Errors
///
/// All methods return [`Error::Refused`] if the server refuses the request, and another [`Error`]
/// if the request gets no usable response. The methods name only the codes of a refusal that are
/// special to them.
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

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.shared.origin.url)
    }
}

/// The status, the body and the `Retry-After` header of a response.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
    retry_after: Option<Duration>,
}

impl Answer {
    /// Returns the problem if the status is not a success.
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
            detail: "the response has no problem details".to_owned(),
            hint: None,
            errors: Vec::new(),
            request_id: None,
        }))
    }
}

impl Client {
    /// Creates a client of the server at this URL, without an API key.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the URL is invalid.
    pub fn new(url: &str) -> Result<Self, Error> {
        Client::builder(url).build()
    }

    /// Returns the scheme, host and port of the server, such as `https://jobs.example.com`.
    pub fn origin(&self) -> String {
        let origin = &self.shared.origin;
        let scheme = origin.url.split(':').next().unwrap_or_default();
        format!("{scheme}://{}", origin.authority)
    }

    /// Returns a client that sends this `Idempotency-Key` with requests that create something.
    ///
    /// If the same request with the same key arrives again within 24 h, the server creates nothing
    /// more and returns its first response. So the client can repeat the request, and so can a
    /// program after a crash. Use a new key for each new request.
    ///
    /// ```no_run
    /// # use windlass_client::{Client, Error, api::NewJob};
    /// # async fn example(client: &Client, job: &NewJob) -> Result<(), Error> {
    /// client.idempotency_key("order-17").create_job(job).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn idempotency_key(&self, key: impl Into<String>) -> Self {
        Client {
            idempotency_key: Some(key.into()),
            ..self.clone()
        }
    }

    /// Sends a request to any path with an optional JSON body, and reads a JSON response. For
    /// routes that have no method here.
    ///
    /// ```no_run
    /// # use windlass_client::{Client, Error, Method};
    /// # use serde_json::Value;
    /// # async fn example(client: &Client) -> Result<(), Error> {
    /// let jobs: Value = client.call(Method::Get, "/api/v1/jobs?limit=5", None::<&Value>).await?;
    /// # Ok(())
    /// # }
    /// ```
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
        self.send_json(call).await
    }

    /// Sends a request that must succeed, and parses the JSON of its response.
    pub(crate) async fn send_json<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        let answer = self.send_checked(call).await?;
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

    /// Sends a request that must succeed, and ignores the body of its response.
    pub(crate) async fn send_and_discard(&self, call: Call) -> Result<(), Error> {
        self.send_checked(call).await.map(|_| ())
    }

    /// Sends a request that must succeed, with retries.
    pub(crate) async fn send_checked(&self, call: Call) -> Result<Answer, Error> {
        let answer = self.send_with_retries(call).await?;
        match answer.problem() {
            None => Ok(answer),
            Some(problem) => Err(Error::Refused(Box::new(problem))),
        }
    }

    /// Sends a request and repeats it where that is safe. Returns every response, also a refusal.
    pub(crate) async fn send_with_retries(&self, call: Call) -> Result<Answer, Error> {
        let key = self.idempotency_key.as_ref().filter(|_| call.creates);
        let repeatable = call.repeatable || key.is_some();
        let mut backoff = BACKOFF;
        for _ in 0..self.shared.retries {
            let answered = self.send_once(&call, key).await;
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
        self.send_once(&call, key).await
    }

    /// Sends a request once.
    async fn send_once(&self, call: &Call, key: Option<&String>) -> Result<Answer, Error> {
        let response = async {
            let (connection, response) = self.send(self.request(call, key)?).await?;
            self.read_body(connection, response).await
        };
        self.with_timeout(call, response).await
    }

    /// Sends a request whose response is a stream. Returns the response as soon as its headers have
    /// arrived, with its connection.
    pub(crate) async fn open_stream(
        &self,
        call: &Call,
        header: Option<(&'static str, HeaderValue)>,
    ) -> Result<(Connection, Response<Incoming>), Error> {
        let response = async {
            let mut request = self.request(call, None)?;
            request
                .headers_mut()
                .extend(header.map(|(name, value)| (HeaderName::from_static(name), value)));
            let (connection, response) = self.send(request).await?;
            if response.status().is_success() {
                return Ok((connection, response));
            }
            let answer = self.read_body(connection, response).await?;
            let problem = answer
                .problem()
                .map(|problem| Error::Refused(Box::new(problem)));
            Err(problem.unwrap_or_else(|| self.broken("the response is not a stream".into())))
        };
        self.with_timeout(call, response).await
    }

    pub(crate) async fn with_timeout<T>(
        &self,
        call: &Call,
        response: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let after = self.shared.timeout.saturating_add(call.server_wait);
        let answered = tokio::time::timeout(after, response).await;
        answered.unwrap_or_else(|_| {
            let url = self.shared.origin.url.clone();
            Err(Error::TimedOut { url, after })
        })
    }

    /// Sends a request on an idle connection. If the server has closed it, tries the next one, and
    /// finally a new connection.
    async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(Connection, Response<Incoming>), Error> {
        let origin = &self.shared.origin;
        while let Some(mut connection) = origin.take_idle() {
            match send_on(&mut connection, request).await {
                Ok(response) => return Ok((connection, response)),
                Err(SendError::Unsent(unsent)) => request = *unsent,
                Err(SendError::Broken(cause)) => return Err(self.broken(cause)),
            }
        }
        let mut connection = origin.connect().await?;
        match send_on(&mut connection, request).await {
            Ok(response) => Ok((connection, response)),
            Err(SendError::Unsent(_)) => Err(Error::Connect {
                url: origin.url.clone(),
                cause: "the server closed the new connection".into(),
            }),
            Err(SendError::Broken(cause)) => Err(self.broken(cause)),
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
            rule: format!("must have a valid path and valid headers: {error}"),
        })
    }

    async fn read_body(
        &self,
        connection: Connection,
        response: Response<Incoming>,
    ) -> Result<Answer, Error> {
        let (head, body) = response.into_parts();
        let max = self.shared.answer_bytes_max;
        let body = Limited::new(body, max).collect().await;
        let body = body.map_err(|cause| {
            if cause.is::<http_body_util::LengthLimitError>() {
                Error::TooLarge { max }
            } else {
                self.broken(cause)
            }
        })?;
        self.shared.origin.put_idle(connection);
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
