//! A fixed delay per occurrence, so that schedules with the same time do not all start in the same
//! second.

use std::time::Duration;

use crate::random::{fixed_hash, pick};
use crate::{ScheduleId, Timestamp};

/// The delay of an occurrence, from zero to `splay`. It is the same on every node and after every
/// restart.
pub fn splay_of(schedule: ScheduleId, scheduled_for: Timestamp, splay: Duration) -> Duration {
    let mut bytes = schedule.as_u128().to_be_bytes().to_vec();
    bytes.extend(scheduled_for.as_micros().to_be_bytes());
    let max = u64::try_from(splay.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(pick(0, max, fixed_hash(&bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timestamp::at;
    use proptest::prelude::*;

    #[test]
    fn the_delay_of_an_occurrence_never_changes() {
        let schedule = ScheduleId::from_u128(7);
        let minute = Duration::from_secs(60);
        let first = splay_of(schedule, at("2026-01-01T00:00:00Z"), minute);
        assert_eq!(
            first,
            splay_of(schedule, at("2026-01-01T00:00:00Z"), minute)
        );
        assert_ne!(
            first,
            splay_of(schedule, at("2026-01-01T00:01:00Z"), minute)
        );
        assert_ne!(
            first,
            splay_of(ScheduleId::from_u128(8), at("2026-01-01T00:00:00Z"), minute)
        );
        assert_eq!(
            splay_of(schedule, at("2026-01-01T00:00:00Z"), Duration::ZERO),
            Duration::ZERO
        );
    }

    #[test]
    fn many_schedules_are_spread_evenly() {
        let minute = Duration::from_secs(60);
        let mut seconds = [0u32; 60];
        for id in 0..6000 {
            let delay = splay_of(
                ScheduleId::from_u128(id),
                at("2026-01-01T00:00:00Z"),
                minute,
            );
            seconds[usize::try_from(delay.as_secs()).unwrap().min(59)] += 1;
        }
        assert!(
            seconds.iter().all(|count| (50..160).contains(count)),
            "{seconds:?}"
        );
    }

    proptest! {
        #[test]
        fn no_delay_passes_the_splay(id in any::<u128>(), seconds in any::<u64>()) {
            let splay = Duration::from_secs(seconds);
            prop_assert!(splay_of(ScheduleId::from_u128(id), Timestamp::UNIX_EPOCH, splay) <= splay);
        }
    }
}
