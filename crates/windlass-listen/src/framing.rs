//! Strict framing: finds where requests begin and end in the bytes of an HTTP/1 connection.
//!
//! The HTTP library is lenient where the standard allows it. It accepts a bare line feed as the end
//! of a line, and picks one of `Content-Length` and `Transfer-Encoding` if a request has both. A
//! proxy that reads the same bytes differently sees different requests, and a client can use that
//! to smuggle a request past the proxy. So this module parses every request head before the library
//! does, with the library's own parser, and then checks for what the library lets pass. It replaces
//! a bad head with a fixed request, which the service refuses and which closes the connection, and
//! ignores all bytes after it. It follows bodies only to find the next head: the library itself
//! refuses bad chunks.
//!
//! Pure: bytes in, bytes out.

use axum::http::Uri;
use httparse::Status;

/// How large a request head may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadLimits {
    pub(crate) bytes: usize,
    /// The most header fields.
    pub(crate) fields: usize,
}

/// Follows the requests of one connection.
#[derive(Debug)]
pub(crate) struct Framing {
    limits: HeadLimits,
    state: FramingState,
    /// The lines of the current head, trailers or chunk size, until they are complete. At most
    /// `limits.bytes`.
    incomplete: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FramingState {
    /// Before the first request, which may turn out to be HTTP/2.
    FirstHead,
    Head,
    /// Inside a body, or inside a chunk and its line end.
    Data {
        left: u64,
        in_chunk: bool,
    },
    ChunkSize,
    Trailers,
    /// HTTP/2 has its own framing; all bytes pass.
    Http2,
    /// After a bad head or chunk: all further bytes are dropped.
    Refused,
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The method of the requests that replace bad ones. The service refuses it from anyone.
pub(crate) const REFUSED: &str = "REFUSED";
/// The path of the request that replaces a head that is too large. Any other path stands for a
/// malformed head.
pub(crate) const TOO_LARGE: &str = "/too-large";
const BAD_HEAD: &[u8] = b"REFUSED / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
const LARGE_HEAD: &[u8] = b"REFUSED /too-large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
/// Bytes that are invalid in every part of a chunked body.
const BAD_CHUNK: &[u8] = b"\0\n\0\r\n\r\n";
/// The longest request target that the HTTP library accepts.
const TARGET_BYTES_MAX: usize = u16::MAX as usize - 1;

/// Why a head or chunk is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Malformed,
    TooLarge,
}

impl Framing {
    pub(crate) fn new(limits: HeadLimits) -> Self {
        Framing {
            limits,
            state: FramingState::FirstHead,
            incomplete: Vec::new(),
        }
    }

    /// Whether the client speaks HTTP/2.
    pub(crate) fn is_http2(&self) -> bool {
        self.state == FramingState::Http2
    }

    /// Takes bytes from the network and appends those that the HTTP library may read to `out`.
    pub(crate) fn push(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        while !input.is_empty() {
            let taken = match self.state {
                FramingState::Data { left, in_chunk } => {
                    let length = input.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    out.extend_from_slice(input.get(..length).unwrap_or_default());
                    self.state = match (left - length as u64, in_chunk) {
                        (0, true) => FramingState::ChunkSize,
                        (0, false) => FramingState::Head,
                        (left, in_chunk) => FramingState::Data { left, in_chunk },
                    };
                    length
                }
                FramingState::Http2 => {
                    out.extend_from_slice(input);
                    input.len()
                }
                FramingState::Refused => return,
                FramingState::FirstHead
                | FramingState::Head
                | FramingState::ChunkSize
                | FramingState::Trailers => self.take_line(input, out),
            };
            input = input.get(taken..).unwrap_or_default();
        }
    }

    /// Takes bytes up to the end of a line and returns how many.
    fn take_line(&mut self, input: &[u8], out: &mut Vec<u8>) -> usize {
        let end = input.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(input.len(), |end| end + 1);
        let line = input.get(..taken).unwrap_or_default();
        let next = if self.incomplete.len() + taken > self.limits.bytes {
            Err(Fault::TooLarge)
        } else {
            self.incomplete.extend_from_slice(line);
            end.map_or(Ok(None), |_| self.after_line())
        };
        match next {
            Ok(None) => {}
            Ok(Some(next)) => {
                out.append(&mut self.incomplete);
                self.state = next;
            }
            Err(fault) => {
                out.extend_from_slice(match (self.state, fault) {
                    (FramingState::ChunkSize | FramingState::Trailers, _) => BAD_CHUNK,
                    (_, Fault::Malformed) => BAD_HEAD,
                    (_, Fault::TooLarge) => LARGE_HEAD,
                });
                self.state = FramingState::Refused;
                self.incomplete = Vec::new();
            }
        }
        taken
    }

    /// Returns the state after the incomplete lines, or `None` if they are still incomplete.
    fn after_line(&mut self) -> Result<Option<FramingState>, Fault> {
        if !self.incomplete.ends_with(b"\r\n") {
            return Err(Fault::Malformed); // a bare line feed, which the library would accept
        }
        if self.state == FramingState::ChunkSize {
            return after_chunk_size(&self.incomplete).map(Some);
        }
        if self.state == FramingState::FirstHead && PREFACE.starts_with(&self.incomplete) {
            return Ok((self.incomplete == PREFACE).then_some(FramingState::Http2));
        }
        if self.incomplete == b"\r\n" && self.state != FramingState::Trailers {
            self.incomplete.clear(); // empty lines before a request have no meaning
            return Ok(Some(FramingState::Head));
        }
        if self.incomplete != b"\r\n" && !self.incomplete.ends_with(b"\r\n\r\n") {
            return Ok(None);
        }
        match self.state {
            FramingState::Trailers => Ok(Some(FramingState::Head)),
            _ => after_head(&self.incomplete, self.limits.fields).map(Some),
        }
    }
}

fn after_chunk_size(line: &[u8]) -> Result<FramingState, Fault> {
    match httparse::parse_chunk_size(line) {
        Ok(Status::Complete((_, 0))) => Ok(FramingState::Trailers),
        Ok(Status::Complete((_, size))) => {
            let left = size.checked_add(2).ok_or(Fault::Malformed)?;
            let in_chunk = true;
            Ok(FramingState::Data { left, in_chunk })
        }
        Ok(Status::Partial) | Err(_) => Err(Fault::Malformed),
    }
}

/// Returns the state after a complete head, or why it is refused.
fn after_head(head: &[u8], fields_max: usize) -> Result<FramingState, Fault> {
    let mut fields = vec![httparse::EMPTY_HEADER; fields_max];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(head) {
        Ok(Status::Complete(_)) => {}
        Ok(Status::Partial) => return Err(Fault::Malformed),
        Err(httparse::Error::TooManyHeaders) => return Err(Fault::TooLarge),
        Err(_) => return Err(Fault::Malformed),
    }
    let target = request.path.unwrap_or_default();
    if target.len() > TARGET_BYTES_MAX {
        return Err(Fault::TooLarge);
    }
    Uri::try_from(target).map_err(|_| Fault::Malformed)?;
    // The library would pick one of several values.
    let single = |name: &str| {
        let mut values = request
            .headers
            .iter()
            .filter(|field| field.name.eq_ignore_ascii_case(name));
        match (values.next(), values.next()) {
            (_, Some(_)) => Err(Fault::Malformed),
            (field, None) => Ok(field.map(|field| field.value)),
        }
    };
    let length = single("content-length")?.map(parse_digits).transpose()?;
    let (coding, host) = (single("transfer-encoding")?, single("host")?);
    let is_11 = request.version == Some(1);
    match (length, coding) {
        _ if is_11 && host.is_none() => Err(Fault::Malformed),
        (None, Some(coding)) if is_11 && coding.eq_ignore_ascii_case(b"chunked") => {
            Ok(FramingState::ChunkSize)
        }
        (_, Some(_)) => Err(Fault::Malformed),
        (None | Some(0), None) => Ok(FramingState::Head),
        (Some(left), None) => {
            let in_chunk = false;
            Ok(FramingState::Data { left, in_chunk })
        }
    }
}

/// Parses a number that has only digits: no sign, no list.
fn parse_digits(value: &[u8]) -> Result<u64, Fault> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    let all_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| all_digits);
    number.ok_or(Fault::Malformed)
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: HeadLimits = HeadLimits {
        bytes: 2000,
        fields: 10,
    };

    fn filtered(input: &[u8]) -> Vec<u8> {
        let (mut framing, mut out) = (Framing::new(LIMITS), Vec::new());
        framing.push(input, &mut out);
        out
    }

    #[test]
    fn valid_pipelined_requests_pass_unchanged() {
        let requests = b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\nPOST /x HTTP/1.1\r\nhost:a\r\nContent-Length: 3\r\n\r\nabc\
            POST /y HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;q=1\r\nabc\r\n0\r\nT: x\r\n\r\n\
            GET /z HTTP/1.0\r\n\r\n";
        assert_eq!(filtered(requests), &requests[2..]);
        assert_eq!(filtered(PREFACE), PREFACE);
        assert_eq!(
            filtered(b"PRIX / HTTP/1.1\r\nHost: a\r\n\r\n"),
            b"PRIX / HTTP/1.1\r\nHost: a\r\n\r\n"
        );
    }

    #[test]
    fn a_bad_head_is_replaced_and_nothing_after_it_is_read() {
        for head in [
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nX: a\nContent-Length: 4\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
            "GET /\u{1} HTTP/1.1\r\nHost: a\r\n\r\n",
        ] {
            let input = format!("{head}0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(filtered(input.as_bytes()), BAD_HEAD, "{head:?}");
        }
    }

    #[test]
    fn a_head_that_is_too_large_is_replaced_too() {
        let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(2000));
        let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(10));
        for head in [long, many] {
            assert_eq!(filtered(head.as_bytes()), LARGE_HEAD);
        }
        let bytes = 1 << 20;
        let (mut framing, mut out) = (Framing::new(HeadLimits { bytes, ..LIMITS }), Vec::new());
        let target = "x".repeat(TARGET_BYTES_MAX);
        let long = format!("GET /{target} HTTP/1.1\r\nHost: a\r\n\r\n");
        framing.push(long.as_bytes(), &mut out);
        assert_eq!(out, LARGE_HEAD);
    }

    #[test]
    fn a_bad_chunked_body_is_replaced_with_bytes_that_the_library_refuses() {
        for body in [
            "FFFFFFFFFFFFFFFFF\r\n",
            "00000000000000000\r\n",
            "g\r\n",
            "-1\r\n",
            "+1\r\n",
            " 1\r\n",
            "1\n",
            "1\r\nab\r\n",
            "1;a\nb\r\n",
            "0\r\nX: a\nY\r\n",
        ] {
            let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
            let next = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
            let out = filtered(format!("{head}{body}{next}").as_bytes());
            assert!(out.ends_with(BAD_CHUNK), "{body:?}");
        }
    }

    proptest! {
        #[test]
        fn the_result_does_not_depend_on_how_bytes_arrive(
            start in prop::sample::select(vec!["", "GET / HTTP/1.1\r\nHost: a\r\n", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"]),
            bytes in proptest::collection::vec(prop::sample::select(b"\r\n\0 :;a1f0GETHPRI*/.-+".to_vec()), 0..200),
            step in 1_usize..20,
        ) {
            let mut input = start.as_bytes().to_vec();
            input.extend(bytes);
            let (mut framing, mut out) = (Framing::new(LIMITS), Vec::new());
            for part in input.chunks(step) {
                framing.push(part, &mut out);
                prop_assert!(framing.incomplete.len() <= LIMITS.bytes);
            }
            prop_assert_eq!(out, filtered(&input));
        }
    }
}
