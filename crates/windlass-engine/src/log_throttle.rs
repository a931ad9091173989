//! What the log says about things that may happen thousands of times: a few lines for each group, then a count.
//!
//! Pure: the instant comes in, what to write comes out. The engine writes it (`narrator.rs`).

use std::collections::BTreeMap;
use std::time::Duration;

use windlass_core::{Timestamp, format_duration};

/// Lines of one group in each window; the rest is counted.
const LINES_MAX: u64 = 5;

/// After this time the count is written, and the group may write lines again.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);

/// Further groups of a window share one.
const GROUPS_MAX: usize = 200;

/// Decides which events get a line of their own.
#[derive(Debug)]
pub(crate) struct Digest<G> {
    /// The group `None` is shared by those that found no room.
    groups: BTreeMap<Option<G>, Window>,
    /// No window ends before.
    due_at: Timestamp,
}

#[derive(Debug)]
struct Window {
    began_at: Timestamp,
    seen: u64,
}

/// How often something happened without a line of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Suppressed<G> {
    /// What; `None` for all that share a group because there are too many.
    pub(crate) group: Option<G>,
    /// How often.
    pub(crate) count: u64,
    /// For how long.
    pub(crate) within: Duration,
}

impl<G> Default for Digest<G> {
    fn default() -> Self {
        Digest {
            groups: BTreeMap::new(),
            due_at: Timestamp::MAX,
        }
    }
}

impl<G: Ord> Digest<G> {
    /// Counts an event; whether it gets a line of its own.
    pub(crate) fn note(&mut self, group: G, now: Timestamp) -> bool {
        let group = Some(group);
        let fits = self.groups.len() < GROUPS_MAX || self.groups.contains_key(&group);
        let window = self.groups.entry(group.filter(|_| fits));
        let window = window.or_insert(Window {
            began_at: now,
            seen: 0,
        });
        window.seen += 1;
        self.due_at = self.due_at.min(window.began_at.saturating_add(WINDOW));
        window.seen <= LINES_MAX
    }

    /// Ends the windows that are over: what they counted beyond their lines.
    pub(crate) fn take_due(&mut self, now: Timestamp) -> Vec<Suppressed<G>> {
        if now < self.due_at {
            return Vec::new();
        }
        let all = std::mem::take(&mut self.groups).into_iter();
        let (ended, open) = all.partition(|(_, window)| now.since(window.began_at) >= WINDOW);
        self.groups = open;
        let began = self.groups.values().map(|window| window.began_at).min();
        self.due_at = began.map_or(Timestamp::MAX, |at| at.saturating_add(WINDOW));
        summed_up(ended, now)
    }

    /// Ends all windows.
    pub(crate) fn take_all(&mut self, now: Timestamp) -> Vec<Suppressed<G>> {
        self.due_at = Timestamp::MAX;
        summed_up(std::mem::take(&mut self.groups), now)
    }
}

fn summed_up<G>(ended: BTreeMap<Option<G>, Window>, now: Timestamp) -> Vec<Suppressed<G>> {
    let more = ended.into_iter().filter_map(|(group, window)| {
        let count = window
            .seen
            .checked_sub(LINES_MAX)
            .filter(|more| *more > 0)?;
        let within = now.since(window.began_at);
        Some(Suppressed {
            group,
            count,
            within,
        })
    });
    more.collect()
}

/// What schedules did since the last summary.
#[derive(Debug, Default)]
pub(crate) struct Firings {
    began_at: Option<Timestamp>,
    fired: u64,
    lag_max: Duration,
}

/// One line about many firings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FiringsSummary {
    pub(crate) fired: u64,
    pub(crate) lag_max: Duration,
    pub(crate) within: Duration,
}

impl Firings {
    pub(crate) fn note(&mut self, lag: Duration, now: Timestamp) {
        self.began_at.get_or_insert(now);
        self.fired += 1;
        self.lag_max = self.lag_max.max(lag);
    }

    /// The summary of a minute that is over.
    pub(crate) fn take_due(&mut self, now: Timestamp) -> Option<FiringsSummary> {
        let over = now.since(self.began_at?) >= WINDOW;
        over.then(|| self.take_all(now)).flatten()
    }

    /// The summary of what was not summed up yet.
    pub(crate) fn take_all(&mut self, now: Timestamp) -> Option<FiringsSummary> {
        let taken = std::mem::take(self);
        Some(FiringsSummary {
            within: now.since(taken.began_at?),
            fired: taken.fired,
            lag_max: taken.lag_max,
        })
    }
}

/// A duration in a log line: `1m 30s`, to the millisecond.
pub(crate) fn shown(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    format_duration(Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::UNIX_EPOCH.saturating_add(Duration::from_secs(seconds))
    }

    #[test]
    fn thousands_of_one_group_are_a_few_lines_and_a_count() {
        let mut digest = Digest::default();
        let lines = (0..6666).filter(|_| digest.note("mail", at(0))).count();
        assert_eq!(lines, 5);
        assert_eq!(digest.take_due(at(59)), []);
        let group = Some("mail");
        let (count, within) = (6661, WINDOW);
        assert_eq!(
            digest.take_due(at(60)),
            [Suppressed {
                group,
                count,
                within
            }]
        );
        assert_eq!(digest.take_due(at(600)), [], "said once");
    }

    #[test]
    fn a_group_writes_again_in_its_next_window() {
        let mut digest = Digest::default();
        for _ in 0..6 {
            digest.note("mail", at(0));
        }
        assert!(!digest.note("mail", at(59)));
        digest.take_due(at(60));
        assert!(digest.note("mail", at(60)));
    }

    #[test]
    fn groups_do_not_silence_each_other() {
        let mut digest = Digest::default();
        for _ in 0..100 {
            digest.note("mail", at(0));
        }
        assert!(digest.note("sms", at(0)));
    }

    #[test]
    fn groups_without_suppressed_lines_are_not_summed_up() {
        let mut digest = Digest::default();
        digest.note("mail", at(0));
        assert_eq!(digest.take_due(at(60)), []);
        assert_eq!(digest.groups.len(), 0);
    }

    #[test]
    fn groups_are_bounded_and_those_without_room_share_one() {
        let mut digest = Digest::default();
        for number in 0..10_000 {
            digest.note(number, at(1));
        }
        assert_eq!(digest.groups.len(), GROUPS_MAX + 1);
        let all = digest.take_all(at(2));
        let [shared] = &all[..] else {
            panic!("{all:?}")
        };
        let shared_seen = 10_000 - u64::try_from(GROUPS_MAX).unwrap();
        assert_eq!((shared.group, shared.count), (None, shared_seen - 5));
    }

    #[test]
    fn windows_of_different_ages_end_at_their_own_time() {
        let mut digest = Digest::default();
        for _ in 0..6 {
            digest.note("mail", at(0));
            digest.note("sms", at(30));
        }
        let groups = |all: Vec<Suppressed<&'static str>>| -> Vec<_> {
            all.into_iter().filter_map(|one| one.group).collect()
        };
        assert_eq!(groups(digest.take_due(at(60))), ["mail"]);
        assert_eq!(groups(digest.take_due(at(89))), [""; 0]);
        assert_eq!(groups(digest.take_due(at(90))), ["sms"]);
    }

    #[test]
    fn firings_of_a_minute_are_one_summary() {
        let mut firings = Firings::default();
        assert_eq!(firings.take_due(at(1000)), None);
        for second in 0..60 {
            firings.note(Duration::from_millis(second), at(second));
        }
        assert_eq!(firings.take_due(at(59)), None);
        let summary = FiringsSummary {
            fired: 60,
            lag_max: Duration::from_millis(59),
            within: WINDOW,
        };
        assert_eq!(firings.take_due(at(60)), Some(summary));
        assert_eq!(firings.take_all(at(61)), None);
    }
}
