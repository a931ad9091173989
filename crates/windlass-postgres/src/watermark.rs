//! Watermarks: where the next claim of a lane (the fresh jobs or the retries of a queue) starts to
//! scan the claim index.
//!
//! The problem: a claimed job leaves the partial index `ready`, but PostgreSQL keeps the dead index
//! entry until no snapshot can see it. If any other session in the database holds a snapshot for a
//! minute (a backup, a report, an idle transaction), PostgreSQL cannot remove any entry in that
//! time. A claim that scans from the front then steps over every job that was claimed in this
//! minute, and claims get slower with every job.
//!
//! The solution: a claim starts where the last claim of its lane ended. That is only correct if no
//! job arrives before that position, so three things lower a watermark again:
//!
//! 1. A node that adds a job lowers its own watermarks at once (`Wake::notify_jobs`).
//! 2. It sends a notice to the other nodes, which lower theirs (`Wake::receive`).
//! 3. Notices are only hints and can get lost. So a background task scans the part before each
//!    watermark about once a second (`Wake::look`). A lost notice delays a job by about a second,
//!    but never loses it.
//!
//! A worker that knows only some kinds would step over the jobs of all other kinds after its last
//! job in every claim. The same background task moves its watermark to its next job.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;

use windlass_core::{JobId, QueueName, Timestamp};
use windlass_store::Kinds;

use crate::lock;

/// A position in the claim order: rank (the negated priority), `run_at`, id.
pub(crate) type ClaimOrder = (i32, Timestamp, JobId);

/// The position before all jobs.
pub(crate) const FRONT: ClaimOrder = (i32::MIN, Timestamp::MIN, JobId::from_u128(0));

/// A queue, the number of its lane, and the kinds that a claim asks for. A claim passes over jobs
/// of other kinds, so each set of kinds has its own watermark.
pub(crate) type ClaimLane = (QueueName, i16, Kinds);

#[derive(Debug, Default)]
pub(crate) struct Watermarks {
    lanes: Mutex<BTreeMap<ClaimLane, Mark>>,
}

#[derive(Debug)]
struct Mark {
    order: ClaimOrder,
    /// Goes up whenever the mark is lowered.
    version: u64,
    /// The last positions that the mark was lowered to, the newest last. A claim that had started
    /// before has not seen the job there, so it must not raise the mark further.
    lowered: VecDeque<ClaimOrder>,
}

/// The most lowered positions that a mark remembers. A claim during which the mark was lowered more
/// often cannot know which jobs it missed, so it does not raise the mark.
const LOWERED_MAX: usize = 64;

impl Mark {
    const fn new() -> Self {
        Mark {
            order: FRONT,
            version: 0,
            lowered: VecDeque::new(),
        }
    }

    fn lower(&mut self, to: ClaimOrder) {
        self.order = self.order.min(to);
        self.version += 1;
        if self.lowered.len() == LOWERED_MAX {
            self.lowered.pop_front();
        }
        self.lowered.push_back(to);
    }

    /// How far a claim that saw this version may raise the mark. `None` if this is not known.
    fn limit_since(&self, version: u64) -> Option<ClaimOrder> {
        let missed = usize::try_from(self.version - version).ok()?;
        let first = self.lowered.len().checked_sub(missed)?;
        let missed = self.lowered.range(first..).min().copied();
        Some(missed.unwrap_or((i32::MAX, Timestamp::MAX, JobId::from_u128(u128::MAX))))
    }
}

/// The maximum number of lanes with a watermark. If there are more, all watermarks are dropped, and
/// claims start at the front again.
const LANES_MAX: usize = 10_000;

impl Watermarks {
    /// Returns where a claim starts, and the version to pass to [`Watermarks::advance`].
    pub(crate) fn begin(&self, lane: &ClaimLane) -> (ClaimOrder, u64) {
        let mut lanes = self.lanes();
        if lanes.len() > LANES_MAX {
            lanes.clear();
        }
        let mark = lanes.entry(lane.clone()).or_insert_with(Mark::new);
        (mark.order, mark.version)
    }

    /// Raises the mark after a claim that took all jobs up to `to`, but not past a job for which it
    /// was lowered meanwhile.
    pub(crate) fn advance(&self, lane: &ClaimLane, version: u64, to: ClaimOrder) {
        if let Some(mark) = self.lanes().get_mut(lane)
            && let Some(limit) = mark.limit_since(version)
        {
            mark.order = mark.order.max(to.min(limit));
        }
    }

    /// Lowers the marks of a lane because a job now waits at `to`.
    pub(crate) fn lower(&self, queue: &QueueName, lane: i16, to: ClaimOrder) {
        let mut lanes = self.lanes();
        let first_kinds = Kinds::Only(BTreeSet::new());
        let from = (queue.clone(), lane, first_kinds);
        let same = |(mark_queue, number, _): &ClaimLane| mark_queue == queue && *number == lane;
        for (_, mark) in lanes.range_mut(from..).take_while(|(lane, _)| same(lane)) {
            mark.lower(to);
        }
    }

    /// Resets all marks to the front, because jobs may have arrived anywhere.
    pub(crate) fn reset(&self) {
        for mark in self.lanes().values_mut() {
            mark.lower(FRONT);
        }
    }

    /// Returns all lanes with their marks and the versions to pass to [`Watermarks::advance`].
    pub(crate) fn all(&self) -> Vec<(ClaimLane, ClaimOrder, u64)> {
        let lanes = self.lanes();
        let marked = lanes.iter();
        marked
            .map(|(lane, mark)| (lane.clone(), mark.order, mark.version))
            .collect()
    }

    fn lanes(&self) -> std::sync::MutexGuard<'_, BTreeMap<ClaimLane, Mark>> {
        lock(&self.lanes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000).unwrap()
    }

    fn order(seconds: i64) -> ClaimOrder {
        (0, at(seconds), JobId::from_u128(7))
    }

    fn lane() -> ClaimLane {
        (QueueName::default(), 0, Kinds::ALL)
    }

    #[test]
    fn a_claim_starts_where_the_last_one_ended() {
        let marks = Watermarks::default();
        let (from, version) = marks.begin(&lane());
        assert_eq!(from, FRONT);
        marks.advance(&lane(), version, order(5));
        assert_eq!(marks.begin(&lane()).0, order(5));
        let other = (QueueName::default(), 1, Kinds::ALL);
        assert_eq!(marks.begin(&other).0, FRONT, "another lane");
    }

    #[test]
    fn a_job_before_the_mark_lowers_it() {
        let marks = Watermarks::default();
        let (_, version) = marks.begin(&lane());
        marks.advance(&lane(), version, order(50));
        marks.lower(&QueueName::default(), 0, order(40));
        assert_eq!(marks.begin(&lane()).0, order(40));
        marks.lower(&QueueName::default(), 0, order(45));
        assert_eq!(marks.begin(&lane()).0, order(40));
        let marked = marks.all();
        assert_eq!(marked.len(), 1);
        assert_eq!((&marked[0].0, marked[0].1), (&lane(), order(40)));
    }

    #[test]
    fn a_claim_during_a_reset_does_not_raise_the_mark() {
        let marks = Watermarks::default();
        let (_, version) = marks.begin(&lane());
        marks.reset();
        marks.advance(&lane(), version, order(60));
        assert_eq!(marks.begin(&lane()).0, FRONT);
    }

    #[test]
    fn a_claim_raises_the_mark_up_to_a_job_that_it_missed() {
        let marks = Watermarks::default();
        let (_, version) = marks.begin(&lane());
        marks.lower(&QueueName::default(), 0, order(40));
        marks.lower(&QueueName::default(), 0, order(30));
        marks.advance(&lane(), version, order(50));
        let (from, version) = marks.begin(&lane());
        assert_eq!(from, order(30));
        marks.advance(&lane(), version, order(50));
        assert_eq!(marks.begin(&lane()).0, order(50), "this claim saw both");
    }

    #[test]
    fn a_claim_that_missed_many_jobs_does_not_raise_the_mark() {
        let marks = Watermarks::default();
        let (_, version) = marks.begin(&lane());
        for second in 1..=i64::try_from(LOWERED_MAX).unwrap() + 1 {
            marks.lower(&QueueName::default(), 0, order(second));
        }
        marks.advance(&lane(), version, order(500));
        assert_eq!(marks.begin(&lane()).0, FRONT);
    }
}
