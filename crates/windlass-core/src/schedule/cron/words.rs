//! Cron expressions in words: `at 02:30 on weekdays`.
//!
//! The words come from the values that the fields match, not from their text, so that different
//! spellings of one rule read the same. Invariant: expressions with the same words fire at the
//! same times. A rule that would need a long sentence has no words.

use super::Cron;
use super::days::{DaysOfMonth, DaysOfWeek};
use super::field::{Times, Years};

/// The most values or ranges that a sentence lists.
const LISTED_MAX: usize = 6;

/// The bits of all weekdays' occurrences: the first to the fifth.
const EVERY_OCCURRENCE: u8 = 0b1_1111;

const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

impl Cron {
    /// The rule in words, such as `at 02:30 on weekdays`. `None` if it is too complex for a
    /// sentence; show the expression then.
    pub fn words(&self) -> Option<String> {
        let time = time_words(
            &Values::new(self.seconds, 0, 59),
            &Values::new(self.minutes, 0, 59),
            &Values::new(self.hours, 0, 23),
        )?;
        let months = month_words(&Values::new(self.months, 1, 12))?;
        let days = day_words(&self.days, &self.weekdays, months.as_deref())?;
        let years = year_words(&self.years)?;
        let words = match days {
            Some(days) => format!("{time} {days}"),
            None if time.starts_with("at ") && !time.contains(" of every ") => match months {
                Some(months) => format!("every day in {months} {time}"),
                None => format!("every day {time}"),
            },
            None => match months {
                Some(months) => format!("{time} in {months}"),
                None => time,
            },
        };
        Some(match years {
            Some(years) => format!("{words}, {years}"),
            None => words,
        })
    }
}

/// The values that one field matches, in order.
struct Values {
    values: Vec<u16>,
    is_all: bool,
    span: u16,
}

impl Values {
    fn new(times: Times, min: u8, max: u8) -> Self {
        let values: Vec<u16> = (min..=max)
            .filter(|value| times.has(*value))
            .map(u16::from)
            .collect();
        Values {
            is_all: values.len() == usize::from(max - min) + 1,
            span: u16::from(max - min) + 1,
            values,
        }
    }

    fn only(&self) -> Option<u16> {
        match self.values.as_slice() {
            [value] => Some(*value),
            _ => None,
        }
    }

    /// The first and the last value and the step between neighbours, if it is always the same.
    fn progression(&self) -> Option<(u16, u16, u16)> {
        progression(&self.values)
    }

    /// The step, if the values repeat evenly without end, as minutes 3, 13, 23 … 53 do.
    fn even_step(&self) -> Option<(u16, u16)> {
        let (first, _, step) = self.progression()?;
        let count = u16::try_from(self.values.len()).ok()?;
        (count.checked_mul(step)? == self.span).then_some((first, step))
    }
}

fn progression(values: &[u16]) -> Option<(u16, u16, u16)> {
    let (first, rest) = values.split_first()?;
    let second = rest.first()?;
    let step = second - first;
    let even = values
        .iter()
        .zip(rest)
        .all(|(one, next)| next - one == step);
    even.then_some((*first, *values.last()?, step))
}

/// Ranges of neighbouring values.
fn runs(values: &[u16]) -> Vec<(u16, u16)> {
    let mut runs: Vec<(u16, u16)> = Vec::new();
    for value in values {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *value => *last = *value,
            _ => runs.push((*value, *value)),
        }
    }
    runs
}

/// When it fires on a day that matches.
fn time_words(seconds: &Values, minutes: &Values, hours: &Values) -> Option<String> {
    match (seconds.only(), minutes.only()) {
        (Some(second), Some(minute)) => hourly(second, minute, hours),
        (Some(second), None) => within_hours(second, minutes, hours),
        _ if minutes.is_all => every_second(seconds, hours),
        _ => fields(seconds, minutes, hours),
    }
}

fn clock(hour: u16, minute: u16, second: u16) -> String {
    if second == 0 {
        format!("{hour:02}:{minute:02}")
    } else {
        format!("{hour:02}:{minute:02}:{second:02}")
    }
}

/// Once in each matching hour.
fn hourly(second: u16, minute: u16, hours: &Values) -> Option<String> {
    let at = |hour: u16| clock(hour, minute, second);
    if hours.is_all {
        return Some(match (minute, second) {
            (0, 0) => "every hour".to_owned(),
            (_, 0) => format!("every hour at minute {minute}"),
            _ => format!("every hour at minute {minute}, second {second}"),
        });
    }
    if let Some((0, step)) = hours.even_step().filter(|_| hours.values.len() > 2) {
        return Some(match (minute, second) {
            (0, 0) => format!("every {step} hours"),
            _ => format!("every {step} hours from {}", at(0)),
        });
    }
    if hours.values.len() <= LISTED_MAX {
        let times: Vec<String> = hours.values.iter().map(|hour| at(*hour)).collect();
        return Some(format!("at {}", list(&times)));
    }
    let (first, last, step) = hours.progression()?;
    let step = every(step, "hour");
    Some(format!("{step} from {} to {}", at(first), at(last)))
}

/// Several times in each matching hour, at one second of the minute.
fn within_hours(second: u16, minutes: &Values, hours: &Values) -> Option<String> {
    let Some((first, step)) = minutes.even_step() else {
        return fields_of_minutes(second, minutes, hours);
    };
    let last = minutes.values.last().copied()?;
    let step = every(step, "minute");
    if hours.is_all {
        return Some(match (first, second) {
            (0, 0) => step,
            (0, _) => format!("{step} at second {second}"),
            (_, 0) => format!("{step} from minute {first}"),
            _ => format!("{step} from minute {first}, at second {second}"),
        });
    }
    let spans = hour_spans(
        hours,
        |hour| clock(hour, first, second),
        |hour| clock(hour, last, second),
    )?;
    Some(format!("{step} {spans}"))
}

/// Many times in each matching minute of whole hours.
fn every_second(seconds: &Values, hours: &Values) -> Option<String> {
    let Some((first, step)) = seconds.even_step() else {
        let seconds = value_words(seconds, "second")?;
        return match hour_words(hours)? {
            Some(hours) => Some(format!("at {seconds} of every minute {hours}")),
            None => Some(format!("at {seconds} of every minute")),
        };
    };
    let last = seconds.values.last().copied()?;
    let step = every(step, "second");
    if hours.is_all {
        return Some(match first {
            0 => step,
            _ => format!("{step} from second {first}"),
        });
    }
    let at = |hour: u16, minute: u16, second: u16| format!("{hour:02}:{minute:02}:{second:02}");
    let spans = hour_spans(hours, |hour| at(hour, 0, first), |hour| at(hour, 59, last))?;
    Some(format!("{step} {spans}"))
}

/// `from 06:00 to 21:55`, for each range of hours.
fn hour_spans(
    hours: &Values,
    begin: impl Fn(u16) -> String,
    end: impl Fn(u16) -> String,
) -> Option<String> {
    let runs = runs(&hours.values);
    if runs.len() > LISTED_MAX {
        return None;
    }
    let spans: Vec<String> = runs
        .iter()
        .map(|(first, last)| format!("from {} to {}", begin(*first), end(*last)))
        .collect();
    Some(list(&spans))
}

fn fields_of_minutes(second: u16, minutes: &Values, hours: &Values) -> Option<String> {
    let minutes = value_words(minutes, "minute")?;
    let second = match second {
        0 => String::new(),
        _ => format!(", second {second},"),
    };
    Some(match hour_words(hours)? {
        Some(hours) => format!("at {minutes}{second} {hours}"),
        None => format!("at {minutes}{second} of every hour"),
    })
}

/// Each field by itself, for rules that have no shorter form.
fn fields(seconds: &Values, minutes: &Values, hours: &Values) -> Option<String> {
    let seconds = match seconds.is_all {
        true => "every second".to_owned(),
        false => format!("at {}", value_words(seconds, "second")?),
    };
    let minutes = value_words(minutes, "minute")?;
    Some(match hour_words(hours)? {
        Some(hours) => format!("{seconds} of {minutes} {hours}"),
        None => format!("{seconds} of {minutes} of every hour"),
    })
}

/// `of the hours 2 and 3`; `None` inside if every hour matches.
fn hour_words(hours: &Values) -> Option<Option<String>> {
    if hours.is_all {
        return Some(None);
    }
    Some(Some(format!("of {}", value_words(hours, "hour")?)))
}

/// `minutes 5, 10 and 15`, `minutes 0 to 30`, `every 3rd minute from 1 to 40`.
fn value_words(values: &Values, unit: &str) -> Option<String> {
    let plural = if values.values.len() == 1 { "" } else { "s" };
    let ranges = runs(&values.values);
    if ranges.len() <= LISTED_MAX {
        let ranges: Vec<String> = ranges.iter().flat_map(range_words).collect();
        return Some(format!("{unit}{plural} {}", list(&ranges)));
    }
    let (first, last, step) = values.progression()?;
    let nth = ordinal(step);
    Some(format!("every {nth} {unit} from {first} to {last}"))
}

/// A range of two values reads better as a list.
fn range_words((first, last): &(u16, u16)) -> Vec<String> {
    match last - first {
        0 => vec![first.to_string()],
        1 => vec![first.to_string(), last.to_string()],
        _ => vec![format!("{first} to {last}")],
    }
}

fn every(step: u16, unit: &str) -> String {
    match step {
        1 => format!("every {unit}"),
        _ => format!("every {step} {unit}s"),
    }
}

/// The months as words; `None` inside if every month matches.
fn month_words(months: &Values) -> Option<Option<String>> {
    if months.is_all {
        return Some(None);
    }
    let name = |month: u16| {
        let name = MONTHS.get(usize::from(month).checked_sub(1)?)?;
        Some((*name).to_owned())
    };
    named_runs(&months.values, name).map(Some)
}

/// Names of values, ranges of at least three as `January to March`.
fn named_runs(values: &[u16], name: impl Fn(u16) -> Option<String>) -> Option<String> {
    let mut names = Vec::new();
    for (first, last) in runs(values) {
        match last - first {
            0 => names.push(name(first)?),
            1 => names.extend([name(first)?, name(last)?]),
            _ => names.push(format!("{} to {}", name(first)?, name(last)?)),
        }
    }
    Some(list(&names))
}

/// Which days match; `None` inside if every day does.
fn day_words(
    days: &DaysOfMonth,
    weekdays: &DaysOfWeek,
    months: Option<&str>,
) -> Option<Option<String>> {
    // A day has to match only one of the two fields if both are restricted.
    let every_day = match (days.any(), weekdays.any()) {
        (_, true) => days.is_every_day(),
        (true, false) => weekdays.is_every_day(),
        (false, false) => days.is_every_day() || weekdays.is_every_day(),
    };
    if every_day {
        return Some(None);
    }
    let within = |months: Option<&str>| months.map_or("the month".to_owned(), str::to_owned);
    let mut parts = Vec::new();
    if !days.any() {
        let days = month_day_words(days)?;
        parts.push(format!("on {days} of {}", within(months)));
    }
    if !weekdays.any() {
        let (plain, counted) = weekday_words(weekdays)?;
        if let Some(plain) = plain {
            parts.push(match months {
                Some(months) => format!("{plain} in {months}"),
                None => plain,
            });
        }
        if let Some(counted) = counted {
            parts.push(format!("on {counted} of {}", within(months)));
        }
    }
    Some(Some(list(&parts)))
}

/// `the 1st and 15th`, `the last day`, `the working day nearest to the 15th`.
fn month_day_words(days: &DaysOfMonth) -> Option<String> {
    let mut parts = Vec::new();
    let numbers: Vec<u16> = (1..=31).filter(|day| days.has_number(*day)).collect();
    let ranges = runs(&numbers);
    if ranges.len() > LISTED_MAX {
        let (first, last, step) = progression(&numbers)?;
        let (first, last) = (ordinal(first), ordinal(last));
        parts.push(format!(
            "every {} day from the {first} to the {last}",
            ordinal(step)
        ));
    } else if !numbers.is_empty() {
        let words = ranges.iter().flat_map(|(first, last)| match last - first {
            0 => vec![ordinal(*first)],
            1 => vec![ordinal(*first), ordinal(*last)],
            _ => vec![format!("{} to {}", ordinal(*first), ordinal(*last))],
        });
        parts.push(format!("the {}", list(&words.collect::<Vec<_>>())));
    }
    for day in (1..=31).filter(|day| days.has_nearest_weekday(*day)) {
        parts.push(match day {
            1 => "the first working day".to_owned(),
            _ => format!("the working day nearest to the {}", ordinal(day)),
        });
    }
    if days.has_last() {
        parts.push("the last day".to_owned());
    }
    if days.has_last_weekday() {
        parts.push("the last working day".to_owned());
    }
    (parts.len() <= LISTED_MAX).then(|| list(&parts))
}

/// `on Mondays and Thursdays`, and `the second and the last Friday`.
fn weekday_words(weekdays: &DaysOfWeek) -> Option<(Option<String>, Option<String>)> {
    // From Monday on, so that Saturday and Sunday are neighbours.
    let order = [1u16, 2, 3, 4, 5, 6, 0];
    let mut plain = Vec::new();
    let mut counted = Vec::new();
    for (place, weekday) in (0u16..).zip(order) {
        let (occurrences, last) = weekdays.occurrences(weekday)?;
        let name = WEEKDAYS.get(usize::from(weekday))?;
        if occurrences == EVERY_OCCURRENCE {
            plain.push(place);
            continue;
        }
        let mut which: Vec<String> = ["first", "second", "third", "fourth", "fifth"]
            .iter()
            .zip(0u8..)
            .filter(|(_, nth)| occurrences >> nth & 1 == 1)
            .map(|(word, _)| format!("the {word}"))
            .collect();
        if last {
            which.push("the last".to_owned());
        }
        if !which.is_empty() {
            counted.push(format!("{} {name}", list(&which)));
        }
    }
    let name = |place: u16| {
        let weekday = order.get(usize::from(place))?;
        Some(format!("{}s", WEEKDAYS.get(usize::from(*weekday))?))
    };
    let plain = match plain.as_slice() {
        [] => None,
        [0, 1, 2, 3, 4] => Some("on weekdays".to_owned()),
        [5, 6] => Some("on weekends".to_owned()),
        places => Some(format!("on {}", named_runs(places, name)?)),
    };
    if counted.len() > LISTED_MAX {
        return None;
    }
    let counted = (!counted.is_empty()).then(|| list(&counted));
    Some((plain, counted))
}

/// `in 2026 and 2028`, `from 2026 to 2030`; `None` inside if every year matches.
fn year_words(years: &Years) -> Option<Option<String>> {
    if years.any() {
        return Some(None);
    }
    let ranges = years.ranges();
    if ranges.len() > LISTED_MAX {
        return None;
    }
    let words: Vec<String> = ranges
        .iter()
        .map(|(from, to, step)| match (from == to, step) {
            (true, _) => format!("in {from}"),
            (false, 1) => format!("from {from} to {to}"),
            (false, step) => format!("in every {} year from {from} to {to}", ordinal(*step)),
        })
        .collect();
    Some(Some(list(&words)))
}

fn ordinal(number: u16) -> String {
    let ending = match (number % 100, number % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

/// `a`, `a and b`, `a, b and c`.
fn list(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [rest @ .., last] => format!("{} and {last}", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests;
