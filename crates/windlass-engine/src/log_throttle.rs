//! Limits log lines about things that may happen thousands of times: a few lines per group and
//! minute, then one line with a count.
//!
//! Pure: the time comes in, the decision comes out. `job_log.rs` writes the lines.

use std::collections::BTreeMap;
use std::time::Duration;

use windlass_core::{Timestamp, format_duration};

use crate::saturate::to_u64;

/// The number of lines per group and window; further events are only counted.
const LINES_MAX: u64 = 5;

/// The length of a window. When it ends, the count is logged and the group gets lines again.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);

/// The number of groups with a window of their own. All further groups share one window.
const GROUPS_MAX: usize = 200;

/// Decides which events get a log line of their own.
#[derive(Debug)]
pub(crate) struct LogThrottle<G> {
    /// The key `None` is the shared window of the groups beyond [`GROUPS_MAX`].
    groups: BTreeMap<Option<G>, Window>,
    /// The earliest end of a window.
    due_at: Timestamp,
}

#[derive(Debug)]
struct Window {
    began_at: Timestamp,
    events: u64,
}

/// The number of events that got no log line of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Suppressed<G> {
    /// The group, or `None` for the window that many groups share.
    pub(crate) group: Option<G>,
    /// How many events were suppressed.
    pub(crate) count: u64,
    /// How long the window was open.
    pub(crate) within: Duration,
}

impl<G> Default for LogThrottle<G> {
    fn default() -> Self {
        LogThrottle {
            groups: BTreeMap::new(),
            due_at: Timestamp::MAX,
        }
    }
}

impl<G: Ord> LogThrottle<G> {
    /// Counts an event and returns whether it gets a log line.
    pub(crate) fn admit(&mut self, group: G, now: Timestamp) -> bool {
        let group = Some(group);
        let fits = self.groups.len() < GROUPS_MAX || self.groups.contains_key(&group);
        let window = self.groups.entry(group.filter(|_| fits));
        let window = window.or_insert(Window {
            began_at: now,
            events: 0,
        });
        window.events += 1;
        self.due_at = self.due_at.min(window.began_at.saturating_add(WINDOW));
        window.events <= LINES_MAX
    }

    /// Closes the windows that have ended and returns what they suppressed.
    pub(crate) fn take_due(&mut self, now: Timestamp) -> Vec<Suppressed<G>> {
        if now < self.due_at {
            return Vec::new();
        }
        let all = std::mem::take(&mut self.groups).into_iter();
        let (ended, open) = all.partition(|(_, window)| now.since(window.began_at) >= WINDOW);
        self.groups = open;
        let began = self.groups.values().map(|window| window.began_at).min();
        self.due_at = began.map_or(Timestamp::MAX, |at| at.saturating_add(WINDOW));
        suppressed_events(ended, now)
    }

    /// Closes all windows and returns what they suppressed.
    pub(crate) fn take_all(&mut self, now: Timestamp) -> Vec<Suppressed<G>> {
        self.due_at = Timestamp::MAX;
        suppressed_events(std::mem::take(&mut self.groups), now)
    }
}

fn suppressed_events<G>(ended: BTreeMap<Option<G>, Window>, now: Timestamp) -> Vec<Suppressed<G>> {
    let suppressed = ended.into_iter().filter_map(|(group, window)| {
        let count = window
            .events
            .checked_sub(LINES_MAX)
            .filter(|count| *count > 0)?;
        let within = now.since(window.began_at);
        Some(Suppressed {
            group,
            count,
            within,
        })
    });
    suppressed.collect()
}

/// The schedule firings since the last summary.
#[derive(Debug, Default)]
pub(crate) struct Firings {
    began_at: Option<Timestamp>,
    fired: u64,
    lag_max: Duration,
}

/// A summary of many firings.
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

    /// Returns the summary once a window has passed since the first firing.
    pub(crate) fn take_due(&mut self, now: Timestamp) -> Option<FiringsSummary> {
        let is_due = now.since(self.began_at?) >= WINDOW;
        is_due.then(|| self.take_all(now)).flatten()
    }

    /// Returns the summary of all firings since the last one.
    pub(crate) fn take_all(&mut self, now: Timestamp) -> Option<FiringsSummary> {
        let taken = std::mem::take(self);
        Some(FiringsSummary {
            within: now.since(taken.began_at?),
            fired: taken.fired,
            lag_max: taken.lag_max,
        })
    }
}

/// Formats a duration for a log line with millisecond precision: `1m 30s`.
pub(crate) fn shown(duration: Duration) -> String {
    let millis = to_u64(duration.as_millis());
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
        let mut throttle = LogThrottle::default();
        let lines = (0..6666).filter(|_| throttle.admit("mail", at(0))).count();
        assert_eq!(lines, 5);
        assert_eq!(throttle.take_due(at(59)), []);
        let group = Some("mail");
        let (count, within) = (6661, WINDOW);
        assert_eq!(
            throttle.take_due(at(60)),
            [Suppressed {
                group,
                count,
                within
            }]
        );
        assert_eq!(throttle.take_due(at(600)), [], "reported once");
    }

    #[test]
    fn a_group_writes_again_in_its_next_window() {
        let mut throttle = LogThrottle::default();
        for _ in 0..6 {
            throttle.admit("mail", at(0));
        }
        assert!(!throttle.admit("mail", at(59)));
        throttle.take_due(at(60));
        assert!(throttle.admit("mail", at(60)));
    }

    #[test]
    fn groups_do_not_silence_each_other() {
        let mut throttle = LogThrottle::default();
        for _ in 0..100 {
            throttle.admit("mail", at(0));
        }
        assert!(throttle.admit("sms", at(0)));
    }

    #[test]
    fn groups_without_suppressed_lines_are_not_summed_up() {
        let mut throttle = LogThrottle::default();
        throttle.admit("mail", at(0));
        assert_eq!(throttle.take_due(at(60)), []);
        assert_eq!(throttle.groups.len(), 0);
    }

    #[test]
    fn groups_are_bounded_and_those_without_room_share_one() {
        let mut throttle = LogThrottle::default();
        for number in 0..10_000 {
            throttle.admit(number, at(1));
        }
        assert_eq!(throttle.groups.len(), GROUPS_MAX + 1);
        let all = throttle.take_all(at(2));
        let [shared] = &all[..] else {
            panic!("{all:?}")
        };
        let shared_seen = 10_000 - u64::try_from(GROUPS_MAX).unwrap();
        assert_eq!((shared.group, shared.count), (None, shared_seen - 5));
    }

    #[test]
    fn windows_of_different_ages_end_at_their_own_time() {
        let mut throttle = LogThrottle::default();
        for _ in 0..6 {
            throttle.admit("mail", at(0));
            throttle.admit("sms", at(30));
        }
        let groups = |all: Vec<Suppressed<&'static str>>| -> Vec<_> {
            all.into_iter().filter_map(|one| one.group).collect()
        };
        assert_eq!(groups(throttle.take_due(at(60))), ["mail"]);
        assert_eq!(groups(throttle.take_due(at(89))), [""; 0]);
        assert_eq!(groups(throttle.take_due(at(90))), ["sms"]);
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
