//! An HTTP/1.1 client that can send any bytes. It uses one connection per request.

use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use windlass_core::{JobId, Timestamp};

/// A generous limit for everything that a test waits for. A test that reaches it has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The bytes of a request. The body is JSON, unless a header names another type.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<&[u8]>,
) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let mut names = headers.iter().map(|(name, _)| name);
    let typed = names.any(|name| name.eq_ignore_ascii_case("content-type"));
    if let Some(body) = body {
        if !typed {
            head.push_str("Content-Type: application/json\r\n");
        }
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    [head.as_bytes(), b"\r\n", body.unwrap_or_default()].concat()
}

/// Sends bytes and reads one response. Returns an error if the connection breaks before the
/// response is complete.
pub fn send(address: SocketAddr, request: &[u8]) -> io::Result<Answer> {
    let mut stream = std::net::TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request)?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let answer = Answer::parse(&bytes).filter(Answer::is_whole);
    let broken = || format!("incomplete response: {:?}", String::from_utf8_lossy(&bytes));
    answer.ok_or_else(|| io::Error::other(broken()))
}

/// Sends bytes to a listening server and reads one response.
pub async fn exchange(address: SocketAddr, request: &[u8]) -> Answer {
    let connected = tokio::net::TcpStream::connect(address).await;
    let mut stream = connected.expect("the server listens");
    // A server that refuses a body early may close before it has read all of it.
    let _ = stream.write_all(request).await;
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    let answer = Answer::parse(&bytes);
    answer.unwrap_or_else(|| panic!("no response: {:?}", String::from_utf8_lossy(&bytes)))
}

/// A response.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The body as JSON, or null if it is not JSON.
    pub json: Value,
}

impl Answer {
    /// Parses a response. Returns `None` if its head is incomplete.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|part| part == b"\r\n\r\n")?;
        let (head, rest) = bytes.split_at(end);
        let body = rest.get(4..).unwrap_or_default();
        let head = String::from_utf8_lossy(head).into_owned();
        let mut lines = head.lines();
        let status = lines
            .next()
            .and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
            .collect();
        let chunked = headers
            .iter()
            .any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        let body = if chunked {
            unchunked(body)
        } else {
            body.to_vec()
        };
        Some(Answer {
            status: status?,
            headers,
            json: serde_json::from_slice(&body).unwrap_or(Value::Null),
            body,
        })
    }

    /// Whether the body has the length that the head announces.
    fn is_whole(&self) -> bool {
        let length = self.header("content-length");
        length.is_none_or(|length| length.parse() == Ok(self.body.len()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the text at a JSON pointer.
    pub fn text_at(&self, pointer: &str) -> String {
        let found = self.json.pointer(pointer).and_then(Value::as_str);
        found
            .unwrap_or_else(|| panic!("no text at {pointer}: {self:?}"))
            .to_owned()
    }

    /// Returns the code of a problem response.
    pub fn code(&self) -> String {
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json"),
            "{self:?}"
        );
        self.text_at("/code")
    }

    /// Returns the pointer of the first invalid field.
    pub fn pointer(&self) -> String {
        assert_eq!(
            (self.status, self.code().as_str()),
            (422, "invalid"),
            "{self:?}"
        );
        self.text_at("/errors/0/pointer")
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The status and the JSON for a snapshot, with ids, times and durations redacted.
    pub fn redacted(&self) -> String {
        let mut json = self.json.clone();
        redact("", &mut json);
        format!("{}\n{json:#}\n", self.status)
    }
}

fn redact(name: &str, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                redact(name, value);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| redact(name, item)),
        Value::String(text) if text.parse::<Timestamp>().is_ok() => *value = "[time]".into(),
        Value::String(text) if text.parse::<JobId>().is_ok() || name == "request_id" => {
            *value = "[id]".into();
        }
        Value::Number(_) if name == "oldest_ready_ms" => *value = "[duration]".into(),
        _ => {}
    }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|part| part == b"\r\n") {
        let size = std::str::from_utf8(rest.get(..end).unwrap_or_default()).unwrap_or("0");
        let size = usize::from_str_radix(size, 16).unwrap_or(0);
        let from = end + 2;
        match rest.get(from..from + size) {
            Some(chunk) if size > 0 => body.extend_from_slice(chunk),
            _ => break,
        }
        rest = rest.get(from + size + 2..).unwrap_or_default();
    }
    body
}
