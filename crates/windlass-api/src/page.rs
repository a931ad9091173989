//! Pages of lists, and their cursors.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use data_encoding::{BASE64URL_NOPAD, HEXLOWER, HEXLOWER_PERMISSIVE};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use windlass_core::{
    ActionId, FIRST_GROUPS_MAX, Fingerprint, GroupCursor, GroupKey, Invalid, JobId, Timestamp,
};

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

/// A position in a list. Clients treat its text as opaque.
///
/// Each list has a type of its own, so that the cursor of one list is refused by the others.
pub trait Position: Clone + Send + fmt::Debug + 'static {
    /// The first letter of the cursors of this list. No two lists have the same.
    const TAG: char;
    /// The text of the position, in characters that a URL may contain.
    fn to_text(&self) -> String;
    /// Reads what [`Position::to_text`] wrote.
    fn from_text(text: &str) -> Option<Self>;
}

/// Declares the positions of lists that are sorted by one value.
macro_rules! positions {
    ($($(#[$about:meta])* $name:ident($key:ty) = $tag:literal;)*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name(pub $key);

        impl From<$key> for $name {
            fn from(key: $key) -> Self {
                $name(key)
            }
        }

        impl From<$name> for $key {
            fn from(position: $name) -> Self {
                position.0
            }
        }

        impl Position for $name {
            const TAG: char = $tag;

            fn to_text(&self) -> String {
                self.0.to_hex()
            }

            fn from_text(text: &str) -> Option<Self> {
                SortKey::from_hex(text).map($name)
            }
        }
    )*};
}

positions! {
    /// A position in the list of queues: behind this name.
    QueuePosition(String) = 'q';
    /// A position in the list of schedules: behind this name.
    SchedulePosition(String) = 's';
    /// A position in the list of workers: behind this name.
    WorkerPosition(String) = 'w';
    /// A position in a list of occurrences: before this time, in microseconds since 1970.
    OccurrencePosition(u64) = 'o';
    /// A position in the audit log: before this record.
    AuditPosition(u64) = 'a';
    /// A position in the list of replays: before this one.
    ReplayPosition(ActionId) = 'r';
    /// A position in the list of bulk actions: before this one.
    BulkActionPosition(ActionId) = 'b';
}

/// A value that lists are sorted by, as hexadecimal digits.
trait SortKey: Sized {
    fn to_hex(&self) -> String;
    fn from_hex(text: &str) -> Option<Self>;
}

impl SortKey for u64 {
    fn to_hex(&self) -> String {
        format!("{self:016x}")
    }

    fn from_hex(text: &str) -> Option<Self> {
        u64::from_str_radix(digits(text, 16)?, 16).ok()
    }
}

impl SortKey for u128 {
    fn to_hex(&self) -> String {
        format!("{self:032x}")
    }

    fn from_hex(text: &str) -> Option<Self> {
        u128::from_str_radix(digits(text, 32)?, 16).ok()
    }
}

impl SortKey for String {
    fn to_hex(&self) -> String {
        HEXLOWER.encode(self.as_bytes())
    }

    fn from_hex(text: &str) -> Option<Self> {
        let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?;
        String::from_utf8(bytes).ok()
    }
}

impl SortKey for ActionId {
    fn to_hex(&self) -> String {
        self.as_u128().to_hex()
    }

    fn from_hex(text: &str) -> Option<Self> {
        u128::from_hex(text).map(ActionId::from_u128)
    }
}

/// The text, if it consists of `count` hexadecimal digits: a parsed number could also have a sign.
fn digits(text: &str, count: usize) -> Option<&str> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    Some(text).filter(|text| is_plain && text.len() == count)
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
    const TAG: char = 'j';

    fn to_text(&self) -> String {
        let micros = |at: Timestamp| at.as_micros().cast_unsigned().to_hex();
        let time = self.finished_at.map(micros).unwrap_or_default();
        time + &self.id.as_u128().to_hex()
    }

    fn from_text(text: &str) -> Option<Self> {
        let (time, id) = text.split_at_checked(text.len().checked_sub(32)?)?;
        let finished_at = match time {
            "" => None,
            time => Some(Timestamp::from_micros(u64::from_hex(time)?.cast_signed())?),
        };
        let id = JobId::from_u128(u128::from_hex(id)?);
        Some(JobPosition { finished_at, id })
    }
}

/// The number of bytes of the hash of a failure group.
const GROUP_HASH_BYTES: usize = 6;

impl Position for GroupCursor {
    const TAG: char = 'f';

    fn to_text(&self) -> String {
        let bytes = |hash: &u64| hash.to_be_bytes().into_iter().skip(8 - GROUP_HASH_BYTES);
        let first: Vec<u8> = self.first.iter().flat_map(bytes).collect();
        let first = BASE64URL_NOPAD.encode(&first);
        let Some(after) = &self.after else {
            return first;
        };
        let (queue, kind) = (
            after.queue.to_string().to_hex(),
            after.kind.to_string().to_hex(),
        );
        let cause = after.fingerprint.bits().to_hex();
        format!("{first}.{queue}.{kind}.{cause}")
    }

    fn from_text(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let first = BASE64URL_NOPAD.decode(parts.next()?.as_bytes()).ok()?;
        let (hashes, rest) = first.as_chunks::<GROUP_HASH_BYTES>();
        if !rest.is_empty() || hashes.len() > FIRST_GROUPS_MAX {
            return None;
        }
        let number = |bytes: &[u8; GROUP_HASH_BYTES]| {
            let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
            bytes.iter().fold(0, add)
        };
        let first = hashes.iter().map(number).collect();
        let after = match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (None, ..) => None,
            (Some(queue), Some(kind), Some(cause), None) => Some(GroupKey {
                queue: String::from_hex(queue)?.parse().ok()?,
                kind: String::from_hex(kind)?.parse().ok()?,
                fingerprint: Fingerprint::from_bits(u64::from_hex(cause)?),
            }),
            _ => return None,
        };
        Some(GroupCursor { first, after })
    }
}

/// A cursor of a list with positions `C`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageCursor<C>(pub C);

impl<C: Position> fmt::Display for PageCursor<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", C::TAG, self.0.to_text())
    }
}

impl<C: Position> FromStr for PageCursor<C> {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let position = text.strip_prefix(C::TAG).and_then(C::from_text);
        let wrong_list = || {
            let rule = "must be a `next_cursor` of this list; start again without a cursor";
            Invalid::new("", rule)
        };
        position.map(PageCursor).ok_or_else(wrong_list)
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
        text.parse().map_err(de::Error::custom)
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

#[cfg(test)]
mod tests;
