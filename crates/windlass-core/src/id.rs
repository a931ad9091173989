//! Ids of jobs, schedules and bulk actions: UUIDv7, made from an instant and random bits that the caller passes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use uuid::Uuid;

use crate::invalid::shown;
use crate::{Invalid, Timestamp};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(Uuid);

        impl std::hash::Hash for $name {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                state.write_u128(self.as_u128());
            }
        }

        impl $name {
            /// Makes an id at `now`. `random` distinguishes it from other ids of the same
            /// microsecond.
            pub fn new(now: Timestamp, random: u64) -> Self {
                $name(time_ordered(now, random))
            }

            /// Makes the id from its 128 bits, as a store keeps them.
            pub const fn from_u128(bits: u128) -> Self {
                $name(Uuid::from_u128(bits))
            }

            /// When the id was made, to the millisecond.
            pub fn made_at(self) -> Timestamp {
                let millis = i64::try_from(self.as_u128() >> 80).unwrap_or(i64::MAX);
                Timestamp::UNIX_EPOCH.saturating_add(std::time::Duration::from_millis(millis.unsigned_abs()))
            }

            /// The 128 bits of the id. They sort in the same order as the ids.
            pub const fn as_u128(self) -> u128 {
                self.0.as_u128()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl FromStr for $name {
            type Err = Invalid;

            fn from_str(text: &str) -> Result<Self, Invalid> {
                let uuid = Uuid::try_parse(text).map_err(|_| {
                    Invalid::new("", format!("must be a UUID, got {}", shown(text)))
                })?;
                Ok($name(uuid))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }
    )*};
}

ids! {
    /// The id of a job. The ids of later jobs sort after those of earlier jobs, to the microsecond.
    JobId;

    /// The id of a schedule.
    ScheduleId;

    /// The id of a bulk action or a replay.
    ActionId;
}

/// Makes a UUIDv7 with the microseconds in the 12 bits after the milliseconds (RFC 9562, 6.2,
/// method 3).
fn time_ordered(now: Timestamp, random: u64) -> Uuid {
    let micros = u64::try_from(now.as_micros()).unwrap_or(0);
    let [fraction_high, fraction_low] = fraction_of_milli(micros % 1000).to_be_bytes();
    let [a, b, c, d, e, f, g, h] = random.to_be_bytes();
    let tail = [fraction_high, fraction_low, a, b, c, d, e, f, g, h];
    uuid::Builder::from_unix_timestamp_millis(micros / 1000, &tail).into_uuid()
}

/// Scales the microseconds within a millisecond from 0..1000 to 0..4096.
fn fraction_of_milli(micros: u64) -> u16 {
    u16::try_from(micros * 4096 / 1000).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timestamp::at;
    use proptest::prelude::*;

    #[test]
    fn an_id_is_a_uuid_of_version_7() {
        let id = JobId::new(at("2026-11-15T09:00:00.000123Z"), 42);
        assert_eq!(id.0.get_version_num(), 7);
        assert_eq!(id.0.get_variant(), uuid::Variant::RFC4122);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(format!("{id:?}"), id.to_string());
        assert_eq!(JobId::from_u128(id.as_u128()), id);
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(serde_json::from_str::<JobId>(&json).unwrap(), id);
    }

    #[test]
    fn an_id_contains_its_time() {
        let bits = JobId::new(Timestamp::from_micros(1_234_567_999).unwrap(), 0).as_u128();
        assert_eq!(bits >> 80, 1_234_567, "milliseconds");
        assert_eq!(
            bits >> 64 & 0xFFF,
            999 * 4096 / 1000,
            "the microseconds, scaled to 12 bits"
        );
    }

    #[test]
    fn text_that_is_not_a_uuid_is_refused() {
        for text in ["", "1", "zzzzzzzz-0000-7000-8000-000000000000"] {
            let refusal = text.parse::<ScheduleId>().unwrap_err();
            assert!(refusal.rule().starts_with("must be a UUID"));
        }
    }

    proptest! {
        #[test]
        fn later_ids_sort_later(
            start in 0i64..4_000_000_000_000_000,
            step in prop_oneof![1i64..1000, 1i64..2_000_000],
            first in any::<u64>(),
            second in any::<u64>(),
        ) {
            let early = Timestamp::from_micros(start).unwrap();
            let late = Timestamp::from_micros(start + step).unwrap();
            prop_assert!(JobId::new(early, first) < JobId::new(late, second));
            prop_assert!(JobId::new(early, first).to_string() < JobId::new(late, second).to_string());
        }

        #[test]
        fn random_bits_distinguish_ids_of_the_same_instant(first in any::<u32>(), second in any::<u32>()) {
            prop_assume!(first != second);
            let now = Timestamp::UNIX_EPOCH;
            prop_assert_ne!(JobId::new(now, first.into()), JobId::new(now, second.into()));
        }

        #[test]
        fn every_instant_makes_an_id(micros in any::<i64>(), random in any::<u64>()) {
            if let Some(now) = Timestamp::from_micros(micros) {
                prop_assert_eq!(JobId::new(now, random).0.get_version_num(), 7);
            }
        }
    }
}
