//! The headers that a job may set, and those that it may not.

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use windlass_core::Invalid;

const HEADERS_MAX: usize = 64;
const HEADER_BYTES_MAX: usize = 16 * 1024;

/// Headers of the connection or the protocol, and headers that Windlass adds to every request.
const RESERVED: [&str; 14] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "idempotency-key",
    "keep-alive",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];
const RESERVED_PREFIXES: [&str; 3] = ["proxy-", "webhook-", "windlass-"];

/// Reads `headers`: an object of strings.
pub(super) fn read(value: Option<&Value>) -> Result<HeaderMap, Invalid> {
    let mut headers = HeaderMap::new();
    let Some(value) = value else {
        return Ok(headers);
    };
    let map = value
        .as_object()
        .ok_or_else(|| Invalid::new("headers", "must be an object of strings"))?;
    if map.len() > HEADERS_MAX {
        let rule = format!("must have at most {HEADERS_MAX} entries, got {}", map.len());
        return Err(Invalid::new("headers", rule));
    }
    let mut bytes = 0;
    for (name, value) in map {
        let (parsed, value) =
            read_one(name, value).map_err(|invalid| invalid.within(name).within("headers"))?;
        bytes += parsed.as_str().len() + value.len();
        if headers.insert(parsed, value).is_some() {
            return Err(Invalid::new(name, "is given twice").within("headers"));
        }
    }
    if bytes > HEADER_BYTES_MAX {
        let rule = format!("must be at most {HEADER_BYTES_MAX} bytes, got {bytes}");
        return Err(Invalid::new("headers", rule));
    }
    Ok(headers)
}

fn read_one(name: &str, value: &Value) -> Result<(HeaderName, HeaderValue), Invalid> {
    let refuse = |rule: &str| Invalid::new("", rule);
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| refuse("is not a valid header name"))?;
    let lower = parsed.as_str();
    if RESERVED.contains(&lower)
        || RESERVED_PREFIXES
            .iter()
            .any(|prefix| lower.starts_with(prefix))
    {
        return Err(refuse("is set by Windlass; remove it"));
    }
    let text = value.as_str().ok_or_else(|| refuse("must be a string"))?;
    let value = HeaderValue::from_str(text)
        .ok()
        .filter(|_| text.is_ascii())
        .ok_or_else(|| {
            refuse("must be visible ASCII, without line breaks or control characters")
        })?;
    Ok((parsed, value))
}
