//! Where requests begin and end in the bytes of an HTTP/1 connection, read strictly.
//!
//! The HTTP library is lenient where the standard lets it be: it reads a line feed alone as the end
//! of a line, and of `Content-Length` beside `Transfer-Encoding` it takes one. A proxy in front
//! that reads the same bytes differently sees other requests than we do. So every head is parsed
//! here first, with the parser of the library, and then checked for what the library lets pass. A
//! bad head is replaced by one of ours, which the service refuses and which closes the connection.
//! Nothing behind it is read. Bodies are only followed to their end: the library refuses bad chunks
//! itself.
//!
//! Pure: bytes in, bytes out.

use axum::http::Uri;
use httparse::Status;

/// How large the head of a request may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadLimits {
    /// All of it, in bytes.
    pub(crate) bytes: usize,
    /// How many header fields.
    pub(crate) fields: usize,
}

/// Follows the requests of one connection.
#[derive(Debug)]
pub(crate) struct Framing {
    limits: HeadLimits,
    state: State,
    /// Lines that are not handed on yet: of a head, of trailers, or the size of a chunk. At most
    /// `limits.bytes`.
    held: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No request came yet: it may become HTTP/2.
    First,
    Head,
    /// This many bytes are left of a body, or of a chunk and its line end.
    Data {
        left: u64,
        in_chunk: bool,
    },
    ChunkSize,
    Trailers,
    /// HTTP/2 has its own frames.
    Http2,
    /// Something was wrong: nothing more is read.
    Spoiled,
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The method of the requests that stand for refused ones. A client that sends it is refused as
/// well.
pub(crate) const REFUSED: &str = "REFUSED";
/// The path of a request that stands for a head which is too large; every other one was malformed.
pub(crate) const TOO_LARGE: &str = "/too-large";
const BAD_HEAD: &[u8] = b"REFUSED / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
const LARGE_HEAD: &[u8] = b"REFUSED /too-large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
/// Something that no part of a chunked body may be.
const BAD_CHUNK: &[u8] = b"\0\n\0\r\n\r\n";
/// The longest target that the HTTP library takes.
const TARGET_BYTES_MAX: usize = u16::MAX as usize - 1;

/// Why something is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Bad,
    TooLarge,
}

impl Framing {
    pub(crate) fn new(limits: HeadLimits) -> Self {
        Framing {
            limits,
            state: State::First,
            held: Vec::new(),
        }
    }

    /// Whether the client speaks HTTP/2.
    pub(crate) fn is_http2(&self) -> bool {
        self.state == State::Http2
    }

    /// Takes what was read, and hands on what may be read.
    pub(crate) fn push(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        while !input.is_empty() {
            let taken = match self.state {
                State::Data { left, in_chunk } => {
                    let here = input.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    out.extend_from_slice(input.get(..here).unwrap_or_default());
                    self.state = match (left - here as u64, in_chunk) {
                        (0, true) => State::ChunkSize,
                        (0, false) => State::Head,
                        (left, in_chunk) => State::Data { left, in_chunk },
                    };
                    here
                }
                State::Http2 => {
                    out.extend_from_slice(input);
                    input.len()
                }
                State::Spoiled => return,
                State::First | State::Head | State::ChunkSize | State::Trailers => {
                    self.take_line(input, out)
                }
            };
            input = input.get(taken..).unwrap_or_default();
        }
    }

    /// Takes bytes up to the end of a line; returns how many.
    fn take_line(&mut self, input: &[u8], out: &mut Vec<u8>) -> usize {
        let end = input.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(input.len(), |end| end + 1);
        let line = input.get(..taken).unwrap_or_default();
        let next = if self.held.len() + taken > self.limits.bytes {
            Err(Fault::TooLarge)
        } else {
            self.held.extend_from_slice(line);
            end.map_or(Ok(None), |_| self.after_line())
        };
        match next {
            Ok(None) => {}
            Ok(Some(next)) => {
                out.append(&mut self.held);
                self.state = next;
            }
            Err(fault) => {
                out.extend_from_slice(match (self.state, fault) {
                    (State::ChunkSize | State::Trailers, _) => BAD_CHUNK,
                    (_, Fault::Bad) => BAD_HEAD,
                    (_, Fault::TooLarge) => LARGE_HEAD,
                });
                self.state = State::Spoiled;
                self.held = Vec::new();
            }
        }
        taken
    }

    /// What follows the lines that are held, if they are whole.
    fn after_line(&mut self) -> Result<Option<State>, Fault> {
        if !self.held.ends_with(b"\r\n") {
            return Err(Fault::Bad); // the library would read on
        }
        if self.state == State::ChunkSize {
            return after_chunk_size(&self.held).map(Some);
        }
        if self.state == State::First && PREFACE.starts_with(&self.held) {
            return Ok((self.held == PREFACE).then_some(State::Http2));
        }
        if self.held == b"\r\n" && self.state != State::Trailers {
            self.held.clear(); // empty lines before a request are nothing
            return Ok(Some(State::Head));
        }
        if self.held != b"\r\n" && !self.held.ends_with(b"\r\n\r\n") {
            return Ok(None);
        }
        match self.state {
            State::Trailers => Ok(Some(State::Head)),
            _ => after_head(&self.held, self.limits.fields).map(Some),
        }
    }
}

fn after_chunk_size(line: &[u8]) -> Result<State, Fault> {
    match httparse::parse_chunk_size(line) {
        Ok(Status::Complete((_, 0))) => Ok(State::Trailers),
        Ok(Status::Complete((_, size))) => {
            let left = size.checked_add(2).ok_or(Fault::Bad)?;
            let in_chunk = true;
            Ok(State::Data { left, in_chunk })
        }
        Ok(Status::Partial) | Err(_) => Err(Fault::Bad),
    }
}

/// What follows a whole head, or why it is refused.
fn after_head(head: &[u8], fields_max: usize) -> Result<State, Fault> {
    let mut fields = vec![httparse::EMPTY_HEADER; fields_max];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(head) {
        Ok(Status::Complete(_)) => {}
        Ok(Status::Partial) => return Err(Fault::Bad),
        Err(httparse::Error::TooManyHeaders) => return Err(Fault::TooLarge),
        Err(_) => return Err(Fault::Bad),
    }
    let target = request.path.unwrap_or_default();
    if target.len() > TARGET_BYTES_MAX {
        return Err(Fault::TooLarge);
    }
    Uri::try_from(target).map_err(|_| Fault::Bad)?;
    // The library takes one of several, or the last of a list.
    let only = |name: &str| {
        let mut values = request
            .headers
            .iter()
            .filter(|field| field.name.eq_ignore_ascii_case(name));
        match (values.next(), values.next()) {
            (_, Some(_)) => Err(Fault::Bad),
            (field, None) => Ok(field.map(|field| field.value)),
        }
    };
    let length = only("content-length")?.map(digits).transpose()?;
    let (coding, host) = (only("transfer-encoding")?, only("host")?);
    let is_11 = request.version == Some(1);
    match (length, coding) {
        _ if is_11 && host.is_none() => Err(Fault::Bad),
        (None, Some(coding)) if is_11 && coding.eq_ignore_ascii_case(b"chunked") => {
            Ok(State::ChunkSize)
        }
        (_, Some(_)) => Err(Fault::Bad),
        (None | Some(0), None) => Ok(State::Head),
        (Some(left), None) => {
            let in_chunk = false;
            Ok(State::Data { left, in_chunk })
        }
    }
}

/// A number of digits alone: no sign, no list.
fn digits(value: &[u8]) -> Result<u64, Fault> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    let all_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| all_digits);
    number.ok_or(Fault::Bad)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: HeadLimits = HeadLimits {
        bytes: 2000,
        fields: 10,
    };

    fn through(input: &[u8]) -> Vec<u8> {
        let (mut framing, mut out) = (Framing::new(LIMITS), Vec::new());
        framing.push(input, &mut out);
        out
    }

    #[test]
    fn plain_requests_pass_unchanged_one_behind_the_other() {
        let requests = b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\nPOST /x HTTP/1.1\r\nhost:a\r\nContent-Length: 3\r\n\r\nabc\
            POST /y HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;q=1\r\nabc\r\n0\r\nT: x\r\n\r\n\
            GET /z HTTP/1.0\r\n\r\n";
        assert_eq!(through(requests), &requests[2..]);
        assert_eq!(through(PREFACE), PREFACE);
        assert_eq!(
            through(b"PRIX / HTTP/1.1\r\nHost: a\r\n\r\n"),
            b"PRIX / HTTP/1.1\r\nHost: a\r\n\r\n"
        );
    }

    #[test]
    fn a_bad_head_is_replaced_and_nothing_behind_it_is_read() {
        for head in [
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nX: a\nContent-Length: 4\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
            "GET /\u{1} HTTP/1.1\r\nHost: a\r\n\r\n",
        ] {
            let input = format!("{head}0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(through(input.as_bytes()), BAD_HEAD, "{head:?}");
        }
    }

    #[test]
    fn a_head_that_is_too_large_is_replaced_too() {
        let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(2000));
        let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(10));
        for head in [long, many] {
            assert_eq!(through(head.as_bytes()), LARGE_HEAD);
        }
        let bytes = 1 << 20;
        let (mut framing, mut out) = (Framing::new(HeadLimits { bytes, ..LIMITS }), Vec::new());
        let target = "x".repeat(TARGET_BYTES_MAX);
        let long = format!("GET /{target} HTTP/1.1\r\nHost: a\r\n\r\n");
        framing.push(long.as_bytes(), &mut out);
        assert_eq!(out, LARGE_HEAD);
    }

    #[test]
    fn a_chunked_body_that_is_none_ends_in_something_that_is_refused() {
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
            let out = through(format!("{head}{body}{next}").as_bytes());
            assert!(out.ends_with(BAD_CHUNK), "{body:?}");
        }
    }

    proptest! {
        #[test]
        fn how_bytes_arrive_makes_no_difference_and_nothing_breaks_it(
            start in prop::sample::select(vec!["", "GET / HTTP/1.1\r\nHost: a\r\n", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"]),
            bytes in proptest::collection::vec(prop::sample::select(b"\r\n\0 :;a1f0GETHPRI*/.-+".to_vec()), 0..200),
            step in 1_usize..20,
        ) {
            let mut input = start.as_bytes().to_vec();
            input.extend(bytes);
            let (mut framing, mut out) = (Framing::new(LIMITS), Vec::new());
            for part in input.chunks(step) {
                framing.push(part, &mut out);
                prop_assert!(framing.held.len() <= LIMITS.bytes);
            }
            prop_assert_eq!(out, through(&input));
        }
    }
}
