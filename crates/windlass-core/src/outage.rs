//! When the store itself was away, nobody's jobs are run again for its fault.

use std::time::Duration;

use crate::Timestamp;

/// Until when expired leases are left alone, if nobody could renew one for a whole lease before `now`.
///
/// `newest_beat` is the last sign of life of any node, as the store has it. An outage of the store, a pause of the machine
/// and a clock that jumped ahead look alike, and are forgiven alike: the workers get one lease to renew theirs.
pub fn outage_grace(
    newest_beat: Option<Timestamp>,
    now: Timestamp,
    lease: Duration,
) -> Option<Timestamp> {
    let newest = newest_beat?;
    (now.since(newest) >= lease).then(|| now.saturating_add(lease))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timestamp::at;

    #[test]
    fn a_silence_of_a_lease_is_forgiven_for_a_lease() {
        let lease = Duration::from_secs(30);
        let grace =
            |beat: Option<&str>| outage_grace(beat.map(at), at("2026-01-01T00:01:00Z"), lease);
        assert_eq!(grace(None), None, "nobody was there to renew anything");
        assert_eq!(grace(Some("2026-01-01T00:00:31Z")), None);
        let until = Some(at("2026-01-01T00:01:30Z"));
        assert_eq!(grace(Some("2026-01-01T00:00:30Z")), until);
        assert_eq!(grace(Some("2025-01-01T00:00:00Z")), until);
        assert_eq!(
            grace(Some("2026-01-01T01:00:00Z")),
            None,
            "a beat ahead of us is a sign of life"
        );
    }
}
