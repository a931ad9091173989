//! After an outage of the store, expired leases get extra time.
//!
//! While the store is unreachable, workers cannot renew their leases. A sweep right afterwards
//! would take every running job for lost. So a sweeper that notices a silence holds back for one
//! lease, in which the workers renew. An outage of the store, a suspended machine and a clock that
//! jumped ahead look the same and are treated the same.

use std::time::Duration;

use crate::Timestamp;

/// The heartbeats that a sweeper knows before it sends its next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Heartbeats {
    /// The newest heartbeat of any node in the store.
    pub newest: Option<Timestamp>,
    /// The last heartbeat of this sweeper since it started.
    pub own: Option<Timestamp>,
    /// Until when another node holds back, as the latest [`HoldNotice::valid_until`] says.
    pub held_until: Option<Timestamp>,
}

/// What a node's heartbeat says about its hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldNotice {
    /// Until when the node leaves expired leases alone.
    pub until: Timestamp,
    /// When the node sent the heartbeat.
    pub beat_at: Timestamp,
    /// How long the node's leases last.
    pub lease: Duration,
}

impl HoldNotice {
    /// Until when other nodes honour the hold; `None` if they do not.
    ///
    /// A hold lasts at most one lease after its heartbeat, so later values come from a wrong clock
    /// and are cut. A heartbeat that is more than one lease ahead of `now` is ignored, because it
    /// would never become old.
    pub fn valid_until(self, now: Timestamp) -> Option<Timestamp> {
        let latest = now.saturating_add(self.lease);
        let beat_at = Some(self.beat_at).filter(|at| *at <= latest)?;
        let until = self.until.min(beat_at.saturating_add(self.lease));
        Some(until.min(latest)).filter(|until| *until > now)
    }
}

/// A time in which a sweeper leaves expired leases alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SweepHold {
    /// The end of that time.
    pub until: Timestamp,
    /// Whether no node could reach the store. Then this node must announce the hold, because its
    /// own heartbeat hides the silence from the others. A node that was cut off alone does not hold
    /// up the others.
    pub all_nodes: bool,
}

/// Decides whether a sweeper leaves expired leases alone, and until when.
///
/// Workers renew every third of a lease, so the first lease may have expired once a silence has
/// lasted for two thirds of a lease.
pub fn outage_hold(signs: Heartbeats, now: Timestamp, lease: Duration) -> Option<SweepHold> {
    let silent = |beat: Option<Timestamp>| beat.is_some_and(|at| now.since(at) >= lease * 2 / 3);
    let all_nodes = silent(signs.newest);
    let own_hold = (all_nodes || silent(signs.own)).then(|| now.saturating_add(lease));
    let announced_hold = signs.held_until.filter(|until| *until > now);
    let until = own_hold.max(announced_hold)?;
    let all_nodes = all_nodes || announced_hold.is_some();
    Some(SweepHold { until, all_nodes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timestamp::at;

    const LEASE: Duration = Duration::from_secs(30);

    fn hold(signs: Heartbeats) -> Option<(Timestamp, bool)> {
        let held = outage_hold(signs, at("2026-01-01T00:01:00Z"), LEASE);
        held.map(|hold| (hold.until, hold.all_nodes))
    }

    fn newest(beat: &str) -> Heartbeats {
        Heartbeats {
            newest: Some(at(beat)),
            ..Heartbeats::default()
        }
    }

    #[test]
    fn after_a_silence_of_two_thirds_of_a_lease_the_hold_lasts_one_lease() {
        let until = Some((at("2026-01-01T00:01:30Z"), true));
        let no_heartbeat = Heartbeats::default();
        assert_eq!(hold(no_heartbeat), None, "no worker had a lease to renew");
        assert_eq!(hold(newest("2026-01-01T00:00:41Z")), None);
        assert_eq!(hold(newest("2026-01-01T00:00:40Z")), until);
        assert_eq!(hold(newest("2025-01-01T00:00:00Z")), until);
        let ahead = newest("2026-01-01T01:00:00Z");
        assert_eq!(hold(ahead), None, "a heartbeat ahead of us is no silence");
    }

    #[test]
    fn a_node_that_was_cut_off_alone_does_not_hold_up_others() {
        let signs = Heartbeats {
            own: Some(at("2026-01-01T00:00:40Z")),
            ..newest("2026-01-01T00:00:59Z")
        };
        assert_eq!(hold(signs), Some((at("2026-01-01T00:01:30Z"), false)));
    }

    #[test]
    fn the_hold_of_another_node_is_honoured_for_one_lease_at_most() {
        let honoured = |until, beat_at| {
            let notice = HoldNotice {
                until: at(until),
                beat_at: at(beat_at),
                lease: LEASE,
            };
            notice.valid_until(at("2026-01-01T00:01:00Z"))
        };
        let (now, soon) = ("2026-01-01T00:01:00Z", "2026-01-01T00:01:20Z");
        let later = "2027-01-01T00:00:00Z";
        assert_eq!(honoured(soon, now), Some(at(soon)));
        assert_eq!(honoured(now, now), None, "the hold has ended");
        let lease = Some(at("2026-01-01T00:01:30Z"));
        assert_eq!(honoured(later, now), lease);
        let earlier = "2026-01-01T00:00:40Z";
        let left = Some(at("2026-01-01T00:01:10Z"));
        assert_eq!(honoured(later, earlier), left, "one lease after the beat");
        assert_eq!(honoured(later, "2026-01-01T00:00:30Z"), None, "silent");
        assert_eq!(honoured(later, soon), lease, "its clock is ahead");
        assert_eq!(honoured(later, later), None, "its clock is wrong");
    }

    #[test]
    fn a_hold_that_another_node_announces_is_honoured_and_passed_on() {
        let signs = |until| Heartbeats {
            held_until: Some(at(until)),
            ..newest("2026-01-01T00:00:59Z")
        };
        let announced = hold(signs("2026-01-01T00:01:20Z"));
        assert_eq!(announced, Some((at("2026-01-01T00:01:20Z"), true)));
        assert_eq!(hold(signs("2026-01-01T00:01:00Z")), None, "it has ended");
    }
}
