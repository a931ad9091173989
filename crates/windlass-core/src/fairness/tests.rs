//! Examples of how claims are shared, and the laws of sharing.

use std::collections::VecDeque;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::*;

fn ratio(ratio: f64) -> Guards {
    Guards {
        retry_fetch_ratio: Some(Ratio::new(ratio).unwrap()),
        fresh_reserve: Some(0),
        ..Guards::default()
    }
}

/// A queue that only counts its jobs and its running retries.
#[derive(Default)]
struct Queue {
    fresh: u32,
    retries: u32,
    inflight_retries: u32,
}

impl Queue {
    fn new(retries: u32, fresh: u32) -> Self {
        Queue {
            fresh,
            retries,
            inflight_retries: 0,
        }
    }

    /// Claims as a driver does; all jobs are equally urgent.
    fn claim(&mut self, plan: &ClaimPlan) -> Taken {
        let plan = plan.limited_by_running(self.inflight_retries);
        let mut taken = Taken {
            both_lanes_ready: self.fresh > 0 && self.retries > 0,
            ..Taken::default()
        };
        let head = |waiting: u32| (waiting > 0).then_some(0);
        while let Some(lane) = plan.next_lane(taken, head(self.fresh), head(self.retries)) {
            match lane {
                Lane::Fresh => (self.fresh, taken.fresh) = (self.fresh - 1, taken.fresh + 1),
                Lane::Retry => {
                    (self.retries, taken.retries) = (self.retries - 1, taken.retries + 1)
                }
            }
        }
        self.inflight_retries += taken.retries;
        taken
    }
}

fn free(slots: u32) -> Slots {
    Slots {
        total: slots,
        free: slots,
        retries_running: 0,
    }
}

#[test]
fn a_claim_is_composed_as_published() {
    for (retries, fresh, limit, share, expected) in [
        (5, 20, 10, 0.2, (2, 8)),
        (10, 10, 10, 0.5, (5, 5)),
        (1, 4, 4, 0.2, (1, 3)),
        (20, 0, 10, 0.2, (10, 0)),
        (5, 2, 6, 0.2, (4, 2)),
        (0, 3, 10, 0.2, (0, 3)),
        (9, 9, 5, 0.0, (0, 5)),
        (9, 2, 5, 0.0, (3, 2)),
        (9, 9, 5, 1.0, (5, 0)),
        (0, 0, 10, 0.2, (0, 0)),
    ] {
        let plan = ratio(share).plan(Pool::Main, free(limit), Credit::default());
        let taken = Queue::new(retries, fresh).claim(&plan);
        assert_eq!(
            (taken.retries, taken.fresh),
            expected,
            "{retries} / {fresh}, {limit}, {share}"
        );
    }
}

#[test]
fn one_at_a_time_retries_get_exactly_one_in_five() {
    let guards = ratio(0.2);
    let mut queue = Queue::new(1000, 1000);
    let mut credit = Credit::default();
    let mut history = Vec::new();
    for _ in 0..100 {
        let plan = guards.plan(Pool::Main, free(1), credit);
        let taken = queue.claim(&plan);
        credit = guards.credit_after(credit, &plan, taken);
        history.push(taken.retries);
    }
    assert_eq!(history.iter().sum::<u32>(), 20);
    for window in history.windows(5) {
        assert_eq!(window.iter().sum::<u32>(), 1, "one of any five in a row");
    }
}

/// A limit of the queue lets one job start at a time, whatever the number of free slots.
#[test]
fn a_limit_of_the_queue_changes_no_share() {
    for (room, claims) in [(1, 100), (3, 40)] {
        let guards = ratio(0.2);
        let mut queue = Queue::new(1000, 1000);
        let mut credit = Credit::default();
        let (mut fresh, mut retries) = (0, 0);
        for _ in 0..claims {
            let plan = guards.plan(Pool::Main, free(20), credit);
            let taken = queue.claim(&ClaimPlan {
                limit: room,
                ..plan
            });
            credit = guards.credit_after(credit, &plan, taken);
            (fresh, retries) = (fresh + taken.fresh, retries + taken.retries);
        }
        assert_eq!(fresh + retries, room * claims);
        assert_eq!(retries, room * claims / 5, "{room} at a time");
    }
}

#[test]
fn the_shares_of_the_first_slots_are_those_of_shorter_claims() {
    for credit in [-WHOLE, -WHOLE / 3, 0, WHOLE / 2, WHOLE] {
        let plan = ratio(0.3).plan(Pool::Main, free(20), Credit(credit));
        for (slots, share) in (1..).zip(plan.retry_shares(20)) {
            let shorter = ClaimPlan {
                limit: slots,
                ..plan
            };
            let taken = Queue::new(100, 100).claim(&shorter);
            assert_eq!(taken.retries, share, "{slots} slots, credit {credit}");
        }
    }
}

#[test]
fn retries_in_flight_are_capped_over_all_claims() {
    let guards = Guards {
        max_inflight_retries: Some(5),
        ..ratio(0.2)
    };
    let mut queue = Queue::new(10_000, 100);
    for _ in 0..4 {
        let plan = guards.plan(Pool::Main, free(50), Credit::default());
        queue.claim(&plan);
        assert_eq!(queue.inflight_retries, 5);
    }
    assert_eq!(queue.fresh, 0);
    queue.inflight_retries -= 2; // two settle or expire
    let taken = queue.claim(&guards.plan(Pool::Main, free(50), Credit::default()));
    assert_eq!(taken.retries, 2);
    let over = guards
        .plan(Pool::Main, free(50), Credit::default())
        .limited_by_running(9);
    assert_eq!(over.retries_max, 0);
}

#[test]
fn reserved_slots_stay_free_for_fresh_work() {
    let guards = Guards {
        fresh_reserve: Some(1),
        ..ratio(0.2)
    };
    let taken = Queue::new(10_000, 0).claim(&guards.plan(Pool::Main, free(10), Credit::default()));
    assert_eq!((taken.retries, taken.fresh), (9, 0));
    let slots = Slots {
        total: 10,
        free: 1,
        retries_running: 9,
    };
    let plan = guards.plan(Pool::Main, slots, Credit::default());
    let taken = Queue::new(10_000, 0).claim(&plan);
    assert_eq!(taken.retries, 0);
    let taken = Queue::new(10_000, 3).claim(&plan);
    assert_eq!((taken.retries, taken.fresh), (0, 1));
}

#[test]
fn one_of_four_slots_is_reserved_by_default() {
    let retries_max = |slots| {
        Guards::default()
            .plan(Pool::Main, free(slots), Credit::default())
            .retries_max
    };
    assert_eq!([1, 2, 3, 4, 10].map(retries_max), [1, 2, 3, 3, 9]);
}

#[test]
fn a_retry_lane_keeps_retries_out_of_the_main_slots() {
    let lane = RetryLane {
        concurrency: 2,
        rate: None,
    };
    let guards = Guards {
        retry_lane: Some(lane),
        ..ratio(0.2)
    };
    let mut queue = Queue::new(10_000, 1000);
    let main = queue.claim(&guards.plan(Pool::Main, free(10), Credit::default()));
    assert_eq!(
        (main.retries, main.fresh),
        (0, 10),
        "new jobs keep all their slots"
    );
    let in_lane = queue.claim(&guards.plan(Pool::RetryLane, free(2), Credit::default()));
    assert_eq!((in_lane.retries, in_lane.fresh), (2, 0));
    let full = Slots {
        total: 2,
        free: 0,
        retries_running: 2,
    };
    let none = queue.claim(&guards.plan(Pool::RetryLane, full, Credit::default()));
    assert_eq!(none.retries, 0);
}

#[test]
fn with_the_guard_off_priority_alone_decides() {
    let guards = Guards {
        retry_fetch_ratio: None,
        ..Guards::default()
    };
    let plan = guards.plan(Pool::Main, free(3), Credit::default());
    let taken = Taken::default();
    assert_eq!(
        plan.next_lane(taken, Some(5), Some(1)),
        Some(Lane::Retry),
        "the urgent retry"
    );
    assert_eq!(
        plan.next_lane(taken, Some(5), None),
        Some(Lane::Fresh),
        "its retry is not due"
    );
    assert_eq!(plan.next_lane(taken, Some(1), Some(5)), Some(Lane::Fresh));
    assert_eq!(
        plan.next_lane(taken, None::<u8>, Some(5)),
        Some(Lane::Retry)
    );
    assert_eq!(guards.credit_after(Credit(7), &plan, taken), Credit(7));
}

#[test]
fn credit_counts_only_while_both_wait() {
    let guards = ratio(0.2);
    let plan = guards.plan(Pool::Main, free(10), Credit::default());
    assert_eq!(plan.retries_first(), 2);
    let after = |fresh, retries, both_lanes_ready| {
        let taken = Taken {
            fresh,
            retries,
            both_lanes_ready,
        };
        guards.credit_after(Credit::default(), &plan, taken)
    };
    assert_eq!(after(8, 2, true), Credit(0));
    assert_eq!(after(8, 2, false), Credit(0), "one kind alone");
    assert_eq!(after(10, 0, false), Credit(0), "one kind alone");
    assert_eq!(
        after(3, 1, true),
        Credit(-200_000),
        "four of ten slots were filled"
    );
    assert_eq!(after(0, 0, true), Credit(0), "a limit let none start");
    assert_eq!(
        after(9, 1, true),
        Credit(0),
        "the retries ran out: nothing is owed"
    );
    assert_eq!(after(2, 8, true), Credit(0), "the new jobs ran out");
    let plan = guards.plan(Pool::Main, free(1), Credit::default());
    let taken = Taken {
        fresh: 0,
        retries: 1,
        both_lanes_ready: true,
    };
    assert_eq!(
        guards.credit_after(Credit::default(), &plan, taken),
        Credit(-800_000)
    );
}

#[test]
fn a_lost_answer_counts_as_one_slot_too_many() {
    let guards = ratio(0.2);
    let plan = |credit| guards.plan(Pool::Main, free(4), credit);
    let credit = Credit::default();
    let after = guards.credit_after_lost(credit, &plan(credit));
    assert_eq!(after, Credit(-1_000_000));
    assert_eq!(
        guards.credit_after_lost(after, &plan(after)),
        after,
        "this claim takes no retry while new jobs wait"
    );
}

#[test]
fn what_is_owed_is_at_most_one_slot() {
    // A reserve leaves no slot for retries: their credit must not grow without bound.
    let guards = Guards {
        fresh_reserve: Some(1),
        ..ratio(0.9)
    };
    let slots = Slots {
        total: 10,
        free: 5,
        retries_running: 9,
    };
    let mut credit = Credit::default();
    for _ in 0..100 {
        let plan = guards.plan(Pool::Main, slots, credit);
        let taken = Queue::new(1000, 1000).claim(&plan);
        assert_eq!(taken.retries, 0);
        credit = guards.credit_after(credit, &plan, taken);
    }
    assert_eq!(credit, Credit(WHOLE));
}

#[test]
fn guards_that_starve_retries_are_refused() {
    let lane = |concurrency, rate| {
        let retry_lane = Some(RetryLane { concurrency, rate });
        Guards {
            retry_lane,
            ..Guards::default()
        }
    };
    let rate = |count, seconds| {
        let period = Duration::from_secs(seconds);
        Some(Rate { count, period })
    };
    let reserve = |slots| Guards {
        fresh_reserve: Some(slots),
        ..Guards::default()
    };
    let capped = Guards {
        max_inflight_retries: Some(0),
        ..Guards::default()
    };
    for (field, guards) in [
        ("fresh_reserve", reserve(10)),
        ("fresh_reserve", reserve(11)),
        ("max_inflight_retries", capped),
        ("retry_lane.concurrency", lane(0, None)),
        ("retry_lane.rate", lane(1, rate(0, 1))),
        ("retry_lane.rate", lane(1, rate(1, 0))),
        ("retry_lane.rate.period", lane(1, rate(1, u64::MAX))),
    ] {
        assert_eq!(guards.check(10).unwrap_err().field(), field);
    }
    for guards in [
        Guards::default(),
        reserve(9),
        lane(1, rate(1, 1)),
        lane(1, None),
    ] {
        assert_eq!(guards.check(10), Ok(()));
    }
    assert_eq!(Guards::default().check(1), Ok(()));
    for bad in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        assert_eq!(Ratio::new(bad).unwrap_err().field(), "retry_fetch_ratio");
    }
    assert_eq!(Ratio::DEFAULT, Ratio::new(0.2).unwrap());
    assert!((Ratio::DEFAULT.get() - 0.2).abs() < 1e-9);
}

/// Checks that in any window of claims, at most ⌈r·k⌉+1 of k slots went to retries. `given` are the
/// slots of each claim, and how many of them retries got.
fn check_promise(share: f64, given: &[(u32, u32)]) -> Result<(), TestCaseError> {
    let share = Ratio::new(share).unwrap().get(); // as it is kept: to the millionth
    for start in 0..given.len() {
        let (mut slots, mut retries) = (0, 0);
        for (of_all, of_retries) in &given[start..] {
            slots += of_all;
            retries += of_retries;
            let promised = (share * f64::from(slots) - 1e-9).ceil() + 1.0;
            prop_assert!(
                f64::from(retries) <= promised,
                "{retries} of {slots} from {start}: {given:?}"
            );
        }
    }
    Ok(())
}

proptest! {
    /// For any sequence of claims and arrivals: of the slots that were filled while both kinds
    /// waited, retries get at most their share, rounded up. Claims in which retries got more because
    /// the new jobs ran out do not count.
    #[test]
    fn retries_get_their_share_and_no_more(
        share in 0f64..=1.0,
        steps in proptest::collection::vec((0u32..30, 0u32..30, 1u32..20), 1..100),
    ) {
        let guards = ratio(share);
        let (mut queue, mut credit) = (Queue::default(), Credit::default());
        let (mut contended, mut of_retries) = (0u32, 0u32);
        for (more_fresh, more_retries, limit) in steps {
            queue.fresh += more_fresh;
            queue.retries += more_retries;
            let plan = guards.plan(Pool::Main, free(limit), credit);
            let (fresh, retries) = (queue.fresh, queue.retries);
            let taken = queue.claim(&plan);
            let filled = taken.fresh + taken.retries;
            prop_assert_eq!(filled, limit.min(fresh + retries), "work-conserving");
            let filled_plan = ClaimPlan { limit: filled, ..plan };
            if fresh.min(retries) > 0 && taken.retries <= filled_plan.retries_first() {
                contended += filled;
                of_retries += taken.retries;
            }
            credit = guards.credit_after(credit, &plan, taken);
        }
        // The ratio is kept to the millionth; hence the slack.
        let (fair, got) = (share * f64::from(contended), f64::from(of_retries));
        prop_assert!(got < fair + 1.01, "{} of {}", of_retries, contended);
    }

    /// The same promise if answers are lost and limits end claims before they are full.
    #[test]
    fn lost_answers_give_retries_no_more_than_promised(
        share in 0f64..=1.0,
        steps in proptest::collection::vec((1u32..20, 0u32..20, any::<bool>()), 1..60),
    ) {
        let guards = ratio(share);
        let (mut queue, mut credit) = (Queue::new(100_000, 100_000), Credit::default());
        let mut given = Vec::new();
        for (limit, filled, is_lost) in steps {
            let plan = guards.plan(Pool::Main, free(limit), credit);
            let taken = queue.claim(&ClaimPlan { limit: limit.min(filled), ..plan });
            credit = if is_lost {
                guards.credit_after_lost(credit, &plan)
            } else {
                guards.credit_after(credit, &plan, taken)
            };
            given.push((taken.fresh + taken.retries, taken.retries));
        }
        check_promise(share, &given)?;
    }

    /// The promise for any window of claims while new jobs wait: at most ⌈r·k⌉+1 of k slots go to
    /// retries, whatever the number of waiting retries and whatever the reserve held back before.
    #[test]
    fn retries_never_take_more_than_promised_in_any_stretch(
        share in 0f64..=1.0,
        reserve in 0u32..3,
        steps in proptest::collection::vec((0u32..6, 1u32..=4, 0u32..=4), 1..60),
    ) {
        let guards = Guards { fresh_reserve: Some(reserve), ..ratio(share) };
        let (mut queue, mut credit) = (Queue::new(0, 100_000), Credit::default());
        let mut given = Vec::new();
        for (more_retries, free, retries_running) in steps {
            queue.retries += more_retries;
            let slots = Slots { total: 4, free, retries_running: retries_running.min(4 - free) };
            let plan = guards.plan(Pool::Main, slots, credit);
            let taken = queue.claim(&plan);
            credit = guards.credit_after(credit, &plan, taken);
            given.push((free, taken.retries));
        }
        check_promise(share, &given)?;
    }

    /// While both kinds always wait, each gets its share.
    #[test]
    fn no_lane_starves(share in 0.05f64..=0.95, limits in proptest::collection::vec(1u32..8, 40..80)) {
        let guards = ratio(share);
        let (mut queue, mut credit) = (Queue::new(10_000, 10_000), Credit::default());
        let mut slots: VecDeque<Lane> = VecDeque::new();
        for limit in limits {
            let plan = guards.plan(Pool::Main, free(limit), credit);
            let taken = queue.claim(&plan);
            credit = guards.credit_after(credit, &plan, taken);
            slots.extend((0..taken.retries).map(|_| Lane::Retry));
            slots.extend((0..taken.fresh).map(|_| Lane::Fresh));
        }
        let given = slots.len() as f64;
        let retries = slots.iter().filter(|lane| **lane == Lane::Retry).count() as f64;
        prop_assert!(retries >= share * given - 0.001, "{} of {}", retries, given);
        prop_assert!(retries <= (share * given).ceil() + 0.001, "{} of {}", retries, given);
    }

    /// For any guards and backlog, a claim never takes more than the limit, never uses a reserved
    /// slot, and never exceeds the cap.
    #[test]
    fn no_claim_passes_its_bounds(
        total in 1u32..50, used in 0u32..50, retries_running in 0u32..50, inflight in 0u32..20, cap in 1u32..20,
        reserve in proptest::option::of(0u32..10), fresh in 0u32..100, retries in 0u32..100, share in 0f64..=1.0,
        off in any::<bool>(),
    ) {
        let guards = Guards {
            retry_fetch_ratio: (!off).then(|| Ratio::new(share).unwrap()),
            fresh_reserve: reserve,
            max_inflight_retries: Some(cap),
            retry_lane: None,
        };
        let retries_running = retries_running.min(used.min(total));
        let slots = Slots { total, free: total.saturating_sub(used), retries_running };
        let plan = guards.plan(Pool::Main, slots, Credit::default());
        let mut queue = Queue { fresh, retries, inflight_retries: inflight };
        let taken = queue.claim(&plan);
        prop_assert!(taken.fresh + taken.retries <= slots.free);
        prop_assert!(taken.retries <= cap.saturating_sub(inflight));
        let reserved = reserve.unwrap_or(u32::from(total >= 4));
        prop_assert!(taken.retries == 0 || retries_running + taken.retries + reserved <= total);
    }
}

#[test]
fn a_used_up_rate_says_when_the_next_may_start() {
    let rate = Rate {
        count: 3,
        period: Duration::from_secs(10),
    };
    let second =
        |n: i64| Timestamp::UNIX_EPOCH.saturating_add(Duration::from_secs(n.unsigned_abs()));
    let until = |starts: &[(i64, u32)], now| {
        let starts = starts.iter().map(|(at, count)| (second(*at), *count));
        rate.used_up_until(starts, second(now))
    };
    assert_eq!(until(&[], 5), None);
    assert_eq!(until(&[(0, 2)], 5), None);
    assert_eq!(until(&[(0, 2), (4, 1)], 5), Some(second(10)));
    assert_eq!(
        until(&[(0, 1), (1, 1), (4, 3)], 5),
        Some(second(14)),
        "more than the rate now allows"
    );
    assert_eq!(
        until(&[(0, 2), (4, 1)], 10),
        None,
        "the first two no longer count"
    );
}

#[test]
fn with_one_pool_the_lane_limits_how_many_slots_run_retries() {
    let lane = |concurrency| Guards {
        retry_lane: Some(RetryLane {
            concurrency,
            rate: None,
        }),
        ..Guards::default()
    };
    let slots = |retries_running| Slots {
        total: 10,
        free: 5,
        retries_running,
    };
    let plan = |guards: Guards, slots| guards.plan(Pool::Single, slots, Credit::default());
    let most = |plan: ClaimPlan| (plan.fresh_max, plan.retries_max);
    assert_eq!(most(plan(lane(3), slots(1))), (5, 2));
    assert_eq!(most(plan(lane(3), slots(3))), (5, 0));
    assert_eq!(most(plan(lane(100), slots(0))), (5, 5));
    assert_eq!(
        most(plan(lane(100), slots(8))),
        (5, 1),
        "one slot is reserved"
    );
    assert_eq!(most(plan(Guards::default(), slots(8))), (5, 1));
    let reserve = Guards {
        fresh_reserve: Some(1_000),
        ..Guards::default()
    };
    assert_eq!(most(plan(reserve, Slots::uncounted(5))), (5, 5));
    assert_eq!(most(plan(lane(3), Slots::uncounted(5))), (5, 3));
}
