//! Examples of occurrences in real time zones and through clock changes, and the laws of
//! occurrences.

use proptest::prelude::*;

use super::*;
use crate::random::check_few_cases;
use crate::timestamp::at;

fn recurrence(expression: &str, zone: &str) -> Recurrence {
    let zone = Zone::new(zone).unwrap();
    Recurrence::new(
        expression.parse().unwrap(),
        zone,
        at("2026-01-01T00:00:00Z"),
    )
}

fn instants(expression: &str, zone: &str, from: &str, count: usize) -> Vec<String> {
    let recurrence = recurrence(expression, zone);
    let firings = recurrence.after(at(from)).take(count);
    firings.map(|firing| firing.at.to_string()).collect()
}

const NEW_YORK: &str = "America/New_York";

#[test]
fn a_fixed_time_in_the_gap_runs_once_at_its_end() {
    // 8 March 2026: 02:00 EST becomes 03:00 EDT at 07:00 UTC.
    assert_eq!(
        instants("30 2 * * *", NEW_YORK, "2026-03-07T12:00:00Z", 2),
        ["2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"]
    );
    let firing = recurrence("30 2 * * *", NEW_YORK)
        .next(at("2026-03-07T12:00:00Z"))
        .unwrap();
    let note = firing.note.unwrap().to_string();
    assert!(
        note.starts_with("2026-03-08T02:30:00 does not exist"),
        "{note}"
    );
    // Several times in one gap run once. A list of hours counts as fixed times too, and none is
    // lost.
    assert_eq!(
        instants("0,15,45 2,14 * * *", NEW_YORK, "2026-03-08T05:00:00Z", 3),
        [
            "2026-03-08T07:00:00Z",
            "2026-03-08T18:00:00Z",
            "2026-03-08T18:15:00Z"
        ]
    );
    // The expression also matches the end of the gap: it still runs once.
    assert_eq!(
        instants("0 2,3 * * *", NEW_YORK, "2026-03-08T05:00:00Z", 2),
        ["2026-03-08T07:00:00Z", "2026-03-09T06:00:00Z"]
    );
}

#[test]
fn a_fixed_time_that_comes_twice_runs_the_first_time() {
    // 1 November 2026: 02:00 EDT becomes 01:00 EST at 06:00 UTC.
    assert_eq!(
        instants("30 1 * * *", NEW_YORK, "2026-10-31T12:00:00Z", 2),
        ["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"]
    );
    let firing = recurrence("30 1 * * *", NEW_YORK)
        .next(at("2026-10-31T12:00:00Z"))
        .unwrap();
    let note = firing.note.unwrap().to_string();
    assert!(
        note.starts_with("2026-11-01T01:30:00 comes twice"),
        "{note}"
    );
    let plain = recurrence("30 3 * * *", NEW_YORK).next(at("2026-10-31T12:00:00Z"));
    assert_eq!(plain.unwrap().note, None);
    // In the second pass of the hour, no time of it is left.
    assert_eq!(
        instants("30,45 1 * * *", NEW_YORK, "2026-11-01T06:10:00Z", 1),
        ["2026-11-02T06:30:00Z"]
    );
}

#[test]
fn intervals_follow_real_time_through_both() {
    assert_eq!(
        instants("*/30 * * * *", NEW_YORK, "2026-03-08T06:15:00Z", 3),
        [
            "2026-03-08T06:30:00Z",
            "2026-03-08T07:00:00Z",
            "2026-03-08T07:30:00Z"
        ]
    );
    assert_eq!(
        instants("*/30 * * * *", NEW_YORK, "2026-11-01T05:15:00Z", 4),
        [
            "2026-11-01T05:30:00Z",
            "2026-11-01T06:00:00Z",
            "2026-11-01T06:30:00Z",
            "2026-11-01T07:00:00Z"
        ]
    );
    // Every minute keeps its pace in the repeated hour: 120 times between 01:00 EDT and 02:00 EST.
    let recurrence = recurrence("* * * * *", NEW_YORK);
    let until = at("2026-11-01T07:00:00Z");
    let firings = recurrence.after(at("2026-11-01T04:59:59Z"));
    assert_eq!(firings.take_while(|firing| firing.at < until).count(), 120);
}

#[test]
fn odd_zones_are_followed_too() {
    for (zone, expression, from, expected) in [
        // 30 minutes forward, from 02:00 to 02:30.
        (
            "Australia/Lord_Howe",
            "15 2 * * *",
            "2026-10-03T00:00:00Z",
            "2026-10-03T15:30:00Z",
        ),
        // Two hours forward, from 01:00 to 03:00.
        (
            "Antarctica/Troll",
            "30 1 * * *",
            "2026-03-28T12:00:00Z",
            "2026-03-29T01:00:00Z",
        ),
        // Midnight itself is skipped.
        (
            "Africa/Cairo",
            "0 0 * * *",
            "2026-04-23T12:00:00Z",
            "2026-04-23T22:00:00Z",
        ),
        (
            "Europe/Berlin",
            "30 2 * * *",
            "2026-03-28T12:00:00Z",
            "2026-03-29T01:00:00Z",
        ),
        // Clocks go back for Ramadan and forward after it.
        (
            "Africa/Casablanca",
            "30 2 * * *",
            "2026-03-21T12:00:00Z",
            "2026-03-22T02:00:00Z",
        ),
        // A whole day is skipped: 30 December 2011 did not exist in Samoa.
        (
            "Pacific/Apia",
            "0 12 30 12 *",
            "2011-12-01T00:00:00Z",
            "2011-12-30T10:00:00Z",
        ),
    ] {
        assert_eq!(instants(expression, zone, from, 1), [expected], "{zone}");
    }
}

#[test]
fn every_is_counted_from_its_anchor() {
    // Anchored at midnight, 1 January 2026.
    assert_eq!(
        instants("@every 90s", NEW_YORK, "2026-01-01T00:00:00Z", 2),
        ["2026-01-01T00:01:30Z", "2026-01-01T00:03:00Z"]
    );
    assert_eq!(
        instants("@every 90s", "UTC", "2026-01-01T00:01:29.999999Z", 1),
        ["2026-01-01T00:01:30Z"]
    );
    assert_eq!(
        instants("@every 90s", "UTC", "2020-01-01T00:00:00Z", 1),
        ["2026-01-01T00:00:00Z"]
    );
    let every = recurrence("@every 90s", "UTC");
    assert_eq!(
        every.last(at("2026-01-01T00:02:59Z")),
        Some(at("2026-01-01T00:01:30Z"))
    );
    assert_eq!(
        every.last(at("2026-01-01T00:01:30Z")),
        Some(at("2026-01-01T00:01:30Z"))
    );
    assert_eq!(every.last(at("2025-12-31T00:00:00Z")), None);
    assert_eq!(every.next(Timestamp::MAX), None);
    assert_eq!(every.last(every.anchor), Some(every.anchor));
}

#[test]
fn a_single_time_fires_once() {
    let text = "at 2026-11-01T05:30:00Z";
    assert_eq!(
        instants(text, "UTC", "2026-01-01T00:00:00Z", 5),
        ["2026-11-01T05:30:00Z"]
    );
    let once = recurrence(text, "UTC");
    assert_eq!(once.next(at("2026-11-01T05:30:00Z")), None);
    assert_eq!(
        once.last(at("2026-11-01T05:30:00Z")),
        Some(at("2026-11-01T05:30:00Z"))
    );
    assert_eq!(once.last(at("2026-11-01T05:29:59Z")), None);
}

#[test]
fn start_and_end_bound_the_occurrences() {
    for expression in ["0 * * * *", "@every 1h"] {
        let bounded = Recurrence {
            starts_at: Some(at("2026-01-01T02:00:00Z")),
            ends_at: Some(at("2026-01-01T04:00:00Z")),
            ..recurrence(expression, "UTC")
        };
        let found: Vec<_> = bounded
            .after(Timestamp::UNIX_EPOCH)
            .map(|firing| firing.at)
            .collect();
        assert_eq!(
            found.first(),
            Some(&at("2026-01-01T02:00:00Z")),
            "the start itself"
        );
        assert_eq!(
            found.last(),
            Some(&at("2026-01-01T04:00:00Z")),
            "the end itself"
        );
        assert_eq!(found.len(), 3);
        assert_eq!(
            bounded.last(Timestamp::MAX),
            Some(at("2026-01-01T04:00:00Z"))
        );
        assert_eq!(
            bounded.last(at("2026-01-01T02:00:00Z")),
            Some(at("2026-01-01T02:00:00Z"))
        );
        assert_eq!(bounded.last(at("2026-01-01T01:59:59Z")), None);
    }
}

#[test]
fn the_ends_of_time_have_no_further_occurrence() {
    for expression in ["* * * * *", "30 2 * * *"] {
        for zone in ["UTC", NEW_YORK, "Pacific/Apia", "Pacific/Pago_Pago"] {
            let recurrence = recurrence(expression, zone);
            assert_eq!(recurrence.next(Timestamp::MAX), None);
            assert_eq!(recurrence.last(Timestamp::MIN), None);
            assert!(recurrence.next(Timestamp::MIN).is_some(), "from 1970 on");
        }
    }
}

const ZONES: [&str; 12] = [
    "UTC",
    NEW_YORK,
    "Europe/Berlin",
    "Europe/Dublin",
    "Australia/Lord_Howe",
    "Antarctica/Troll",
    "Africa/Cairo",
    "Africa/Casablanca",
    "America/Santiago",
    "Asia/Kathmandu",
    "Asia/Gaza",
    "Pacific/Apia",
];

fn any_expression() -> impl Strategy<Value = String> {
    let second = prop_oneof![Just("0"), Just("*/20"), Just("15,45")];
    let minute = prop_oneof![
        Just("0"),
        Just("30"),
        Just("*/7"),
        Just("0,15,59"),
        Just("*"),
        Just("5-50/9")
    ];
    let hour = prop_oneof![
        Just("*"),
        Just("2"),
        Just("1-3"),
        Just("0,23"),
        Just("*/5"),
        Just("12")
    ];
    let day = prop_oneof![Just("*"), Just("*"), Just("L"), Just("1,29"), Just("15W")];
    let weekday = prop_oneof![
        Just("*"),
        Just("*"),
        Just("SUN"),
        Just("MON-FRI"),
        Just("SUNL")
    ];
    (second, minute, hour, day, weekday)
        .prop_map(|(s, m, h, d, w)| format!("{s} {m} {h} {d} * {w}"))
}

/// Instants on days with a clock change, and others.
fn any_instant() -> impl Strategy<Value = Timestamp> {
    let anywhere =
        (1_000_000_000i64..4_000_000_000).prop_map(|seconds| seconds * 1_000_000 + 500_000);
    let change = (
        prop_oneof![
            Just("2026-03-08T07:00:00Z"),
            Just("2026-11-01T06:00:00Z"),
            Just("2026-03-29T01:00:00Z"),
            Just("2026-10-25T01:00:00Z"),
            Just("2026-04-04T15:00:00Z"),
            Just("2026-10-03T15:30:00Z"),
            Just("2011-12-30T10:00:00Z"),
            Just("2026-04-23T22:00:00Z"),
            Just("2026-04-05T03:00:00Z"),
        ],
        -90_000i64..90_000,
    )
        .prop_map(|(change, seconds)| at(change).as_micros() + seconds * 1_000_000);
    prop_oneof![anywhere, change].prop_map(|micros| Timestamp::from_micros(micros).unwrap())
}

/// Finds the matching times by testing every fifth second (no expression above needs a finer step):
/// slow, and hard to get wrong.
fn by_brute_force(cron: &Cron, zone: &Zone, from: Timestamp, seconds: u64) -> Vec<Timestamp> {
    let start = from.as_micros().div_euclid(5_000_000) + 1;
    let until = from.saturating_add(Duration::from_secs(seconds));
    let steps = (start..).map_while(|step| Timestamp::from_micros(step * 5_000_000));
    let matching = steps.take_while(|at| *at <= until).filter(|at| {
        let wall = zone.jiff().to_datetime(at.to_jiff());
        cron.last_until(wall) == Some(wall)
    });
    matching.collect()
}

proptest! {
    #[test]
    fn every_occurrence_is_strictly_after_the_one_before(
        expression in any_expression(), zone in proptest::sample::select(&ZONES[..]), from in any_instant(),
    ) {
        let recurrence = recurrence(&expression, zone);
        let mut before = from;
        for firing in recurrence.after(from).take(30) {
            prop_assert!(firing.at > before, "{} in {}: {} after {}", expression, zone, firing.at, before);
            before = firing.at;
        }
    }

    #[test]
    fn looking_back_finds_what_looking_ahead_found(
        expression in any_expression(), zone in proptest::sample::select(&ZONES[..]), from in any_instant(),
    ) {
        let recurrence = recurrence(&expression, zone);
        let ahead: Vec<_> = recurrence.after(from).take(30).map(|firing| firing.at).collect();
        let Some(last) = ahead.last() else { return Ok(()) };
        let mut back = vec![*last];
        while let Some(at) = recurrence.last(back.last().unwrap().saturating_sub(TICK)).filter(|at| *at > from) {
            back.push(at);
        }
        back.reverse();
        prop_assert_eq!(back, ahead, "{} in {} from {}", expression, zone, from);
    }

    #[test]
    fn a_fixed_time_runs_exactly_once_for_each_day_it_names(
        zone in proptest::sample::select(&ZONES[..]), hour in 0u32..24, minute in 0u32..60, from in any_instant(),
    ) {
        // A daily job runs once per calendar day through every clock change (in Samoa, also for the
        // skipped day).
        let recurrence = recurrence(&format!("{minute} {hour} * * *"), zone);
        let firings: Vec<_> = recurrence.after(from).take(20).collect();
        for pair in firings.windows(2) {
            let apart = pair[1].at.since(pair[0].at).as_secs();
            prop_assert!((20 * 3600..=28 * 3600).contains(&apart) || zone == "Pacific/Apia", "{:?}", pair);
        }
    }
}

#[test]
fn an_interval_fires_at_every_real_second_that_matches() {
    let zone = proptest::sample::select(&ZONES[..]);
    let cases = (any_expression(), zone, any_instant());
    check_few_cases(5, cases, |(expression, zone, from)| {
        let recurrence = recurrence(&expression, zone);
        let Expression::Cron(cron) = &recurrence.expression else {
            unreachable!()
        };
        prop_assume!(cron.is_interval());
        let seconds = 5 * 3600;
        let end = from.saturating_add(Duration::from_secs(seconds));
        let found = recurrence.after(from).map(|firing| firing.at);
        let found: Vec<_> = found.take_while(|at| *at <= end).collect();
        prop_assert_eq!(found, by_brute_force(cron, &recurrence.zone, from, seconds));
        Ok(())
    });
}

#[test]
fn a_far_future_is_reached_without_walking_there() {
    let far = recurrence("*/10 * * * 1 * 9990", NEW_YORK);
    let first = far.next(at("2026-01-01T00:00:00Z")).unwrap().at;
    assert_eq!(first, at("9990-01-01T05:00:00Z"));
    let leap = recurrence("*/10 * * 29 2 *", NEW_YORK);
    let first = leap.next(at("2096-03-02T00:00:00Z")).unwrap().at;
    assert_eq!(first, at("2104-02-29T05:00:00Z"));
}

#[test]
fn an_interval_that_lies_in_a_yearly_gap_is_given_up() {
    let never = recurrence("* 30 2 * 3 SUN#2", NEW_YORK);
    assert_eq!(never.next(at("2026-01-01T00:00:00Z")), None);
    let before_2007 = Some(at("2006-03-12T07:30:59Z")); // clocks changed in April then
    assert_eq!(never.last(at("2026-01-01T00:00:00Z")), before_2007);
    let long_ago = recurrence("* * * * * * 1970", NEW_YORK);
    assert_eq!(
        long_ago.last(at("9999-01-01T00:00:00Z")),
        Some(at("1971-01-01T04:59:59Z"))
    );
}

#[test]
fn the_second_pass_of_a_weekly_interval_is_not_jumped_over() {
    // Only on Sundays: the next matching wall-clock time is a week later, but the repeated hour
    // comes first.
    assert_eq!(
        instants("*/30 1 * * SUN", NEW_YORK, "2026-11-01T05:45:00Z", 3),
        [
            "2026-11-01T06:00:00Z",
            "2026-11-01T06:30:00Z",
            "2026-11-08T06:00:00Z"
        ]
    );
}
