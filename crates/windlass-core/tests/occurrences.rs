//! Occurrences in fifty zones over twenty years, compared with a step-by-step search of the wall
//! clock.
//!
//! The search knows nothing about cron, gaps or folds: it lets time pass and notes when the wall
//! clock shows a time that matches the rule. It steps by minutes on days with a clock change and by
//! quarters of an hour on all others; no rule here is finer than that.

use std::sync::LazyLock;

use jiff::Timestamp as Instant;
use jiff::tz::TimeZoneDatabase;
use windlass_core::Timestamp;
use windlass_core::schedule::{Recurrence, Zone};

const ZONES: [&str; 50] = [
    "UTC",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Africa/Johannesburg",
    "Africa/Juba",
    "Africa/Lagos",
    "Africa/Tripoli",
    "Africa/Windhoek",
    "America/Anchorage",
    "America/Argentina/Buenos_Aires",
    "America/Asuncion",
    "America/Bogota",
    "America/Caracas",
    "America/Chicago",
    "America/Denver",
    "America/Godthab",
    "America/Halifax",
    "America/Havana",
    "America/Los_Angeles",
    "America/Mexico_City",
    "America/Miquelon",
    "America/New_York",
    "America/Port-au-Prince",
    "America/Santiago",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Antarctica/Casey",
    "Antarctica/Troll",
    "Asia/Amman",
    "Asia/Beirut",
    "Asia/Dhaka",
    "Asia/Gaza",
    "Asia/Jerusalem",
    "Asia/Kathmandu",
    "Asia/Kolkata",
    "Asia/Pyongyang",
    "Asia/Shanghai",
    "Asia/Tehran",
    "Asia/Tokyo",
    "Atlantic/Azores",
    "Australia/Adelaide",
    "Australia/Lord_Howe",
    "Australia/Sydney",
    "Europe/Berlin",
    "Europe/Istanbul",
    "Europe/London",
    "Europe/Moscow",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Pacific/Kiritimati",
];

const DAY: i64 = 24 * 60;
/// 2007-01-01 and 2027-01-01, in minutes since 1970.
const FIRST: i64 = 13_514 * DAY;
const LAST: i64 = 20_819 * DAY;

/// For each zone the instants that the search tests, and the wall-clock time at each; all in
/// minutes.
static LOOKS: LazyLock<Vec<Vec<(i64, i64)>>> =
    LazyLock::new(|| ZONES.iter().map(|zone| looks(zone)).collect());

fn looks(zone: &str) -> Vec<(i64, i64)> {
    let zone = TimeZoneDatabase::bundled().get(zone).expect("a zone");
    let offset = |minute: i64| {
        let at = Instant::from_second(minute * 60).expect("a time");
        i64::from(zone.to_offset(at).seconds()) / 60
    };
    let mut looks = Vec::new();
    for day in (FIRST - DAY..LAST).step_by(24 * 60) {
        let quarters = (day..=day + DAY).step_by(15);
        let shown: Vec<(i64, i64)> = quarters.map(|at| (at, at + offset(at))).collect();
        let moved = |pair: &[(i64, i64)]| {
            pair.windows(2)
                .any(|two| matches!(two, [(_, a), (_, b)] if b - a != 15))
        };
        if moved(&shown) {
            looks.extend((day..day + DAY).map(|minute| (minute, minute + offset(minute))));
        } else {
            looks.extend(shown.into_iter().take(96)); // the last one belongs to the next day
        }
    }
    looks
}

/// A rule, written a second time for the search.
struct Rule {
    cron: &'static str,
    /// Whether an hour and minute match.
    times: fn(i64, i64) -> bool,
    days: fn(&Date) -> bool,
    /// Whether it fires at every instant that matches, not once per wall-clock time.
    interval: bool,
}

/// A date on the wall calendar.
struct Date {
    month: i64,
    day: i64,
    last_of_month: bool,
    /// 0 is Sunday.
    weekday: i64,
}

impl Rule {
    /// Whether a wall-clock time, in minutes since 1970, matches.
    fn names(&self, on_wall: i64) -> bool {
        let of_day = on_wall.rem_euclid(DAY);
        if !(self.times)(of_day / 60, of_day % 60) {
            return false;
        }
        let days = on_wall.div_euclid(DAY);
        let (_, month, day) = date(days);
        let (_, _, next_day) = date(days + 1);
        (self.days)(&Date {
            month,
            day,
            last_of_month: next_day == 1,
            weekday: (days + 4).rem_euclid(7),
        })
    }
}

/// The calendar date from the number of days since 1970: 146,097 days in 400 years, counted from
/// March.
fn date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Finds the occurrences by stepping through time.
fn by_looking(rule: &Rule, looks: &[(i64, i64)]) -> Vec<i64> {
    let mut fires = Vec::new();
    let mut shown = i64::MIN; // the latest time that the wall has shown
    for (minute, on_wall) in looks {
        let matches = if rule.interval {
            rule.names(*on_wall)
        } else if shown == i64::MIN || *on_wall <= shown {
            false // the clock showed it before: it went back
        } else if *on_wall - shown <= 15 {
            rule.names(*on_wall)
        } else {
            // The clock went forward: a skipped time counts now, once.
            (shown + 1..=*on_wall).any(|skipped| rule.names(skipped))
        };
        shown = shown.max(*on_wall);
        if matches && *minute > FIRST {
            fires.push(*minute);
        }
    }
    fires
}

fn agrees(rule: &Rule) {
    let mut compared = 0;
    for (name, looks) in ZONES.iter().zip(LOOKS.iter()) {
        let zone = Zone::new(name).expect("a zone");
        let instant = |minute: i64| Timestamp::from_micros(minute * 60_000_000).expect("a time");
        let expression = rule.cron.parse().expect("a rule");
        let recurrence = Recurrence::new(expression, zone, instant(FIRST));
        let mut ours = recurrence.after(instant(FIRST));
        for minute in by_looking(rule, looks) {
            let at = ours.next().map(|firing| firing.at);
            assert_eq!(at, Some(instant(minute)), "{} in {name}", rule.cron);
            compared += 1;
        }
        let next = ours.next().map(|firing| firing.at);
        assert!(
            next.is_none_or(|at| at >= instant(LAST)),
            "{} in {name}: {next:?}",
            rule.cron
        );
    }
    assert!(compared > 1000, "{compared} occurrences of {}", rule.cron);
}

#[test]
fn a_daily_time_that_clocks_skip_and_repeat() {
    agrees(&Rule {
        cron: "30 2 * * *",
        times: |hour, minute| (hour, minute) == (2, 30),
        days: |_| true,
        interval: false,
    });
}

#[test]
fn midnight() {
    agrees(&Rule {
        cron: "0 0 * * *",
        times: |hour, minute| (hour, minute) == (0, 0),
        days: |_| true,
        interval: false,
    });
}

#[test]
fn many_times_in_one_gap() {
    agrees(&Rule {
        cron: "0,15,30,45 0-3 * 3,4,9,10,11 SUN",
        times: |hour, minute| hour <= 3 && minute % 15 == 0,
        days: |date| matches!(date.month, 3 | 4 | 9..=11) && date.weekday == 0,
        interval: false,
    });
}

#[test]
fn an_interval_through_both_changes() {
    agrees(&Rule {
        cron: "*/30 * * 3,10 SUN",
        times: |_, minute| minute % 30 == 0,
        days: |date| matches!(date.month, 3 | 10) && date.weekday == 0,
        interval: true,
    });
}

#[test]
fn days_that_not_every_month_or_year_has() {
    agrees(&Rule {
        cron: "45 1 29-31 2,4,8 *",
        times: |hour, minute| (hour, minute) == (1, 45),
        days: |date| matches!(date.month, 2 | 4 | 8) && date.day >= 29,
        interval: false,
    });
}

#[test]
fn the_last_day_of_the_month() {
    agrees(&Rule {
        cron: "0 0 L * *",
        times: |hour, minute| (hour, minute) == (0, 0),
        days: |date| date.last_of_month,
        interval: false,
    });
}

#[test]
fn either_day_field_is_enough() {
    agrees(&Rule {
        cron: "15 1 13 * FRI",
        times: |hour, minute| (hour, minute) == (1, 15),
        days: |date| date.day == 13 || date.weekday == 5,
        interval: false,
    });
}

#[test]
fn crafted_expressions_are_refused_or_answered_without_a_long_search() {
    let list = (0..10_000)
        .map(|n| (n % 60).to_string())
        .collect::<Vec<_>>()
        .join(",");
    for crafted in [
        "*/0 * * * *",
        "0-99999999 * * * *",
        "99999999999999999999 * * * *",
        &format!("{list} * * * *"),
        "0 0 30 2 *",
        "0 0 31 2,4,6,9,11 *",
        "0 0 29 2 * * 2023",
        "0 0 0 29 2 ? 2021,2022,2023,2025",
    ] {
        let parsed = crafted.parse::<windlass_core::schedule::Expression>();
        let never = parsed.map(|expression| {
            let start: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
            Recurrence::new(expression, Zone::utc(), start).next(start)
        });
        assert!(
            never.is_err() || never == Ok(None),
            "{crafted:.60}: {never:?}"
        );
    }
}
