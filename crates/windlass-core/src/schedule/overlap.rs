//! What an occurrence does while an earlier one of the same schedule is unfinished.

use std::str::FromStr;

use crate::Invalid;
use crate::fields::one_of;

/// What a schedule does when an earlier occurrence is still unfinished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Overlap {
    /// The new occurrence is skipped.
    #[default]
    Skip,
    /// One waits behind the unfinished one; a further one is skipped.
    Queue,
    /// They run side by side.
    Allow,
    /// The unfinished one is called off.
    CancelRunning,
}

/// What becomes of an occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverlapDecision {
    /// It fires.
    Fire,
    /// It fires, and starts only when the unfinished one is over.
    FireBehind,
    /// The unfinished ones are cancelled, and it fires.
    CancelAndFire,
    /// It is recorded as skipped.
    Skip,
}

impl Overlap {
    const ALL: [Overlap; 4] = [
        Overlap::Skip,
        Overlap::Queue,
        Overlap::Allow,
        Overlap::CancelRunning,
    ];

    /// The word in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Overlap::Skip => "skip",
            Overlap::Queue => "queue",
            Overlap::Allow => "allow",
            Overlap::CancelRunning => "cancel_running",
        }
    }

    /// Decides about an occurrence that meets so many unfinished ones. One that waits for a retry is unfinished too.
    pub fn decide(self, unfinished: usize) -> OverlapDecision {
        match (self, unfinished) {
            (_, 0) | (Overlap::Allow, _) => OverlapDecision::Fire,
            (Overlap::Queue, 1) => OverlapDecision::FireBehind,
            (Overlap::Skip | Overlap::Queue, _) => OverlapDecision::Skip,
            (Overlap::CancelRunning, _) => OverlapDecision::CancelAndFire,
        }
    }
}

impl FromStr for Overlap {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        one_of(text, &Overlap::ALL.map(|overlap| (overlap.name(), overlap)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_decides_by_what_is_unfinished() {
        use OverlapDecision::{CancelAndFire, Fire, FireBehind, Skip};
        for (overlap, decisions) in [
            (Overlap::Skip, [Fire, Skip, Skip]),
            (Overlap::Queue, [Fire, FireBehind, Skip]),
            (Overlap::Allow, [Fire, Fire, Fire]),
            (Overlap::CancelRunning, [Fire, CancelAndFire, CancelAndFire]),
        ] {
            assert_eq!(
                [0, 1, 2].map(|unfinished| overlap.decide(unfinished)),
                decisions
            );
            assert_eq!(overlap.name().parse(), Ok(overlap));
        }
        assert!("wait".parse::<Overlap>().is_err());
        assert_eq!(Overlap::default(), Overlap::Skip);
    }
}
