//! Reading a body into its type, so that everything wrong with it is reported at once.
//!
//! A body that keeps all rules is read once, by serde. A body that does not is read again without
//! the field that was refused, until only good fields are left; rules that concern several fields
//! are checked last. So types stay plain, and no route can forget a field.

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

/// At most this many problems of one body are reported.
pub const PROBLEMS_MAX: usize = 100;

/// Only the first problem of a larger body is reported: as a tree, JSON takes many times its room.
const MENDED_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A refused body is read again until this many bytes were read.
const READ_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A body or the query of a request: its fields say what each must be, `check` what they must be
/// together.
///
/// Every field is optional for serde, also a required one, so that a refused field does not hide
/// the others; `check` asks for it.
pub trait Body: DeserializeOwned + JsonSchema + 'static {
    /// What the body means.
    type Checked: Send + 'static;

    /// Checks the rules that concern several fields. What it returns counts only if it reported no
    /// problem; it reports one where it returns none.
    fn check(self, checks: &mut Checks) -> Option<Self::Checked>;
}

/// Why a body was refused.
#[derive(Debug)]
pub enum BodyRefused {
    /// It is not JSON.
    Malformed(Malformed),
    /// Fields break rules: at least one, at most [`PROBLEMS_MAX`].
    Invalid(Vec<Invalid>),
}

/// Reads a body, or returns everything that is wrong with it.
pub fn read_body<B: Body>(text: &str, now: Timestamp) -> Result<B::Checked, BodyRefused> {
    read_body_with(text, now, B::check)
}

/// Reads a body whose rules over several fields need more than the body: the path of the request,
/// or what is stored. `check` does what [`Body::check`] does for other bodies.
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
        Err(error) if error.is_data() => Err(match text.len() <= MENDED_BYTES_MAX {
            true => all_problems(text, now, check),
            false => first_problem::<B>(text),
        }),
        Err(error) => Err(BodyRefused::Malformed(Malformed::new(&error))),
    }
}

/// Checks the rules over several fields of a body, or returns all that are broken.
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

/// Declares a request: a struct whose fields may all be left out, and that has no others.
macro_rules! request {
    (
        $(#[$about:meta])*
        pub struct $name:ident {
            $($(#[$field_about:meta])* pub $field:ident: $type:ty,)*
        }
    ) => {
        #[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields)]
        $(#[$about])*
        pub struct $name {
            $(
                $(#[$field_about])*
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $field: Option<$type>,
            )*
        }
    };
}

pub(crate) use request;

/// Declares that a type is a [`Body`] whose fields have no rules in common.
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

/// One parameter of a query.
#[derive(Debug, Clone)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// Whether it must be given.
    pub required: bool,
    /// Its shape.
    pub schema: Value,
}

/// The parameters that a type declares.
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

/// A parameter that is not given is absent, never `null`.
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

/// Reads a query from its decoded pairs, or returns everything that is wrong with it. Pairs that
/// are not among `params`, the parameters of the type, are left to others.
pub fn read_query<B: Body>(
    pairs: &Map<String, Value>,
    params: &[Param],
    now: Timestamp,
) -> Result<B::Checked, Vec<Invalid>> {
    let ours = params.iter().filter_map(|param| {
        let text = pairs.get(&param.name)?;
        Some((param.name.clone(), typed(text, &param.schema)))
    });
    let value = Value::Object(ours.collect());
    let mut checks = Checks::new(now);
    read_value(value, &mut checks, PROBLEMS_MAX, B::check)
        .filter(|_| checks.problems.is_empty())
        .ok_or(checks.problems)
}

/// The text of a parameter as the JSON that its schema expects, if it is that.
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

/// All problems of a body that serde refused.
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

/// Reads a value without its bad fields, whose problems it reports.
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

/// An element that was taken out of a list: the path of the list, and where the element stood.
type RemovedElement = (String, usize);

/// Takes out the field that was refused; whether it could.
fn remove(
    value: &mut Value,
    path: &serde_path_to_error::Path,
    removed: &mut Vec<RemovedElement>,
) -> bool {
    let segments: Vec<&Segment> = path.iter().collect();
    let Some((last, outer)) = segments.split_last() else {
        return false;
    };
    let (mut found, mut list) = (value, String::new());
    for segment in outer {
        list = joined(list, segment, removed);
        let inner = match segment {
            Segment::Map { key } => found.get_mut(key),
            Segment::Seq { index } => found.get_mut(index),
            Segment::Enum { .. } | Segment::Unknown => None,
        };
        let Some(inner) = inner else {
            return false;
        };
        found = inner;
    }
    match (found, last) {
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

/// Where an element stood before others were taken out of its list.
fn original_index(list: &str, index: usize, removed: &[RemovedElement]) -> usize {
    let of_list = removed.iter().filter(|(other, _)| other == list);
    of_list.fold(index, |index, (_, gone)| {
        index + usize::from(*gone <= index)
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

/// What serde refused, as field and rule.
fn refusal(
    error: &serde_path_to_error::Error<serde_json::Error>,
    removed: &[RemovedElement],
) -> Invalid {
    let path = error.path().iter();
    let field = path.fold(String::new(), |path, segment| {
        joined(path, segment, removed)
    });
    let message = error.inner().to_string();
    // serde_json says where in the text it is, which the field says better.
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

/// A message of serde as a rule that follows the name of a field.
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

/// The rule that an unknown name breaks.
pub(crate) fn unknown_rule<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    match nearest(name, known) {
        Some(known) => format!("is not a known field: did you mean `{known}`?"),
        None => "is not a known field".to_owned(),
    }
}

/// The name that serde did not expect, and those it did.
fn unexpected<'a>(message: &'a str, what: &str) -> Option<(&'a str, Vec<&'a str>)> {
    let mut quoted = message.strip_prefix(what)?.split('`').skip(1).step_by(2);
    Some((quoted.next()?, quoted.collect()))
}

/// The problems of one body, and what rules over several fields need to know.
#[derive(Debug)]
pub struct Checks {
    now: Timestamp,
    /// The path of the object that is checked.
    prefix: String,
    /// The elements that were refused before.
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

    /// When the request came.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Reports that a field breaks a rule, unless a problem of it is known.
    pub fn refuse(&mut self, field: &str, rule: impl Into<String>) {
        self.report(Invalid::new(field, rule));
    }

    /// Reports a problem, unless one of the same field is known.
    pub fn report(&mut self, problem: Invalid) {
        let problem = problem.within(&self.prefix);
        if !is_known(&self.problems, problem.field()) && self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }

    /// The value of a rule of core, or none with its problem reported.
    pub fn keep<T>(&mut self, checked: Result<T, Invalid>) -> Option<T> {
        checked.map_err(|problem| self.report(problem)).ok()
    }

    /// A field that must be there.
    pub fn required<T>(&mut self, field: &str, value: Option<T>) -> Option<T> {
        if value.is_none() {
            self.refuse(field, "is required");
        }
        value
    }

    /// Refuses two fields that say the same thing.
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

    /// Refuses a field that says nothing without another one.
    pub fn needs(&mut self, (field, given): (&str, bool), (other, other_given): (&str, bool)) {
        if given && !other_given && !self.is_refused(other) {
            self.refuse(field, format!("says nothing without `{other}`"));
        }
    }

    /// Whether a problem of this field, or of something within it, is known.
    pub fn is_refused(&self, field: &str) -> bool {
        let path = Invalid::new(field, "").within(&self.prefix);
        is_known(&self.problems, path.field())
    }

    /// Checks the elements of a list; none if one of them was refused.
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

    /// Checks an object within this one.
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
