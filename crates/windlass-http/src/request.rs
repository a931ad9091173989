//! The request of an HTTP job: the payload of kind `http`, checked field by field.
//!
//! The same function reads it at the enqueue, where an error names the field and the rule, and before
//! each attempt. One parser parses the URL once, so the URL that was checked is the one that is
//! dialled.

mod header;
mod target;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Uri, header::CONTENT_TYPE};
use serde_json::Value;
use windlass_core::fields::{Fields, RawFields, one_of};
use windlass_core::{DURATION_MAX, Delivery, Invalid, Key, Payload};

/// How long the target of an async job has to report the outcome, unless the job sets
/// `complete_within`.
pub const COMPLETE_WITHIN_DEFAULT: Duration = Duration::from_secs(3600);
/// The most secrets that sign one request.
const SIGN_MAX: usize = 8;

/// The request of an HTTP job. A value of this type is always valid.
#[derive(Clone, PartialEq)]
pub struct HttpRequest {
    /// The URL, normalized. This is what is dialled.
    pub url: Uri,
    /// The method. Default: `POST`.
    pub method: Method,
    /// The headers of the job, with the content type of the body.
    pub headers: HeaderMap,
    /// The body; empty if the job has none.
    pub body: Bytes,
    /// Statuses that are not retried.
    pub permanent_statuses: PermanentStatuses,
    /// How long the target may take to report the outcome after it responded with 202. `None`: 202
    /// is a success, like any 2xx.
    pub complete_within: Option<Duration>,
    /// The names of the webhook secrets that sign the request.
    pub sign: Vec<String>,
    /// The idempotency key that the job sets. `None`: the id of the job is sent.
    pub idempotency_key: Option<Key>,
}

/// The statuses after which a job is dead at once, without a retry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PermanentStatuses(Vec<(u16, u16)>);

impl PermanentStatuses {
    /// Whether a response with this status is not retried.
    pub fn contains(&self, status: u16) -> bool {
        self.0
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&status))
    }
}

impl HttpRequest {
    /// Reads the payload of an HTTP job.
    ///
    /// # Errors
    ///
    /// [`Invalid`] names the field and the rule that it breaks.
    pub fn from_json(text: &str) -> Result<Self, Invalid> {
        let parts = RawFields::parse(text)?;
        let body = parts.raw("body").filter(|raw| *raw != "null");
        let others = parts.values_except("body")?;
        let mut fields = Fields::of(&others);
        let request = HttpRequest::from_fields(&mut fields, body)?;
        fields.finish()?;
        Ok(request)
    }

    /// Checks the payload of a job of kind `http` before the job is stored.
    ///
    /// # Errors
    ///
    /// [`Invalid`] names the field, as `payload.url`, and the rule that it breaks.
    pub fn check_payload(payload: &Payload, delivery: Delivery) -> Result<Self, Invalid> {
        let request = HttpRequest::from_json(payload.as_str())
            .map_err(|invalid| invalid.within("payload"))?;
        if request.complete_within.is_some() && delivery == Delivery::AtMostOnce {
            let rule = "needs at_least_once delivery: an async job starts another attempt when its target reports the outcome";
            return Err(Invalid::new("payload.async", rule));
        }
        Ok(request)
    }

    fn from_fields(fields: &mut Fields<'_>, body: Option<&str>) -> Result<Self, Invalid> {
        let url = fields
            .parsed("url", target::parse)?
            .ok_or_else(|| Invalid::new("url", "is required"))?;
        let method = fields.parsed("method", parse_method)?;
        let method = method.unwrap_or(Method::POST);
        let mut headers = header::read(fields.value("headers"))?;
        let body = read_body(&method, body, &mut headers)?;
        let is_async = fields.flag("async")?.unwrap_or(false);
        Ok(HttpRequest {
            url,
            method,
            headers,
            body,
            permanent_statuses: read_statuses(fields)?,
            complete_within: read_complete_within(fields, is_async)?,
            sign: read_sign(fields)?,
            idempotency_key: fields.parsed("idempotency_key", parse_key)?,
        })
    }
}

/// Does not show headers, body and query, because they may hold secrets.
impl fmt::Debug for HttpRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.url.host().unwrap_or_default();
        f.debug_struct("HttpRequest")
            .field("method", &self.method)
            .field("host", &host)
            .field("path", &self.url.path())
            .finish_non_exhaustive()
    }
}

fn parse_method(text: &str) -> Result<Method, Invalid> {
    let known = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
    ];
    let words: Vec<(&str, usize)> = known
        .iter()
        .enumerate()
        .map(|(index, method)| (method.as_str(), index))
        .collect();
    let index = one_of(text, &words)?;
    Ok(known.get(index).cloned().unwrap_or(Method::POST))
}

/// Reads the body: a string is sent as plain text, other JSON byte for byte as it was written.
fn read_body(
    method: &Method,
    raw: Option<&str>,
    headers: &mut HeaderMap,
) -> Result<Bytes, Invalid> {
    let Some(raw) = raw else {
        return Ok(Bytes::new());
    };
    if matches!(*method, Method::GET | Method::HEAD) {
        return Err(Invalid::new(
            "body",
            format!("must not be given with {method}"),
        ));
    }
    let payload = Payload::parse(raw, usize::MAX).map_err(|invalid| invalid.within("body"))?;
    let (bytes, content_type) = if raw.starts_with('"') {
        let text: String = payload
            .decode()
            .map_err(|error| Invalid::new("body", format!("must be valid JSON: {error}")))?;
        (Bytes::from(text), "text/plain; charset=utf-8")
    } else {
        (Bytes::from(raw.to_owned()), "application/json")
    };
    headers
        .entry(CONTENT_TYPE)
        .or_insert(HeaderValue::from_static(content_type));
    Ok(bytes)
}

fn read_statuses(fields: &mut Fields<'_>) -> Result<PermanentStatuses, Invalid> {
    let read = |(index, value): (usize, &Value)| {
        let class = match value.as_str() {
            Some("3xx") => Some((300, 399)),
            Some("4xx") => Some((400, 499)),
            Some("5xx") => Some((500, 599)),
            Some(_) => None,
            None => value
                .as_u64()
                .and_then(|number| u16::try_from(number).ok())
                .filter(|number| (300..=599).contains(number))
                .map(|number| (number, number)),
        };
        class.ok_or_else(|| {
            let field = format!("permanent_statuses[{index}]");
            Invalid::new(
                field,
                "must be a status from 300 to 599, or \"3xx\", \"4xx\" or \"5xx\"",
            )
        })
    };
    let list = fields.list("permanent_statuses")?;
    let ranges: Result<_, Invalid> = list.into_iter().flatten().enumerate().map(read).collect();
    Ok(PermanentStatuses(ranges?))
}

fn read_complete_within(
    fields: &mut Fields<'_>,
    is_async: bool,
) -> Result<Option<Duration>, Invalid> {
    let within = fields.duration("complete_within")?;
    match (is_async, within) {
        (false, None) => Ok(None),
        (false, Some(_)) => Err(Invalid::new(
            "complete_within",
            "has no effect without `async`",
        )),
        (true, within) => {
            let within = within.unwrap_or(COMPLETE_WITHIN_DEFAULT);
            if within.is_zero() || within > DURATION_MAX {
                return Err(Invalid::new("complete_within", "must be longer than 0"));
            }
            Ok(Some(within))
        }
    }
}

fn read_sign(fields: &mut Fields<'_>) -> Result<Vec<String>, Invalid> {
    let names: Vec<&Value> = match fields.value("sign") {
        None => Vec::new(),
        Some(Value::Array(names)) => names.iter().collect(),
        Some(name) => vec![name],
    };
    if names.len() > SIGN_MAX {
        let rule = format!("must name at most {SIGN_MAX} secrets");
        return Err(Invalid::new("sign", rule));
    }
    let read = |name: &&Value| {
        let name = name
            .as_str()
            .filter(|name| !name.is_empty() && name.len() <= 128);
        name.map(str::to_owned).ok_or_else(|| {
            let rule = "must be the name of a secret, or a list of names, each 1 to 128 bytes";
            Invalid::new("sign", rule)
        })
    };
    names.iter().map(read).collect()
}

fn parse_key(text: &str) -> Result<Key, Invalid> {
    let key = Key::new(text)?;
    if HeaderValue::from_str(text).is_err() || !text.is_ascii() {
        return Err(Invalid::new(
            "",
            "must be visible ASCII, because it is sent as a header",
        ));
    }
    Ok(key)
}

#[cfg(test)]
mod tests;
