//! How many attempts of a job may fail.

use std::fmt;
use std::num::NonZeroU16;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::Invalid;

/// The most failed attempts of any job. No setting allows more.
pub const ATTEMPTS_CEILING: u32 = 1000;

/// How many attempts may fail in all: 1 to 1000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptLimit(NonZeroU16);

impl AttemptLimit {
    /// One attempt: the first failure is final.
    pub const ONE: AttemptLimit = AttemptLimit(NonZeroU16::MIN);

    /// Reads `max_attempts`; 0 means that it is not set.
    pub fn from_max_attempts(max_attempts: i64) -> Result<Option<Self>, Invalid> {
        AttemptLimit::read("max_attempts", max_attempts, 0)
    }

    /// Reads `max_retries`: n retries are n + 1 attempts.
    pub fn from_max_retries(max_retries: i64) -> Result<Self, Invalid> {
        let limit = AttemptLimit::read("max_retries", max_retries, 1)?;
        Ok(limit.unwrap_or(AttemptLimit::ONE))
    }

    /// Reads `max_attempts` and `max_retries`. If both are given, they must agree.
    pub fn from_either(
        max_attempts: Option<i64>,
        max_retries: Option<i64>,
    ) -> Result<Option<Self>, Invalid> {
        let by_attempts = max_attempts
            .map(AttemptLimit::from_max_attempts)
            .transpose()?;
        let by_retries = max_retries
            .map(AttemptLimit::from_max_retries)
            .transpose()?;
        match (by_attempts.flatten(), by_retries) {
            (Some(attempts), Some(retries)) if attempts != retries => {
                let rule = format!(
                    "must agree with `max_attempts`: {} retries are {retries} attempts, not {attempts}",
                    retries.get() - 1
                );
                Err(Invalid::new("max_retries", rule))
            }
            (attempts, retries) => Ok(attempts.or(retries)),
        }
    }

    /// The number of attempts.
    pub fn get(self) -> u32 {
        self.0.get().into()
    }

    fn read(field: &str, given: i64, extra: i64) -> Result<Option<Self>, Invalid> {
        let max = i64::from(ATTEMPTS_CEILING) - extra;
        if !(0..=max).contains(&given) {
            let rule = format!("must be a whole number from 0 to {max}, got {given}");
            return Err(Invalid::new(field, rule));
        }
        let attempts = u16::try_from(given + extra).ok().and_then(NonZeroU16::new);
        Ok(attempts.map(AttemptLimit))
    }
}

impl Serialize for AttemptLimit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for AttemptLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let limit = AttemptLimit::from_max_attempts(i64::deserialize(deserializer)?);
        let limit = limit.map_err(de::Error::custom)?;
        limit.ok_or_else(|| de::Error::custom("must be at least 1"))
    }
}

impl fmt::Display for AttemptLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempts(n: i64) -> Option<AttemptLimit> {
        AttemptLimit::from_max_attempts(n).unwrap()
    }

    #[test]
    fn zero_attempts_mean_unset_and_zero_retries_mean_one_attempt() {
        assert_eq!(attempts(0), None);
        assert_eq!(attempts(1), Some(AttemptLimit::ONE));
        assert_eq!(AttemptLimit::from_max_retries(0), Ok(AttemptLimit::ONE));
        assert_eq!(AttemptLimit::from_max_retries(3), Ok(attempts(4).unwrap()));
        assert_eq!(attempts(1000).unwrap().get(), 1000);
        assert_eq!(attempts(7).unwrap().to_string(), "7");
    }

    #[test]
    fn numbers_outside_the_ceiling_are_refused_by_name() {
        for bad in [-1, 1001, i64::MIN, i64::MAX] {
            let refusal = AttemptLimit::from_max_attempts(bad).unwrap_err();
            assert_eq!(refusal.field(), "max_attempts");
            assert!(refusal.rule().contains("from 0 to 1000"));
        }
        for bad in [-1, 1000, i64::MIN, i64::MAX] {
            let refusal = AttemptLimit::from_max_retries(bad).unwrap_err();
            assert_eq!(refusal.field(), "max_retries");
            assert!(refusal.rule().contains("from 0 to 999"));
        }
        assert_eq!(AttemptLimit::from_max_retries(999).unwrap().get(), 1000);
    }

    #[test]
    fn both_spellings_must_agree() {
        let both = AttemptLimit::from_either;
        assert_eq!(both(None, None), Ok(None));
        assert_eq!(both(Some(3), Some(2)), Ok(attempts(3)));
        assert_eq!(both(Some(3), None), Ok(attempts(3)));
        assert_eq!(both(None, Some(2)), Ok(attempts(3)));
        assert_eq!(both(Some(0), Some(2)), Ok(attempts(3)));
        let refusal = both(Some(3), Some(5)).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "`max_retries` must agree with `max_attempts`: 5 retries are 6 attempts, not 3"
        );
    }
}
