//! Which due occurrences fire, and which are skipped because they are too late.

use std::time::Duration;

use super::Recurrence;
use crate::words::string_enum;
use crate::{Delivery, Timestamp};

/// How late an occurrence may fire before it counts as missed, unless the schedule sets another
/// time.
pub const MISSED_AFTER_DEFAULT: Duration = Duration::from_secs(5);

/// The most occurrences that fire together after an outage, unless the schedule sets another
/// number.
pub const CATCH_UP_DEFAULT: u32 = 100;
/// The largest `catch_up_max` of a schedule.
pub const CATCH_UP_CEILING: u32 = 1000;

/// Skipped occurrences are counted up to this number.
const COUNTED_MAX: usize = 1000;

/// What happens to missed occurrences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Missed {
    /// All are skipped.
    Skip,
    /// Only the last one fires, unless an occurrence that is in time fires anyway.
    Once,
    /// All fire, at most the newest `catch_up_max` of them.
    All,
}

string_enum!(Missed {
    Skip = "skip",
    Once = "once",
    All = "all",
});

impl Missed {
    /// The default: at-least-once jobs run once after an outage, at-most-once jobs never run late.
    pub fn default_for(delivery: Delivery) -> Self {
        match delivery {
            Delivery::AtLeastOnce => Missed::Once,
            Delivery::AtMostOnce => Missed::Skip,
        }
    }

    /// Splits the occurrences after `last`, up to `now`, into those that fire and those that are
    /// skipped.
    pub fn due(
        self,
        recurrence: &Recurrence,
        last: Timestamp,
        now: Timestamp,
        missed_after: Duration,
        catch_up_max: u32,
    ) -> Due {
        let catch_up_max = usize::try_from(catch_up_max).unwrap_or(usize::MAX);
        let in_time_from = now.saturating_sub(missed_after);
        let mut fire = newest(
            recurrence,
            last.max(before(in_time_from)),
            now,
            catch_up_max,
        );
        let late_until = fire
            .first()
            .map_or(now, |first| before(*first))
            .min(before(in_time_from));
        let late_max = match self {
            Missed::Skip => 0,
            Missed::Once => usize::from(fire.is_empty()),
            Missed::All => catch_up_max - fire.len(),
        };
        let mut late = newest(recurrence, last, late_until, late_max);
        late.append(&mut fire);
        let skipped_until = late.first().map_or(now, |first| before(*first));
        Due {
            skipped: skipped(recurrence, last, skipped_until),
            fire: late,
        }
    }
}

/// The due occurrences of a schedule. Every one is either in `fire` or in `skipped`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// The occurrences that fire, oldest first.
    pub fire: Vec<Timestamp>,
    /// The occurrences that are skipped.
    pub skipped: Option<SkippedRange>,
}

impl Due {
    /// Returns all due occurrences as skipped for one reason, those in `fire` included.
    pub fn skipped_for(&self, reason: SkipReason) -> Option<SkippedRange> {
        let (first, last) = (self.fire.first(), self.fire.last());
        let first = self.skipped.map(|range| range.first).or(first.copied())?;
        let last = last.copied().or(self.skipped.map(|range| range.last))?;
        let count = self.skipped.map_or(Some(0), |range| range.count);
        Some(SkippedRange {
            first,
            last,
            reason,
            count: count.map(|count| count + self.fire.len()),
        })
    }
}

/// Why an occurrence does not fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SkipReason {
    /// It was too late, and the schedule's `missed` setting skips it.
    Missed,
    /// An earlier occurrence was unfinished, and the schedule's `overlap` setting skips it.
    Overlap,
    /// The schedule was paused.
    Paused,
    /// The schedule was changed before the occurrence fired.
    Changed,
    /// Another job held its job's unique key.
    Duplicate,
}

string_enum!(SkipReason {
    Missed = "missed",
    Overlap = "overlap",
    Paused = "paused",
    Changed = "changed",
    Duplicate = "duplicate",
});

/// A range of skipped occurrences, recorded as one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SkippedRange {
    /// The first skipped occurrence.
    pub first: Timestamp,
    /// The last skipped occurrence.
    pub last: Timestamp,
    /// Why they were skipped.
    pub reason: SkipReason,
    /// How many there are; `None` if more than 1000.
    pub count: Option<usize>,
}

impl SkippedRange {
    /// Makes a range of one occurrence.
    pub fn one(at: Timestamp, reason: SkipReason) -> Self {
        SkippedRange {
            first: at,
            last: at,
            reason,
            count: Some(1),
        }
    }
}

/// The newest occurrences after `after` up to `until`, at most `max`, oldest first.
fn newest(
    recurrence: &Recurrence,
    after: Timestamp,
    until: Timestamp,
    max: usize,
) -> Vec<Timestamp> {
    let previous = |at: &Timestamp| recurrence.last(before(*at));
    let mut occurrences: Vec<Timestamp> = std::iter::successors(recurrence.last(until), previous)
        .take_while(|at| *at > after)
        .take(max)
        .collect();
    occurrences.reverse();
    occurrences
}

fn skipped(recurrence: &Recurrence, after: Timestamp, until: Timestamp) -> Option<SkippedRange> {
    let first = recurrence
        .next(after)
        .filter(|firing| firing.at <= until)?
        .at;
    let last = recurrence.last(until)?;
    let firings = recurrence
        .after(after)
        .take_while(|firing| firing.at <= until);
    let count = firings.take(COUNTED_MAX + 1).count();
    Some(SkippedRange {
        first,
        last,
        reason: SkipReason::Missed,
        count: Some(count).filter(|count| *count <= COUNTED_MAX),
    })
}

fn before(at: Timestamp) -> Timestamp {
    at.saturating_sub(Duration::from_micros(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Zone;
    use crate::timestamp::at;
    use proptest::prelude::*;

    fn recurrence(expression: &str) -> Recurrence {
        let anchor = at("2026-01-01T00:00:00Z");
        Recurrence::new(expression.parse().unwrap(), Zone::utc(), anchor)
    }

    fn due(missed: Missed, expression: &str, last: &str, now: &str) -> Due {
        missed.due(
            &recurrence(expression),
            at(last),
            at(now),
            MISSED_AFTER_DEFAULT,
            CATCH_UP_DEFAULT,
        )
    }

    fn texts(fire: &[Timestamp]) -> Vec<String> {
        fire.iter().map(Timestamp::to_string).collect()
    }

    const LAST: &str = "2026-01-01T12:00:00Z";

    #[test]
    fn occurrences_in_time_fire_under_every_policy() {
        for missed in [Missed::Skip, Missed::Once, Missed::All] {
            let due = due(missed, "*/10 * * * * *", LAST, "2026-01-01T12:00:15Z");
            assert_eq!(
                texts(&due.fire),
                ["2026-01-01T12:00:10Z"],
                "5 s late is in time"
            );
            assert_eq!(due.skipped, None);
        }
    }

    #[test]
    fn after_an_outage_each_policy_does_what_it_says() {
        let now = "2026-01-01T12:10:08Z"; // 12:10:00 is 8 s late
        let skip = due(Missed::Skip, "*/10 * * * * *", LAST, now);
        assert_eq!(skip.fire, []);
        let range = SkippedRange {
            first: at("2026-01-01T12:00:10Z"),
            last: at("2026-01-01T12:10:00Z"),
            reason: SkipReason::Missed,
            count: Some(60),
        };
        assert_eq!(skip.skipped, Some(range));
        let once = due(Missed::Once, "*/10 * * * * *", LAST, now);
        assert_eq!(texts(&once.fire), ["2026-01-01T12:10:00Z"]);
        let last = at("2026-01-01T12:09:50Z");
        assert_eq!(
            once.skipped,
            Some(SkippedRange {
                last,
                count: Some(59),
                ..range
            })
        );
        let all = due(Missed::All, "*/10 * * * * *", LAST, now);
        assert_eq!(all.fire.len(), 60);
        assert_eq!(all.skipped, None);
    }

    #[test]
    fn an_occurrence_in_time_also_counts_as_the_catch_up() {
        let once = due(Missed::Once, "*/10 * * * * *", LAST, "2026-01-01T12:10:02Z");
        assert_eq!(texts(&once.fire), ["2026-01-01T12:10:00Z"]);
        assert_eq!(once.skipped.unwrap().count, Some(59));
    }

    #[test]
    fn all_is_the_last_hundred() {
        let all = due(Missed::All, "* * * * *", LAST, "2026-01-12T12:00:30Z");
        assert_eq!(all.fire.len(), 100);
        assert_eq!(all.fire.last(), Some(&at("2026-01-12T12:00:00Z")));
        let skipped = all.skipped.unwrap();
        assert_eq!(skipped.count, None, "more than a thousand");
        assert_eq!(skipped.first, at("2026-01-01T12:01:00Z"));
        assert!(skipped.last < all.fire[0]);
        let with_one_in_time = due(Missed::All, "* * * * *", LAST, "2026-01-12T12:00:01Z");
        assert_eq!(with_one_in_time.fire.len(), 100);
    }

    #[test]
    fn without_due_occurrences_nothing_fires_or_is_skipped() {
        for missed in [Missed::Skip, Missed::Once, Missed::All] {
            let due = due(missed, "0 0 * * *", LAST, "2026-01-01T13:00:00Z");
            assert_eq!(
                due,
                Due {
                    fire: vec![],
                    skipped: None
                }
            );
        }
        let finished = due(
            Missed::Once,
            "at 2026-01-01T12:00:00Z",
            LAST,
            "2026-01-02T00:00:00Z",
        );
        assert_eq!(finished.fire, []);
    }

    #[test]
    fn exactly_a_thousand_are_counted() {
        let minutes =
            |minutes: u64| at(LAST).saturating_add(Duration::from_secs(60 * minutes + 30));
        let count = |now| {
            let due = Missed::Skip.due(
                &recurrence("* * * * *"),
                at(LAST),
                now,
                MISSED_AFTER_DEFAULT,
                CATCH_UP_DEFAULT,
            );
            due.skipped.unwrap().count
        };
        assert_eq!(count(minutes(1000)), Some(1000));
        assert_eq!(count(minutes(1001)), None);
    }

    #[test]
    fn words_and_defaults() {
        for missed in [Missed::Skip, Missed::Once, Missed::All] {
            assert_eq!(missed.name().parse(), Ok(missed));
        }
        assert!("never".parse::<Missed>().is_err());
        let reasons = [SkipReason::Missed, SkipReason::Overlap, SkipReason::Paused];
        assert_eq!(
            reasons.map(SkipReason::name),
            ["missed", "overlap", "paused"]
        );
        assert_eq!(Missed::default_for(Delivery::AtLeastOnce), Missed::Once);
        assert_eq!(Missed::default_for(Delivery::AtMostOnce), Missed::Skip);
    }

    proptest! {
        #[test]
        fn every_occurrence_fires_or_is_recorded_as_skipped(
            period in 1u64..400, late in 0u64..40_000, missed_after in 0u64..1000,
            missed in proptest::sample::select(&[Missed::Skip, Missed::Once, Missed::All][..]), most in 1u32..=1000,
        ) {
            let recurrence = recurrence(&format!("@every {period}s"));
            let now = at(LAST).saturating_add(Duration::from_secs(late));
            let due = missed.due(&recurrence, at(LAST), now, Duration::from_secs(missed_after), most);
            let all: Vec<_> = recurrence.after(at(LAST)).map(|f| f.at).take_while(|at| *at <= now).collect();
            let fired = due.fire.len();
            prop_assert!(fired <= usize::try_from(most).unwrap());
            prop_assert_eq!(&all[all.len() - fired..], &due.fire[..], "what fires is the newest");
            let left = &all[..all.len() - fired];
            prop_assert_eq!(due.skipped.map(|range| range.first), left.first().copied());
            prop_assert_eq!(due.skipped.map(|range| range.last), left.last().copied());
            if let Some(count) = due.skipped.and_then(|range| range.count) {
                prop_assert_eq!(count, left.len());
            }
        }
    }
}
