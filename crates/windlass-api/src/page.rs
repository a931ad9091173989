//! Pages of lists, and their cursors.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use windlass_core::{ActionId, Invalid, JobId, Timestamp};

use crate::BoundedInt;

/// A page of a list.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "{T}Page")]
pub struct Page<T> {
    /// The elements of the page.
    pub data: Vec<T>,
    /// Cursor of the next page. Null on the last page.
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// A list that has only one page.
    pub fn single(data: Vec<T>) -> Self {
        Page {
            data,
            next_cursor: None,
        }
    }

    /// The first `limit` elements. `data` has one more element if there is a next page.
    pub fn first<C: Position>(mut data: Vec<T>, limit: usize, position: impl Fn(&T) -> C) -> Self {
        let more = data.len() > limit;
        data.truncate(limit);
        let last = data.last().filter(|_| more);
        let next_cursor = last.map(|last| PageCursor(position(last)).to_string());
        Page { data, next_cursor }
    }
}

/// Which page of a list to return.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, bound = "C: Position")]
#[schemars(bound = "C: Position")]
pub struct PageParams<C> {
    /// Most elements to return, at most 1000. The default depends on the route.
    pub limit: Option<BoundedInt<1, 1000>>,
    /// Cursor of the page: the `next_cursor` of the previous page.
    pub cursor: Option<PageCursor<C>>,
}

impl<C: Position> PageParams<C> {
    /// The limit, or `default` if the request has none.
    pub fn limit_or(&self, default: usize) -> usize {
        self.limit.map_or(default, BoundedInt::to)
    }

    /// The position of the last element of the previous page.
    pub fn after(self) -> Option<C> {
        self.cursor.map(|after| after.0)
    }
}

impl<C: Position> crate::Body for PageParams<C> {
    type Checked = Self;

    fn check(self, _: &mut crate::Checks) -> Option<Self> {
        Some(self)
    }
}

/// The sort key of a list.
pub trait Position: Clone + Send + fmt::Debug + 'static {
    /// The cursor of the page that starts after this position.
    fn to_cursor(&self) -> Cursor;
    /// The position, if the cursor belongs to such a list.
    fn from_cursor(cursor: Cursor) -> Option<Self>;
}

impl Position for JobId {
    fn to_cursor(&self) -> Cursor {
        Cursor::Job(*self)
    }

    fn from_cursor(cursor: Cursor) -> Option<Self> {
        match cursor {
            Cursor::Job(id) => Some(id),
            _ => None,
        }
    }
}

/// A position in a list of jobs, which is sorted by creation or by the time of the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobPosition {
    /// When the job finished; `None` in a list by creation.
    pub finished_at: Option<Timestamp>,
    /// The job.
    pub id: JobId,
}

impl Position for JobPosition {
    fn to_cursor(&self) -> Cursor {
        match self.finished_at {
            Some(finished_at) => Cursor::Finished(finished_at, self.id),
            None => Cursor::Job(self.id),
        }
    }

    fn from_cursor(cursor: Cursor) -> Option<Self> {
        let (finished_at, id) = match cursor {
            Cursor::Job(id) => (None, id),
            Cursor::Finished(finished_at, id) => (Some(finished_at), id),
            _ => return None,
        };
        Some(JobPosition { finished_at, id })
    }
}

impl Position for ActionId {
    fn to_cursor(&self) -> Cursor {
        Cursor::Name(self.to_string())
    }

    fn from_cursor(cursor: Cursor) -> Option<Self> {
        match cursor {
            Cursor::Name(id) => id.parse().ok(),
            _ => None,
        }
    }
}

impl Position for u64 {
    fn to_cursor(&self) -> Cursor {
        Cursor::Number(*self)
    }

    fn from_cursor(cursor: Cursor) -> Option<Self> {
        match cursor {
            Cursor::Number(number) => Some(number),
            _ => None,
        }
    }
}

impl Position for String {
    fn to_cursor(&self) -> Cursor {
        Cursor::Name(self.clone())
    }

    fn from_cursor(cursor: Cursor) -> Option<Self> {
        match cursor {
            Cursor::Name(name) => Some(name),
            _ => None,
        }
    }
}

/// A cursor of a list that is sorted by `C`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageCursor<C>(pub C);

impl<C: Position> fmt::Display for PageCursor<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.to_cursor(), f)
    }
}

impl<C: Position> Serialize for PageCursor<C> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, C: Position> Deserialize<'de> for PageCursor<C> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let cursor = text.parse().ok().and_then(C::from_cursor);
        cursor
            .map(PageCursor)
            .ok_or_else(|| de::Error::custom(wrong_list()))
    }
}

impl<C> JsonSchema for PageCursor<C> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Cursor".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string"})
    }
}

/// A position in a list. Clients treat its text as opaque.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cursor {
    /// After this job.
    Job(JobId),
    /// After this job, which finished at this time.
    Finished(Timestamp, JobId),
    /// After this number or time.
    Number(u64),
    /// After this name.
    Name(String),
}

impl Cursor {
    /// Reads a cursor of a list that is sorted by a number.
    pub fn number(text: &str) -> Result<u64, Invalid> {
        match text.parse()? {
            Cursor::Number(number) => Ok(number),
            _ => Err(wrong_list()),
        }
    }
}

fn wrong_list() -> Invalid {
    Invalid::new("", "must be a `next_cursor` of this list")
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cursor::Job(id) => write!(f, "j{:032x}", id.as_u128()),
            Cursor::Finished(at, id) => {
                write!(f, "f{:016x}{:032x}", at.as_micros(), id.as_u128())
            }
            Cursor::Number(number) => write!(f, "p{number:016x}"),
            Cursor::Name(name) => write!(f, "n{}", HEXLOWER.encode(name.as_bytes())),
        }
    }
}

impl FromStr for Cursor {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let read = |kind: char| {
            let digits = text.strip_prefix(kind)?;
            let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            plain.then_some(digits)
        };
        let job = || u128::from_str_radix(read('j').filter(|digits| digits.len() == 32)?, 16).ok();
        let number =
            || u64::from_str_radix(read('p').filter(|digits| digits.len() == 16)?, 16).ok();
        let finished = || {
            let digits = read('f').filter(|digits| digits.len() == 48)?;
            let (micros, id) = digits.split_at(16);
            let micros = u64::from_str_radix(micros, 16).ok()?.cast_signed();
            let id = u128::from_str_radix(id, 16).ok()?;
            let finished_at = Timestamp::from_micros(micros)?;
            Some(Cursor::Finished(finished_at, JobId::from_u128(id)))
        };
        let name = || {
            let bytes = HEXLOWER_PERMISSIVE.decode(read('n')?.as_bytes()).ok()?;
            String::from_utf8(bytes).ok()
        };
        let job = job().map(|bits| Cursor::Job(JobId::from_u128(bits)));
        let cursor = job.or_else(|| number().map(Cursor::Number));
        let cursor = cursor.or_else(finished);
        let cursor = cursor.or_else(|| name().map(Cursor::Name));
        cursor.ok_or_else(wrong_list)
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
            Cursor::Finished(Timestamp::UNIX_EPOCH, JobId::from_u128(7)),
            Cursor::Finished(Timestamp::MAX, JobId::from_u128(u128::MAX)),
            Cursor::Finished(Timestamp::MIN, JobId::from_u128(0)),
            Cursor::Number(0),
            Cursor::Number(u64::MAX),
            Cursor::Name(String::new()),
            Cursor::Name("a/b:é".to_owned()),
        ] {
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
        for text in [
            "",
            "j",
            "p",
            "j1",
            "n1",
            "nff",
            "x00",
            "p+00000000000001",
            "j' or 1=1 --                       ",
            "é",
        ] {
            assert!(text.parse::<Cursor>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_cursor_wrong_list_is_refused() {
        let (job, number) = (Cursor::Job(JobId::from_u128(7)), Cursor::Number(3));
        assert_eq!(Cursor::number(&number.to_string()), Ok(3));
        assert!(Cursor::number(&job.to_string()).is_err());
        assert_eq!(JobId::from_cursor(job), Some(JobId::from_u128(7)));
        assert_eq!(String::from_cursor(number.clone()), None);
        assert_eq!(JobPosition::from_cursor(number), None);
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_read_is_what_was_written(text in "[jpnf]?[0-9a-fA-FxX+é-]{0,40}", bits: u128) {
            if let Ok(cursor) = text.parse::<Cursor>() {
                prop_assert_eq!(cursor.to_string(), text.to_lowercase());
            }
            let cursor = Cursor::Job(JobId::from_u128(bits));
            prop_assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
    }
}
