//! Mending a field of a refused body, so that the others can be read.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use windlass_core::Invalid;

use crate::schema::{Schema, components};

/// Every shape that has a name.
static COMPONENTS: LazyLock<BTreeMap<&'static str, Value>> = LazyLock::new(|| {
    let named = components().into_iter();
    named
        .map(|(name, schema)| (name, schema.into_json()))
        .collect()
});

/// A refused body, in which bad fields are mended one after the other.
pub(super) struct Mender {
    body: Value,
    shape: Option<Value>,
    /// How often each field was complained about.
    mended: BTreeMap<String, usize>,
}

/// One step from an object or a list to what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Field(String),
    Item(usize),
}

impl Mender {
    pub(super) fn new(body: Value, schema: Option<&str>) -> Self {
        Mender {
            body,
            shape: schema.map(|name| Schema::named(name).into_json()),
            mended: BTreeMap::new(),
        }
    }

    pub(super) fn text(&self) -> String {
        self.body.to_string()
    }

    /// Whether a problem comes from what was mended: it is about such a field, or names it in its
    /// rule. The rule of an unknown field does not count: it suggests a field that may have been
    /// missing.
    pub(super) fn caused(&self, problem: &Invalid) -> bool {
        let is_unknown = problem.rule().starts_with("is not a known field");
        let names = |field: &String| {
            let name = field.rsplit('.').next().unwrap_or(field);
            problem.rule().contains(&format!("`{name}`"))
        };
        self.mended.contains_key(problem.field()) || (!is_unknown && self.mended.keys().any(names))
    }

    /// Makes a bad field one that can be read, or its parent where that does not help. Whether
    /// there is anything left to try.
    ///
    /// A field gets a value that its schema allows: so the rules between fields still hold. One
    /// without a schema, or whose new value is refused too, is left out. After that the object
    /// around it is the one that is bad.
    pub(super) fn mend(&mut self, field: &str) -> bool {
        if field.is_empty() {
            return false;
        }
        let tries = self.mended.entry(field.to_owned()).or_default();
        *tries += 1;
        let tries = *tries;
        let path = match self.body.get(field) {
            Some(_) => vec![Step::Field(field.to_owned())],
            None => steps(field),
        };
        let value = self.stand_in(&path, tries);
        let mended = match tries {
            1 if value.is_some() => self.set(&path, value),
            1 | 2 => self.set(&path, None),
            _ => false,
        };
        let parent = field.rfind(['.', '[']).and_then(|end| field.get(..end));
        mended || parent.is_some_and(|parent| self.mend(parent))
    }

    /// Puts a value at the end of a path, or takes away what is there. Whether the path leads
    /// anywhere.
    fn set(&mut self, path: &[Step], value: Option<Value>) -> bool {
        let Some((last, outer)) = path.split_last() else {
            return false;
        };
        let mut at = &mut self.body;
        for step in outer {
            let inner = match step {
                Step::Field(name) => at.get_mut(name),
                Step::Item(position) => at.get_mut(position),
            };
            match inner {
                Some(inner) => at = inner,
                None => return false,
            }
        }
        match (at, last, value) {
            (Value::Object(map), Step::Field(name), Some(value)) => {
                map.insert(name.clone(), value);
            }
            (Value::Object(map), Step::Field(name), None) => {
                map.remove(name);
            }
            (Value::Array(list), Step::Item(position), Some(value)) => {
                match list.get_mut(*position) {
                    Some(item) => *item = value,
                    None => return false,
                }
            }
            _ => return false,
        }
        true
    }

    /// A value that the schema allows at the end of a path, another one for each item.
    fn stand_in(&self, path: &[Step], tries: usize) -> Option<Value> {
        let number = match path.last() {
            Some(Step::Item(position)) => *position,
            _ => tries,
        };
        self.example(&self.shape_at(path)?, number)
    }

    fn example(&self, shape: &Value, number: usize) -> Option<Value> {
        if let Some(Value::Array(examples)) = shape.get("examples") {
            return examples.first().cloned();
        }
        let shape = self.resolved(shape)?;
        let first = |list: &str| shape.get(list)?.as_array()?.first().cloned();
        if let Some(value) = first("examples").or_else(|| first("enum")) {
            return Some(value);
        }
        if let Some(either) = first("anyOf") {
            return self.example(&either, number);
        }
        let minimum = |name: &str| shape.get(name).and_then(Value::as_u64).unwrap_or(0);
        let kind = match shape.get("type") {
            Some(Value::Array(kinds)) => kinds.first().and_then(Value::as_str),
            kind => kind.and_then(Value::as_str),
        };
        Some(match (kind, shape.get("format").and_then(Value::as_str)) {
            (Some("string"), Some("uuid")) => {
                format!("00000000-0000-7000-8000-{number:012x}").into()
            }
            (Some("string"), Some("date-time")) => "2100-01-01T00:00:00Z".into(),
            (Some("string"), _) => format!("x{number}").into(),
            (Some("integer" | "number"), _) => shape.get("minimum").cloned().unwrap_or(json!(1)),
            (Some("boolean"), _) => false.into(),
            (Some("array"), _) => {
                let item = shape.get("items")?;
                let count = usize::try_from(minimum("minItems")).unwrap_or(0);
                let items = (0..count).map(|position| self.example(item, position));
                Value::Array(items.collect::<Option<_>>()?)
            }
            (Some("object"), _) => Value::Object(self.smallest(&shape)?),
            _ => true.into(),
        })
    }

    /// The object with only what must be there.
    fn smallest(&self, shape: &Value) -> Option<Map<String, Value>> {
        let required = shape.get("required").and_then(Value::as_array);
        let names = required.into_iter().flatten().filter_map(Value::as_str);
        let field = |name: &str| {
            let inner = shape.get("properties")?.get(name)?;
            Some((name.to_owned(), self.example(inner, 0)?))
        };
        names.map(field).collect()
    }

    /// The shape of what a path leads to.
    fn shape_at(&self, path: &[Step]) -> Option<Value> {
        let mut shape = self.shape.clone()?;
        for step in path {
            let outer = self.resolved(&shape)?;
            let inner = |shape: &Value| match step {
                Step::Field(name) => shape.get("properties")?.get(name).cloned(),
                Step::Item(_) => shape.get("items").cloned(),
            };
            let either = outer.get("anyOf").and_then(Value::as_array);
            let alternatives = either.into_iter().flatten();
            let alternatives = alternatives.filter_map(|one| self.resolved(one));
            shape = alternatives
                .chain([outer.clone()])
                .find_map(|one| inner(&one))?;
        }
        Some(shape)
    }

    /// The shape itself, where it is named by another or stands within a sentence about it.
    fn resolved(&self, shape: &Value) -> Option<Value> {
        if let Some(all) = shape.get("allOf").and_then(Value::as_array) {
            return self.resolved(all.first()?);
        }
        let Some(name) = shape.get("$ref").and_then(Value::as_str) else {
            return Some(shape.clone());
        };
        let name = name.rsplit('/').next()?;
        self.resolved(COMPONENTS.get(name)?)
    }
}

/// The steps of a path such as `jobs[1].retry.backoff`.
fn steps(path: &str) -> Vec<Step> {
    let parts = path.split(['.', '[']).filter(|part| !part.is_empty());
    let step = |part: &str| match part.strip_suffix(']').map(str::parse) {
        Some(Ok(position)) => Step::Item(position),
        _ => Step::Field(part.to_owned()),
    };
    parts.map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_taken_apart() {
        let field = |name: &str| Step::Field(name.to_owned());
        assert_eq!(
            steps("jobs[12].retry"),
            [field("jobs"), Step::Item(12), field("retry")]
        );
        assert_eq!(steps("tags[0]"), [field("tags"), Step::Item(0)]);
    }

    #[test]
    fn a_field_is_replaced_then_left_out_then_its_parent_is_bad() {
        let body = json!({"cron": "soon", "job": {"kind": 5}, "colour": {"red": 1}});
        let mut mender = Mender::new(body, Some("NewSchedule"));
        assert!(mender.mend("cron"));
        assert!(mender.body["cron"].is_string());
        assert!(mender.mend("cron"));
        assert_eq!(mender.body.get("cron"), None);
        assert!(!mender.mend("cron"));
        assert!(mender.mend("job.kind"));
        assert!(mender.body["job"]["kind"].is_string());
        assert!(mender.mend("colour.red"));
        assert_eq!(mender.body["colour"], json!({}), "it has no schema");
        assert!(
            mender.mend("colour.red.dark"),
            "nothing is there: the parent"
        );
        assert!(!mender.mend(""));
    }

    #[test]
    fn what_follows_from_a_mended_field_is_known_as_such() {
        let mut mender = Mender::new(json!({"unique_key": ""}), Some("NewJob"));
        mender.mend("unique_key");
        assert!(mender.caused(&Invalid::new("unique_for", "needs `unique_key`")));
        assert!(mender.caused(&Invalid::new("unique_key", "is required")));
        assert!(!mender.caused(&Invalid::new("queue", "is bad")));
    }
}
