//! Lists in pages.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use windlass_core::{Invalid, JobId};

/// One page of a list.
#[derive(Debug, Clone, Serialize)]
pub struct ListPage<T> {
    /// What is on it.
    pub data: Vec<T>,
    /// Where the next page begins; none at the end of the list.
    pub next_cursor: Option<String>,
}

impl<T> ListPage<T> {
    /// All there is.
    pub fn whole(data: Vec<T>) -> Self {
        ListPage {
            data,
            next_cursor: None,
        }
    }
}

/// A place in a list, which means nothing to whoever holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cursor {
    /// Behind this job.
    Job(JobId),
    /// Behind this place of a list that is counted.
    Place(u64),
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cursor::Job(id) => write!(f, "j{:032x}", id.as_u128()),
            Cursor::Place(place) => write!(f, "p{place:016x}"),
        }
    }
}

impl FromStr for Cursor {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let hex = |digits: &str, length: usize| {
            let plain = digits.len() == length && digits.bytes().all(|b| b.is_ascii_hexdigit());
            u128::from_str_radix(digits, 16).ok().filter(|_| plain)
        };
        let job = text.strip_prefix('j').and_then(|digits| hex(digits, 32));
        let place = text.strip_prefix('p').and_then(|digits| hex(digits, 16));
        job.map(|bits| Cursor::Job(JobId::from_u128(bits)))
            .or_else(|| {
                place
                    .and_then(|place| place.try_into().ok())
                    .map(Cursor::Place)
            })
            .ok_or_else(|| Invalid::new("", "must be a `next_cursor` of this list"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_cursor_comes_back_and_nothing_else_does() {
        for cursor in [
            Cursor::Job(JobId::from_u128(u128::MAX)),
            Cursor::Job(JobId::from_u128(7)),
            Cursor::Place(0),
            Cursor::Place(u64::MAX),
        ] {
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
        for text in [
            "",
            "j",
            "p",
            "j1",
            "x00",
            "p+00000000000001",
            "j' or 1=1 --                       ",
            "é",
        ] {
            assert!(text.parse::<Cursor>().is_err(), "{text}");
        }
    }

    proptest! {
        /// AP17
        #[test]
        fn no_text_panics_and_what_is_read_is_what_was_written(text in "[jp]?[0-9a-fA-FxX+é-]{0,40}", bits: u128) {
            if let Ok(cursor) = text.parse::<Cursor>() {
                prop_assert_eq!(cursor.to_string(), text.to_lowercase());
            }
            let cursor = Cursor::Job(JobId::from_u128(bits));
            prop_assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
    }
}
