//! What happens to an occurrence while an earlier one of the same schedule is unfinished.

use super::Missed;
use crate::words::string_enum;

/// What a schedule does when an earlier occurrence is still unfinished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Overlap {
    /// The new occurrence is skipped.
    #[default]
    Skip,
    /// The new occurrence waits until the unfinished one is done. Further occurrences are skipped.
    Queue,
    /// Both run at the same time.
    Allow,
    /// The unfinished occurrence is cancelled.
    CancelRunning,
}

string_enum!(Overlap {
    Skip = "skip",
    Queue = "queue",
    Allow = "allow",
    CancelRunning = "cancel_running",
});

impl Overlap {
    /// How many of the `due` occurrences fire while `unfinished` earlier ones are unfinished: the
    /// newest ones. An occurrence that waits for a retry counts as unfinished.
    ///
    /// With [`Missed::All`], occurrences that are due together do not skip each other: they all
    /// fire and run one after the other, see [`Overlap::runs_sequentially`].
    pub fn fire_count(self, due: usize, missed: Missed, unfinished: usize) -> usize {
        let allowed = match self {
            Overlap::Allow => return due,
            Overlap::CancelRunning => return due.min(1),
            Overlap::Skip => 1_usize.saturating_sub(unfinished),
            Overlap::Queue => 2_usize.saturating_sub(unfinished),
        };
        match missed {
            Missed::All if allowed > 0 => due,
            _ => due.min(allowed),
        }
    }

    /// Whether `together` occurrences that fire together run one after the other.
    pub fn runs_sequentially(self, together: usize) -> bool {
        match self {
            Overlap::Queue => true,
            Overlap::Skip => together > 1,
            Overlap::Allow | Overlap::CancelRunning => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_decides_by_what_is_unfinished() {
        for (overlap, fired) in [
            (Overlap::Skip, [1, 0, 0]),
            (Overlap::Queue, [2, 1, 0]),
            (Overlap::Allow, [5, 5, 5]),
            (Overlap::CancelRunning, [1, 1, 1]),
        ] {
            for missed in [Missed::Skip, Missed::Once] {
                let lets = |unfinished| overlap.fire_count(5, missed, unfinished);
                assert_eq!([0, 1, 2].map(lets), fired);
            }
            assert_eq!(overlap.fire_count(0, Missed::All, 0), 0);
            assert_eq!(overlap.name().parse(), Ok(overlap));
        }
        assert!("wait".parse::<Overlap>().is_err());
        assert_eq!(Overlap::default(), Overlap::Skip);
    }

    #[test]
    fn all_missed_occurrences_fire_and_run_one_after_the_other() {
        for (overlap, fired) in [
            (Overlap::Skip, [5, 0, 0]),
            (Overlap::Queue, [5, 5, 0]),
            (Overlap::Allow, [5, 5, 5]),
            (Overlap::CancelRunning, [1, 1, 1]),
        ] {
            let lets = |unfinished| overlap.fire_count(5, Missed::All, unfinished);
            assert_eq!([0, 1, 2].map(lets), fired);
        }
        assert!(Overlap::Skip.runs_sequentially(2) && !Overlap::Skip.runs_sequentially(1));
        assert!(Overlap::Queue.runs_sequentially(1) && !Overlap::Allow.runs_sequentially(2));
    }
}
