//! The text of an error, split into the parts that grouping and logging treat differently.

/// Only the start of a text is read. It is enough to know an error, and it bounds the work.
pub(crate) const SCANNED_BYTES_MAX: usize = 4096;

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// What stands between two quotes.
    Quoted(&'a str),
    /// Words and numbers joined by `.:-/@+%`, so that `10.0.0.7:5432` is one run.
    Run(&'a str),
    /// One or more spaces, tabs or line ends.
    Space,
    /// Any other character.
    Other(char),
}

/// The tokens of a text, in order.
#[derive(Debug, Clone)]
pub(crate) struct Tokens<'a> {
    rest: &'a str,
    previous: char,
}

impl<'a> Tokens<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Tokens {
            rest: start_of(text, SCANNED_BYTES_MAX),
            previous: ' ',
        }
    }

    /// The text behind the last token.
    pub(crate) fn rest(&self) -> &'a str {
        self.rest
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let first = self.rest.chars().next()?;
        // The apostrophe of `can't` opens no quote.
        let quoted = if self.previous.is_alphanumeric() {
            None
        } else {
            quoted(self.rest, first)
        };
        let (token, length) = match quoted {
            Some((inner, length)) => (Token::Quoted(inner), length),
            None if is_word(first) => {
                let run = run_of(self.rest);
                (Token::Run(run), run.len())
            }
            None if first.is_whitespace() => {
                let spaces = self.rest.len() - self.rest.trim_start().len();
                (Token::Space, spaces)
            }
            None => (Token::Other(first), first.len_utf8()),
        };
        let (read, rest) = self.rest.split_at(length);
        self.previous = read.chars().next_back().unwrap_or(' ');
        self.rest = rest;
        Some(token)
    }
}

/// The first bytes of a text, cut between two characters.
pub(crate) fn start_of(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or(0)).unwrap_or("")
}

/// The quoted part that a text starts with, and its length with the quotes.
fn quoted(text: &str, quote: char) -> Option<(&str, usize)> {
    let close = match quote {
        '"' | '\'' | '`' => quote,
        '“' => '”',
        '‘' => '’',
        _ => return None,
    };
    let inner = text.get(quote.len_utf8()..)?;
    let end = inner.find(close)?;
    let length = quote.len_utf8() + end + close.len_utf8();
    Some((inner.get(..end)?, length))
}

pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn run_of(text: &str) -> &str {
    let inside = |c: char| is_word(c) || ".:-/@+%".contains(c);
    let end = text.find(|c: char| !inside(c)).unwrap_or(text.len());
    let run = text.get(..end).unwrap_or(text);
    run.trim_end_matches(|c: char| !is_word(c))
}

/// Whether a run is an id or an address that has no digit by chance, such as
/// `abcdefab-cdef-abcd-efab-cdefabcdefab` or `dead::beef`.
pub(crate) fn is_hexadecimal_id(run: &str) -> bool {
    let hexadecimal = run
        .chars()
        .all(|c| c.is_ascii_hexdigit() || c == '-' || c == ':');
    hexadecimal && (run.contains("::") || (run.len() == 36 && run.matches('-').count() == 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Token::{Other, Quoted, Run, Space};

    fn tokens(text: &str) -> Vec<Token<'_>> {
        Tokens::new(text).collect()
    }

    #[test]
    fn a_text_is_split_into_runs_quotes_and_the_rest() {
        assert_eq!(
            tokens("can't reach 'db' at\n 10.0.0.7:5432: (x)"),
            [
                Run("can"),
                Other('\''),
                Run("t"),
                Space,
                Run("reach"),
                Space,
                Quoted("db"),
                Space,
                Run("at"),
                Space,
                Run("10.0.0.7:5432"),
                Other(':'),
                Space,
                Other('('),
                Run("x"),
                Other(')'),
            ]
        );
        assert_eq!(tokens("“größe” ‘a’"), [Quoted("größe"), Space, Quoted("a")]);
        assert_eq!(tokens("unclosed '"), [Run("unclosed"), Space, Other('\'')]);
        assert_eq!(tokens(""), []);
    }

    #[test]
    fn only_the_start_of_a_long_text_is_read() {
        let text = "é".repeat(100_000);
        let start = start_of(&text, SCANNED_BYTES_MAX);
        assert_eq!(tokens(&text), [Run(start)]);
    }
}
