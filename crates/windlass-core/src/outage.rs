//! When the store itself was away, nobody's jobs are run again for its fault.
//!
//! An outage of the store, a pause of the machine and a clock that jumped ahead look alike, and are forgiven alike: the
//! workers get one lease to renew theirs.

use std::time::Duration;

use crate::Timestamp;

/// The signs of life that a sweeper knows of before it gives its next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SignsOfLife {
    /// The newest of any node, as the store has it.
    pub newest: Option<Timestamp>,
    /// The last that this sweeper gave itself since it runs.
    pub own: Option<Timestamp>,
    /// Until when another node leaves expired leases alone: the latest of
    /// [`HoldNotice::honoured_until`].
    pub held_until: Option<Timestamp>,
}

/// What a node says about its hold with a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldNotice {
    /// Until when it leaves expired leases alone.
    pub until: Timestamp,
    /// When it said so.
    pub beat_at: Timestamp,
    /// How long its leases last.
    pub lease: Duration,
}

impl HoldNotice {
    /// Until when others honour the hold. A hold lasts for one lease, so a node that says more has
    /// a wrong clock, and one that was silent for a lease has none left. A heartbeat further ahead
    /// than a lease is of a wrong clock too: it would never grow old.
    pub fn honoured_until(self, now: Timestamp) -> Option<Timestamp> {
        let latest = now.saturating_add(self.lease);
        let said_at = Some(self.beat_at).filter(|at| *at <= latest)?;
        let until = self.until.min(said_at.saturating_add(self.lease));
        Some(until.min(latest)).filter(|until| *until > now)
    }
}

/// Expired leases are left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// Until then.
    pub until: Timestamp,
    /// Whether it was everybody who could not reach the store: the others must know, as the first sign of life hides the
    /// silence from them. One that was away alone holds up nobody else.
    pub everybody: bool,
}

/// Whether expired leases are to be left alone, and until when.
///
/// Leases are renewed every third of a lease. So the first of them may have run out when a silence has lasted for two thirds.
pub fn outage_hold(signs: SignsOfLife, now: Timestamp, lease: Duration) -> Option<Hold> {
    let silent = |beat: Option<Timestamp>| beat.is_some_and(|at| now.since(at) >= lease * 2 / 3);
    let everybody = silent(signs.newest);
    let ours = (everybody || silent(signs.own)).then(|| now.saturating_add(lease));
    let theirs = signs.held_until.filter(|until| *until > now);
    let until = ours.max(theirs)?;
    let everybody = everybody || theirs.is_some();
    Some(Hold { until, everybody })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timestamp::at;

    const LEASE: Duration = Duration::from_secs(30);

    fn hold(signs: SignsOfLife) -> Option<(Timestamp, bool)> {
        let held = outage_hold(signs, at("2026-01-01T00:01:00Z"), LEASE);
        held.map(|hold| (hold.until, hold.everybody))
    }

    fn newest(beat: &str) -> SignsOfLife {
        SignsOfLife {
            newest: Some(at(beat)),
            ..SignsOfLife::default()
        }
    }

    #[test]
    fn a_silence_in_which_a_lease_may_have_run_out_is_forgiven_for_a_lease() {
        let until = Some((at("2026-01-01T00:01:30Z"), true));
        let nobody = SignsOfLife::default();
        assert_eq!(hold(nobody), None, "nobody was there to renew anything");
        assert_eq!(hold(newest("2026-01-01T00:00:41Z")), None);
        assert_eq!(hold(newest("2026-01-01T00:00:40Z")), until);
        assert_eq!(hold(newest("2025-01-01T00:00:00Z")), until);
        let ahead = newest("2026-01-01T01:00:00Z");
        assert_eq!(hold(ahead), None, "a beat ahead of us is a sign of life");
    }

    #[test]
    fn one_that_was_away_alone_holds_up_itself_only() {
        let signs = SignsOfLife {
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
            notice.honoured_until(at("2026-01-01T00:01:00Z"))
        };
        let (now, soon) = ("2026-01-01T00:01:00Z", "2026-01-01T00:01:20Z");
        let later = "2027-01-01T00:00:00Z";
        assert_eq!(honoured(soon, now), Some(at(soon)));
        assert_eq!(honoured(now, now), None, "it is over");
        let lease = Some(at("2026-01-01T00:01:30Z"));
        assert_eq!(honoured(later, now), lease);
        let earlier = "2026-01-01T00:00:40Z";
        let left = Some(at("2026-01-01T00:01:10Z"));
        assert_eq!(honoured(later, earlier), left, "it does not grow");
        assert_eq!(honoured(later, "2026-01-01T00:00:30Z"), None, "silent");
        assert_eq!(honoured(later, soon), lease, "its clock is ahead");
        assert_eq!(honoured(later, later), None, "its clock is wrong");
    }

    #[test]
    fn a_hold_that_another_node_tells_is_honoured_and_passed_on() {
        let signs = |until| SignsOfLife {
            held_until: Some(at(until)),
            ..newest("2026-01-01T00:00:59Z")
        };
        let told = hold(signs("2026-01-01T00:01:20Z"));
        assert_eq!(told, Some((at("2026-01-01T00:01:20Z"), true)));
        assert_eq!(hold(signs("2026-01-01T00:01:00Z")), None, "it is over");
    }
}
