//! How a worker discovers due queues: when it looks for them, and which ones it skips for a while.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{QueueName, Timestamp};

/// After this many looks in a row without a due queue, the time between looks grows.
const EAGER_LOOKS: u32 = 3;
const GAP_MIN: Duration = Duration::from_millis(1);
/// The longest time between looks that find nothing.
const GAP_MAX: Duration = Duration::from_millis(16);
/// While known queues still have work, a wake-up triggers a look at most this often.
const REFRESH: Duration = Duration::from_millis(10);

const REST_MIN: Duration = Duration::from_millis(20);
/// The longest time that a queue rests.
const REST_MAX: Duration = Duration::from_secs(1);
/// The most queues that rest at once. Forgetting one costs only an extra claim.
const RESTS_MAX: usize = 10_000;

/// When the next look for due queues may happen. Wake-ups in quick succession share one look.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiscoveryPace {
    looked_at: Option<Timestamp>,
    /// How many looks in a row found nothing.
    empty: u32,
}

impl DiscoveryPace {
    /// Records a look.
    pub fn looked(&mut self, found_any: bool, now: Timestamp) {
        self.looked_at = Some(now);
        self.empty = if found_any {
            0
        } else {
            self.empty.saturating_add(1)
        };
    }

    /// The earliest time at which a wake-up triggers a look. `has_work` says whether known queues
    /// still have work.
    pub fn next_at(&self, has_work: bool) -> Timestamp {
        let gap = match self.empty.checked_sub(EAGER_LOOKS) {
            _ if has_work => REFRESH,
            None => Duration::ZERO,
            Some(doublings) => GAP_MIN.saturating_mul(1 << doublings.min(10)).min(GAP_MAX),
        };
        let looked_at = self.looked_at;
        looked_at.map_or(Timestamp::MIN, |at| at.saturating_add(gap))
    }
}

/// The progress of a worker that reads the names of all due queues: page by page, from the queue
/// whose turn it is around to that queue again. The default is a finished scan.
#[derive(Debug, Clone, Default)]
pub struct DueQueueScan {
    /// The scan starts after this name and ends with it.
    begin: Option<QueueName>,
    /// The next page starts after this name.
    after: Option<QueueName>,
    /// The part of the names that is left to read.
    left: Remaining,
}

/// The part of the names that a scan still has to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Remaining {
    /// From the current position to the last name, and then up to `begin`.
    ToLastName,
    /// From the first name up to `begin`.
    ToBegin,
    #[default]
    Nothing,
}

impl DueQueueScan {
    /// Starts a scan after this name.
    pub fn behind(begin: Option<&QueueName>) -> Self {
        DueQueueScan {
            begin: begin.cloned(),
            after: begin.cloned(),
            left: Remaining::ToLastName,
        }
    }

    /// Whether all names were read.
    pub fn is_done(&self) -> bool {
        self.left == Remaining::Nothing
    }

    /// The name after which the next page starts.
    pub fn after(&self) -> Option<&QueueName> {
        self.after.as_ref()
    }

    /// Takes a page of at most `limit` names. Returns those that the scan has not read yet.
    pub fn take_page(&mut self, mut page: Vec<QueueName>, limit: usize) -> Vec<QueueName> {
        let is_last = page.len() < limit;
        let length = page.len();
        if self.left == Remaining::ToBegin {
            page.retain(|queue| Some(queue) <= self.begin.as_ref());
        }
        self.after = page.last().cloned();
        self.left = match self.left {
            Remaining::ToLastName if is_last && self.begin.is_some() => {
                self.after = None;
                Remaining::ToBegin
            }
            left if !is_last && page.len() == length => left,
            _ => Remaining::Nothing,
        };
        page
    }
}

/// Queues whose due jobs a claim could not get, because of a limit or because another worker was
/// faster. Each rests before it is claimed from again, for a time that doubles from 20 ms to 1 s,
/// so that many such queues cost few claims.
#[derive(Debug, Clone, Default)]
pub struct RestingQueues(BTreeMap<QueueName, Rest>);

#[derive(Debug, Clone, Copy)]
struct Rest {
    until: Timestamp,
    misses: u32,
}

impl RestingQueues {
    /// Lets a queue rest after a claim that got nothing.
    pub fn missed(&mut self, queue: &QueueName, now: Timestamp) {
        let misses = self.0.get(queue).map_or(0, |rest| rest.misses);
        let time = REST_MIN.saturating_mul(1 << misses.min(10)).min(REST_MAX);
        while self.0.len() >= RESTS_MAX && !self.0.contains_key(queue) {
            self.0.pop_first();
        }
        let rest = Rest {
            until: now.saturating_add(time),
            misses: misses + 1,
        };
        self.0.insert(queue.clone(), rest);
    }

    /// Ends the rest of a queue that has work again. Returns whether it was resting.
    pub fn end(&mut self, queue: &QueueName) -> bool {
        self.0.remove(queue).is_some()
    }

    /// Ends the rest of every queue.
    pub fn end_all(&mut self) {
        self.0.clear();
    }

    /// Whether the queue is resting at `now`.
    pub fn contains(&self, queue: &QueueName, now: Timestamp) -> bool {
        self.0.get(queue).is_some_and(|rest| now < rest.until)
    }

    /// When the next rest after `now` ends. Forgets queues whose rest ended long ago.
    pub fn next_until(&mut self, now: Timestamp) -> Option<Timestamp> {
        self.0.retain(|_, rest| now.since(rest.until) < REST_MAX);
        let until = self.0.values().map(|rest| rest.until);
        until.filter(|until| *until > now).min()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_micros(millis * 1000).unwrap()
    }

    #[test]
    fn empty_looks_are_spread_out_and_a_successful_one_is_followed_at_once() {
        let mut pace = DiscoveryPace::default();
        assert_eq!(pace.next_at(false), Timestamp::MIN);
        let gaps = (0..12).map(|_| {
            pace.looked(false, at(0));
            pace.next_at(false).since(at(0)).as_millis()
        });
        let gaps: Vec<_> = gaps.collect();
        assert_eq!(gaps, [0, 0, 1, 2, 4, 8, 16, 16, 16, 16, 16, 16]);
        pace.looked(true, at(5));
        assert_eq!(pace.next_at(false), at(5));
        assert_eq!(pace.next_at(true), at(15), "known queues have work");
    }

    proptest! {
        #[test]
        fn a_scan_reads_each_name_once_from_its_beginning(
            names in proptest::collection::btree_set("[a-e]{1,2}", 0..20),
            begin in proptest::option::of("[a-e]{1,2}"),
            limit in 1_usize..6,
        ) {
            let names: Vec<QueueName> = names.iter().map(|name| name.parse().unwrap()).collect();
            let begin: Option<QueueName> = begin.map(|name| name.parse().unwrap());
            let mut scan = DueQueueScan::behind(begin.as_ref());
            let mut read = Vec::new();
            while !scan.is_done() {
                let behind = names.iter().filter(|name| Some(*name) > scan.after());
                let page: Vec<QueueName> = behind.take(limit).cloned().collect();
                read.extend(scan.take_page(page, limit));
            }
            let (before, behind): (Vec<_>, Vec<_>) =
                names.into_iter().partition(|name| Some(name) <= begin.as_ref());
            prop_assert_eq!(read, [behind, before].concat());
        }
    }

    #[test]
    fn a_queue_that_gives_nothing_rests_longer_each_time() {
        let (mut rests, queue) = (RestingQueues::default(), QueueName::default());
        for (misses, expected) in [(0, 20), (1, 40), (2, 80), (6, 1000), (20, 1000)] {
            rests.end_all();
            for _ in 0..=misses {
                rests.missed(&queue, at(0));
            }
            assert_eq!(rests.next_until(at(0)), Some(at(expected)));
            assert!(rests.contains(&queue, at(expected - 1)));
            assert!(!rests.contains(&queue, at(expected)));
        }
        assert!(rests.end(&queue) && !rests.end(&queue));
        rests.missed(&queue, at(0));
        assert_eq!(rests.next_until(at(0)), Some(at(20)));
        assert_eq!(rests.next_until(at(2000)), None);
        assert!(!rests.end(&queue), "it was forgotten");
    }

    #[test]
    fn the_number_of_resting_queues_is_bounded() {
        let mut rests = RestingQueues::default();
        for number in 0..RESTS_MAX + 10 {
            let queue = QueueName::new(&format!("q{number}")).unwrap();
            rests.missed(&queue, at(0));
        }
        assert_eq!(rests.0.len(), RESTS_MAX);
    }
}
