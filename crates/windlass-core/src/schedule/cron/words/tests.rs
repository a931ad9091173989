use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::random::check_few_cases;
use jiff::civil::{DateTime, date};

fn words(text: &str) -> Option<String> {
    Cron::parse(text).unwrap().words()
}

#[test]
fn rules_read_as_people_say_them() {
    for (text, expected) in [
        ("* * * * *", "every minute"),
        ("*/10 * * * *", "every 10 minutes"),
        ("3-59/10 * * * *", "every 10 minutes from minute 3"),
        ("0 * * * *", "every hour"),
        ("@hourly", "every hour"),
        ("5 * * * *", "every hour at minute 5"),
        ("0 */6 * * *", "every 6 hours"),
        ("15 */6 * * *", "every 6 hours from 00:15"),
        (
            "0 */5 * * *",
            "every day at 00:00, 05:00, 10:00, 15:00 and 20:00",
        ),
        ("0 9,17 * * *", "every day at 09:00 and 17:00"),
        ("0 */12 * * *", "every day at 00:00 and 12:00"),
        ("30 2 * * *", "every day at 02:30"),
        ("@daily", "every day at 00:00"),
        ("0 8 * * MON-FRI", "at 08:00 on weekdays"),
        ("0 8 * * 1,2,3,4,5", "at 08:00 on weekdays"),
        ("0 8 * * SAT,SUN", "at 08:00 on weekends"),
        ("30 7 * * MON,THU", "at 07:30 on Mondays and Thursdays"),
        ("0 12 * * SUN", "at 12:00 on Sundays"),
        ("0 12 * * 7", "at 12:00 on Sundays"),
        ("0 12 * * FRI-SUN", "at 12:00 on Fridays to Sundays"),
        ("@weekly", "at 00:00 on Sundays"),
        (
            "0 6 1W * *",
            "at 06:00 on the first working day of the month",
        ),
        (
            "0 6 15W * *",
            "at 06:00 on the working day nearest to the 15th of the month",
        ),
        (
            "0 6 LW * *",
            "at 06:00 on the last working day of the month",
        ),
        ("0 6 L * *", "at 06:00 on the last day of the month"),
        ("0 6 1,15 * *", "at 06:00 on the 1st and 15th of the month"),
        ("0 6 1-7 * *", "at 06:00 on the 1st to 7th of the month"),
        (
            "0 6 */2 * *",
            "at 06:00 on every 2nd day from the 1st to the 31st of the month",
        ),
        ("@monthly", "at 00:00 on the 1st of the month"),
        ("@yearly", "at 00:00 on the 1st of January"),
        ("0 23 * * FRIL", "at 23:00 on the last Friday of the month"),
        (
            "0 23 * * FRI#2",
            "at 23:00 on the second Friday of the month",
        ),
        (
            "0 23 * * FRI#1,FRI#3",
            "at 23:00 on the first and the third Friday of the month",
        ),
        (
            "0 5 10 1,4,7,10 *",
            "at 05:00 on the 10th of January, April, July and October",
        ),
        ("0 5 * 6-8 *", "every day in June to August at 05:00"),
        ("*/5 * * 6-8 *", "every 5 minutes in June to August"),
        (
            "0 0 13 * FRI",
            "at 00:00 on the 13th of the month and on Fridays",
        ),
        ("0 0 ? * MON", "at 00:00 on Mondays"),
        ("*/5 6-21 * * *", "every 5 minutes from 06:00 to 21:55"),
        ("* 9 * * *", "every minute from 09:00 to 09:59"),
        (
            "0 9-17 * * MON-FRI",
            "every hour from 09:00 to 17:00 on weekdays",
        ),
        (
            "*/15 0-5,20-23 * * *",
            "every 15 minutes from 00:00 to 05:45 and from 20:00 to 23:45",
        ),
        ("0,20 * * * *", "at minutes 0 and 20 of every hour"),
        ("0-30 * * * *", "at minutes 0 to 30 of every hour"),
        (
            "0,20 3,4 * * *",
            "every day at minutes 0 and 20 of hours 3 and 4",
        ),
        (
            "0-50/2 * * * *",
            "at every 2nd minute from 0 to 50 of every hour",
        ),
        ("*/10 * * * * *", "every 10 seconds"),
        ("* * * * * *", "every second"),
        ("15 30 2 * * *", "every day at 02:30:15"),
        ("15 * * * * *", "every minute at second 15"),
        (
            "*/30 * 9-17 * * *",
            "every 30 seconds from 09:00:00 to 17:59:30",
        ),
        (
            "0,30 5 * * * *",
            "at seconds 0 and 30 of minute 5 of every hour",
        ),
        (
            "0 0 2 1 1 * 2027",
            "at 02:00 on the 1st of January, in 2027",
        ),
        (
            "0 0 2 * * * 2027-2030",
            "every day at 02:00, from 2027 to 2030",
        ),
        (
            "0 0 2 * * * */2",
            "every day at 02:00, in every 2nd year from 1970 to 9999",
        ),
        ("0 0 */1 * *", "every day at 00:00"),
        ("0 0 5 * 0-6", "every day at 00:00"),
    ] {
        assert_eq!(words(text).as_deref(), Some(expected), "{text}");
    }
}

#[test]
fn a_rule_that_needs_a_long_sentence_has_no_words() {
    for text in [
        "1,3,7,12,20,33,50 * * * *",
        "0 1,2,5,7,11,13,17,19 * * *",
        "0 0 1,3,7,9,12,20,30 * *",
    ] {
        assert_eq!(words(text), None, "{text}");
    }
}

/// The next times of an expression from several moments on.
fn next_times(cron: &Cron) -> Vec<Option<DateTime>> {
    let starts = [
        date(2026, 1, 1).at(0, 0, 0, 0),
        date(2026, 2, 27).at(8, 59, 31, 0),
        date(2027, 5, 30).at(23, 59, 59, 0),
        date(2028, 11, 13).at(14, 7, 3, 0),
    ];
    let times = |start| {
        let next = std::iter::successors(Some(start), |at| cron.next_after(*at));
        next.skip(1).take(6).map(Some).collect::<Vec<_>>()
    };
    starts.into_iter().flat_map(times).collect()
}

fn field(values: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    prop::sample::select(values)
}

#[test]
fn expressions_with_the_same_words_fire_at_the_same_times() {
    let rule = (
        field(&["0", "15", "*", "*/10", "0,30", "5-20"]),
        field(&[
            "0", "5", "*", "*/15", "3-59/10", "0,20", "0-30", "*/7", "1-59/2",
        ]),
        field(&[
            "0",
            "*",
            "2",
            "*/6",
            "*/5",
            "9-17",
            "1,13",
            "0-5,20-23",
            "1-23/2",
        ]),
        field(&[
            "*", "?", "1", "L", "LW", "15W", "1W", "1,15", "*/2", "1-31", "*/1",
        ]),
        field(&["*", "1", "1-12", "6-8", "1,4,7,10", "*/3"]),
        field(&[
            "*", "?", "0", "7", "MON-FRI", "1-5", "SAT,SUN", "FRI#2", "FRIL", "0-6", "2,4",
        ]),
    );
    check_few_cases(32, prop::collection::vec(rule, 300), |rules| {
        let mut seen: BTreeMap<String, (String, Vec<Option<DateTime>>)> = BTreeMap::new();
        for (second, minute, hour, day, month, weekday) in rules {
            let text = format!("{second} {minute} {hour} {day} {month} {weekday}");
            let cron = Cron::parse(&text).unwrap();
            let Some(words) = cron.words() else { continue };
            let times = next_times(&cron);
            let (other, expected) = seen
                .entry(words.clone())
                .or_insert((text.clone(), times.clone()));
            prop_assert_eq!(
                &times,
                &*expected,
                "{} and {} are both {}",
                text,
                other,
                words
            );
        }
        Ok(())
    });
}
