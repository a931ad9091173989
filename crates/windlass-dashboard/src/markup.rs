//! Pieces of HTML that Rust code builds: drawings, states, times.

use std::fmt;

use askama::filters::HtmlSafe;
use windlass_core::cause_in_words;

use crate::show;

/// Finished HTML. Only code that escapes every text builds it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Markup(pub(crate) String);

impl Markup {
    /// Returns text as HTML, escaped.
    pub fn text(text: &str) -> Markup {
        Markup(escaped(text))
    }
}

impl fmt::Display for Markup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl HtmlSafe for Markup {}

/// Returns the words of an error that name its cause, with its placeholders in a weaker ink.
pub fn cause(error: &str, chars: usize) -> Markup {
    let mut html = escaped(&show::clipped(&cause_in_words(error), chars));
    for placeholder in ["‹n›", "‹…›"] {
        let weak = format!(r#"<span class="ph">{placeholder}</span>"#);
        html = html.replace(placeholder, &weak);
    }
    Markup(html)
}

/// Returns a count as HTML. One that is too large for all its digits has them as its title.
pub fn count(number: u64) -> Markup {
    let (short, exact) = (show::count(number), show::grouped(number));
    match short == exact {
        true => Markup(short),
        false => Markup(format!(r#"<span title="{exact}">{short}</span>"#)),
    }
}

/// Escapes text for HTML and for attribute values in double quotes.
pub fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            _ => html.push(letter),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_shows_its_placeholders_and_no_markup() {
        assert_eq!(
            cause("<b> timed out after 5 s", 40).to_string(),
            r#"&lt;b&gt; timed out after <span class="ph">‹n›</span> s"#
        );
    }

    #[test]
    fn a_large_count_has_all_its_digits_as_a_title() {
        assert_eq!(count(20_356).to_string(), "20,356");
        assert_eq!(
            count(8_412_007).to_string(),
            "<span title=\"8,412,007\">8.41\u{a0}M</span>"
        );
    }

    #[test]
    fn text_cannot_become_markup() {
        let hostile = r#"<script>"'&"#;
        assert_eq!(
            Markup::text(hostile).to_string(),
            "&lt;script&gt;&quot;&#39;&amp;"
        );
    }
}
