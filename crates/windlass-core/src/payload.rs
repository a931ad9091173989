//! The JSON that a job carries, kept byte for byte.

use std::fmt;
use std::sync::Arc;

use serde::de::{self, DeserializeOwned};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};
use serde_json::value::RawValue;

use crate::Invalid;
use crate::json_rules::JsonRules;

/// The largest payload unless configured otherwise: 1 MiB.
pub const PAYLOAD_BYTES_MAX: usize = 1024 * 1024;

/// The deepest nesting of lists and objects.
pub const JSON_DEPTH_MAX: usize = 64;

const RULES: JsonRules = JsonRules {
    depth_max: JSON_DEPTH_MAX,
    names_max: None,
    without_nul: false,
};

/// JSON text that is known to be valid. Clones share the text.
#[derive(Clone, Default)]
pub struct Payload(Option<Arc<str>>);

impl Payload {
    /// Checks that `text` is valid JSON, at most `bytes_max` long and nested at most
    /// [`JSON_DEPTH_MAX`] deep.
    ///
    /// Also refuses numbers that do not fit an `f64` and broken Unicode escapes, because a handler
    /// could not decode them.
    pub fn parse(text: &str, bytes_max: usize) -> Result<Self, Invalid> {
        check_size(text.len(), bytes_max)?;
        RULES
            .check(text)
            .map_err(|error| Invalid::new("", format!("must be valid JSON: {error}")))?;
        Ok(Payload::from_stored(text))
    }

    /// Takes text that a store kept. Does not check it again.
    pub fn from_stored(text: &str) -> Self {
        Payload(Some(Arc::from(text)))
    }

    /// Serializes a Rust value to JSON.
    pub fn from_serialize(value: &impl Serialize, bytes_max: usize) -> Result<Self, Invalid> {
        let text = serde_json::to_string(value)
            .map_err(|error| Invalid::new("", format!("must be serializable to JSON: {error}")))?;
        Payload::parse(&text, bytes_max)
    }

    /// Deserializes the JSON to a Rust value.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.as_str())
    }

    /// The JSON text; `null` for the default payload.
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or("null")
    }

    /// Checks that the payload has at most `bytes_max` bytes.
    pub fn check_size(&self, bytes_max: usize) -> Result<(), Invalid> {
        check_size(self.as_str().len(), bytes_max)
    }
}

impl PartialEq for Payload {
    /// Compares byte for byte.
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Payload {}

impl fmt::Debug for Payload {
    /// Shows only the size: payloads may contain secrets, and debug output ends up in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.as_str().len())
    }
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(self.as_str()).map_err(ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Payload {
    /// Reads from `serde_json` only. Does not check the size; `NewJob` does.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <Box<RawValue>>::deserialize(deserializer)?;
        Payload::parse(raw.get(), usize::MAX).map_err(de::Error::custom)
    }
}

fn check_size(bytes: usize, bytes_max: usize) -> Result<(), Invalid> {
    if bytes > bytes_max {
        let rule = format!("must be at most {bytes_max} bytes of JSON, got {bytes}");
        return Err(Invalid::new("", rule));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Payload, Invalid> {
        Payload::parse(text, PAYLOAD_BYTES_MAX)
    }

    #[test]
    fn keeps_the_bytes_as_given() {
        let text = r#"{"b":1.0, "a":[1e2,"\u00e9"],  "b":12345678901234567890}"#;
        assert_eq!(parse(text).unwrap().as_str(), text);
        assert_eq!(Payload::default().as_str(), "null");
        let json = serde_json::to_string(&parse(text).unwrap()).unwrap();
        assert_eq!(json, text);
        let read: Payload = serde_json::from_str(text).unwrap();
        assert_eq!(read.as_str(), text);
        assert_ne!(read, Payload::default());
        assert_eq!(read, read.clone());
    }

    #[test]
    fn refuses_what_a_handler_could_not_decode() {
        for text in [
            "",
            " ",
            "{",
            "{\"a\":}",
            "nul",
            "NaN",
            "[1,]",
            "1 2",
            "\"\\ud800\"",
            "\"\u{1}\"",
            "1e999",
            "{\"\\udc00\":1}",
            "\u{feff}1",
            "'a'",
            "\"a\0b\"",
        ] {
            let refusal = parse(text).unwrap_err();
            assert!(refusal.rule().starts_with("must be valid JSON"), "{text}");
        }
        assert!(serde_json::from_str::<Payload>("\"\\ud800\"").is_err());
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(&nested(JSON_DEPTH_MAX)).is_ok());
        let refusal = parse(&nested(JSON_DEPTH_MAX + 1)).unwrap_err();
        assert!(refusal.rule().contains("nested deeper than 64"));
        let objects = format!("{}1{}", "{\"a\":".repeat(65), "}".repeat(65));
        assert!(parse(&objects).is_err());
        assert!(parse(&nested(100_000)).is_err());
        assert!(parse(&"[".repeat(100_000)).is_err());
    }

    #[test]
    fn the_size_is_bounded_to_the_byte() {
        let text = format!("\"{}\"", "x".repeat(8));
        assert!(Payload::parse(&text, 10).is_ok());
        let refusal = Payload::parse(&text, 9).unwrap_err();
        assert_eq!(refusal.rule(), "must be at most 9 bytes of JSON, got 10");
        let payload = Payload::parse(&text, 10).unwrap();
        assert!(payload.check_size(10).is_ok());
        assert!(payload.check_size(9).is_err());
    }

    #[test]
    fn rust_values_go_in_and_out() {
        let payload = Payload::from_serialize(&("to", 3), 100).unwrap();
        assert_eq!(payload.as_str(), "[\"to\",3]");
        assert_eq!(payload.decode::<(String, u8)>().unwrap(), ("to".into(), 3));
        assert!(payload.decode::<u8>().is_err());
        assert!(Payload::from_serialize(&"too long", 3).is_err());
    }

    #[test]
    fn the_default_bound_is_a_mebibyte() {
        assert_eq!(PAYLOAD_BYTES_MAX, 1_048_576);
    }

    #[test]
    fn debug_output_does_not_show_the_content() {
        let secret = parse("\"hunter2\"").unwrap();
        assert_eq!(format!("{secret:?}"), "Payload(9 bytes)");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = parse(&text);
        }

        #[test]
        fn what_is_accepted_decodes(text in "[\\[\\]{}:,\"0-9a-z.eu\\\\ -]{0,24}") {
            if let Ok(payload) = parse(&text) {
                prop_assert!(payload.decode::<serde_json::Value>().is_ok());
            }
        }
    }
}
