//! Cron expressions and the wall-clock times they match. `recurrence` turns those into instants.

mod days;
mod field;
mod words;

use jiff::civil::{Date, DateTime, Time};

use days::{DaysOfMonth, DaysOfWeek};
use field::{FieldRule, Times, Years};

use crate::Invalid;

const TEXT_BYTES_MAX: usize = 256;

/// The Gregorian calendar repeats after this many years. A date that does not occur within them
/// never does.
const CALENDAR_CYCLE_YEARS: i16 = 400;

/// A cron expression with five fields, six with seconds first, or seven with the year last.
///
/// Supports `*`, lists, ranges, steps, `L`, `W`, `#`, names of months and weekdays, and nicknames
/// such as `@hourly`. If both day of month and day of week are restricted, a day has to match only
/// one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cron {
    text: String,
    seconds: Times,
    minutes: Times,
    hours: Times,
    days: DaysOfMonth,
    months: Times,
    weekdays: DaysOfWeek,
    years: Years,
}

impl Cron {
    /// Reads an expression. The error names the field and the rule. Also refuses an expression that
    /// never fires.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        if text.len() > TEXT_BYTES_MAX {
            let rule = format!("must be at most {TEXT_BYTES_MAX} bytes, got {}", text.len());
            return Err(Invalid::new("cron", rule));
        }
        let cron = Cron::parse_fields(text.trim())?;
        let first = Date::constant(field::YEAR_MIN, 1, 1);
        if cron.next_date(first).is_none() {
            let rule = "must match at least one day of the given months and years; this expression never fires";
            return Err(Invalid::new("day_of_month", rule));
        }
        Ok(cron)
    }

    fn parse_fields(text: &str) -> Result<Self, Invalid> {
        let expanded = if text.starts_with('@') {
            nickname(text)?
        } else {
            text
        };
        let fields: Vec<&str> = expanded.split_ascii_whitespace().collect();
        let (second, minute, hour, day, month, weekday, year) = match fields.as_slice() {
            [minute, hour, day, month, weekday] => {
                ("0", *minute, *hour, *day, *month, *weekday, "*")
            }
            [second, minute, hour, day, month, weekday] => {
                (*second, *minute, *hour, *day, *month, *weekday, "*")
            }
            [second, minute, hour, day, month, weekday, year] => {
                (*second, *minute, *hour, *day, *month, *weekday, *year)
            }
            other => {
                let rule = format!("must have 5, 6 or 7 fields, got {}", other.len());
                return Err(Invalid::new("cron", rule));
            }
        };
        Ok(Cron {
            text: text.to_owned(),
            seconds: Times::parse(&FieldRule::SECOND, second)?,
            minutes: Times::parse(&FieldRule::MINUTE, minute)?,
            hours: Times::parse(&FieldRule::HOUR, hour)?,
            days: DaysOfMonth::parse(day)?,
            months: Times::parse(&FieldRule::MONTH, month)?,
            weekdays: DaysOfWeek::parse(weekday)?,
            years: Years::parse(year)?,
        })
    }

    /// The expression as it was given.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the expression is an interval, which follows real time, instead of fixed times,
    /// which follow the wall clock. As in every cron since Vixie's, it is an interval if the
    /// second, minute or hour has a `*`.
    pub(super) fn is_interval(&self) -> bool {
        self.seconds.wildcard() || self.minutes.wildcard() || self.hours.wildcard()
    }

    /// The first matching wall-clock time strictly after `after`.
    pub(super) fn next_after(&self, after: DateTime) -> Option<DateTime> {
        let date = self.next_date(after.date())?;
        if date == after.date() {
            if let Some(time) = self.next_time(after.time()) {
                return Some(date.to_datetime(time));
            }
            let date = self.next_date(after.date().tomorrow().ok()?)?;
            return Some(date.to_datetime(self.first_time()?));
        }
        Some(date.to_datetime(self.first_time()?))
    }

    /// The last matching wall-clock time at or before `at`.
    pub(super) fn last_until(&self, at: DateTime) -> Option<DateTime> {
        let date = self.last_date(at.date())?;
        if date == at.date() {
            if let Some(time) = self.last_time(at.time()) {
                return Some(date.to_datetime(time));
            }
            let date = self.last_date(at.date().yesterday().ok()?)?;
            return Some(date.to_datetime(self.final_time()?));
        }
        Some(date.to_datetime(self.final_time()?))
    }

    /// The matching days of a month, as bits 1 to 31.
    fn days_in(&self, first: Date) -> u32 {
        let month = u8::try_from(first.month()).unwrap_or(0);
        if !self.months.has(month) {
            return 0;
        }
        match (self.days.any(), self.weekdays.any()) {
            (_, true) => self.days.in_month(first),
            (true, false) => self.weekdays.in_month(first),
            (false, false) => self.days.in_month(first) | self.weekdays.in_month(first),
        }
    }

    /// The first matching day on or after `from`.
    fn next_date(&self, from: Date) -> Option<Date> {
        let mut year = self.years.next(from.year())?;
        let last_year = self.search_until(year.saturating_add(CALENDAR_CYCLE_YEARS), i16::MAX);
        while year <= last_year {
            for month in 1..=12 {
                let first = Date::new(year, month, 1).ok()?;
                let days = self.days_in(first) & bits_from(first, from);
                if days != 0 {
                    return day_of(first, days.trailing_zeros());
                }
            }
            year = self.years.next(year.checked_add(1)?)?;
        }
        None
    }

    /// The last year to search. If every year matches, the calendar repeats after a cycle; a list
    /// of years has its own end.
    fn search_until(&self, cycle: i16, end: i16) -> i16 {
        if self.years.any() { cycle } else { end }
    }

    /// The last matching day on or before `until`.
    fn last_date(&self, until: Date) -> Option<Date> {
        let mut year = self.years.last(until.year())?;
        let first_year = self.search_until(year.saturating_sub(CALENDAR_CYCLE_YEARS), i16::MIN);
        while year >= first_year {
            for month in (1..=12).rev() {
                let first = Date::new(year, month, 1).ok()?;
                let days = self.days_in(first) & bits_until(first, until);
                if days != 0 {
                    return day_of(first, days.ilog2());
                }
            }
            year = self.years.last(year.checked_sub(1)?)?;
        }
        None
    }

    /// The first matching time of day strictly after `after`.
    fn next_time(&self, after: Time) -> Option<Time> {
        let (hour, minute, second) = parts(after);
        if self.hours.has(hour) {
            if self.minutes.has(minute)
                && let Some(second) = self.seconds.next(second + 1)
            {
                return time(hour, minute, second);
            }
            if let Some(minute) = self.minutes.next(minute + 1) {
                return time(hour, minute, self.seconds.next(0)?);
            }
        }
        time(
            self.hours.next(hour + 1)?,
            self.minutes.next(0)?,
            self.seconds.next(0)?,
        )
    }

    /// The last matching time of day at or before `until`.
    fn last_time(&self, until: Time) -> Option<Time> {
        let (hour, minute, second) = parts(until);
        if self.hours.has(hour) {
            if self.minutes.has(minute)
                && let Some(second) = self.seconds.last(second)
            {
                return time(hour, minute, second);
            }
            if let Some(minute) = minute
                .checked_sub(1)
                .and_then(|minute| self.minutes.last(minute))
            {
                return time(hour, minute, self.seconds.last(59)?);
            }
        }
        let hour = self.hours.last(hour.checked_sub(1)?)?;
        time(hour, self.minutes.last(59)?, self.seconds.last(59)?)
    }

    fn first_time(&self) -> Option<Time> {
        time(
            self.hours.next(0)?,
            self.minutes.next(0)?,
            self.seconds.next(0)?,
        )
    }

    fn final_time(&self) -> Option<Time> {
        time(
            self.hours.last(23)?,
            self.minutes.last(59)?,
            self.seconds.last(59)?,
        )
    }
}

fn nickname(text: &str) -> Result<&'static str, Invalid> {
    const NICKNAMES: [(&str, &str); 7] = [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
    ];
    crate::fields::one_of(text.to_ascii_lowercase().as_str(), &NICKNAMES)
        .map_err(|error| error.within("cron"))
}

/// The days of the month of `first` that are on or after `from`.
fn bits_from(first: Date, from: Date) -> u32 {
    match (first.year(), first.month()).cmp(&(from.year(), from.month())) {
        std::cmp::Ordering::Less => 0,
        std::cmp::Ordering::Greater => u32::MAX,
        std::cmp::Ordering::Equal => u32::MAX << from.day(),
    }
}

/// The days of the month of `first` that are on or before `until`.
fn bits_until(first: Date, until: Date) -> u32 {
    match (first.year(), first.month()).cmp(&(until.year(), until.month())) {
        std::cmp::Ordering::Less => u32::MAX,
        std::cmp::Ordering::Greater => 0,
        std::cmp::Ordering::Equal => !(u32::MAX << until.day() << 1),
    }
}

fn day_of(first: Date, day: u32) -> Option<Date> {
    Date::new(first.year(), first.month(), i8::try_from(day).ok()?).ok()
}

fn parts(time: Time) -> (u8, u8, u8) {
    let part = |value: i8| u8::try_from(value).unwrap_or(0);
    (part(time.hour()), part(time.minute()), part(time.second()))
}

fn time(hour: u8, minute: u8, second: u8) -> Option<Time> {
    let part = |value: u8| i8::try_from(value).ok();
    Time::new(part(hour)?, part(minute)?, part(second)?, 0).ok()
}

#[cfg(test)]
mod tests;
