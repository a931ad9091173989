//! When a worker that discovers its queues looks for due ones, and which of them it asks later.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{QueueName, Timestamp};

/// Looks that find nothing in a row before they are spread out.
const EAGER_LOOKS: u32 = 3;
const GAP_MIN: Duration = Duration::from_millis(1);
/// The longest time that a look waits because earlier ones found nothing.
const GAP_MAX: Duration = Duration::from_millis(16);
/// While queues that were found still have work, a wake-up leads to a look no sooner than this.
const REFRESH: Duration = Duration::from_millis(10);

const REST_MIN: Duration = Duration::from_millis(20);
/// A queue that was held back is asked again after at most this long.
const REST_MAX: Duration = Duration::from_secs(1);
/// At most this many queues rest; a forgotten one costs a claim.
const RESTS_MAX: usize = 10_000;

/// When the next look for due queues may come: wake-ups that follow each other closely share one.
#[derive(Debug, Clone, Copy, Default)]
pub struct LookPace {
    looked_at: Option<Timestamp>,
    /// How many looks in a row found nothing.
    empty: u32,
}

impl LookPace {
    /// Counts a look.
    pub fn looked(&mut self, found_any: bool, now: Timestamp) {
        self.looked_at = Some(now);
        self.empty = match found_any {
            true => 0,
            false => self.empty.saturating_add(1),
        };
    }

    /// From when a wake-up leads to a look; `has_work` if known queues still have work.
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

/// How far a worker has read the names of due queues: page by page from the queue whose turn it is,
/// once around. It starts at its end.
#[derive(Debug, Clone, Default)]
pub struct Scan {
    /// It began behind this name, and ends with it.
    begin: Option<QueueName>,
    /// The next page is read behind this name.
    after: Option<QueueName>,
    /// Pages before `begin` are left.
    left: Left,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Left {
    Behind,
    Before,
    #[default]
    Nothing,
}

impl Scan {
    /// Once around, from behind this name.
    pub fn behind(begin: Option<&QueueName>) -> Self {
        Scan {
            begin: begin.cloned(),
            after: begin.cloned(),
            left: Left::Behind,
        }
    }

    /// Whether every due queue was read.
    pub fn is_done(&self) -> bool {
        self.left == Left::Nothing
    }

    /// The next page begins behind this name.
    pub fn after(&self) -> Option<&QueueName> {
        self.after.as_ref()
    }

    /// Takes a page of at most `limit` names; returns those that were not read before.
    pub fn take_page(&mut self, mut page: Vec<QueueName>, limit: usize) -> Vec<QueueName> {
        let is_last = page.len() < limit;
        let length = page.len();
        if self.left == Left::Before {
            page.retain(|queue| Some(queue) <= self.begin.as_ref());
        }
        self.after = page.last().cloned();
        self.left = match self.left {
            Left::Behind if is_last && self.begin.is_some() => {
                self.after = None;
                Left::Before
            }
            left if !is_last && page.len() == length => left,
            _ => Left::Nothing,
        };
        page
    }
}

/// Queues with due jobs that a claim could not get, because of a limit or another worker. Each is
/// asked again after a time that doubles from 20 ms to 1 s, so that many of them cost few claims.
#[derive(Debug, Clone, Default)]
pub struct Rests(BTreeMap<QueueName, Rest>);

#[derive(Debug, Clone, Copy)]
struct Rest {
    until: Timestamp,
    misses: u32,
}

impl Rests {
    /// A claim got nothing from the queue.
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

    /// The queue gave something, or may again; returns whether it was resting.
    pub fn end(&mut self, queue: &QueueName) -> bool {
        self.0.remove(queue).is_some()
    }

    /// Lets every queue be asked again.
    pub fn end_all(&mut self) {
        self.0.clear();
    }

    /// Whether the queue is to be left alone now.
    pub fn contains(&self, queue: &QueueName, now: Timestamp) -> bool {
        self.0.get(queue).is_some_and(|rest| now < rest.until)
    }

    /// When the next one may be asked again, after `now`. Forgets those whose time passed long ago.
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
    fn looks_that_find_nothing_are_spread_out_and_one_that_finds_something_is_followed_at_once() {
        let mut pace = LookPace::default();
        assert_eq!(pace.next_at(false), Timestamp::MIN);
        let gaps = (0..12).map(|_| {
            pace.looked(false, at(0));
            pace.next_at(false).since(at(0)).as_millis()
        });
        let gaps: Vec<_> = gaps.collect();
        assert_eq!(gaps, [0, 0, 1, 2, 4, 8, 16, 16, 16, 16, 16, 16]);
        pace.looked(true, at(5));
        assert_eq!(pace.next_at(false), at(5));
        assert_eq!(pace.next_at(true), at(15), "there is work without it");
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
            let mut scan = Scan::behind(begin.as_ref());
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
    fn a_queue_that_gives_nothing_rests_longer_each_time_until_it_gives_something() {
        let (mut rests, queue) = (Rests::default(), QueueName::default());
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
    fn a_bounded_number_of_queues_rests() {
        let mut rests = Rests::default();
        for number in 0..RESTS_MAX + 10 {
            let queue = QueueName::new(&format!("q{number}")).unwrap();
            rests.missed(&queue, at(0));
        }
        assert_eq!(rests.0.len(), RESTS_MAX);
    }
}
