//! Discovered queues: which of them have due jobs, and when to look for them again.
//!
//! A pattern may match thousands of queues, most of them idle. So the worker does not claim from
//! each: it asks the store for the names of queues with due jobs (a look), a page at a time, and
//! claims only from those. An idle queue costs neither a statement nor memory.
//!
//! A look scans the queue names in order, behind the last queue that was served, so that all queues
//! get their turn. It starts again only when jobs may have become due; [`DiscoveryPace`] limits how
//! often that happens. A queue that had due jobs but gave none (a limit holds them back) rests for
//! a while ([`RestingQueues`]), so that it does not cost a claim in every pass.

use std::collections::BTreeSet;

use windlass_core::fairness::{DiscoveryPace, DueQueueScan, RestingQueues, Round, Turns};
use windlass_core::{QueueName, Timestamp};

/// The minimum page size of a look, so that one look serves many passes.
const LOOK_MIN: usize = 100;

/// What the worker knows about the queues of each pattern.
#[derive(Debug, Default)]
pub(crate) struct Discovery {
    patterns: Vec<PatternState>,
    /// Queues that had due jobs but gave none.
    pub(crate) rests: RestingQueues,
}

/// What the worker knows about the queues of one pattern.
#[derive(Debug, Default)]
struct PatternState {
    /// Queues with due jobs that the current scan has found.
    due: BTreeSet<QueueName>,
    scan: DueQueueScan,
    pace: DiscoveryPace,
    /// Jobs may have become due since the last scan began: start a new one.
    look_pending: bool,
}

impl Discovery {
    /// Starts without knowledge, so the first pass looks.
    pub(crate) fn new(patterns: usize) -> Self {
        let state = || PatternState {
            look_pending: true,
            ..PatternState::default()
        };
        Discovery {
            patterns: std::iter::repeat_with(state).take(patterns).collect(),
            rests: RestingQueues::default(),
        }
    }

    /// Jobs may have become due in any queue.
    pub(crate) fn jobs_may_be_due(&mut self) {
        self.patterns
            .iter_mut()
            .for_each(|state| state.look_pending = true);
    }

    /// The next pass looks in any case: ends all rests and the wait for the next look.
    pub(crate) fn look_now(&mut self) {
        self.jobs_may_be_due();
        self.rests.end_all();
        for state in &mut self.patterns {
            state.pace = DiscoveryPace::default();
        }
    }

    /// A slot of a queue became free, so a queue that was held back may give jobs again.
    pub(crate) fn slot_freed(&mut self, queue: &QueueName) {
        if self.rests.end(queue) {
            self.jobs_may_be_due();
        }
    }

    /// The queues of a pattern that have due jobs.
    pub(crate) fn due(&self, pattern: usize) -> impl Iterator<Item = &QueueName> {
        let state = self.patterns.get(pattern);
        state.into_iter().flat_map(|state| &state.due)
    }

    /// The queues of a pattern to claim from in this round.
    pub(crate) fn candidates(
        &self,
        pattern: usize,
        round: &Round,
        now: Timestamp,
    ) -> impl Iterator<Item = &QueueName> {
        let due = self.due(pattern);
        due.filter(move |queue| !round.has_emptied(queue) && !self.rests.contains(queue, now))
    }

    /// Decides whether to look for queues of a pattern now. Returns the queue name behind which to
    /// look and the page size.
    ///
    /// Looks if jobs may have become due, or if the queues found so far do not fill the free slots
    /// and the scan is not complete.
    pub(crate) fn next_look(
        &mut self,
        pattern: usize,
        free_slots: usize,
        (round, turns): (&Round, &Turns),
        now: Timestamp,
    ) -> Option<(Option<QueueName>, usize)> {
        let candidates = self
            .candidates(pattern, round, now)
            .take(free_slots)
            .count();
        let state = self.patterns.get_mut(pattern)?;
        if state.look_pending && now >= state.pace.next_at(candidates > 0) {
            state.look_pending = false;
            state.scan = DueQueueScan::behind(turns.last());
            // A queue in the middle of its turn keeps the rest of its turn.
            state.due.retain(|queue| turns.unfinished() == Some(queue));
        } else if state.scan.is_done() || candidates >= free_slots {
            return None;
        }
        Some((state.scan.after().cloned(), free_slots.max(LOOK_MIN)))
    }

    /// Adds the queues that a look has found. `served` says which of them belong to the pattern.
    pub(crate) fn look_found(
        &mut self,
        pattern: usize,
        (page, limit): (Vec<QueueName>, usize),
        served: impl Fn(&QueueName) -> bool,
        now: Timestamp,
    ) {
        if let Some(state) = self.patterns.get_mut(pattern) {
            let page = state.scan.take_page(page, limit);
            let served = page.into_iter().filter(|queue| served(queue));
            state.due.extend(served);
            state.pace.looked(!state.due.is_empty(), now);
        }
    }

    /// A look failed: the next pass repeats it.
    pub(crate) fn look_failed(&mut self, pattern: usize) {
        if let Some(state) = self.patterns.get_mut(pattern) {
            state.look_pending = true;
        }
    }

    /// Records that a claim for `asked` jobs of a queue got `got`.
    pub(crate) fn queue_answered(
        &mut self,
        pattern: usize,
        queue: &QueueName,
        (got, asked): (u32, u32),
        now: Timestamp,
    ) {
        match got {
            0 => self.rests.missed(queue, now),
            _ => drop(self.rests.end(queue)),
        }
        if let Some(state) = self.patterns.get_mut(pattern)
            && got < asked
        {
            state.due.remove(queue);
        }
    }

    /// Whether a look is pending and waits for its time.
    pub(crate) fn has_pending_look(&self) -> bool {
        self.patterns.iter().any(|state| state.look_pending)
    }

    /// When to look again if nothing happens before. `has_free` says which patterns have free
    /// slots.
    pub(crate) fn next_at(
        &mut self,
        has_free: impl Fn(usize) -> bool,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let patterns = self.patterns.iter().enumerate();
        let waiting = patterns.filter(|(pattern, state)| state.look_pending && has_free(*pattern));
        let looks = waiting.map(|(_, state)| state.pace.next_at(false));
        looks.chain(self.rests.next_until(now)).min()
    }
}
