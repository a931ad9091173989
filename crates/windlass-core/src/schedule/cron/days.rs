//! The days of a month that an expression matches, computed for a whole month at once as bits 1 to
//! 31.

use jiff::civil::Date;

use super::field::FieldRule;
use crate::Invalid;

/// The day of month: numbers, `L` (the last day), `LW` (the last weekday), `15W` (the weekday
/// nearest to the 15th).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DaysOfMonth {
    any: bool,
    numbers: u32,
    nearest_weekday: u32,
    last: bool,
    last_weekday: bool,
}

impl DaysOfMonth {
    pub(super) fn parse(text: &str) -> Result<Self, Invalid> {
        let rule = FieldRule::DAY_OF_MONTH;
        let mut days = DaysOfMonth {
            any: matches!(text, "*" | "?"),
            numbers: 0,
            nearest_weekday: 0,
            last: false,
            last_weekday: false,
        };
        if days.any {
            days.numbers = u32::MAX;
            return Ok(days);
        }
        for item in text.split(',') {
            let upper = item.to_ascii_uppercase();
            match upper.as_str() {
                "L" => days.last = true,
                "LW" => days.last_weekday = true,
                _ => match upper.strip_suffix('W') {
                    Some(day) => days.nearest_weekday |= 1 << (rule.value(day)? & 31),
                    None => days.numbers |= u32::try_from(rule.item(item)?.bits()).unwrap_or(0),
                },
            }
        }
        Ok(days)
    }

    /// Whether the field matches every day.
    pub(super) fn any(&self) -> bool {
        self.any
    }

    /// Whether the field lists every day, as `*` and `1-31` do.
    pub(super) fn is_every_day(&self) -> bool {
        (1..=31).all(|day| self.has_number(day))
    }

    /// Whether the field has this number.
    pub(super) fn has_number(&self, day: u16) -> bool {
        self.numbers >> day & 1 == 1
    }

    /// Whether the field has the weekday nearest to this day.
    pub(super) fn has_nearest_weekday(&self, day: u16) -> bool {
        self.nearest_weekday >> day & 1 == 1
    }

    /// Whether the field has `L`.
    pub(super) fn has_last(&self) -> bool {
        self.last
    }

    /// Whether the field has `LW`.
    pub(super) fn has_last_weekday(&self) -> bool {
        self.last_weekday
    }

    pub(super) fn in_month(&self, first: Date) -> u32 {
        let length = days_in_month(first);
        let mut bits = self.numbers & up_to(length);
        if self.last {
            bits |= 1 << length;
        }
        if self.last_weekday {
            bits |= 1 << nearest_weekday(first, length);
        }
        for day in (1..=length).filter(|day| self.nearest_weekday >> day & 1 == 1) {
            bits |= 1 << nearest_weekday(first, day);
        }
        bits
    }
}

/// The day of week: 0 to 7 or names, `FRI#2` (the second Friday), `FRIL` (the last Friday).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DaysOfWeek {
    any: bool,
    /// Which occurrences of each weekday in a month match, from Sunday on: bit 0 is the first, bit
    /// 4 the fifth.
    occurrences: [u8; 7],
    /// The weekdays whose last occurrence matches.
    last: [bool; 7],
}

impl DaysOfWeek {
    pub(super) fn parse(text: &str) -> Result<Self, Invalid> {
        let mut days = DaysOfWeek {
            any: matches!(text, "*" | "?"),
            occurrences: [0; 7],
            last: [false; 7],
        };
        if days.any {
            return Ok(days);
        }
        for item in text.split(',') {
            days.add(item)?;
        }
        Ok(days)
    }

    fn add(&mut self, item: &str) -> Result<(), Invalid> {
        let rule = FieldRule::DAY_OF_WEEK;
        if let Some((weekday, number)) = item.split_once('#') {
            let number = number
                .parse::<u8>()
                .ok()
                .filter(|number| (1..=5).contains(number));
            let number = number
                .ok_or_else(|| rule.refuse("must have a number from 1 to 5 after #", item))?;
            self.mark(rule.value(weekday)?, 1 << (number - 1));
        } else if let Some(weekday) = item.strip_suffix(['L', 'l']) {
            let weekday = usize::from(rule.value(weekday)? % 7);
            self.last
                .iter_mut()
                .skip(weekday)
                .take(1)
                .for_each(|last| *last = true);
        } else {
            let bits = rule.item(item)?.bits();
            for weekday in (0..=7).filter(|weekday| bits >> weekday & 1 == 1) {
                self.mark(weekday, 0b1_1111);
            }
        }
        Ok(())
    }

    fn mark(&mut self, weekday: u16, occurrences: u8) {
        let weekday = usize::from(weekday % 7);
        self.occurrences
            .iter_mut()
            .skip(weekday)
            .take(1)
            .for_each(|marked| *marked |= occurrences);
    }

    /// Whether the field matches every day.
    pub(super) fn any(&self) -> bool {
        self.any
    }

    /// Whether the field lists every weekday, as `*` and `0-6` do.
    pub(super) fn is_every_day(&self) -> bool {
        self.any || self.occurrences.iter().all(|marked| *marked == 0b1_1111)
    }

    /// Which occurrences of a weekday match, from Sunday on, and whether its last one does.
    pub(super) fn occurrences(&self, weekday: u16) -> Option<(u8, bool)> {
        let weekday = usize::from(weekday);
        Some((*self.occurrences.get(weekday)?, *self.last.get(weekday)?))
    }

    pub(super) fn in_month(&self, first: Date) -> u32 {
        let length = days_in_month(first);
        let weekdays = self.occurrences.iter().zip(&self.last).zip(0u32..);
        weekdays.fold(0, |bits, ((occurrences, last), weekday)| {
            let first_day = 1 + (weekday + 7 - weekday_of(first, 1)) % 7;
            let days = (first_day..=length).step_by(7);
            let counted = days
                .clone()
                .zip(0..)
                .filter(|(_, nth)| occurrences >> nth & 1 == 1);
            let bits = counted.fold(bits, |bits, (day, _)| bits | 1 << day);
            match days.last().filter(|_| *last) {
                Some(day) => bits | 1 << day,
                None => bits,
            }
        })
    }
}

/// The working day (Monday to Friday) nearest to a day, within the same month.
fn nearest_weekday(first: Date, day: u32) -> u32 {
    match weekday_of(first, day) {
        6 if day > 1 => day - 1,
        6 => day + 2,
        0 if day < days_in_month(first) => day + 1,
        0 => day - 2,
        _ => day,
    }
}

/// 0 for Sunday … 6 for Saturday.
fn weekday_of(first: Date, day: u32) -> u32 {
    let first = u32::try_from(first.weekday().to_sunday_zero_offset()).unwrap_or(0);
    (first + day - 1) % 7
}

fn days_in_month(first: Date) -> u32 {
    u32::try_from(first.days_in_month()).unwrap_or(28)
}

/// Bits 1 to `day`.
fn up_to(day: u32) -> u32 {
    !(u32::MAX << day << 1) & !1
}
