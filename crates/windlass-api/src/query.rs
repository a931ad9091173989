//! Parsing the query of a URL.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};
use windlass_core::Invalid;

/// Parses the query of a URL into decoded names and values. Refuses a name that is given twice.
pub fn query_pairs(query: &str) -> Result<Map<String, Value>, Invalid> {
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

/// Decodes percent escapes; `+` is a space.
fn decoded(text: &str) -> Result<String, Invalid> {
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut escapes = text.split('%').skip(1);
    if !escapes.all(|rest| rest.get(..2).is_some_and(is_digits)) {
        return Err(Invalid::new(
            "",
            "must be a query with valid percent escapes",
        ));
    }
    let text = text.replace('+', " ");
    let text = percent_decode_str(&text).decode_utf8();
    let text = text.ok().filter(|text| !text.contains('\0'));
    let text = text.map(Cow::into_owned);
    text.ok_or_else(|| Invalid::new("", "must be a query in UTF-8 without NUL characters"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn pairs_are_decoded() {
        let pairs = query_pairs("a=1&b=x+y%2Fz&c&d=%C3%A9").unwrap();
        let expected = json!({"a": "1", "b": "x y/z", "c": "", "d": "é"});
        assert_eq!(Value::Object(pairs), expected);
    }

    #[test]
    fn a_query_that_breaks_a_rule_is_refused_by_name() {
        for (query, field) in [
            ("a=1&a=2", "a"),
            ("a=%zz", ""),
            ("a=%ff", ""),
            ("a=%00", ""),
        ] {
            assert_eq!(query_pairs(query).unwrap_err().field(), field, "{query}");
        }
    }

    proptest! {
        #[test]
        fn no_query_panics(text in any::<String>()) {
            let _ = query_pairs(&text);
        }
    }
}
