//! Types of fields: durations, bounded numbers, lists and text, raw JSON.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::value::RawValue;
use windlass_core::{
    DURATION_MAX, JSON_DEPTH_MAX, JsonRules, Payload, Timeout, Timestamp, format_duration,
    parse_duration,
};

use crate::Checks;

/// A duration as text, such as `30s` or `1m 30s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurationText(pub Duration);

impl Serialize for DurationText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_duration(self.0))
    }
}

impl<'de> Deserialize<'de> for DurationText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = DurationText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text like \"30s\" (or use the `_ms` field for milliseconds)")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<DurationText, E> {
                parse_duration(text).map(DurationText).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl JsonSchema for DurationText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let pattern = "^([0-9]+ ?(ms|us|s|m|h|d) ?)+$";
        json_schema!({"type": "string", "pattern": pattern, "examples": ["30s", "1m 30s"]})
    }
}

/// A duration in whole milliseconds.
pub type Millis = BoundedInt<0, { DURATION_MAX.as_millis() as i64 }>;

/// Returns a duration that is given as text, or in milliseconds in the field with the suffix `_ms`.
pub fn either_duration(
    checks: &mut Checks,
    name: &str,
    text: Option<DurationText>,
    millis: Option<Millis>,
) -> Option<Duration> {
    let millis = millis.map(|millis| Duration::from_millis(millis.get().unsigned_abs()));
    let text = text.map(|span| span.0);
    checks.exclusive((name, text), (&format!("{name}_ms"), millis))
}

/// An integer from `MIN` to `MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoundedInt<const MIN: i64, const MAX: i64>(i64);

impl<const MIN: i64, const MAX: i64> BoundedInt<MIN, MAX> {
    /// Checks the length and that there is no NUL character.
    pub fn new(number: i64) -> Option<Self> {
        (MIN..=MAX).contains(&number).then_some(BoundedInt(number))
    }

    /// The number.
    pub fn get(self) -> i64 {
        self.0
    }

    /// Converts the number to a type that holds all numbers within the bounds.
    pub fn to<T: TryFrom<i64>>(self) -> T {
        let number = T::try_from(self.0).ok();
        number.expect("the bounds of the field fit the type")
    }
}

impl<const MIN: i64, const MAX: i64> Serialize for BoundedInt<MIN, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(self.0)
    }
}

impl<'de, const MIN: i64, const MAX: i64> Deserialize<'de> for BoundedInt<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number<const MIN: i64, const MAX: i64>;
        impl<const MIN: i64, const MAX: i64> de::Visitor<'_> for Number<MIN, MAX> {
            type Value = BoundedInt<MIN, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from {MIN} to {MAX}")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
                let unexpected = de::Unexpected::Signed(number);
                BoundedInt::new(number).ok_or_else(|| E::invalid_value(unexpected, &self))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
                let whole = i64::try_from(number).ok().and_then(BoundedInt::new);
                whole.ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(number), &self))
            }
        }
        deserializer.deserialize_i64(Number)
    }
}

impl<const MIN: i64, const MAX: i64> JsonSchema for BoundedInt<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("{MIN}to{MAX}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "minimum": MIN, "maximum": MAX})
    }
}

/// A list of `MIN` to `MAX` elements. Elements beyond `MAX` are counted but not kept in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct List<T, const MIN: usize, const MAX: usize>(pub Vec<T>);

impl<'de, T, const MIN: usize, const MAX: usize> Deserialize<'de> for List<T, MIN, MAX>
where
    T: Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct UpTo<T, const MIN: usize, const MAX: usize>(PhantomData<T>);
        impl<'de, T, const MIN: usize, const MAX: usize> de::Visitor<'de> for UpTo<T, MIN, MAX>
        where
            T: Deserialize<'de>,
        {
            type Value = List<T, MIN, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: de::SeqAccess<'de>>(
                self,
                mut items: A,
            ) -> Result<Self::Value, A::Error> {
                let mut list = Vec::new();
                while list.len() < MAX {
                    match items.next_element()? {
                        Some(item) => list.push(item),
                        None => break,
                    }
                }
                let mut count = list.len();
                while items.next_element::<de::IgnoredAny>()?.is_some() {
                    count += 1;
                }
                if !(MIN..=MAX).contains(&count) {
                    let rule =
                        format_args!("the value must have {MIN} to {MAX} elements, got {count}");
                    return Err(de::Error::custom(rule));
                }
                Ok(List(list))
            }
        }
        deserializer.deserialize_seq(UpTo(PhantomData))
    }
}

impl<T: JsonSchema, const MIN: usize, const MAX: usize> JsonSchema for List<T, MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("{}List{MIN}to{MAX}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let items = generator.subschema_for::<T>();
        json_schema!({"type": "array", "items": items, "minItems": MIN, "maxItems": MAX})
    }
}

/// A number of things.
pub type Count = u64;

/// The timeout of an attempt as text: a duration, or `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeoutText(pub Timeout);

impl Serialize for TimeoutText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Timeout::After(timeout) => DurationText(timeout).serialize(serializer),
            Timeout::None => serializer.serialize_str("none"),
        }
    }
}

impl<'de> Deserialize<'de> for TimeoutText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "none" {
            return Ok(TimeoutText(Timeout::None));
        }
        let timeout = parse_duration(&text).map_err(de::Error::custom)?;
        if timeout.is_zero() {
            let rule = "the value must be longer than 0s; use `none` for no timeout";
            return Err(de::Error::custom(rule));
        }
        Ok(TimeoutText(Timeout::After(timeout)))
    }
}

impl JsonSchema for TimeoutText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Timeout".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "examples": ["30s", "none"]})
    }
}

/// Returns a time that is given as such, or as a delay from now.
pub(crate) fn instant_or_delay(
    checks: &mut Checks,
    at: (&str, Option<Timestamp>),
    (name, text, millis): (&str, Option<DurationText>, Option<Millis>),
) -> Option<Timestamp> {
    let delay = either_duration(checks, name, text, millis);
    let delay = delay.map(|delay| checks.now().saturating_add(delay));
    checks.exclusive(at, (name, delay))
}

/// Deserializes either text or an object.
pub(crate) struct WordOr<W, O>(pub(crate) &'static str, pub(crate) PhantomData<(W, O)>);

impl<'de, W: Deserialize<'de>, O: Deserialize<'de>> de::Visitor<'de> for WordOr<W, O> {
    type Value = Result<W, O>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<Self::Value, E> {
        let word: de::value::StrDeserializer<'_, E> = de::IntoDeserializer::into_deserializer(word);
        W::deserialize(word).map(Ok)
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        O::deserialize(de::value::MapAccessDeserializer::new(map)).map(Err)
    }
}

/// Implements deserialization for an enum of text and an object: `Type, Word(…), Object(…), "what
/// is expected"`.
macro_rules! word_or_object {
    ($type:ident, $word:ident($text:ty), $object:ident($map:ty), $expected:literal) => {
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let form = $crate::value::WordOr::<$text, $map>($expected, std::marker::PhantomData);
                let read = deserializer.deserialize_any(form)?;
                Ok(read.map_or_else($type::$object, $type::$word))
            }
        }

        impl schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let word = generator.subschema_for::<$text>();
                let object = generator.subschema_for::<$map>();
                schemars::json_schema!({"anyOf": [word, object]})
            }
        }
    };
}

pub(crate) use word_or_object;

/// The rules of JSON in a request. A body contains JSON within a job within a list, so it may be
/// deeper than a payload.
const RULES: JsonRules = JsonRules {
    depth_max: JSON_DEPTH_MAX,
    names_max: Some(100_000),
    without_nul: true,
};

/// Any JSON, byte for byte as the client wrote it: without duplicate names in an object, without
/// NUL, and not nested too deeply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Json(pub Payload);

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let checked = RULES.check(raw.get());
        checked.map_err(|error| {
            de::Error::custom(format_args!("the value must be valid JSON: {error}"))
        })?;
        Ok(Json(Payload::from_stored(raw.get())))
    }
}

impl JsonSchema for Json {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Json".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({})
    }
}

/// Deserializes a field whose `null` is a value: `null` becomes `Some`, only a missing field is
/// `None`.
pub fn some_even_if_null<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    T::deserialize(deserializer).map(Some)
}

/// Text of `MIN` to `MAX` characters without NUL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text<const MIN: usize, const MAX: usize>(String);

impl<const MIN: usize, const MAX: usize> Text<MIN, MAX> {
    /// The text.
    pub fn into_string(self) -> String {
        self.0
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text, if it is as long as it must be.
    pub fn new(text: String) -> Result<Self, String> {
        let length = text.chars().count();
        if !(MIN..=MAX).contains(&length) {
            return Err(format!("must be {MIN} to {MAX} characters, got {length}"));
        }
        if text.contains('\0') {
            return Err("must not contain NUL characters".to_owned());
        }
        Ok(Text(text))
    }
}

impl<const MIN: usize, const MAX: usize> Serialize for Text<MIN, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de, const MIN: usize, const MAX: usize> Deserialize<'de> for Text<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Text::new(text).map_err(|rule| de::Error::custom(format_args!("the value {rule}")))
    }
}

impl<const MIN: usize, const MAX: usize> JsonSchema for Text<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Text{MIN}to{MAX}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        match MAX {
            usize::MAX => json_schema!({"type": "string", "minLength": MIN}),
            _ => json_schema!({"type": "string", "minLength": MIN, "maxLength": MAX}),
        }
    }
}
