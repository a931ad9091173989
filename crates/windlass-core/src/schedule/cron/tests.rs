//! Examples of expressions and their wall-clock times, and agreement with another implementation.

use croner::parser::CronParser;
use jiff::civil::datetime;
use proptest::prelude::*;

use super::*;

fn cron(text: &str) -> Cron {
    Cron::parse(text).unwrap()
}

fn next(text: &str, after: DateTime) -> String {
    cron(text).next_after(after).unwrap().to_string()
}

#[test]
fn the_next_time_is_strictly_after() {
    let ten = datetime(2026, 3, 2, 10, 0, 0, 0);
    assert_eq!(next("0 0 12 * * *", ten), "2026-03-02T12:00:00");
    assert_eq!(next("0 0 * * * *", ten), "2026-03-02T11:00:00");
    assert_eq!(
        next("*/10 * * * * *", datetime(2026, 3, 2, 10, 0, 3, 0)),
        "2026-03-02T10:00:10"
    );
    let friday = datetime(2026, 3, 6, 9, 0, 30, 0);
    assert_eq!(next("30 0 9 * * MON-FRI", friday), "2026-03-09T09:00:30");
    assert_eq!(next("0 12 * * *", ten), "2026-03-02T12:00:00");
    assert_eq!(next("59 59 23 31 12 * 2026", ten), "2026-12-31T23:59:59");
}

#[test]
fn either_day_field_is_enough_when_both_are_restricted() {
    // The 13th, and every Friday.
    let start = datetime(2026, 3, 1, 0, 0, 0, 0);
    let days: Vec<i8> = std::iter::successors(cron("0 0 13 * FRI").next_after(start), |at| {
        cron("0 0 13 * FRI").next_after(*at)
    })
    .take(5)
    .map(|at| at.day())
    .collect();
    assert_eq!(days, [6, 13, 20, 27, 3]);
}

#[test]
fn special_days_are_found() {
    let from = |month, day| datetime(2026, month, day, 0, 0, 0, 0);
    for (text, after, expected) in [
        ("0 0 L * *", from(2, 1), "2026-02-28T00:00:00"),
        (
            "0 0 L 2 *",
            datetime(2028, 1, 1, 0, 0, 0, 0),
            "2028-02-29T00:00:00",
        ),
        ("0 0 LW * *", from(5, 1), "2026-05-29T00:00:00"), // 31 May 2026 is a Sunday
        ("0 0 15W * *", from(8, 1), "2026-08-14T00:00:00"), // a Saturday: Friday before
        ("0 0 15W * *", from(11, 1), "2026-11-16T00:00:00"), // a Sunday: Monday after
        ("0 0 1W * *", from(7, 31), "2026-08-03T00:00:00"), // Saturday the 1st: Monday the 3rd
        ("0 0 31W * *", from(5, 1), "2026-05-29T00:00:00"), // Sunday the 31st: Friday the 29th
        ("0 0 * * FRI#2", from(3, 1), "2026-03-13T00:00:00"),
        ("0 0 * * 5#5", from(3, 1), "2026-05-29T00:00:00"),
        ("0 0 * * FRIL", from(3, 1), "2026-03-27T00:00:00"),
        ("0 0 * * FRI#4,FRIL", from(2, 25), "2026-02-27T00:00:00"), // both are one day
        ("0 0 * * SUN-SUN", from(3, 2), "2026-03-08T00:00:00"),
        ("5-5 0 * * *", from(3, 2), "2026-03-02T00:05:00"),
        ("0 0 0 1 1 * 2000-2040/3", from(1, 2), "2027-01-01T00:00:00"),
        ("0 0 * * 7", from(3, 1), "2026-03-08T00:00:00"),
        ("0 0 ? * SAT-SUN", from(3, 3), "2026-03-07T00:00:00"),
        ("0 0 29 2 *", from(1, 1), "2028-02-29T00:00:00"),
        (
            "0 0 29 2 *",
            datetime(2096, 3, 1, 0, 0, 0, 0),
            "2104-02-29T00:00:00",
        ),
        ("0 0 * feb mon#5", from(1, 1), "2044-02-29T00:00:00"),
        ("0 0 0 1 1 ? 2030-2040/5", from(1, 2), "2030-01-01T00:00:00"),
        ("0 0 0 29 2 * 2001,2404", from(1, 1), "2404-02-29T00:00:00"),
        ("0 0 0 29 2 * 1970,2400", from(1, 1), "2400-02-29T00:00:00"),
        ("@yearly", from(6, 1), "2027-01-01T00:00:00"),
        ("@annually", from(6, 1), "2027-01-01T00:00:00"),
        ("@monthly", from(6, 1), "2026-07-01T00:00:00"),
        ("@Weekly", from(6, 1), "2026-06-07T00:00:00"),
        ("@daily", from(6, 1), "2026-06-02T00:00:00"),
        ("@midnight", from(6, 1), "2026-06-02T00:00:00"),
        ("@hourly", from(6, 1), "2026-06-01T01:00:00"),
    ] {
        assert_eq!(next(text, after), expected, "{text}");
    }
}

#[test]
fn bad_expressions_are_refused_by_the_name_of_the_field() {
    let long = format!("{}1 * * * *", "1,".repeat(150));
    for (field, text) in [
        ("hour", "0 0 25 * * *"),
        ("second", "60 * * * * *"),
        ("second", "*/0 * * * * *"),
        ("cron", "invalid cron"),
        ("cron", ""),
        ("cron", "* * * *"),
        ("cron", "* * * * * * * *"),
        ("cron", "@reboot"),
        ("cron", &long),
        ("day_of_month", "0 0 0 30 2 *"),
        ("day_of_month", "0 0 31 2,4,6,9,11 *"),
        ("day_of_month", "0 0 30W 2 *"),
        ("day_of_month", "0 0 0 29 2 * 2027"),
        ("day_of_month", "0 0 0 29 2 * 1971-9999/2"),
        ("day_of_month", "0 0 0 * 2 MON#5 2027,2029"),
        ("day_of_month", "0 0 32 * *"),
        ("day_of_month", "0 0 0 * *"),
        ("day_of_month", "0 0 L-3 * *"),
        ("day_of_month", "0 0 W * *"),
        ("day_of_month", "0 0 ?,5 * *"),
        ("minute", "5/15 * * * *"),
        ("minute", "59-0 * * * *"),
        ("minute", "0-99999999 * * * *"),
        ("minute", "1,,2 * * * *"),
        ("minute", ", * * * *"),
        ("minute", "+5 * * * *"),
        ("minute", "-5 * * * *"),
        ("minute", "*/61 * * * *"),
        ("minute", "*/+5 * * * *"),
        ("minute", "** * * * *"),
        ("minute", "٣ * * * *"),
        ("minute", "? * * * *"),
        ("month", "0 0 1 13 *"),
        ("month", "0 0 1 JANFEB *"),
        ("month", "0 0 1 MON *"),
        ("day_of_week", "0 0 * * 8"),
        ("day_of_week", "0 0 * * MONMON"),
        ("day_of_week", "0 0 * * L"),
        ("day_of_week", "0 0 * * FRI#6"),
        ("day_of_week", "0 0 * * FRI#0"),
        ("day_of_week", "0 0 * * #2"),
        ("day_of_week", "0 0 * * FRI-MON"),
        ("day_of_week", "0 0 13 * +FRI"),
        ("year", "0 0 0 1 1 * 1969"),
        ("year", "0 0 0 1 1 * 10000"),
    ] {
        let refusal = Cron::parse(text).expect_err(text);
        assert_eq!(refusal.field(), field, "{text}: {refusal}");
    }
}

#[test]
fn a_long_expression_is_taken_up_to_its_bound() {
    let longest = format!("{}1 * * * *", " ".repeat(247));
    assert_eq!(longest.len(), 256);
    assert!(Cron::parse(&longest).is_ok());
    assert!(Cron::parse(&format!(" {longest}")).is_err());
}

#[test]
fn intervals_are_distinguished_from_fixed_times() {
    for text in [
        "* * * * *",
        "*/30 * * * *",
        "0 */2 * * *",
        "*/10 30 2 * * *",
        "* 2 * * *",
    ] {
        assert!(cron(text).is_interval(), "{text}");
    }
    for text in [
        "30 2 * * *",
        "0 2,14 * * *",
        "0-59/15 1-3 * * *",
        "0 30 2 * * *",
        "@daily",
    ] {
        assert!(!cron(text).is_interval(), "{text}");
    }
}

#[test]
fn past_years_have_no_next_time() {
    let past = cron("0 0 0 1 1 * 2020");
    assert_eq!(past.next_after(datetime(2026, 1, 1, 0, 0, 0, 0)), None);
    assert_eq!(
        past.last_until(datetime(2026, 1, 1, 0, 0, 0, 0)),
        Some(datetime(2020, 1, 1, 0, 0, 0, 0))
    );
    assert_eq!(past.last_until(datetime(2019, 12, 31, 0, 0, 0, 0)), None);
    assert_eq!(past.as_str(), "0 0 0 1 1 * 2020");
}

fn any_field(min: u32, max: u32) -> impl Strategy<Value = String> {
    let range = (min..=max, min..=max).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b)));
    let item = prop_oneof![
        4 => (min..=max).prop_map(|value| value.to_string()),
        2 => range.clone(),
        1 => (range, 1..=max).prop_map(|(range, step)| format!("{range}/{step}")),
        1 => (1..=max).prop_map(|step| format!("*/{step}")),
    ];
    prop_oneof![
        1 => Just("*".to_owned()),
        2 => proptest::collection::vec(item, 1..4).prop_map(|items| items.join(",")),
    ]
}

fn any_cron() -> impl Strategy<Value = String> {
    let day = prop_oneof![
        3 => any_field(1, 31),
        1 => Just("L".to_owned()),
        1 => Just("LW".to_owned()),
        1 => (1..=31u32).prop_map(|day| format!("{day}W")),
    ];
    let weekday = prop_oneof![
        3 => any_field(0, 6),
        1 => (0..=6u32, 1..=5u32).prop_map(|(weekday, nth)| format!("{weekday}#{nth}")),
        1 => (0..=6u32).prop_map(|weekday| format!("{weekday}L")),
    ];
    (
        any_field(0, 59),
        any_field(0, 59),
        any_field(0, 23),
        day,
        any_field(1, 12),
        weekday,
    )
        .prop_map(|(second, minute, hour, day, month, weekday)| {
            format!("{second} {minute} {hour} {day} {month} {weekday}")
        })
}

fn any_time() -> impl Strategy<Value = DateTime> {
    (2000i16..2100, 1i8..=12, 1i8..=28, 0i8..24, 0i8..60, 0i8..60)
        .prop_map(|(y, mo, d, h, mi, s)| datetime(y, mo, d, h, mi, s, 0))
}

proptest! {
    /// croner implements the same language. Both must find the same wall-clock times.
    #[test]
    fn another_implementation_finds_the_same_times(text in any_cron(), start in any_time()) {
        if let Ok(ours) = Cron::parse(&text) {
            let theirs = CronParser::new().parse(&text).unwrap();
            let (mut forward, mut backward) = (start, start);
            for _ in 0..5 {
                let expected = theirs.find_next_occurrence(&forward, false).unwrap();
                prop_assert_eq!(ours.next_after(forward), Some(expected), "{} after {}", text, forward);
                forward = expected;
                let second = jiff::SignedDuration::from_secs(1);
                let expected = theirs.find_previous_occurrence(&backward, true).unwrap();
                prop_assert_eq!(ours.last_until(backward), Some(expected), "{} until {}", text, backward);
                backward = expected.checked_sub(second).unwrap();
            }
        }
    }

    #[test]
    fn the_next_time_is_also_the_last_time_until_then(text in any_cron(), start in any_time()) {
        if let Ok(cron) = Cron::parse(&text) {
            let next = cron.next_after(start).unwrap();
            prop_assert!(next > start);
            prop_assert_eq!(cron.last_until(next), Some(next));
        }
    }

    #[test]
    fn no_text_panics(text in any::<String>(), crafted in "[0-9*/,#LWa-z? -]{0,40}") {
        let _ = Cron::parse(&text);
        let _ = Cron::parse(&crafted);
    }

    #[test]
    fn crafted_fields_never_panic(fields in proptest::collection::vec("[0-9*/,#LW?-]{1,8}", 5..8)) {
        if let Ok(cron) = Cron::parse(&fields.join(" ")) {
            let _ = cron.next_after(datetime(2026, 1, 1, 0, 0, 0, 0));
            let _ = cron.last_until(DateTime::MIN);
            let _ = cron.next_after(DateTime::MAX);
        }
    }
}
