//! The words of an error without its details.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::error_text::{SCANNED_BYTES_MAX, Token, Tokens, is_hexadecimal_id, is_word, start_of};

/// A longer run is a token or a digest, not a word.
const WORD_CHARS_MAX: usize = 64;
/// A longer quoted part is a value, not a name.
const QUOTED_NAME_CHARS_MAX: usize = 40;
/// Operating systems choose local ports from here on, so a port above says nothing about a target.
const EPHEMERAL_PORT_MIN: u16 = 32_768;

/// A number after one of these words is a status or an error code, which is part of the cause.
const CODE_WORDS: &[&str] = &[
    "answered",
    "code",
    "errno",
    "error",
    "exit",
    "got",
    "http",
    "https",
    "responded",
    "response",
    "returned",
    "signal",
    "sqlcode",
    "sqlstate",
    "status",
    "statuscode",
    "with",
    "winerror",
];

/// A quoted part after one of these words is a value of one job, not a name in the program.
const VALUE_WORDS: &[&str] = &[
    "account",
    "address",
    "customer",
    "date",
    "document",
    "email",
    "entry",
    "file",
    "found",
    "given",
    "got",
    "id",
    "input",
    "integer",
    "invoice",
    "json",
    "literal",
    "order",
    "payload",
    "received",
    "recipient",
    "string",
    "tenant",
    "text",
    "token",
    "user",
    "username",
    "value",
];

/// Words that end in a number and name a technique, not one of many things.
const WORDS_WITH_DIGITS: &[&str] = &[
    "base32", "base58", "base64", "ec2", "ed25519", "f32", "f64", "float32", "float64", "h2",
    "http1", "http2", "http3", "i16", "i32", "i64", "i8", "int16", "int32", "int64", "int8",
    "ipv4", "ipv6", "k8s", "latin1", "md5", "oauth2", "pkcs8", "s3", "sha1", "sha256", "sha512",
    "u16", "u32", "u64", "u8", "utf16", "utf8", "utf-8", "v1", "v2", "v3", "x509",
];

/// Letters in front of the number of an error code, as in `ORA-00942`, `E11000`, `TS2345`.
const CODE_PREFIXES: &[&str] = &[
    "AADSTS", "CS", "E", "ERR", "HTTP", "HV", "MY", "NU", "ORA", "P", "PGRST", "PLS", "RPC", "SQL",
    "TNS", "TS",
];

/// Ports of well-known services. They make `redis:6379` a target where `row:6379` could be anything.
const SERVICE_PORTS: &[u16] = &[
    22, 25, 53, 80, 110, 143, 389, 443, 465, 587, 636, 993, 1433, 1521, 2181, 2379, 3000, 3306,
    4222, 5000, 5432, 5433, 5672, 6379, 6432, 7687, 8000, 8080, 8081, 8443, 9000, 9092, 9200,
    27017,
];

/// Endings of source files, which make `mail.py:42` a place in the code.
const SOURCE_ENDINGS: &[&str] = &[
    "c", "cc", "cjs", "clj", "cpp", "cs", "cts", "dart", "erl", "ex", "exs", "go", "h", "hs",
    "java", "js", "jsx", "kt", "lua", "mjs", "php", "pl", "py", "rb", "rs", "scala", "ts", "tsx",
];

/// The text with `#` for what names one thing (ids, numbers, times) and `"…"` for quoted values.
pub(super) fn pattern(text: &str) -> String {
    let mut writer = Writer::default();
    // Dots that stand for text left out come and go with the length of the text.
    let text = start_of(text, SCANNED_BYTES_MAX).replace("...", "");
    let mut tokens = Tokens::new(&text);
    while let Some(token) = tokens.next() {
        writer.write(token, tokens.rest());
    }
    writer.pattern.trim_end().to_owned()
}

#[derive(Default)]
struct Writer {
    pattern: String,
    /// The last word, in small letters.
    word: String,
    /// Inside the query of a URL, up to the next space.
    in_query: bool,
    /// After `"name":` of a JSON object, up to the next comma or bracket.
    in_json_value: bool,
    after_quote: bool,
    /// After the word `literal`: what a parser could not read follows.
    after_literal: bool,
}

impl Writer {
    fn write(&mut self, token: Token<'_>, rest: &str) {
        let after_quote = std::mem::take(&mut self.after_quote);
        match token {
            Token::Space => {
                self.in_query = false;
                if !self.pattern.is_empty() && !self.pattern.ends_with(' ') {
                    self.pattern.push(' ');
                }
            }
            _ if self.in_query => {}
            Token::Quoted(inner) => {
                self.quoted(inner);
                self.after_quote = true;
            }
            // The local end of a connection, as Go writes it: `10.0.0.5:48122->10.0.0.7:5432`.
            Token::Run(run) if rest.starts_with("->") && address(run).is_some() => {
                self.pattern.push('#');
            }
            Token::Run(run) => {
                self.run(run);
                self.in_query = run.contains("://") && rest.starts_with('?');
            }
            Token::Other(c) => {
                self.in_json_value = match c {
                    ':' if after_quote => true,
                    ',' | '{' | '}' | '[' | ']' => false,
                    _ => self.in_json_value,
                };
                self.pattern.push(c);
            }
        }
    }

    fn run(&mut self, run: &str) {
        let follows_code_word = CODE_WORDS.contains(&self.word.as_str());
        if source_position(run).is_some() && self.pattern.ends_with('/') {
            self.pattern.pop(); // the root of an absolute path
        }
        self.pattern.push_str(&run_pattern(run, follows_code_word));
        self.after_literal |= run == "literal";
        // `HTTP/1.1` and `status:503` set the word before their number.
        let word = run.split(['/', ':']).next().unwrap_or(run);
        // A number between a code word and its code leaves the word: `ERROR 1213 (40001)`.
        if word.contains(|c: char| !c.is_ascii_digit()) {
            self.word = word.to_lowercase();
        }
    }

    fn quoted(&mut self, inner: &str) {
        let is_value =
            self.in_json_value || self.after_literal || VALUE_WORDS.contains(&self.word.as_str());
        match quoted_pattern(inner).filter(|_| !is_value) {
            Some(name) => {
                self.pattern.push('\'');
                self.pattern.push_str(&name);
                self.pattern.push('\'');
            }
            None => self.pattern.push_str("\"…\""),
        }
    }
}

/// A quoted name, path, URL or address without its details; nothing for a value.
fn quoted_pattern(inner: &str) -> Option<String> {
    let has_letter = inner.contains(char::is_alphabetic);
    if !has_letter || inner.contains(char::is_whitespace) {
        return None;
    }
    if inner.contains("://") {
        return Some(pattern(inner));
    }
    let is_name = |c: char| is_word(c) || ".$@:/-<>()[]".contains(c);
    let short = inner.chars().count() <= QUOTED_NAME_CHARS_MAX;
    let is_email = inner.contains('@') && !inner.starts_with('@');
    (short && inner.chars().all(is_name) && !is_email).then(|| pattern(inner))
}

fn run_pattern(run: &str, follows_code_word: bool) -> String {
    if let Some((scheme, target)) = run.split_once("://") {
        return url_pattern(scheme, target);
    }
    if run.contains('@') || run.chars().count() > WORD_CHARS_MAX {
        return "#".to_owned();
    }
    if let Some(position) = source_position(run) {
        return position;
    }
    if let Some(address) = address(run) {
        return address;
    }
    if !has_digit(run) {
        let id = is_hexadecimal_id(run);
        return if id { "#" } else { run }.to_owned();
    }
    if let Some((word, code)) = run.split_once([':', '/']) {
        let is_code_word = CODE_WORDS.contains(&word.to_lowercase().as_str());
        if is_code_word && is_code(code) && !word.eq_ignore_ascii_case("http") {
            return run.to_owned();
        }
        if word.eq_ignore_ascii_case("http") {
            return word.to_owned(); // the version of the protocol is no cause
        }
    }
    if follows_code_word && is_code(run) {
        return run.to_owned();
    }
    pieces(run)
}

/// Scheme, host and path; the path without its ids, the rest without its secrets.
fn url_pattern(scheme: &str, target: &str) -> String {
    let target = target.rsplit_once('@').map_or(target, |(_, host)| host);
    let (host, path) = match target.find('/') {
        Some(slash) => target.split_at(slash),
        None => (target, ""),
    };
    let host = address(host).unwrap_or_else(|| host.to_owned());
    let segments: Vec<String> = path.split('/').map(pieces).collect();
    format!("{scheme}://{host}{}", segments.join("/"))
}

/// `dir/file.rs:42` of `/build/7f3a/dir/file.rs:42:9`: where in the code, wherever it was built.
pub(super) fn source_position(run: &str) -> Option<String> {
    let (path, numbers) = run.split_once(':')?;
    let line = numbers.split(':').next()?;
    let is_line = !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit());
    let (_, ending) = path.rsplit_once('.')?;
    (is_line && SOURCE_ENDINGS.contains(&ending)).then(|| {
        let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
        format!("{name}:{line}")
    })
}

/// A host with its port, or an IP address. A port that the operating system chose is `#`.
fn address(run: &str) -> Option<String> {
    if let Ok(ip) = run.parse::<IpAddr>() {
        return Some(ip.to_string());
    }
    let (host, port) = run.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    let shown = |host: &str| match port {
        EPHEMERAL_PORT_MIN.. => format!("{host}:#"),
        _ => format!("{host}:{port}"),
    };
    let bare = host.trim_matches(['[', ']']);
    let is_ip = bare.parse::<Ipv4Addr>().is_ok() || bare.parse::<Ipv6Addr>().is_ok();
    if is_ip || is_host_name(host) || is_service(host, port) {
        return Some(shown(host));
    }
    None
}

/// A name of several labels, the last one of letters: `db-3.internal`.
fn is_host_name(host: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
    };
    let last = host.rsplit('.').next().unwrap_or(host);
    host.contains('.')
        && host.split('.').all(label)
        && last.chars().all(|c| c.is_ascii_alphabetic())
}

/// A host of one label at a port of a well-known service: `redis:6379`.
fn is_service(host: &str, port: u16) -> bool {
    let word = host.starts_with(|c: char| c.is_ascii_alphabetic())
        && host.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    word && (host == "localhost" || SERVICE_PORTS.contains(&port))
}

/// Up to five letters and digits: `503`, `1062`, `23505`, `42P01`.
fn is_code(text: &str) -> bool {
    has_digit(text) && text.len() <= 5 && text.chars().all(|c| c.is_ascii_alphanumeric())
}

/// A run whose parts are words, with `#` for the parts that are numbers or ids.
fn pieces(run: &str) -> String {
    let known = run.to_lowercase();
    if !has_digit(run) || WORDS_WITH_DIGITS.contains(&known.as_str()) || is_named_code(run) {
        return run.to_owned();
    }
    // Numbers with units, dates, versions, `3/4`, ids that start with a digit.
    if run.starts_with(|c: char| c.is_ascii_digit()) || is_hexadecimal_id(run) {
        return "#".to_owned();
    }
    let mut pattern = String::new();
    for part in run.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let word = part.trim_end_matches(|c: char| !c.is_alphanumeric());
        let joint = part.get(word.len()..).unwrap_or("");
        let stem = word.trim_end_matches(|c: char| c.is_ascii_digit());
        if !has_digit(word) || WORDS_WITH_DIGITS.contains(&word.to_lowercase().as_str()) {
            pattern.push_str(word);
        } else if stem.len() > 1 && !has_digit(stem) && !is_hexadecimal(word) {
            pattern.push_str(stem);
            pattern.push('#');
        } else {
            pattern.push('#');
        }
        pattern.push_str(joint);
    }
    // `#-#-#` and `#` are the same id, written with and without joints.
    while let Some(start) = pattern.find("#-#").or_else(|| pattern.find("#_#")) {
        pattern.replace_range(start..start + 3, "#");
    }
    pattern
}

/// `ORA-00942`, `E11000`.
fn is_named_code(run: &str) -> bool {
    let prefix = run.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = run.len() - prefix.len();
    let prefix = prefix.strip_suffix('-').unwrap_or(prefix);
    (3..=7).contains(&digits) && CODE_PREFIXES.contains(&prefix)
}

/// Eight or more hexadecimal digits: part of a digest or an id.
fn is_hexadecimal(word: &str) -> bool {
    word.len() >= 8 && word.chars().all(|c| c.is_ascii_hexdigit())
}

fn has_digit(text: &str) -> bool {
    text.contains(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_go_and_causes_stay() {
        for (error, expected) in [
            ("connection refused", "connection refused"),
            ("row 17 is locked", "row # is locked"),
            (
                "status 503 after 1.25s, retry 3/4",
                "status 503 after #, retry #",
            ),
            ("HTTP/1.1 502 Bad Gateway", "HTTP 502 Bad Gateway"),
            ("status:429 too many", "status:429 too many"),
            (
                "connect to 10.0.0.7:5432 failed",
                "connect to 10.0.0.7:5432 failed",
            ),
            ("lost 10.0.0.7:48122", "lost 10.0.0.7:#"),
            (
                "read tcp 10.0.0.5:48122->10.0.0.7:5432: reset",
                "read tcp #->10.0.0.7:5432: reset",
            ),
            ("redis:6379 is down, row:17", "redis:6379 is down, row:#"),
            ("db-3.internal:5432 refused", "db-3.internal:5432 refused"),
            ("user 'ann' not found", "user \"…\" not found"),
            ("KeyError: 'email'", "KeyError: 'email'"),
            ("no field `to` in \"x y\"", "no field 'to' in \"…\""),
            ("no column \"user_17\"", "no column 'user_#'"),
            (
                "bad {\"name\": \"ann\", \"id\": 17}",
                "bad {'name': \"…\", 'id': #}",
            ),
            (
                "job 0197a1b2-7c3d-7e4f-8a5b-6c7d8e9f0a1b lost",
                "job # lost",
            ),
            ("job abcdefab-cdef-abcd-efab-cdefabcdefab", "job #"),
            ("at 2026-11-15T09:00:00Z: gone", "at #: gone"),
            ("mail to ann@example.org bounced", "mail to # bounced"),
            ("order-1234 of node3", "order-# of node#"),
            ("invalid utf8, bad base64", "invalid utf8, bad base64"),
            ("ORA-00942 and E11000", "ORA-00942 and E11000"),
            (
                "SQLSTATE[42P01], ERROR 1213 (40001)",
                "SQLSTATE[42P01], ERROR 1213 (40001)",
            ),
            ("panicked at src/mail.rs:42:9", "panicked at mail.rs:42"),
            (
                "GET https://ann:hush@api.example.com:8443/v1/users/17?token=x y",
                "GET https://api.example.com:8443/v1/users/# y",
            ),
            (
                "Get \"https://a.example/u/5\": EOF",
                "Get 'https://a.example/u/#': EOF",
            ),
            ("[fe80::1]:80 and dead::beef", "[fe80::1]:# and dead::beef"),
            ("0xdeadbeef", "#"),
            ("can't open it", "can't open it"),
            ("timeout:  read\n\tfailed ", "timeout: read failed"),
            ("", ""),
        ] {
            assert_eq!(pattern(error), expected, "{error}");
        }
    }
}
