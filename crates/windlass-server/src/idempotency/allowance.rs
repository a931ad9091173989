//! Limits the idempotency notes of each caller in the last 24 hours. Each server counts on its own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use axum::http::StatusCode;
use windlass_core::Timestamp;

use crate::poison::lock;
use crate::problem::Problem;

/// The default for the most notes of one caller.
pub(crate) const NOTES_MAX_DEFAULT: u64 = 1_000_000;

/// A note is kept for a day, and counted by the hour of its creation.
const DAY: Duration = Duration::from_secs(24 * 3600);
const HOUR: Duration = Duration::from_secs(3600);

/// The notes of each caller by hour. The number of callers is bounded by the number of keys.
#[derive(Debug, Default)]
pub(crate) struct Allowance(Mutex<BTreeMap<String, VecDeque<(Timestamp, u64)>>>);

impl Allowance {
    /// Refuses another note if the caller has reached its limit.
    pub(crate) fn check(
        &self,
        caller: &str,
        notes_max: u64,
        now: Timestamp,
    ) -> Result<(), Problem> {
        let mut spent = self.spent();
        let Some(hours) = spent.get_mut(caller) else {
            return Ok(());
        };
        hours.retain(|(from, _)| is_counted(*from, now));
        let sum: u64 = hours.iter().map(|(_, count)| count).sum();
        if sum < notes_max {
            return Ok(());
        }
        let oldest = hours.front().map_or(now, |(from, _)| *from);
        let room_at = oldest.saturating_add(DAY + HOUR);
        let detail = format!(
            "this caller has used {notes_max} idempotency keys in 24 hours, the limit; \
             a stored response counts as one more for every full KiB"
        );
        Err(Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too_many_idempotency_keys",
            detail,
        )
        .hint("send several jobs in one request, or raise `http.idempotency_keys`")
        .retry_after(room_at.since(now)))
    }

    /// Counts notes of a caller.
    pub(crate) fn spend(&self, caller: &str, count: usize, now: Timestamp) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        let mut spent = self.spent();
        let hours = spent.entry(caller.to_owned()).or_default();
        match hours.back_mut() {
            Some((from, sum)) if now.since(*from) < HOUR => *sum = sum.saturating_add(count),
            _ => hours.push_back((now, count)),
        }
        hours.retain(|(from, _)| is_counted(*from, now));
    }

    fn spent(&self) -> MutexGuard<'_, BTreeMap<String, VecDeque<(Timestamp, u64)>>> {
        lock(&self.0)
    }
}

/// Whether the store may still have notes of the hour that began at `from`.
fn is_counted(from: Timestamp, now: Timestamp) -> bool {
    now.since(from) < DAY + HOUR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_caller_has_its_own_limit_per_day() {
        let allowance = Allowance::default();
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let at = |hours: u64| start.saturating_add(HOUR * u32::try_from(hours).unwrap());
        for hour in 0..3 {
            allowance.check("a", 3, at(hour)).unwrap();
            allowance.spend("a", 1, at(hour));
        }
        let refused = allowance.check("a", 3, at(3)).unwrap_err();
        assert_eq!((refused.status(), refused.is_refusal()), (429, false));
        allowance.check("b", 3, at(3)).unwrap();
        allowance.check("a", 3, at(25)).unwrap();
        allowance.spend("a", 1, at(25));
        assert!(allowance.check("a", 3, at(25)).is_err());
        assert!(allowance.check("a", 3, at(26)).is_ok());
    }
}
