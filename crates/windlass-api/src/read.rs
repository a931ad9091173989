//! Reading a request body into its type, with all problems reported at once.
//!
//! Serde reads a valid body once. If serde refuses a field, the body is read again without that
//! field, until only valid fields are left. Rules that concern several fields are checked last. So
//! the types stay plain structs, and no route can forget to check a field.

#[cfg(test)]
mod tests;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value};
use serde_path_to_error::Segment;
use windlass_core::fields::nearest;
use windlass_core::{Invalid, Timestamp};

use crate::Malformed;

/// The most problems that are reported for one body.
pub const PROBLEMS_MAX: usize = 100;

/// For larger bodies, only the first problem is reported, because a parsed JSON tree takes many
/// times the memory of its text.
const MENDED_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The most bytes that are read in total to find all problems of a refused body.
const READ_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The body or the query of a request. The types of its fields check each field, `check` the rules
/// that concern several fields.
///
/// Every field is optional for serde, even a required one, so that one invalid field does not hide
/// the problems of the others. `check` reports missing fields.
pub trait Body: DeserializeOwned + JsonSchema + 'static {
    /// The checked body.
    type Checked: Send + 'static;

    /// Checks the rules that concern several fields. If it returns `None`, it has reported a
    /// problem. If it has reported a problem, the caller ignores what it returns.
    fn check(self, checks: &mut Checks) -> Option<Self::Checked>;
}

/// Why a body was refused.
#[derive(Debug)]
pub enum BodyRefused {
    /// The body is not JSON.
    Malformed(Malformed),
    /// At least one field is invalid. Lists at most [`PROBLEMS_MAX`] problems.
    Invalid(Vec<Invalid>),
}

/// Reads and checks a body, or returns all its problems.
pub fn read_body<B: Body>(text: &str, now: Timestamp) -> Result<B::Checked, BodyRefused> {
    read_body_with(text, now, B::check)
}

/// Reads a body whose rules depend on more than the body, such as the path of the request or stored
/// data. `check` does what [`Body::check`] does for other bodies.
pub fn read_body_with<B: DeserializeOwned, T>(
    text: &str,
    now: Timestamp,
    check: impl FnOnce(B, &mut Checks) -> Option<T>,
) -> Result<T, BodyRefused> {
    match serde_json::from_str::<B>(text) {
        // serde also reads a struct from a list of its fields.
        _ if text.trim_ascii_start().starts_with('[') => {
            match serde_json::from_str::<IgnoredAny>(text) {
                Ok(_) => {
                    let problem = Invalid::new("", "must be an object, got a list");
                    Err(BodyRefused::Invalid(vec![problem]))
                }
                Err(error) => Err(BodyRefused::Malformed(Malformed::new(&error))),
            }
        }
        Ok(body) => check_body(body, now, check).map_err(BodyRefused::Invalid),
        Err(error) if error.is_data() => Err(if text.len() <= MENDED_BYTES_MAX {
            all_problems(text, now, check)
        } else {
            first_problem::<B>(text)
        }),
        Err(error) => Err(BodyRefused::Malformed(Malformed::new(&error))),
    }
}

/// Checks the rules that concern several fields, or returns all problems.
pub(crate) fn check_body<B, T>(
    body: B,
    now: Timestamp,
    check: impl FnOnce(B, &mut Checks) -> Option<T>,
) -> Result<T, Vec<Invalid>> {
    let mut checks = Checks::new(now);
    match (check(body, &mut checks), checks.problems.is_empty()) {
        (Some(checked), true) => Ok(checked),
        _ => Err(checks.problems),
    }
}

/// Declares a request: a struct with optional fields that refuses unknown fields.
macro_rules! request {
    (
        $(#[$about:meta])*
        pub struct $name:ident {
            $($(#[$field_about:meta])* pub $field:ident: $type:ty,)*
        }
    ) => {
        #[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields, remote = "Self")]
        $(#[$about])*
        pub struct $name {
            $(
                $(#[$field_about])*
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $field: Option<$type>,
            )*
        }

        $crate::read::only_object!($name);
    };
}

pub(crate) use request;

/// Implements serde for structs that are read only from an object. What serde derives also reads a
/// struct from a list of its fields, in their order. The struct needs `#[serde(remote = "Self")]`,
/// with which serde derives functions instead of traits.
macro_rules! only_object {
    ($($type:ident),+ $(,)?) => {$(
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $type::serialize(self, serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Object;

                impl<'de> serde::de::Visitor<'de> for Object {
                    type Value = $type;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("a map")
                    }

                    fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<$type, A::Error> {
                        $type::deserialize(serde::de::value::MapAccessDeserializer::new(map))
                    }
                }

                deserializer.deserialize_map(Object)
            }
        }
    )+};
}

pub(crate) use only_object;

/// Implements [`Body`] for a type without rules that concern several fields.
#[macro_export]
macro_rules! plain_body {
    ($($type:ty),+ $(,)?) => {$(
        impl $crate::Body for $type {
            type Checked = Self;

            fn check(self, _: &mut $crate::Checks) -> Option<Self> {
                Some(self)
            }
        }
    )+};
}

/// A query parameter.
#[derive(Debug, Clone)]
pub struct Param {
    /// The name of the parameter.
    pub name: String,
    /// Whether the parameter is required.
    pub required: bool,
    /// The JSON Schema of the parameter.
    pub schema: Value,
}

/// The query parameters that a type declares.
pub fn params<B: Body>() -> Vec<Param> {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let schema = SchemaGenerator::new(settings).into_root_schema_for::<B>();
    let required = |name: &str| {
        let required = schema.get("required").and_then(Value::as_array);
        required.is_some_and(|names| names.iter().any(|required| required == name))
    };
    let properties = schema.get("properties").and_then(Value::as_object);
    let param = |(name, schema): (&String, &Value)| Param {
        name: name.clone(),
        required: required(name),
        schema: without_null(schema),
    };
    properties.into_iter().flatten().map(param).collect()
}

/// Removes `null` from a schema: a parameter that is not given is absent, never `null`.
fn without_null(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|one| one != "null");
        if let [one] = types.as_mut_slice() {
            let one = one.take();
            if let Some(schema) = schema.as_object_mut() {
                schema.insert("type".to_owned(), one);
            }
        }
    }
    if let Some(Value::Array(shapes)) = schema.get_mut("anyOf") {
        shapes.retain(|shape| shape.get("type").is_none_or(|kind| kind != "null"));
    }
    if let Some(Value::Array(words)) = schema.get_mut("enum") {
        words.retain(|word| !word.is_null());
    }
    schema
}

/// Reads a query from its decoded pairs, or returns all its problems. Ignores pairs that are not in
/// `params`, the parameters of the type, because another type reads them.
pub fn read_query<B: Body>(
    pairs: &Map<String, Value>,
    params: &[Param],
    now: Timestamp,
) -> Result<B::Checked, Vec<Invalid>> {
    let fields = params.iter().filter_map(|param| {
        let text = pairs.get(&param.name)?;
        Some((param.name.clone(), typed(text, &param.schema)))
    });
    let value = Value::Object(fields.collect());
    let mut checks = Checks::new(now);
    read_value(value, &mut checks, PROBLEMS_MAX, B::check)
        .filter(|_| checks.problems.is_empty())
        .ok_or(checks.problems)
}

/// Converts the text of a parameter to the JSON type that its schema expects, if possible.
fn typed(text: &Value, schema: &Value) -> Value {
    let is_text = schema.get("type").is_none_or(|kind| kind == "string");
    let written = text.as_str().filter(|_| !is_text);
    let read = written.and_then(|text| serde_json::from_str(text).ok());
    read.unwrap_or_else(|| text.clone())
}

/// The first problem of a body that serde refused.
pub(crate) fn first_problem<B: DeserializeOwned>(text: &str) -> BodyRefused {
    let mut reader = serde_json::Deserializer::from_str(text);
    let read = serde_path_to_error::deserialize::<_, B>(&mut reader);
    BodyRefused::Invalid(read.err().iter().map(|error| refusal(error, &[])).collect())
}

/// Returns all problems of a body that serde refused.
fn all_problems<B: DeserializeOwned, T>(
    text: &str,
    now: Timestamp,
    check: impl FnOnce(B, &mut Checks) -> Option<T>,
) -> BodyRefused {
    let value = match serde_json::from_str::<Value>(text) {
        Ok(value) => value,
        Err(error) => return BodyRefused::Malformed(Malformed::new(&error)),
    };
    let mut checks = Checks::new(now);
    // Only the text still has a name that is given twice.
    if let BodyRefused::Invalid(first) = first_problem::<B>(text) {
        first.into_iter().for_each(|problem| checks.report(problem));
    }
    let reads_max = (READ_BYTES_MAX / text.len().max(1)).clamp(1, PROBLEMS_MAX);
    read_value(value, &mut checks, reads_max, check);
    BodyRefused::Invalid(checks.problems)
}

/// Reads a value without its invalid fields, and reports a problem for each of them.
fn read_value<B: DeserializeOwned, T>(
    mut value: Value,
    checks: &mut Checks,
    reads_max: usize,
    check: impl FnOnce(B, &mut Checks) -> Option<T>,
) -> Option<T> {
    for _ in 0..reads_max {
        let error = match serde_path_to_error::deserialize::<_, B>(&value) {
            Ok(body) => return check(body, checks),
            Err(error) => error,
        };
        checks.report(refusal(&error, &checks.removed));
        if !remove(&mut value, error.path(), &mut checks.removed) {
            break;
        }
    }
    None
}

/// An element that was removed from a list: the path of the list and the original index.
type RemovedElement = (String, usize);

/// Removes the field that serde refused. Returns whether that was possible.
fn remove(
    value: &mut Value,
    path: &serde_path_to_error::Path,
    removed: &mut Vec<RemovedElement>,
) -> bool {
    let segments: Vec<&Segment> = path.iter().collect();
    let Some((last, outer)) = segments.split_last() else {
        return false;
    };
    let (mut inner, mut list) = (value, String::new());
    for segment in outer {
        list = joined(list, segment, removed);
        let next = match segment {
            Segment::Map { key } => inner.get_mut(key),
            Segment::Seq { index } => inner.get_mut(index),
            Segment::Enum { .. } | Segment::Unknown => None,
        };
        let Some(next) = next else {
            return false;
        };
        inner = next;
    }
    match (inner, last) {
        (Value::Object(map), Segment::Map { key }) => map.remove(key).is_some(),
        (Value::Array(elements), Segment::Seq { index }) if *index < elements.len() => {
            elements.remove(*index);
            let index = original_index(&list, *index, removed);
            removed.push((list, index));
            removed.sort();
            true
        }
        _ => false,
    }
}

/// The index of an element before others were removed from its list.
fn original_index(list: &str, index: usize, removed: &[RemovedElement]) -> usize {
    let of_list = removed.iter().filter(|(other, _)| other == list);
    of_list.fold(index, |index, (_, removed_index)| {
        index + usize::from(*removed_index <= index)
    })
}

fn joined(mut path: String, segment: &Segment, removed: &[RemovedElement]) -> String {
    match segment {
        Segment::Map { key } if path.is_empty() => key.clone(),
        Segment::Map { key } => path + "." + key,
        Segment::Seq { index } => {
            let index = original_index(&path, *index, removed);
            path.push_str(&format!("[{index}]"));
            path
        }
        Segment::Enum { .. } | Segment::Unknown => path,
    }
}

/// Converts an error of serde to a field and the rule that it breaks.
fn refusal(
    error: &serde_path_to_error::Error<serde_json::Error>,
    removed: &[RemovedElement],
) -> Invalid {
    let path = error.path().iter();
    let field = path.fold(String::new(), |path, segment| {
        joined(path, segment, removed)
    });
    let message = error.inner().to_string();
    // The line and column of serde_json are dropped, because the field says more.
    let message = message.split(" at line ").next().unwrap_or_default();
    if let Some(missing) = message.strip_prefix("missing field `") {
        let missing = missing.trim_end_matches('`');
        return Invalid::new(missing, "is required").within(&field);
    }
    if let Some(twice) = message.strip_prefix("duplicate field `") {
        let name = twice.trim_end_matches('`');
        let outer = field.strip_suffix(name).unwrap_or(&field);
        return Invalid::new(name, "is given twice").within(outer.trim_end_matches('.'));
    }
    Invalid::new(field, rule(message))
}

/// Converts a message of serde to a rule that follows the name of a field.
fn rule(message: &str) -> String {
    if let Some(rule) = message.strip_prefix("the value ") {
        return rule.to_owned();
    }
    if let Some((name, known)) = unexpected(message, "unknown field") {
        return unknown_rule(name, known);
    }
    if let Some((word, known)) = unexpected(message, "unknown variant") {
        return format!("must be one of {}, got {word:?}", known.join(", "));
    }
    let Some((found, expected)) = message
        .strip_prefix("invalid type: ")
        .or(message.strip_prefix("invalid value: "))
        .and_then(|rest| rest.split_once(", expected "))
    else {
        return format!("is invalid: {message}");
    };
    let expected = match expected {
        "a string" => "text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        "i16" => "a whole number from -32768 to 32767",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number from 0 to 18446744073709551615",
        "i64" => "a whole number",
        "f64" => "a number",
        other if other.starts_with("struct ") => "an object",
        other => other,
    };
    let found = match found.split_once(' ') {
        Some(("integer" | "floating", number)) => {
            number.trim_start_matches("point ").replace('`', "")
        }
        Some(("string", _)) => "text".to_owned(),
        Some(("boolean", _)) => "true or false".to_owned(),
        _ => match found {
            "map" => "an object".to_owned(),
            "sequence" => "a list".to_owned(),
            other => other.to_owned(),
        },
    };
    format!("must be {expected}, got {found}")
}

/// The rule for an unknown field.
pub(crate) fn unknown_rule<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    match nearest(name, known) {
        Some(known) => format!("is not a known field: did you mean `{known}`?"),
        None => "is not a known field".to_owned(),
    }
}

/// The name that serde did not expect, and the names that it did expect.
fn unexpected<'a>(message: &'a str, what: &str) -> Option<(&'a str, Vec<&'a str>)> {
    let mut quoted = message.strip_prefix(what)?.split('`').skip(1).step_by(2);
    Some((quoted.next()?, quoted.collect()))
}

/// The problems of one body, found so far.
#[derive(Debug)]
pub struct Checks {
    now: Timestamp,
    /// The path of the object that is being checked.
    prefix: String,
    /// The list elements that were removed because they are invalid.
    removed: Vec<RemovedElement>,
    problems: Vec<Invalid>,
}

impl Checks {
    fn new(now: Timestamp) -> Self {
        Checks {
            now,
            prefix: String::new(),
            removed: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// When the server received the request.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Reports that a field breaks a rule, unless the field already has a problem.
    pub fn refuse(&mut self, field: &str, rule: impl Into<String>) {
        self.report(Invalid::new(field, rule));
    }

    /// Reports a problem, unless its field already has one.
    pub fn report(&mut self, problem: Invalid) {
        let problem = problem.within(&self.prefix);
        if !is_known(&self.problems, problem.field()) && self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }

    /// Returns the value, or reports the problem and returns `None`.
    pub fn keep<T>(&mut self, checked: Result<T, Invalid>) -> Option<T> {
        checked.map_err(|problem| self.report(problem)).ok()
    }

    /// Reports a problem if a required field is missing.
    pub fn required<T>(&mut self, field: &str, value: Option<T>) -> Option<T> {
        if value.is_none() {
            self.refuse(field, "is required");
        }
        value
    }

    /// Reports a problem if both fields are given. Returns the one that is given.
    pub fn exclusive<T>(
        &mut self,
        (field, value): (&str, Option<T>),
        (other, other_value): (&str, Option<T>),
    ) -> Option<T> {
        if value.is_some() && other_value.is_some() {
            let rule = format!("and `{field}` exclude each other: give one of them");
            self.refuse(other, rule);
        }
        value.or(other_value)
    }

    /// Reports a problem if a field is given without another field that it needs.
    pub fn needs(&mut self, (field, given): (&str, bool), (other, other_given): (&str, bool)) {
        if given && !other_given && !self.is_refused(other) {
            self.refuse(field, format!("is only allowed together with `{other}`"));
        }
    }

    /// Whether this field, or a field inside it, already has a problem.
    pub fn is_refused(&self, field: &str) -> bool {
        let path = Invalid::new(field, "").within(&self.prefix);
        is_known(&self.problems, path.field())
    }

    /// Checks the elements of a list. Returns `None` if one of them is invalid.
    pub fn each<T, C>(
        &mut self,
        field: &str,
        elements: Vec<T>,
        check: impl Fn(&mut Checks, T) -> Option<C>,
    ) -> Option<Vec<C>> {
        let list = Invalid::new(field, "").within(&self.prefix);
        let mut checked = Some(Vec::with_capacity(elements.len()));
        for (index, element) in elements.into_iter().enumerate() {
            let index = original_index(list.field(), index, &self.removed);
            let one = self.within(&format!("{field}[{index}]"), |checks| {
                check(checks, element)
            });
            checked = checked.zip(one).map(|(mut checked, one)| {
                checked.push(one);
                checked
            });
        }
        checked
    }

    /// Checks an object that is the value of `field`.
    pub fn within<T>(&mut self, field: &str, check: impl FnOnce(&mut Checks) -> T) -> T {
        let inner = Invalid::new(field, "").within(&self.prefix);
        let outer = std::mem::replace(&mut self.prefix, inner.field().to_owned());
        let checked = check(self);
        self.prefix = outer;
        checked
    }
}

fn is_known(problems: &[Invalid], field: &str) -> bool {
    problems.iter().any(|known| {
        let rest = known.field().strip_prefix(field);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    })
}
