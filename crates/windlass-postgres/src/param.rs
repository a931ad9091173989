//! Statement parameters with their SQL types.
//!
//! The types go along with each statement, so the client never asks the server for them.

use std::error::Error;

use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};
use uuid::Uuid;
use windlass_core::Timestamp;

/// Microseconds from 1970 to 2000, the epoch of PostgreSQL.
const EPOCH_MICROS: i64 = 946_684_800_000_000;

/// An instant as `timestamptz`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Time(pub(crate) Timestamp);

impl ToSql for Time {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let micros = self.0.as_micros() - EPOCH_MICROS;
        out.extend_from_slice(&micros.to_be_bytes());
        Ok(IsNull::No)
    }

    accepts!(TIMESTAMPTZ);
    to_sql_checked!();
}

impl FromSql<'_> for Time {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let micros = i64::from_be_bytes(raw.try_into()?);
        let at = micros.checked_add(EPOCH_MICROS);
        let at = at.and_then(Timestamp::from_micros);
        at.map(Time).ok_or_else(|| "not a valid timestamp".into())
    }

    accepts!(TIMESTAMPTZ);
}

/// A parameter with its type.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// Values that know their SQL type.
pub(crate) trait Typed: ToSql + Sync {
    fn sql_type(&self) -> Type;
}

macro_rules! typed {
    ($($rust:ty => $single:ident, $array:ident;)*) => {$(
        impl Typed for $rust {
            fn sql_type(&self) -> Type { Type::$single }
        }
        impl Typed for Option<$rust> {
            fn sql_type(&self) -> Type { Type::$single }
        }
        impl Typed for Vec<$rust> {
            fn sql_type(&self) -> Type { Type::$array }
        }
        impl Typed for Vec<Option<$rust>> {
            fn sql_type(&self) -> Type { Type::$array }
        }
        impl Typed for Option<Vec<$rust>> {
            fn sql_type(&self) -> Type { Type::$array }
        }
    )*};
}

typed! {
    Uuid => UUID, UUID_ARRAY;
    Time => TIMESTAMPTZ, TIMESTAMPTZ_ARRAY;
    String => TEXT, TEXT_ARRAY;
    &str => TEXT, TEXT_ARRAY;
    i16 => INT2, INT2_ARRAY;
    i32 => INT4, INT4_ARRAY;
    i64 => INT8, INT8_ARRAY;
    bool => BOOL, BOOL_ARRAY;
}

/// Parameters of a statement, in order.
macro_rules! params {
    ($($value:expr),* $(,)?) => {
        &[$((&$value as &(dyn tokio_postgres::types::ToSql + Sync), $crate::param::Typed::sql_type(&$value))),*]
    };
}
pub(crate) use params;

/// Converts a count to an SQL integer.
pub(crate) fn int(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Converts a count, version or cursor to an SQL bigint.
pub(crate) fn bigint(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Converts a count to `u32`; a larger one becomes the maximum.
pub(crate) fn saturating_u32(number: impl TryInto<u32>) -> u32 {
    number.try_into().unwrap_or(u32::MAX)
}

/// Converts a number from SQL that is never negative; a negative one becomes 0.
pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
