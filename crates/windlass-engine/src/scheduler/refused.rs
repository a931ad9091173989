//! Schedules that the database refuses to fire.
//!
//! They stay due. So that they hold up no others, each one is tried again only after a delay that
//! doubles, and not in a batch with others.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::{debug, warn};
use windlass_core::{ScheduleId, Timestamp};
use windlass_store::Schedule;

/// The delay after the first refusal. It doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// The most schedules that are remembered. Further ones are tried in every pass.
const REFUSED_MAX: usize = 1000;

/// The schedules that were refused and have not fired since.
#[derive(Debug, Default)]
pub(super) struct RefusedSchedules(Mutex<BTreeMap<ScheduleId, Refusal>>);

#[derive(Debug, Clone, Copy)]
struct Refusal {
    tries: u32,
    retry_at: Timestamp,
}

impl RefusedSchedules {
    pub(super) fn len(&self) -> usize {
        self.refusals().len()
    }

    /// When a refused schedule is tried again.
    pub(super) fn retry_at(&self, schedule: ScheduleId) -> Option<Timestamp> {
        self.refusals()
            .get(&schedule)
            .map(|refusal| refusal.retry_at)
    }

    pub(super) fn remove(&self, schedule: ScheduleId) {
        self.refusals().remove(&schedule);
    }

    /// Remembers a refusal. Logs the first one of a schedule as a warning.
    pub(super) fn note(&self, schedule: &Schedule, reason: &str, now: Timestamp) {
        let name = &schedule.definition.name;
        let mut refusals = self.refusals();
        let tries = refusals
            .get(&schedule.id)
            .map_or(0, |refusal| refusal.tries);
        if tries == 0 {
            warn!(schedule = %name, reason, "the database refused to fire a schedule; trying again later");
        } else {
            debug!(schedule = %name, reason, tries, "the database refused again to fire a schedule");
        }
        // A removed schedule is never tried again. Forget those whose retry is long overdue.
        refusals.retain(|_, refusal| refusal.retry_at.saturating_add(RETRY_MAX) >= now);
        if tries > 0 || refusals.len() < REFUSED_MAX {
            let delay = RETRY_MIN.saturating_mul(2_u32.saturating_pow(tries));
            let refusal = Refusal {
                tries: tries.saturating_add(1),
                retry_at: now.saturating_add(delay.min(RETRY_MAX)),
            };
            refusals.insert(schedule.id, refusal);
        }
    }

    fn refusals(&self) -> MutexGuard<'_, BTreeMap<ScheduleId, Refusal>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use windlass_core::schedule::NewSchedule;
    use windlass_core::{Kind, NewJob, ScheduleName};

    use super::*;

    #[test]
    fn a_refused_schedule_is_tried_again_after_growing_delays() {
        let refused = RefusedSchedules::default();
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000).unwrap();
        let schedule = |number| Schedule {
            id: ScheduleId::from_u128(number),
            version: 1,
            definition: NewSchedule::new(
                ScheduleName::new("s").unwrap(),
                "* * * * *".parse().unwrap(),
                NewJob::new(Kind::new("a").unwrap()),
            ),
            created_at: at(0),
            last_at: None,
            next_at: Some(at(0)),
        };
        let mut now = 0;
        for delay in [1, 2, 4, 8, 16, 32, 60, 60] {
            refused.note(&schedule(1), "no", at(now));
            assert_eq!(refused.retry_at(schedule(1).id), Some(at(now + delay)));
            now += delay;
        }
        refused.remove(schedule(1).id);
        assert_eq!(refused.retry_at(schedule(1).id), None);
        refused.note(&schedule(2), "no", at(now));
        refused.note(&schedule(3), "no", at(now + 100));
        assert_eq!(refused.len(), 1, "no one asks for the other any longer");
    }
}
