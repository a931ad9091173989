use proptest::prelude::*;

use super::*;
use crate::{DeadReason, Timestamp};

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn settlement(outcome: Outcome, failures: u32, verdict: Verdict) -> Settlement {
    let retried = outcome.counts_as_failure() && matches!(verdict, Verdict::Waiting { .. });
    Settlement {
        outcome,
        verdict,
        failures,
        snoozes: 0,
        losses_in_a_row: 0,
        delay: retried.then_some(Duration::from_secs(1)),
        error: None,
        fingerprint: None,
        is_new_group: false,
        result: None,
    }
}

const WAITING: Verdict = Verdict::Waiting {
    run_at: Timestamp::UNIX_EPOCH,
};

#[test]
fn the_end_of_an_attempt_counts_by_outcome_lane_and_verdict() {
    let mut numbers = QueueStatistics::default();
    let ran = Duration::from_millis(5);
    let dead = Verdict::Dead(DeadReason::Exhausted);
    for (outcome, failures, verdict) in [
        (Outcome::Succeeded, 0, Verdict::Succeeded),
        (Outcome::Succeeded, 2, Verdict::Succeeded),
        (Outcome::Failed, 1, WAITING),
        (Outcome::TimedOut, 2, WAITING),
        (Outcome::Lost, 3, dead),
        (Outcome::Snoozed, 0, WAITING),
        (Outcome::Released, 1, WAITING),
        (Outcome::Cancelled, 0, Verdict::Cancelled),
    ] {
        numbers.attempt_ended(&settlement(outcome, failures, verdict), ran);
    }
    let counts = Outcome::ALL.map(|outcome| <(u64, u64)>::from(numbers.outcome(outcome)));
    assert_eq!(
        counts,
        [(1, 1), (1, 0), (0, 1), (0, 1), (1, 0), (0, 1), (1, 0)],
        "a failed attempt is fresh if it is the first failure"
    );
    assert_eq!((numbers.retried, numbers.dead), (2, 1));
    assert_eq!(numbers.run.count(), 4, "lost attempts have no run time");
}

#[test]
fn json_is_compact_and_is_read_back() {
    let mut statistics = Statistics::default();
    statistics.count(&queue("mail"), |mail| {
        mail.enqueued = 3;
        mail.attempt_started(Lane::Retry, Duration::from_millis(1));
    });
    let json = serde_json::to_string(&statistics).unwrap();
    assert_eq!(
        json,
        r#"{"queues":{"mail":{"enqueued":3,"started":[0,1],"wait":{"35":1}}}}"#
    );
    assert_eq!(
        serde_json::from_str::<Statistics>(&json).unwrap(),
        statistics
    );
}

#[test]
fn a_process_counts_at_most_1000_queues_one_by_one() {
    let mut statistics = Statistics::default();
    for number in 0..1200 {
        statistics.count(&queue(&format!("q{number}")), |queue| queue.enqueued += 1);
    }
    statistics.count(&queue("q7"), |queue| queue.enqueued += 1);
    assert_eq!(statistics.queues.len(), STATISTICS_QUEUES_MAX);
    assert_eq!(statistics.other.enqueued, 200);
    assert_eq!(statistics.queues[&queue("q7")].enqueued, 2);
    assert_eq!(statistics.total().enqueued, 1201);
}

#[test]
fn a_sum_keeps_the_busiest_queues() {
    let mut statistics = Statistics::default();
    for number in 0..1200 {
        let numbers = QueueStatistics {
            enqueued: number,
            ..QueueStatistics::default()
        };
        let name = queue(&format!("q{number}"));
        statistics.queues.insert(name, numbers);
    }
    let before = statistics.total();
    statistics.limit_queues();
    assert_eq!(statistics.queues.len(), STATISTICS_QUEUES_MAX);
    assert!(!statistics.queues.contains_key(&queue("q199")));
    assert!(statistics.queues.contains_key(&queue("q200")));
    assert_eq!(statistics.total(), before);
}

fn numbers() -> impl Strategy<Value = QueueStatistics> {
    let counts = prop::array::uniform3(any::<u64>());
    let ends = prop::collection::vec((0..Outcome::ALL.len(), 0..3u32, any::<u32>()), 0..8);
    (counts, ends).prop_map(|([enqueued, retried, dead], ends)| {
        let mut numbers = QueueStatistics {
            enqueued,
            retried,
            dead,
            ..QueueStatistics::default()
        };
        for (outcome, failures, micros) in ends {
            let outcome = Outcome::ALL[outcome];
            let ran = Duration::from_micros(micros.into());
            numbers.attempt_started(Lane::Fresh, ran);
            numbers.attempt_ended(&settlement(outcome, failures, WAITING), ran);
        }
        numbers
    })
}

/// Statistics of a few queues whose names often meet.
fn statistics() -> impl Strategy<Value = Statistics> {
    let queues = prop::collection::btree_map("[a-e]", numbers(), 0..4);
    (queues, numbers()).prop_map(|(queues, other)| Statistics {
        queues: queues
            .iter()
            .map(|(name, n)| (queue(name), n.clone()))
            .collect(),
        other,
    })
}

fn sum(parts: &[&Statistics]) -> Statistics {
    let mut sum = Statistics::default();
    parts.iter().for_each(|part| sum.merge(part));
    sum
}

proptest! {
    #[test]
    fn merging_is_commutative_and_associative(
        a in statistics(), b in statistics(), c in statistics(),
    ) {
        prop_assert_eq!(sum(&[&a, &b]), sum(&[&b, &a]));
        prop_assert_eq!(sum(&[&sum(&[&a, &b]), &c]), sum(&[&a, &sum(&[&b, &c])]));
        let mut total = a.total();
        total.merge(&b.total());
        prop_assert_eq!(sum(&[&a, &b]).total(), total);
    }

    #[test]
    fn every_statistic_survives_json(statistics in statistics()) {
        let json = serde_json::to_value(&statistics).unwrap();
        prop_assert_eq!(serde_json::from_value::<Statistics>(json).unwrap(), statistics);
    }

    /// The same records, grouped by minute or by hour, in any batches and with repetitions.
    #[test]
    fn roll_ups_of_all_periods_have_the_same_total(
        records in prop::collection::vec((0..7200u64, statistics()), 0..12),
        repeated_from in 0..12usize,
    ) {
        let direct = sum(&records.iter().map(|(_, part)| part).collect::<Vec<_>>());
        for period in Period::ALL {
            let mut roll_ups: BTreeMap<Timestamp, RollUp> = BTreeMap::new();
            let cursors = (1..).zip(&records);
            let again = cursors.clone().skip(repeated_from);
            for (cursor, (second, part)) in cursors.chain(again) {
                let at = Timestamp::UNIX_EPOCH.saturating_add(Duration::from_secs(*second));
                roll_ups.entry(period.start(at)).or_default().add(cursor, part);
            }
            let all: Vec<_> = roll_ups.values().map(|one| &one.statistics).collect();
            prop_assert_eq!(sum(&all), direct.clone());
        }
    }
}
