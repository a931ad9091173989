//! What every body must keep before it is read: whole JSON that means the same to everybody.

use std::collections::HashSet;
use std::fmt;

use serde::Deserializer;
use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use windlass_core::JSON_DEPTH_MAX;

/// A body holds a payload, which may be as deep as JSON may be, within a job within a list.
const BODY_DEPTH_MAX: usize = JSON_DEPTH_MAX + 4;

/// One object has at most so many names: to find a repeated one, they are kept.
const NAMES_MAX: usize = 100_000;

/// A body that is not the JSON it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}

/// The text of a body, if it is one JSON value: UTF-8 without a byte order mark, no name twice in an object, no NUL, no
/// broken escape, no number that cannot be held, not nested too deep.
pub fn check_strict(body: &[u8]) -> Result<&str, Malformed> {
    let text = std::str::from_utf8(body)
        .map_err(|error| Malformed(format!("the body must be UTF-8: {error}")))?;
    if text.starts_with('\u{feff}') {
        let rule = "the body must not begin with a byte order mark";
        return Err(Malformed(rule.to_owned()));
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    let read = Strict { depth: 0 }.deserialize(&mut reader);
    read.and_then(|()| reader.end())
        .map_err(|error| Malformed(format!("the body must be valid JSON: {error}")))?;
    Ok(text)
}

#[derive(Clone, Copy)]
struct Strict {
    depth: usize,
}

impl Strict {
    fn deeper<E: de::Error>(self) -> Result<Strict, E> {
        if self.depth == BODY_DEPTH_MAX {
            return Err(E::custom(format!("nested deeper than {BODY_DEPTH_MAX}")));
        }
        Ok(Strict {
            depth: self.depth + 1,
        })
    }
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// A name, checked as every text is.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
        check_text(text)?;
        Ok(text.to_owned())
    }
}

fn check_text<E: de::Error>(text: &str) -> Result<(), E> {
    if text.contains('\0') {
        return Err(E::custom("text must not hold NUL characters"));
    }
    Ok(())
}

impl<'de> Visitor<'de> for Strict {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        check_text(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        while items.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        let mut names = HashSet::new();
        while let Some(name) = entries.next_key_seed(Name)? {
            if names.len() == NAMES_MAX {
                let rule = format!("an object has more than {NAMES_MAX} names");
                return Err(de::Error::custom(rule));
            }
            if names.contains(&name) {
                let shown: String = name.chars().take(40).collect();
                let rule = format!("{shown:?} is given twice in one object");
                return Err(de::Error::custom(rule));
            }
            names.insert(name);
            entries.next_value_seed(inner)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn whole_json_passes_as_it_is() {
        for text in [
            "null",
            " {\"a\": [1, 2.5, true, \"\\u00e9\"]} ",
            "[{\"a\":1},{\"a\":2}]",
        ] {
            assert_eq!(check_strict(text.as_bytes()), Ok(text));
        }
    }

    #[test]
    fn ap5_what_could_mean_two_things_or_break_something_is_refused() {
        for (body, told) in [
            (&b"\xff\xfe{}"[..], "UTF-8"),
            (b"\xef\xbb\xbf{}", "byte order mark"),
            (b"{\"a\":1,\"a\":2}", "\"a\" is given twice"),
            (
                b"{\"p\":{\"x\":{\"a\":1,\"b\":2,\"\\u0061\":3}}}",
                "\"a\" is given twice",
            ),
            (b"{\"a\":\"x\\u0000y\"}", "NUL"),
            (b"{\"a\\u0000\":1}", "NUL"),
            (b"{\"a\":\"\\ud800\"}", "valid JSON"),
            (b"{\"\\udc00\":1}", "valid JSON"),
            (b"{\"a\":1e999}", "valid JSON"),
            (b"{\"a\":NaN}", "valid JSON"),
            (b"{\"a\":1} x", "valid JSON"),
            (b"", "valid JSON"),
        ] {
            let refused = check_strict(body).unwrap_err().to_string();
            assert!(refused.contains(told), "{refused}");
        }
    }

    #[test]
    fn depth_and_names_are_bounded() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(check_strict(nested(BODY_DEPTH_MAX).as_bytes()).is_ok());
        for text in [
            nested(BODY_DEPTH_MAX + 1),
            nested(10_000),
            "{\"a\":".repeat(10_000),
        ] {
            assert!(check_strict(text.as_bytes()).is_err());
        }
        let many: Vec<String> = (0..=NAMES_MAX).map(|n| format!("\"{n}\":1")).collect();
        let many = format!("{{{}}}", many.join(","));
        let refused = check_strict(many.as_bytes());
        assert!(refused.unwrap_err().to_string().contains("more than"));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(body in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = check_strict(&body);
        }
    }
}
