//! Reads the validity period of a TLS certificate from its DER encoding.
//!
//! `Certificate ::= SEQUENCE { tbsCertificate SEQUENCE { [0] version?, serial, signature, issuer,
//! validity, … }, … }`. The TLS library checks all other fields.

use windlass_core::{Invalid, Timestamp};
use windlass_listen::TlsFiles;

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Checks that all certificates of the chain are valid at `now`. Returns when the first of them
/// expires.
pub fn check_validity(files: &TlsFiles, now: Timestamp) -> Result<Timestamp, Invalid> {
    let refuse = |rule: String| Invalid::new("tls.certificate", rule);
    let path = files.certificate.display();
    let chain = files.chain().map_err(|error| refuse(error.to_string()))?;
    let mut valid_until = Timestamp::MAX;
    for certificate in &chain {
        let validity = Validity::of(certificate).ok_or_else(|| {
            refuse(format!(
                "names {path}, which has no readable validity period: replace it"
            ))
        })?;
        if validity.until < now {
            let until = validity.until;
            let rule = format!("names {path}, which expired at {until}; renew it");
            return Err(refuse(rule));
        }
        if now < validity.from {
            let from = validity.from;
            let rule = format!(
                "names {path}, which is valid only from {from}: check the clock and the file"
            );
            return Err(refuse(rule));
        }
        valid_until = valid_until.min(validity.until);
    }
    Ok(valid_until)
}

/// The validity period of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Validity {
    from: Timestamp,
    until: Timestamp,
}

impl Validity {
    /// Reads the period from a certificate in DER. Returns `None` if the bytes are not a
    /// certificate.
    fn of(certificate: &[u8]) -> Option<Self> {
        let (certificate, _) = tagged(certificate, SEQUENCE)?;
        let (mut fields, _) = tagged(certificate, SEQUENCE)?;
        if let Some((_, rest)) = tagged(fields, VERSION) {
            fields = rest;
        }
        for _ in ["serial number", "signature", "issuer"] {
            (_, _, fields) = element(fields)?;
        }
        let (validity, _) = tagged(fields, SEQUENCE)?;
        let (tag, from, rest) = element(validity)?;
        let from = instant(tag, from)?;
        let (tag, until, _) = element(rest)?;
        let until = instant(tag, until)?;
        Some(Validity { from, until })
    }
}

/// Returns the content of an element with this tag, and the bytes after it.
fn tagged(input: &[u8], expected: u8) -> Option<(&[u8], &[u8])> {
    let (tag, content, rest) = element(input)?;
    (tag == expected).then_some((content, rest))
}

/// Returns the tag and content of the first element, and the bytes after it.
fn element(input: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, input) = input.split_first()?;
    let (first, input) = input.split_first()?;
    let (length, input) = match *first {
        short @ 0..=0x7f => (usize::from(short), input),
        long => {
            let (digits, input) = input.split_at_checked(usize::from(long & 0x7f))?;
            if digits.is_empty() || digits.len() > 4 {
                return None;
            }
            let add = |sum: usize, digit: &u8| (sum << 8) | usize::from(*digit);
            (digits.iter().fold(0, add), input)
        }
    };
    let (content, rest) = input.split_at_checked(length)?;
    Some((*tag, content, rest))
}

/// Parses `YYMMDDHHMMSSZ` (years 1950 to 2049) or `YYYYMMDDHHMMSSZ`.
fn instant(tag: u8, text: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let text = match tag {
        UTC_TIME if text.get(..2)? >= "50" => format!("19{text}"),
        UTC_TIME => format!("20{text}"),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    if text.len() != 14 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part = |from: usize, to: usize| text.get(from..to).unwrap_or_default();
    let (year, month, day) = (part(0, 4), part(4, 6), part(6, 8));
    let (hour, minute, second) = (part(8, 10), part(10, 12), part(12, 14));
    format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z")
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Day = (i32, u8, u8);

    fn signed(from: Day, until: Day) -> (rcgen::Certificate, rcgen::KeyPair) {
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(from.0, from.1, from.2);
        params.not_after = rcgen::date_time_ymd(until.0, until.1, until.2);
        let key = rcgen::KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap(), key)
    }

    fn certificate(from: Day, until: Day) -> Vec<u8> {
        signed(from, until).0.der().to_vec()
    }

    #[test]
    fn a_certificate_is_refused_before_and_after_its_validity_period() {
        let folder = tempfile::tempdir().unwrap();
        let files = TlsFiles {
            certificate: folder.path().join("cert.pem"),
            key: folder.path().join("key.pem"),
        };
        let (made, key) = signed((2020, 1, 1), (2030, 1, 1));
        std::fs::write(&files.certificate, made.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        let check = |now: &str| check_validity(&files, now.parse().unwrap());
        let until: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(check("2025-01-01T00:00:00Z"), Ok(until));
        assert_eq!(check("2030-01-01T00:00:00Z"), Ok(until));
        let expired = check("2030-01-01T00:00:01Z").unwrap_err();
        assert_eq!(expired.field(), "tls.certificate");
        assert!(
            expired.rule().contains("expired at 2030-01-01T00:00:00Z"),
            "{expired}"
        );
        let early = check("2019-12-31T23:59:59Z").unwrap_err();
        assert!(
            early
                .rule()
                .contains("valid only from 2020-01-01T00:00:00Z"),
            "{early}"
        );
    }

    #[test]
    fn both_time_formats_are_read() {
        for (from, until, expected) in [
            (
                (2020, 1, 2),
                (2021, 3, 4),
                ("2020-01-02T00:00:00Z", "2021-03-04T00:00:00Z"),
            ),
            (
                (1975, 1, 1),
                (4096, 12, 31),
                ("1975-01-01T00:00:00Z", "4096-12-31T00:00:00Z"),
            ),
        ] {
            let read = Validity::of(&certificate(from, until)).expect("a certificate");
            assert_eq!(
                (read.from, read.until),
                (expected.0.parse().unwrap(), expected.1.parse().unwrap())
            );
        }
    }

    proptest! {
        #[test]
        fn no_input_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64), cut in 0_usize..400, flip in 0_usize..300) {
            let _ = Validity::of(&bytes);
            let mut whole = certificate((2020, 1, 1), (2030, 1, 1));
            if let Some(byte) = whole.get_mut(flip) {
                *byte = !*byte;
            }
            let _ = Validity::of(whole.get(..cut).unwrap_or(&whole));
        }
    }
}
