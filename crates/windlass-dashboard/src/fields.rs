//! The fields of a query and of a submitted form.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Characters of a query that need no escape.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b':');

/// Escapes text for a path segment or a query value.
pub(crate) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// Names and values, in their order. A name may occur more than once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    /// Parses `name=value&name=value`. Bytes that are not UTF-8 become `U+FFFD`.
    pub(crate) fn parse(text: &str) -> Self {
        let decoded = |part: &str| {
            percent_decode_str(&part.replace('+', " "))
                .decode_utf8_lossy()
                .into_owned()
        };
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| match pair.split_once('=') {
            Some((name, value)) => (decoded(name), decoded(value)),
            None => (decoded(pair), String::new()),
        });
        Fields(pairs.take(2000).collect())
    }

    /// Returns the first value of a field, unless it is empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self
            .0
            .iter()
            .find(|(known, value)| known == name && !value.is_empty());
        found.map(|(_, value)| value.as_str())
    }

    /// Returns all values of a field.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// Returns all pairs.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the fields with one value replaced, or removed if `value` is empty.
    pub(crate) fn with(&self, name: &str, value: &str) -> Fields {
        let others = self.0.iter().filter(|(known, _)| known != name).cloned();
        let new = (!value.is_empty()).then(|| (name.to_owned(), value.to_owned()));
        Fields(others.chain(new).collect())
    }

    /// Returns the fields without some names.
    pub(crate) fn without(&self, names: &[&str]) -> Fields {
        let kept = self
            .0
            .iter()
            .filter(|(name, _)| !names.contains(&name.as_str()));
        Fields(kept.cloned().collect())
    }

    /// Returns the query with a leading `?`, or nothing if there are no fields.
    pub(crate) fn query(&self) -> String {
        let pairs = self
            .0
            .iter()
            .map(|(name, value)| format!("{}={}", escaped(name), escaped(value)));
        let query: Vec<_> = pairs.collect();
        if query.is_empty() {
            String::new()
        } else {
            format!("?{}", query.join("&"))
        }
    }
}

impl FromIterator<(String, String)> for Fields {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Self {
        Fields(pairs.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_changed_and_written_back() {
        let fields = Fields::parse("queue=a%26b&tag=x+y&tag=&cursor=1");
        assert_eq!(fields.get("queue"), Some("a&b"));
        assert_eq!(fields.get("missing"), None);
        assert_eq!(fields.all("tag").collect::<Vec<_>>(), ["x y", ""]);
        let changed = fields
            .with("queue", "")
            .without(&["cursor"])
            .with("state", "dead");
        assert_eq!(changed.query(), "?tag=x%20y&tag=&state=dead");
        assert_eq!(Fields::default().query(), "");
    }
}
