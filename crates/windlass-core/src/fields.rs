//! Reading a JSON object field by field, so that every error names the field and the rule.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::de::{DeserializeSeed, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::duration::{check_duration, parse_duration};
use crate::invalid::shown;
use crate::{Invalid, Payload, Timestamp};

/// An object as the raw JSON of its fields, so that a payload keeps its bytes.
#[derive(Debug)]
pub struct RawFields(BTreeMap<String, Box<RawValue>>);

impl RawFields {
    /// Splits the text of an object into its fields.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let mut repeated = None;
        let seed = Unrepeated(&mut repeated);
        let mut reader = serde_json::Deserializer::from_str(text);
        let read = seed.deserialize(&mut reader);
        let read = read.and_then(|fields| reader.end().map(|()| fields));
        match (read, repeated) {
            (_, Some(name)) => Err(Invalid::new(name, "must not be given twice")),
            (Ok(fields), None) => Ok(fields),
            (Err(error), None) => Err(Invalid::new("", format!("must be a JSON object: {error}"))),
        }
    }

    /// The JSON of one field.
    pub fn raw(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|raw| raw.get())
    }

    /// Checks the total size of all fields except `name` before they are decoded, because decoded
    /// JSON can take many times the memory.
    pub(crate) fn check_others(&self, name: &str, bytes_max: usize) -> Result<(), Invalid> {
        let others = self.0.iter().filter(|(field, _)| *field != name);
        let mut bytes = 0_usize;
        for (field, raw) in others {
            bytes = bytes.saturating_add(raw.get().len());
            if bytes > bytes_max {
                let rule = format!(
                    "is too long: all fields except `{name}` may have {bytes_max} bytes together"
                );
                return Err(Invalid::new(field.as_str(), rule));
            }
        }
        Ok(())
    }

    /// Decodes all fields except `name`. Checks the nesting, and refuses text that no store can
    /// keep.
    pub fn values_except(&self, name: &str) -> Result<Map<String, Value>, Invalid> {
        let others = self.0.iter().filter(|(field, _)| *field != name);
        others
            .map(|(field, raw)| {
                Ok((
                    field.clone(),
                    plain_value(raw.get()).map_err(|e| e.within(field))?,
                ))
            })
            .collect()
    }
}

fn plain_value(raw: &str) -> Result<Value, Invalid> {
    if raw.contains("\\u0000") || raw.contains("$serde_json::private") {
        return Err(Invalid::new(
            "",
            "must not contain NUL characters or names reserved by the JSON library",
        ));
    }
    Payload::parse(raw, usize::MAX)?
        .decode()
        .map_err(|error| Invalid::new("", format!("must be valid JSON: {error}")))
}

impl<'de> Deserialize<'de> for RawFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Unrepeated(&mut None).deserialize(deserializer)
    }
}

/// Reads an object whose field names are all different; stores the name of a repeated one.
struct Unrepeated<'a>(&'a mut Option<String>);

impl<'de> DeserializeSeed<'de> for Unrepeated<'_> {
    type Value = RawFields;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<RawFields, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Unrepeated<'_> {
    type Value = RawFields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<RawFields, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some((name, raw)) = entries.next_entry::<String, Box<RawValue>>()? {
            if fields.insert(name.clone(), raw).is_some() {
                let error = A::Error::custom(format_args!("`{name}` is given twice"));
                *self.0 = Some(name);
                return Err(error);
            }
        }
        Ok(RawFields(fields))
    }
}

/// An object that is being read. [`Fields::finish`] refuses fields that were not read.
///
/// `null` means the same as an absent field.
#[derive(Debug)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    asked: Vec<String>,
}

impl<'a> Fields<'a> {
    /// Reads a value that must be an object.
    pub fn new(value: &'a Value) -> Result<Self, Invalid> {
        let map = value.as_object().ok_or_else(|| {
            Invalid::new("", format!("must be an object, got {}", kind_of(value)))
        })?;
        Ok(Fields::of(map))
    }

    /// Reads an object.
    pub fn of(map: &'a Map<String, Value>) -> Self {
        Fields {
            map,
            asked: Vec::new(),
        }
    }

    /// Reads a field without a check of its type.
    pub fn value(&mut self, name: &str) -> Option<&'a Value> {
        self.asked.push(name.to_owned());
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// Reads a text.
    pub fn text(&mut self, name: &str) -> Result<Option<&'a str>, Invalid> {
        self.read(name, "text", Value::as_str)
    }

    /// Reads `true` or `false`.
    pub fn flag(&mut self, name: &str) -> Result<Option<bool>, Invalid> {
        self.read(name, "true or false", Value::as_bool)
    }

    /// Reads a number.
    pub fn number(&mut self, name: &str) -> Result<Option<f64>, Invalid> {
        self.read(name, "a number", Value::as_f64)
    }

    /// Reads a list.
    pub fn list(&mut self, name: &str) -> Result<Option<&'a Vec<Value>>, Invalid> {
        self.read(name, "a list", Value::as_array)
    }

    /// Reads a whole number from `min` to `max`.
    pub fn integer(&mut self, name: &str, min: i64, max: i64) -> Result<Option<i64>, Invalid> {
        let Some(value) = self.value(name) else {
            return Ok(None);
        };
        let whole = value.as_i64().filter(|number| (min..=max).contains(number));
        whole.map(Some).ok_or_else(|| {
            let rule = format!("must be a whole number from {min} to {max}, got {value}");
            Invalid::new(name, clip(&rule))
        })
    }

    /// Reads a duration: text under `name`, or whole milliseconds under `name_ms`.
    pub fn duration(&mut self, name: &str) -> Result<Option<Duration>, Invalid> {
        let name_ms = format!("{name}_ms");
        match (self.value(name), self.value(&name_ms)) {
            (Some(_), Some(_)) => refuse_both(true, &name_ms, name).map(|()| None),
            (Some(value), None) => duration_of(value).map(Some).map_err(|e| e.within(name)),
            (None, Some(value)) => millis_of(value).map(Some).map_err(|e| e.within(&name_ms)),
            (None, None) => Ok(None),
        }
    }

    /// Reads an instant.
    pub fn timestamp(&mut self, name: &str) -> Result<Option<Timestamp>, Invalid> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        text.parse().map(Some).map_err(|e: Invalid| e.within(name))
    }

    /// Reads a text with `parse`.
    pub fn parsed<T>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, Invalid>,
    ) -> Result<Option<T>, Invalid> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        parse(text).map(Some).map_err(|e| e.within(name))
    }

    /// Refuses fields that were not read.
    pub fn finish(self) -> Result<(), Invalid> {
        let unknown = self.map.keys().find(|key| !self.asked.contains(key));
        match unknown {
            None => Ok(()),
            Some(key) => Err(Invalid::new(key, self.unknown_rule(key))),
        }
    }

    fn unknown_rule(&self, key: &str) -> String {
        match nearest(key, self.asked.iter().map(String::as_str)) {
            Some(known) => format!("is not a known field: did you mean `{known}`?"),
            None => "is not a known field".to_owned(),
        }
    }

    fn read<T>(
        &mut self,
        name: &str,
        expected: &str,
        get: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Invalid> {
        let Some(value) = self.value(name) else {
            return Ok(None);
        };
        let rule = || format!("must be {expected}, got {}", kind_of(value));
        get(value)
            .map(Some)
            .ok_or_else(|| Invalid::new(name, rule()))
    }
}

/// Refuses two spellings of one thing.
pub(crate) fn refuse_both(given: bool, field: &str, other: &str) -> Result<(), Invalid> {
    if given {
        let rule = format!("and `{other}` exclude each other: give one of them");
        return Err(Invalid::new(field, rule));
    }
    Ok(())
}

/// Finds the value of a word; the error lists all words.
pub fn one_of<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, Invalid> {
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let rule = format!("must be one of {}, got {}", names.join(", "), shown(text));
        Invalid::new("", rule)
    })
}

/// A duration as text; a bare number has no unit and is refused with advice.
pub(crate) fn duration_of(value: &Value) -> Result<Duration, Invalid> {
    match value {
        Value::String(text) => parse_duration(text),
        other => Err(Invalid::new(
            "",
            format!(
                "must be text like \"30s\" (or use the `_ms` field for milliseconds), got {}",
                kind_of(other)
            ),
        )),
    }
}

/// A duration in whole milliseconds.
pub(crate) fn millis_of(value: &Value) -> Result<Duration, Invalid> {
    if value.as_i64().is_some_and(i64::is_negative) || value.as_f64().is_some_and(|n| n < 0.0) {
        return Err(Invalid::new("", "must not be negative"));
    }
    let millis = value.as_u64().ok_or_else(|| {
        let rule = format!("must be whole milliseconds, got {value}");
        Invalid::new("", clip(&rule))
    })?;
    check_duration(Duration::from_millis(millis))
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Cuts a message that contains user input.
fn clip(text: &str) -> String {
    const MESSAGE_CHARS_MAX: usize = 120;
    text.chars().take(MESSAGE_CHARS_MAX).collect()
}

/// The name that a user who wrote `word` most likely meant: at most two letters differ.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const DISTANCE_MAX: usize = 2;
    let with_distance = names.into_iter().map(|name| (distance(name, word), name));
    let (distance, name) = with_distance.min_by_key(|(distance, _)| *distance)?;
    (distance <= DISTANCE_MAX).then_some(name)
}

/// The edit distance of two words; words of more than 40 bytes count as different.
fn distance(a: &str, b: &str) -> usize {
    const LONGEST: usize = 40;
    if a.len() > LONGEST || b.len() > LONGEST {
        return usize::MAX;
    }
    strsim::levenshtein(a, b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused<T: std::fmt::Debug>(result: Result<T, Invalid>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn a_wrong_type_is_refused_by_name() {
        let value = json!({"a": 1, "b": "x", "c": [], "d": true, "e": {}});
        let mut fields = Fields::new(&value).unwrap();
        assert_eq!(refused(fields.text("a")), "`a` must be text, got a number");
        assert_eq!(
            refused(fields.number("b")),
            "`b` must be a number, got text"
        );
        assert_eq!(
            refused(fields.flag("c")),
            "`c` must be true or false, got a list"
        );
        assert_eq!(
            refused(fields.list("d")),
            "`d` must be a list, got true or false"
        );
        assert_eq!(refused(fields.text("e")), "`e` must be text, got an object");
        assert_eq!(
            refused(Fields::new(&Value::Null).map(|_| ())),
            "the value must be an object, got null"
        );
    }

    #[test]
    fn whole_numbers_are_checked_against_their_range() {
        let value = json!({"low": -1, "high": 11, "edge": 10, "part": 1.5, "huge": 1e300});
        let mut fields = Fields::new(&value).unwrap();
        assert_eq!(fields.integer("edge", 0, 10), Ok(Some(10)));
        assert_eq!(fields.integer("absent", 0, 10), Ok(None));
        for name in ["low", "high", "part", "huge"] {
            let refusal = fields.integer(name, 0, 10).unwrap_err();
            assert_eq!(refusal.field(), name);
            assert!(refusal.rule().contains("from 0 to 10"));
        }
    }

    #[test]
    fn a_duration_is_text_or_milliseconds_but_not_both() {
        let value = json!({
            "a": "1m 30s", "b_ms": 250, "c": "1s", "c_ms": 1000, "d": 5, "e_ms": -1, "f_ms": 1.5,
            "g": "soon", "h_ms": 1e18, "i_ms": -0.5, "y_ms": 0,
        });
        let mut fields = Fields::new(&value).unwrap();
        assert_eq!(fields.duration("a"), Ok(Some(Duration::from_secs(90))));
        assert_eq!(fields.duration("b"), Ok(Some(Duration::from_millis(250))));
        assert_eq!(fields.duration("z"), Ok(None));
        assert_eq!(fields.duration("y"), Ok(Some(Duration::ZERO)));
        assert!(refused(fields.duration("c")).contains("`c_ms` and `c` exclude each other"));
        assert!(refused(fields.duration("d")).contains("`d` must be text"));
        assert_eq!(refused(fields.duration("e")), "`e_ms` must not be negative");
        assert!(refused(fields.duration("f")).contains("whole milliseconds"));
        assert!(refused(fields.duration("g")).contains("`g` must be a duration"));
        assert!(refused(fields.duration("h")).contains("`h_ms` must be"));
        assert_eq!(refused(fields.duration("i")), "`i_ms` must not be negative");
    }

    #[test]
    fn null_is_the_same_as_absent() {
        let value = json!({"a": null});
        let mut fields = Fields::new(&value).unwrap();
        assert_eq!(fields.text("a"), Ok(None));
        assert_eq!(fields.finish(), Ok(()));
    }

    #[test]
    fn an_unknown_field_is_refused_with_its_nearest_name() {
        let value = json!({"max_atempts": 3});
        let mut fields = Fields::new(&value).unwrap();
        fields.value("max_attempts");
        fields.value("jitter");
        assert_eq!(
            refused(fields.finish()),
            "`max_atempts` is not a known field: did you mean `max_attempts`?"
        );
        let value = json!({"colour": 3});
        let mut fields = Fields::new(&value).unwrap();
        fields.value("jitter");
        assert_eq!(refused(fields.finish()), "`colour` is not a known field");
    }

    #[test]
    fn the_distance_of_words_counts_single_changes() {
        for (a, b, expected) in [
            ("", "", 0),
            ("abc", "abc", 0),
            ("abc", "abd", 1),
            ("abc", "ab", 1),
            ("abc", "xabc", 1),
            ("abc", "cab", 2),
            ("", "abc", 3),
            ("abc", "", 3),
            ("kitten", "sitting", 3),
            ("ab", "axxb", 2),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
        assert_eq!(distance(&"a".repeat(40), &"a".repeat(40)), 0);
        assert_eq!(distance(&"a".repeat(41), "a"), usize::MAX);
        assert_eq!(distance("a", &"a".repeat(41)), usize::MAX);
    }

    #[test]
    fn words_are_found_by_name() {
        let words = [("red", 1), ("blue", 2)];
        assert_eq!(one_of("blue", &words), Ok(2));
        assert_eq!(
            refused(one_of("green", &words)),
            "the value must be one of red, blue, got \"green\""
        );
    }
}
