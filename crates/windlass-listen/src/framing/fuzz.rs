//! Mutated connections: what passes has one meaning, for strict and for lenient readers.

use windlass_testkit::Fuzz;

use super::*;

const LIMITS: HeadLimits = HeadLimits {
    bytes: 1024,
    fields: 8,
};

#[test]
fn what_passes_has_one_meaning_for_every_reader() {
    let words = [
        "\r\n",
        "\n",
        "\r",
        "\r\n\r\n",
        "GET / HTTP/1.1\r\n",
        "POST /a HTTP/1.1\r\nHost: a\r\n",
        "HTTP/1.0",
        "HTTP/2.0",
        "Host: a\r\n",
        "Content-Length: ",
        "Transfer-Encoding: ",
        "chunked",
        "identity",
        ", ",
        "+",
        "0x",
        "0\r\n\r\n",
        "5\r\nhello\r\n",
        ";ext=1",
        " ",
        "\t",
        "\0",
        "Connection: close\r\n",
        "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
    ];
    let fuzz = Fuzz::new(env!("CARGO_MANIFEST_DIR"), "framing");
    fuzz.tokens(&words).inputs(60_000).run(check);
}

fn check(input: &[u8]) -> String {
    let (mut framing, mut out) = (Framing::new(LIMITS), Vec::new());
    framing.push(input, &mut out);
    // The result does not depend on how the bytes arrive.
    let (mut by_parts, mut out_by_parts) = (Framing::new(LIMITS), Vec::new());
    for part in input.chunks(1 + input.len() % 7) {
        by_parts.push(part, &mut out_by_parts);
        assert!(by_parts.incomplete.len() <= LIMITS.bytes);
    }
    assert_eq!(out_by_parts, out);
    assert_eq!(by_parts.state, framing.state);
    if framing.state == FramingState::Http2 {
        assert!(out.starts_with(PREFACE));
        return "HTTP/2".to_owned();
    }
    // After a refusal, nothing passes.
    let mut passed = out.as_slice();
    let is_refused = framing.state == FramingState::Refused;
    if is_refused {
        let notes = [BAD_HEAD, LARGE_HEAD, BAD_CHUNK];
        let stripped = notes.iter().find_map(|note| out.strip_suffix(*note));
        passed = stripped.expect("a refusal ends what passes");
        let mut more = Vec::new();
        framing.push(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", &mut more);
        assert!(more.is_empty());
    }
    let strict = Reader {
        line_feed_ends_line: false,
        first_length_wins: true,
        length_beats_chunks: false,
    };
    let (expected, read) = strict.requests(passed);
    // After a chunk that does not end as it must, the library reads nothing more.
    let passed = passed.get(..read).unwrap_or_default();
    for variant in 1..8 {
        let reader = Reader {
            line_feed_ends_line: variant & 1 != 0,
            first_length_wins: variant & 2 == 0,
            length_beats_chunks: variant & 4 != 0,
        };
        let (found, _) = reader.requests(passed);
        assert_eq!(shown(&found), shown(&expected), "{reader:?}");
    }
    let kind = format!("{:?}", framing.state);
    let kind = kind.split(' ').next().unwrap_or_default();
    format!("{kind} {} {is_refused}", expected.len().min(4))
}

fn shown(lines: &[&[u8]]) -> Vec<String> {
    let text = |line: &&[u8]| line.escape_ascii().to_string();
    lines.iter().map(text).collect()
}

/// How another program might read the same bytes.
#[derive(Debug, Clone, Copy)]
struct Reader {
    line_feed_ends_line: bool,
    first_length_wins: bool,
    length_beats_chunks: bool,
}

impl Reader {
    /// Returns the first lines of all requests, and how many bytes it read: up to a bad chunk.
    fn requests<'a>(&self, all: &'a [u8]) -> (Vec<&'a [u8]>, usize) {
        let (mut rest, mut requests) = (all, Vec::new());
        while let Some(first) = self.line(&mut rest) {
            if first.is_empty() {
                continue;
            }
            requests.push(first);
            let (mut lengths, mut chunked) = (Vec::new(), false);
            while let Some(field) = self.line(&mut rest).filter(|field| !field.is_empty()) {
                let field = String::from_utf8_lossy(field).to_ascii_lowercase();
                let (name, value) = field.split_once(':').unwrap_or((&field, ""));
                match name.trim() {
                    "content-length" => lengths.push(number(value, 10)),
                    "transfer-encoding" => chunked |= value.contains("chunked"),
                    _ => {}
                }
            }
            let length = match self.first_length_wins {
                true => lengths.first(),
                false => lengths.last(),
            };
            match length {
                Some(length) if self.length_beats_chunks || !chunked => skip(&mut rest, *length),
                _ if chunked && !self.skip_chunks(&mut rest) => {
                    return (requests, all.len() - rest.len());
                }
                _ => {}
            }
        }
        (requests, all.len())
    }

    /// Returns whether all chunks end as they must.
    fn skip_chunks(&self, rest: &mut &[u8]) -> bool {
        while let Some(size) = self.line(rest) {
            let size = number(&String::from_utf8_lossy(size), 16);
            if size == 0 {
                // Trailers, up to an empty line.
                while self.line(rest).is_some_and(|line| !line.is_empty()) {}
                return true;
            }
            skip(rest, size);
            let is_cut_off = rest.len() < 2 && b"\r\n".starts_with(rest);
            if !rest.starts_with(b"\r\n") && !is_cut_off {
                return false;
            }
            self.line(rest);
        }
        true
    }

    /// Takes a line without its end.
    fn line<'a>(&self, rest: &mut &'a [u8]) -> Option<&'a [u8]> {
        if rest.is_empty() {
            return None;
        }
        let is_end = |at: &usize| {
            let before = rest.get(..*at).unwrap_or_default();
            rest.get(*at) == Some(&b'\n') && (self.line_feed_ends_line || before.ends_with(b"\r"))
        };
        let end = (0..rest.len()).find(is_end);
        let (line, after) = match end {
            Some(end) => (rest.get(..end)?, rest.get(end + 1..)?),
            None => (*rest, &[][..]),
        };
        *rest = after;
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }
}

fn skip(rest: &mut &[u8], bytes: u64) {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    *rest = rest.get(bytes..).unwrap_or_default();
}

/// Reads the digits that a text begins with, as a lenient reader does.
fn number(text: &str, radix: u32) -> u64 {
    let text = text.trim_start();
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|letter: char| !letter.is_digit(radix));
    let digits = text.get(..end.unwrap_or(text.len())).unwrap_or_default();
    u64::from_str_radix(digits, radix).unwrap_or(0)
}
