//! The query of a URL, read field by field as a body is: what nobody asked for is refused.

use std::borrow::Cow;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};
use windlass_core::fields::Fields;
use windlass_core::{Invalid, Timestamp};

/// A query that is being read.
#[derive(Debug)]
pub struct Query<'a>(Fields<'a>);

impl<'a> Query<'a> {
    /// Reads pairs that [`Query::pairs`] took apart.
    pub fn of(pairs: &'a Map<String, Value>) -> Self {
        Query(Fields::of(pairs))
    }

    /// The pairs of a query, decoded. A name that comes twice is refused.
    pub fn pairs(query: &str) -> Result<Map<String, Value>, Invalid> {
        let mut pairs = Map::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decoded(name)?, decoded(value)?);
            if pairs.contains_key(&name) {
                return Err(Invalid::new(name, "is given twice"));
            }
            pairs.insert(name, Value::String(value));
        }
        Ok(pairs)
    }

    /// A parameter as text.
    pub fn text(&mut self, name: &str) -> Result<Option<&'a str>, Invalid> {
        self.0.text(name)
    }

    /// A parameter that is parsed.
    pub fn parsed<T>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, Invalid>,
    ) -> Result<Option<T>, Invalid> {
        self.0.parsed(name, parse)
    }

    /// A whole number from `min` to `max`.
    pub fn integer(&mut self, name: &str, min: u64, max: u64) -> Result<Option<u64>, Invalid> {
        self.0.parsed(name, |text| {
            let number = text.parse().ok().filter(|n| (min..=max).contains(n));
            let rule = || format!("must be a whole number from {min} to {max}");
            number.ok_or_else(|| Invalid::new("", rule()))
        })
    }

    /// A duration: text, or whole milliseconds under `name_ms`.
    pub fn duration(&mut self, name: &str) -> Result<Option<Duration>, Invalid> {
        let name_ms = format!("{name}_ms");
        let millis = self.integer(&name_ms, 0, u64::from(u32::MAX))?;
        let text = self.parsed(name, windlass_core::parse_duration)?;
        windlass_core::fields::refuse_both(text.is_some() && millis.is_some(), &name_ms, name)?;
        Ok(text.or(millis.map(Duration::from_millis)))
    }

    /// An instant.
    pub fn timestamp(&mut self, name: &str) -> Result<Option<Timestamp>, Invalid> {
        self.0.timestamp(name)
    }

    /// Refuses the parameters that nobody asked for.
    pub fn finish(self) -> Result<(), Invalid> {
        self.0.finish()
    }
}

/// Text without its percent escapes; `+` is a space.
fn decoded(text: &str) -> Result<String, Invalid> {
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut escapes = text.split('%').skip(1);
    if !escapes.all(|rest| rest.get(..2).is_some_and(is_digits)) {
        return Err(Invalid::new("", "has a broken percent escape in its query"));
    }
    let text = text.replace('+', " ");
    let text = percent_decode_str(&text).decode_utf8();
    let text = text.ok().filter(|text| !text.contains('\0'));
    let text = text.map(Cow::into_owned);
    text.ok_or_else(|| Invalid::new("", "must have a query in UTF-8 without NUL characters"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pairs_are_decoded() {
        let pairs = Query::pairs("a=1&b=x+y%2Fz&c&d=%C3%A9").unwrap();
        let mut query = Query::of(&pairs);
        assert_eq!(query.integer("a", 0, 5), Ok(Some(1)));
        assert_eq!(query.text("b"), Ok(Some("x y/z")));
        assert_eq!(query.text("c"), Ok(Some("")));
        assert_eq!(query.text("d"), Ok(Some("é")));
        assert_eq!(query.finish(), Ok(()));
    }

    #[test]
    fn what_breaks_a_rule_is_refused_by_name() {
        for (query, field) in [
            ("a=1&a=2", "a"),
            ("a=%zz", ""),
            ("a=%ff", ""),
            ("a=%00", ""),
        ] {
            assert_eq!(Query::pairs(query).unwrap_err().field(), field, "{query}");
        }
        let pairs = Query::pairs("limit=1000000000&wait=soon&wait2=1s&wait2_ms=5&more=1").unwrap();
        let mut query = Query::of(&pairs);
        assert_eq!(
            query.integer("limit", 1, 1000).unwrap_err().field(),
            "limit"
        );
        assert_eq!(query.duration("wait").unwrap_err().field(), "wait");
        assert_eq!(query.duration("wait2").unwrap_err().field(), "wait2_ms");
        assert_eq!(query.finish().unwrap_err().field(), "more");
    }

    proptest! {
        #[test]
        fn no_query_panics(text in any::<String>()) {
            let _ = Query::pairs(&text);
        }
    }
}
