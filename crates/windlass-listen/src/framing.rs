//! Where requests begin and end in the bytes of an HTTP/1 connection, read strictly.
//!
//! The HTTP library is lenient where the standard lets it be: of `Content-Length` beside `Transfer-Encoding` it takes one,
//! as it does of two equal lengths. A proxy in front that takes the other one sees other requests than we do. So every head is
//! looked at here first, and one that could be read in two ways is replaced by one of ours, which is answered with 400 and a
//! closed connection. Nothing behind it is read.
//!
//! Pure: bytes in, bytes out.

use axum::http::{HeaderName, HeaderValue, Method, Uri};

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
    /// What came of a head that is not whole yet.
    head: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing was read yet: it may become HTTP/2.
    First,
    Head,
    /// So many bytes of a body are left.
    Body(u64),
    Chunked(Chunk),
    /// HTTP/2 has its own frames.
    Http2,
    /// Something was wrong: nothing more is read.
    Spoiled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chunk {
    Size { digits: u8, size: u64 },
    Extension { size: u64 },
    SizeLf { size: u64 },
    Data(u64),
    DataCr,
    DataLf,
    Trailer { line: usize, all: usize },
    TrailerLf { line: usize, all: usize },
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The method of the requests that stand for those which are refused. Whoever sends one himself is refused as well.
pub(crate) const REFUSED: &str = "REFUSED";
/// The path of a request that stands for a head which is too large; every other one was malformed.
pub(crate) const TOO_LARGE: &str = "/too-large";
const BAD_HEAD: &[u8] = b"REFUSED / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
const LARGE_HEAD: &[u8] = b"REFUSED /too-large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
/// Something that no part of a chunked body may be.
const BAD_CHUNK: &[u8] = b"\0\n\0\r\n\r\n";
/// A chunk size has at most so many digits.
const SIZE_DIGITS_MAX: u8 = 16;
/// The longest target that the HTTP library takes.
const TARGET_BYTES_MAX: usize = u16::MAX as usize - 1;

/// Why a head is refused.
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
            head: Vec::new(),
        }
    }

    /// Whether the other side speaks HTTP/2.
    pub(crate) fn is_http2(&self) -> bool {
        self.state == State::Http2
    }

    /// Takes what was read, and hands on what may be read.
    pub(crate) fn push(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        while !input.is_empty() {
            let taken = match self.state {
                State::First | State::Head => self.take_head(input, out),
                State::Body(left) => {
                    let here = input.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    out.extend_from_slice(input.get(..here).unwrap_or_default());
                    self.state = match left - here as u64 {
                        0 => State::Head,
                        left => State::Body(left),
                    };
                    here
                }
                State::Chunked(chunk) => self.take_chunk(chunk, input, out),
                State::Http2 => {
                    out.extend_from_slice(input);
                    input.len()
                }
                State::Spoiled => return,
            };
            input = input.get(taken..).unwrap_or_default();
        }
    }

    /// Takes bytes of a head; how many.
    fn take_head(&mut self, input: &[u8], out: &mut Vec<u8>) -> usize {
        for (place, byte) in input.iter().enumerate() {
            self.head.push(*byte);
            if self.state == State::First {
                if self.head == PREFACE {
                    self.state = State::Http2;
                    out.append(&mut self.head);
                    return place + 1;
                }
                if !PREFACE.starts_with(&self.head) {
                    self.state = State::Head;
                }
            }
            let line_ends = *byte == b'\n';
            let fault = if line_ends && !self.head.ends_with(b"\r\n") {
                Some(Fault::Bad) // a line feed alone
            } else if self.head.len() > self.limits.bytes {
                Some(Fault::TooLarge)
            } else if self.state == State::First {
                None
            } else if self.head == b"\r\n" {
                self.head.clear(); // empty lines before a request are nothing
                None
            } else if line_ends && self.head.ends_with(b"\r\n\r\n") {
                match body_of(&self.head, self.limits.fields) {
                    Ok(body) => {
                        out.append(&mut self.head);
                        self.state = body;
                        return place + 1;
                    }
                    Err(fault) => Some(fault),
                }
            } else {
                None
            };
            if let Some(fault) = fault {
                self.refuse(fault, out);
                return input.len();
            }
        }
        input.len()
    }

    fn refuse(&mut self, fault: Fault, out: &mut Vec<u8>) {
        self.state = State::Spoiled;
        self.head = Vec::new();
        out.extend_from_slice(match fault {
            Fault::Bad => BAD_HEAD,
            Fault::TooLarge => LARGE_HEAD,
        });
    }

    /// Takes bytes of a chunked body; how many.
    fn take_chunk(&mut self, chunk: Chunk, input: &[u8], out: &mut Vec<u8>) -> usize {
        if let Chunk::Data(left) = chunk {
            let here = input.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            out.extend_from_slice(input.get(..here).unwrap_or_default());
            self.state = State::Chunked(match left - here as u64 {
                0 => Chunk::DataCr,
                left => Chunk::Data(left),
            });
            return here;
        }
        let Some(byte) = input.first().copied() else {
            return 0;
        };
        match chunk.after(byte, self.limits.bytes) {
            Some(Some(next)) => {
                out.push(byte);
                self.state = State::Chunked(next);
            }
            Some(None) => {
                out.push(byte);
                self.state = State::Head;
            }
            None => {
                self.state = State::Spoiled;
                out.extend_from_slice(BAD_CHUNK);
            }
        }
        1
    }
}

impl Chunk {
    const START: Chunk = Chunk::Size { digits: 0, size: 0 };

    /// What follows a byte: another part, the end of the body (`Some(None)`), or nothing that is allowed.
    fn after(self, byte: u8, trailers_max: usize) -> Option<Option<Chunk>> {
        let next = match (self, byte) {
            (Chunk::Size { digits, size }, byte) if byte.is_ascii_hexdigit() => {
                let digit = u64::from(char::from(byte).to_digit(16)?);
                if digits >= SIZE_DIGITS_MAX {
                    return None;
                }
                let size = size.checked_mul(16)?.checked_add(digit)?;
                Chunk::Size {
                    digits: digits + 1,
                    size,
                }
            }
            (Chunk::Size { digits: 1.., size }, b';') => Chunk::Extension { size },
            (Chunk::Size { digits: 1.., size }, b'\r') => Chunk::SizeLf { size },
            (Chunk::Extension { size }, b'\r') => Chunk::SizeLf { size },
            (Chunk::Extension { .. }, byte) if byte != b'\n' => self,
            (Chunk::SizeLf { size: 0 }, b'\n') => Chunk::Trailer { line: 0, all: 0 },
            (Chunk::SizeLf { size }, b'\n') => Chunk::Data(size),
            (Chunk::DataCr, b'\r') => Chunk::DataLf,
            (Chunk::DataLf, b'\n') => Chunk::START,
            (Chunk::Trailer { line, all }, b'\r') => Chunk::TrailerLf { line, all },
            (Chunk::Trailer { line, all }, byte) if byte != b'\n' && all < trailers_max => {
                Chunk::Trailer {
                    line: line + 1,
                    all: all + 1,
                }
            }
            (Chunk::TrailerLf { line: 0, .. }, b'\n') => return Some(None),
            (Chunk::TrailerLf { all, .. }, b'\n') => Chunk::Trailer { line: 0, all },
            _ => return None,
        };
        Some(Some(next))
    }
}

/// What follows a whole head, or why it is refused.
fn body_of(head: &[u8], fields_max: usize) -> Result<State, Fault> {
    let text = head.strip_suffix(b"\r\n\r\n").ok_or(Fault::Bad)?;
    let mut lines = text
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let request = lines.next().ok_or(Fault::Bad)?;
    let is_11 = is_http_11(request)?;
    let (mut length, mut chunked, mut hosts, mut fields) = (None, false, 0, 0);
    for line in lines {
        fields += 1;
        if fields > fields_max {
            return Err(Fault::TooLarge);
        }
        let colon = line
            .iter()
            .position(|byte| *byte == b':')
            .ok_or(Fault::Bad)?;
        let (name, value) = line.split_at(colon);
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        // A folded line begins with a space, and a name may have none: both could be read in two ways.
        if HeaderName::from_bytes(name).is_err() || HeaderValue::from_bytes(value).is_err() {
            return Err(Fault::Bad);
        }
        if name.eq_ignore_ascii_case(b"content-length") {
            let number = digits(value).ok_or(Fault::Bad)?;
            if length.replace(number).is_some() {
                return Err(Fault::Bad);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if chunked || !is_11 || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Fault::Bad);
            }
            chunked = true;
        } else if name.eq_ignore_ascii_case(b"host") {
            hosts += 1;
        }
    }
    match (length, chunked) {
        _ if hosts > 1 || (is_11 && hosts == 0) => Err(Fault::Bad),
        (Some(_), true) => Err(Fault::Bad),
        (None, true) => Ok(State::Chunked(Chunk::START)),
        (None | Some(0), false) => Ok(State::Head),
        (Some(length), false) => Ok(State::Body(length)),
    }
}

/// Whether the request line says HTTP/1.1. One that is none is refused here: the HTTP library would answer it without a body.
fn is_http_11(line: &[u8]) -> Result<bool, Fault> {
    let mut parts = line.split(|byte| *byte == b' ');
    let (method, target, version) = (parts.next(), parts.next(), parts.next());
    let is_11 = match (version, parts.next()) {
        (Some(b"HTTP/1.1"), None) => true,
        (Some(b"HTTP/1.0"), None) => false,
        _ => return Err(Fault::Bad),
    };
    let target = target.unwrap_or_default();
    if target.len() > TARGET_BYTES_MAX {
        return Err(Fault::TooLarge);
    }
    let good =
        Method::from_bytes(method.unwrap_or_default()).is_ok() && Uri::try_from(target).is_ok();
    good.then_some(is_11).ok_or(Fault::Bad)
}

/// A number of digits alone: no sign, no space, no list.
fn digits(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
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
    fn a_head_that_can_be_read_in_two_ways_is_replaced_and_nothing_behind_it_is_read() {
        for fields in [
            "Host: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked",
            "Host: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4",
            "Host: a\r\nContent-Length: 4\r\nContent-Length: 4",
            "Host: a\r\nContent-Length: 4, 4",
            "Host: a\r\nContent-Length: +4",
            "Host: a\r\nContent-Length: -1",
            "Host: a\r\nContent-Length: 0x4",
            "Host: a\r\nContent-Length: ",
            "Host: a\r\nContent-Length: 99999999999999999999",
            "Host: a\r\nContent-Length : 4",
            "Host: a\r\nTransfer-Encoding: chunked, identity",
            "Host: a\r\nTransfer-Encoding: xchunked",
            "Host: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "Host: a\r\nX: a\r\n folded",
            "Host: a\r\nX: a\rb",
            "Host: a\r\nX: a\nY: b",
            "Host: a\r\nno colon",
            "Host: a\r\n: no name",
            "Host: a\r\nHost: b",
            "X: no host",
        ] {
            let head = format!(
                "POST / HTTP/1.1\r\n{fields}\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
            );
            assert_eq!(through(head.as_bytes()), BAD_HEAD, "{fields:?}");
        }
    }

    #[test]
    fn a_request_line_that_is_none_is_replaced() {
        for line in [
            "",
            "GET",
            "GET /",
            "GET  / HTTP/1.1",
            "GET / HTTP/1.1 ",
            " GET / HTTP/1.1",
            "GET / HTTP/1.2",
            "GET / HTTP/2.0",
            "GET / http/1.1",
            "GET / FOO",
            "GET /a b HTTP/1.1",
            "G(T / HTTP/1.1",
            "GET http:// HTTP/1.1",
            "GET /\u{7f} HTTP/1.1",
            "GET /\u{1} HTTP/1.1",
            "\u{16}\u{3}\u{1} / HTTP/1.1",
        ] {
            let head = format!("{line}\r\nHost: a\r\n\r\n");
            assert_eq!(through(head.as_bytes()), BAD_HEAD, "{line:?}");
        }
        for line in [
            "OPTIONS * HTTP/1.1",
            "GET http://a/b?c=%20 HTTP/1.1",
            "X-Y /{} HTTP/1.1",
        ] {
            let head = format!("{line}\r\nHost: a\r\n\r\n");
            assert_eq!(through(head.as_bytes()), head.as_bytes(), "{line:?}");
        }
        for field in ["X(: a", "X: a\u{7f}b", "X: \u{1}"] {
            let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n");
            assert_eq!(through(head.as_bytes()), BAD_HEAD, "{field:?}");
        }
        let (mut framing, mut out) = (
            Framing::new(HeadLimits {
                bytes: 1 << 20,
                ..LIMITS
            }),
            Vec::new(),
        );
        let long = format!(
            "GET /{} HTTP/1.1\r\nHost: a\r\n\r\n",
            "x".repeat(TARGET_BYTES_MAX)
        );
        framing.push(long.as_bytes(), &mut out);
        assert_eq!(out, LARGE_HEAD);
    }

    #[test]
    fn a_head_that_is_too_large_is_replaced_too() {
        let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(2000));
        let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(10));
        for head in [long, many] {
            assert_eq!(through(head.as_bytes()), LARGE_HEAD);
        }
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
            "\r\n",
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
                prop_assert!(framing.head.len() <= LIMITS.bytes);
            }
            prop_assert_eq!(out, through(&input));
        }
    }
}
