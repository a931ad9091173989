//! One field of a cron expression: lists, ranges, steps and names.

use crate::Invalid;
use crate::invalid::shown;

pub(super) const YEAR_MIN: i16 = 1970;
pub(super) const YEAR_MAX: i16 = 9999;

/// The values that a field accepts.
pub(super) struct FieldRule {
    pub(super) name: &'static str,
    min: u16,
    max: u16,
    names: &'static [&'static str],
    /// The number of the first name in `names`.
    names_from: u16,
}

impl FieldRule {
    const fn numbers(name: &'static str, min: u16, max: u16) -> Self {
        FieldRule {
            name,
            min,
            max,
            names: &[],
            names_from: 0,
        }
    }

    pub(super) const SECOND: FieldRule = FieldRule::numbers("second", 0, 59);
    pub(super) const MINUTE: FieldRule = FieldRule::numbers("minute", 0, 59);
    pub(super) const HOUR: FieldRule = FieldRule::numbers("hour", 0, 23);
    pub(super) const DAY_OF_MONTH: FieldRule = FieldRule::numbers("day_of_month", 1, 31);
    pub(super) const MONTH: FieldRule = FieldRule {
        names: &[
            "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
        ],
        names_from: 1,
        ..FieldRule::numbers("month", 1, 12)
    };
    /// 0 and 7 are both Sunday.
    pub(super) const DAY_OF_WEEK: FieldRule = FieldRule {
        names: &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"],
        ..FieldRule::numbers("day_of_week", 0, 7)
    };
    const YEAR: FieldRule = FieldRule::numbers("year", YEAR_MIN as u16, YEAR_MAX as u16);

    pub(super) fn refuse(&self, rule: impl std::fmt::Display, item: &str) -> Invalid {
        Invalid::new(self.name, format!("{rule}, got {}", shown(item)))
    }

    /// Reads one value: a number in range, or a name.
    pub(super) fn value(&self, text: &str) -> Result<u16, Invalid> {
        let named = self
            .names
            .iter()
            .position(|name| name.eq_ignore_ascii_case(text));
        if let Some(index) = named {
            return Ok(self.names_from + u16::try_from(index).unwrap_or(0));
        }
        let number = if text.bytes().all(|byte| byte.is_ascii_digit()) {
            text.parse::<u16>().ok()
        } else {
            None
        };
        number
            .filter(|number| (self.min..=self.max).contains(number))
            .ok_or_else(|| {
                let names = if self.names.is_empty() {
                    ""
                } else {
                    " or a name like "
                };
                let example = self.names.get(1).copied().unwrap_or("");
                let rule = format!(
                    "must be a number from {} to {}{names}{example}",
                    self.min, self.max
                );
                self.refuse(rule, text)
            })
    }

    /// Reads one item of a list: `*`, a value, a range, or a range or `*` with a step.
    pub(super) fn item(&self, item: &str) -> Result<Range, Invalid> {
        let (range, step) = match item.split_once('/') {
            Some((range, step)) => (range, Some(step)),
            None => (item, None),
        };
        let (from, to) = match range.split_once('-') {
            _ if range == "*" => (self.min, self.max),
            Some((from, to)) => self.bounds(from, to, item)?,
            None if step.is_some() => {
                let rule = format!(
                    "must have a range or * before a step, as in 5-{}/15",
                    self.max
                );
                return Err(self.refuse(rule, item));
            }
            None => (self.value(range)?, self.value(range)?),
        };
        let step = step.map_or(Ok(1), |step| self.step(step, item))?;
        Ok(Range { from, to, step })
    }

    fn bounds(&self, from: &str, to: &str, item: &str) -> Result<(u16, u16), Invalid> {
        let (from, mut to) = (self.value(from)?, self.value(to)?);
        if to == 0 && self.max == 7 && from > 0 {
            to = 7; // as in FRI-SUN
        }
        if from > to {
            return Err(self.refuse("must have the lower value of a range first", item));
        }
        Ok((from, to))
    }

    fn step(&self, text: &str, item: &str) -> Result<u16, Invalid> {
        let number = text.parse::<u16>().ok().filter(|_| !text.starts_with('+'));
        number
            .filter(|step| (1..=self.max).contains(step))
            .ok_or_else(|| self.refuse(format!("must have a step from 1 to {}", self.max), item))
    }
}

/// Every `step`-th value of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    from: u16,
    to: u16,
    step: u16,
}

impl Range {
    fn has(self, value: u16) -> bool {
        (self.from..=self.to).contains(&value) && (value - self.from).is_multiple_of(self.step)
    }

    /// The values as bits, for fields whose values are below 64.
    pub(super) fn bits(self) -> u64 {
        (self.from..=self.to)
            .step_by(self.step.into())
            .fold(0, |bits, value| bits | 1 << (value & 63))
    }
}

/// The values of a field whose values are at most 59.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Times {
    bits: u64,
    wildcard: bool,
}

impl Times {
    pub(super) fn parse(rule: &FieldRule, text: &str) -> Result<Self, Invalid> {
        let mut bits = 0;
        for item in text.split(',') {
            bits |= rule.item(item)?.bits();
        }
        let wildcard = text.split(',').any(|item| item.starts_with('*'));
        Ok(Times { bits, wildcard })
    }

    /// Whether the field has a `*`, with or without a step.
    pub(super) fn wildcard(self) -> bool {
        self.wildcard
    }

    pub(super) fn has(self, value: u8) -> bool {
        value < 64 && self.bits >> value & 1 == 1
    }

    /// The smallest value that is at least `from`.
    pub(super) fn next(self, from: u8) -> Option<u8> {
        let rest = self.bits.checked_shr(from.into())? << from;
        u8::try_from(rest.trailing_zeros())
            .ok()
            .filter(|_| rest != 0)
    }

    /// The largest value that is at most `until`.
    pub(super) fn last(self, until: u8) -> Option<u8> {
        let rest = self.bits & (u64::MAX >> (63 - until.min(63)));
        rest.checked_ilog2().and_then(|bit| u8::try_from(bit).ok())
    }
}

/// The years of an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Years(Vec<Range>);

impl Years {
    pub(super) fn parse(text: &str) -> Result<Self, Invalid> {
        let items = text.split(',').map(|item| FieldRule::YEAR.item(item));
        Ok(Years(items.collect::<Result<_, _>>()?))
    }

    /// Whether every year matches.
    pub(super) fn any(&self) -> bool {
        let whole = FieldRule::YEAR;
        self.0
            .iter()
            .any(|range| range.from == whole.min && range.to == whole.max && range.step == 1)
    }

    /// The first, the last and the step of each range of years.
    pub(super) fn ranges(&self) -> Vec<(u16, u16, u16)> {
        let ranges = self.0.iter();
        ranges
            .map(|range| (range.from, range.to, range.step))
            .collect()
    }

    /// The first matching year from `from` on.
    pub(super) fn next(&self, from: i16) -> Option<i16> {
        (from.max(YEAR_MIN)..=YEAR_MAX).find(|year| self.has(*year))
    }

    /// The last matching year up to `until`.
    pub(super) fn last(&self, until: i16) -> Option<i16> {
        (YEAR_MIN..=until.min(YEAR_MAX))
            .rev()
            .find(|year| self.has(*year))
    }

    fn has(&self, year: i16) -> bool {
        let Ok(year) = u16::try_from(year) else {
            return false;
        };
        self.0.iter().any(|range| range.has(year))
    }
}
