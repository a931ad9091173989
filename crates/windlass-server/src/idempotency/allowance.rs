//! How many notes a caller may leave in the store: those of the last day, counted by each server for itself.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use windlass_core::Timestamp;

use crate::problem::Problem;

/// The most notes of one caller, unless it is set.
pub(crate) const NOTES_MAX_DEFAULT: u64 = 1_000_000;

/// A note is kept for a day, and counted by the hour it was made in.
const COUNTED: Duration = Duration::from_secs(24 * 3600);
const HOUR: Duration = Duration::from_secs(3600);

/// What each caller has spent, by hour. At most as many callers as there are keys.
#[derive(Debug, Default)]
pub(crate) struct Allowance(Mutex<BTreeMap<String, VecDeque<(Timestamp, u64)>>>);

impl Allowance {
    /// Refuses a further note of a caller that has as many as it may.
    pub(crate) fn check(&self, caller: &str, most: u64, now: Timestamp) -> Result<(), Problem> {
        let mut spent = self.spent();
        let Some(hours) = spent.get_mut(caller) else {
            return Ok(());
        };
        hours.retain(|(from, _)| is_counted(*from, now));
        let sum: u64 = hours.iter().map(|(_, count)| count).sum();
        if sum < most {
            return Ok(());
        }
        let oldest = hours.front().map_or(now, |(from, _)| *from);
        let room_at = oldest.saturating_add(COUNTED + HOUR);
        let detail = format!(
            "this caller has used {most} idempotency keys within a day, the most that is allowed; \
             an answer counts once more for each KiB that is kept of it"
        );
        Err(
            Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_idempotency_keys", detail)
                .hint("send fewer requests with a key, or many jobs in one; the setting is `http.idempotency_keys`")
                .retry_after(room_at.since(now)),
        )
    }

    /// Counts what a caller left in the store.
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether notes of the hour from then on may still be there.
fn is_counted(from: Timestamp, now: Timestamp) -> bool {
    now.since(from) < COUNTED + HOUR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_has_so_many_a_day_and_others_have_their_own() {
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
