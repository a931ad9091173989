//! The queues that a worker has discovered: which have due jobs, as far as it knows, and when it
//! looks again.

use std::collections::BTreeSet;

use windlass_core::fairness::{LookPace, Rests, Round, Scan, Turns};
use windlass_core::{QueueName, Timestamp};

/// A look finds at least this many queues if there are as many, so that one look serves many turns.
const LOOK_MIN: usize = 100;

/// What is known about the queues of each pattern.
#[derive(Debug, Default)]
pub(crate) struct Discovery {
    patterns: Vec<Found>,
    /// Queues that had due jobs and gave none.
    pub(crate) rests: Rests,
}

/// What looks have found.
#[derive(Debug, Default)]
struct Found {
    /// Queues that had due jobs, in the order of their turns from where the last look began.
    due: BTreeSet<QueueName>,
    scan: Scan,
    pace: LookPace,
    /// There may be due queues that the last look did not see.
    news: bool,
}

impl Discovery {
    /// Nothing is known yet.
    pub(crate) fn new(patterns: usize) -> Self {
        let found = || Found {
            news: true,
            ..Found::default()
        };
        Discovery {
            patterns: std::iter::repeat_with(found).take(patterns).collect(),
            rests: Rests::default(),
        }
    }

    /// Jobs may have become due.
    pub(crate) fn news(&mut self) {
        self.patterns.iter_mut().for_each(|found| found.news = true);
    }

    /// The next pass looks, whatever it knows: no queue rests, and no look waits for its time.
    pub(crate) fn forget_times(&mut self) {
        self.news();
        self.rests.end_all();
        for found in &mut self.patterns {
            found.pace = LookPace::default();
        }
    }

    /// A queue that was held back may give something again.
    pub(crate) fn freed(&mut self, queue: &QueueName) {
        if self.rests.end(queue) {
            self.news();
        }
    }

    /// The queues of a pattern that have due jobs.
    pub(crate) fn due(&self, pattern: usize) -> impl Iterator<Item = &QueueName> {
        let found = self.patterns.get(pattern);
        found.into_iter().flat_map(|found| &found.due)
    }

    /// Those that are to be asked in this round.
    pub(crate) fn to_ask(
        &self,
        pattern: usize,
        round: &Round,
        now: Timestamp,
    ) -> impl Iterator<Item = &QueueName> {
        let due = self.due(pattern);
        due.filter(move |queue| !round.has_emptied(queue) && !self.rests.contains(queue, now))
    }

    /// Whether to look for queues of a pattern now, into `wanted` free slots, and if so behind which
    /// name and for how many: because of news, or because those that were found are used up and the
    /// scan was not done.
    pub(crate) fn next_look(
        &mut self,
        pattern: usize,
        wanted: usize,
        (round, turns): (&Round, &Turns),
        now: Timestamp,
    ) -> Option<(Option<QueueName>, usize)> {
        let to_ask = self.to_ask(pattern, round, now).take(wanted).count();
        let found = self.patterns.get_mut(pattern)?;
        if found.news && now >= found.pace.next_at(to_ask > 0) {
            found.news = false;
            found.scan = Scan::behind(turns.last());
            // The queue whose turn it is keeps the rest of its turn.
            found.due.retain(|queue| turns.unfinished() == Some(queue));
        } else if found.scan.is_done() || to_ask >= wanted {
            return None;
        }
        Some((found.scan.after().cloned(), wanted.max(LOOK_MIN)))
    }

    /// Takes what a look found; `served` says which of them belong to the pattern.
    pub(crate) fn found(
        &mut self,
        pattern: usize,
        (page, limit): (Vec<QueueName>, usize),
        served: impl Fn(&QueueName) -> bool,
        now: Timestamp,
    ) {
        if let Some(found) = self.patterns.get_mut(pattern) {
            let page = found.scan.take_page(page, limit);
            let served = page.into_iter().filter(|queue| served(queue));
            found.due.extend(served);
            found.pace.looked(!found.due.is_empty(), now);
        }
    }

    /// A look failed: it is made again.
    pub(crate) fn failed(&mut self, pattern: usize) {
        if let Some(found) = self.patterns.get_mut(pattern) {
            found.news = true;
        }
    }

    /// A queue gave this many of the jobs that it was asked for.
    pub(crate) fn gave(
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
        if let Some(found) = self.patterns.get_mut(pattern)
            && got < asked
        {
            found.due.remove(queue);
        }
    }

    /// Whether a look waits for its time.
    pub(crate) fn has_news(&self) -> bool {
        self.patterns.iter().any(|found| found.news)
    }

    /// When to look again, if nothing happens before; `has_free` says which patterns have free slots.
    pub(crate) fn next_at(
        &mut self,
        has_free: impl Fn(usize) -> bool,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let patterns = self.patterns.iter().enumerate();
        let waiting = patterns.filter(|(pattern, found)| found.news && has_free(*pattern));
        let looks = waiting.map(|(_, found)| found.pace.next_at(false));
        looks.chain(self.rests.next_until(now)).min()
    }
}
