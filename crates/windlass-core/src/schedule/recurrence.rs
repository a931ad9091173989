//! The instants at which a schedule fires, daylight-saving changes included.
//!
//! A cron expression with fixed times follows the wall clock: a time that the clocks skip runs
//! once, at the end of the gap; a time that comes twice runs only the first time. An interval
//! follows real time: it fires at every instant whose wall-clock time matches, so twice in a
//! repeated hour and not at all in a skipped one. Invariant: every occurrence is strictly after the
//! one before.

use std::fmt;
use std::time::Duration;

use jiff::SignedDuration;
use jiff::civil::DateTime;
use jiff::tz::AmbiguousOffset;

use super::{Cron, Expression, Zone};
use crate::Timestamp;

const TICK: Duration = Duration::from_micros(1);

/// A search gives up after this many clock changes, because an interval may match only in a gap
/// that recurs every year.
const CHANGES_MAX: usize = 1000;

/// Larger than any clock change; the largest on record is a day.
const CHANGE_MAX: SignedDuration = SignedDuration::from_hours(48);

/// A schedule's expression with its time zone and bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recurrence {
    /// When it fires.
    pub expression: Expression,
    /// The time zone of a cron expression.
    pub zone: Zone,
    /// The instant from which `@every` counts: `starts_at`, or the creation of the schedule.
    pub anchor: Timestamp,
    /// No occurrence is before this instant.
    pub starts_at: Option<Timestamp>,
    /// No occurrence is after this instant.
    pub ends_at: Option<Timestamp>,
}

/// One instant at which a schedule fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Firing {
    /// The instant that the expression gives.
    pub at: Timestamp,
    /// How a clock change affected it.
    pub note: Option<ClockChange>,
}

/// How a clock change affects a fixed time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockChange {
    /// The clocks skip it: it runs at the end of the gap.
    Skipped {
        /// The wall-clock time that does not exist.
        wall: WallTime,
    },
    /// The clocks show it twice: it runs only the first time.
    Repeated {
        /// The wall-clock time that comes twice.
        wall: WallTime,
    },
}

/// A date and time on the wall clock of a time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WallTime(DateTime);

impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ClockChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClockChange::Skipped { wall } => {
                write!(
                    f,
                    "{wall} does not exist because clocks go forward; it runs at the end of the gap"
                )
            }
            ClockChange::Repeated { wall } => {
                write!(
                    f,
                    "{wall} comes twice because clocks go back; it runs only the first time"
                )
            }
        }
    }
}

impl Recurrence {
    /// Makes a recurrence without bounds; `@every` counts from `anchor`.
    pub fn new(expression: Expression, zone: Zone, anchor: Timestamp) -> Self {
        Recurrence {
            expression,
            zone,
            anchor,
            starts_at: None,
            ends_at: None,
        }
    }

    /// The first occurrence strictly after `after`.
    pub fn next(&self, after: Timestamp) -> Option<Firing> {
        let after = match self.starts_at {
            Some(start) => after.max(start.saturating_sub(TICK)),
            None => after,
        };
        let firing = match &self.expression {
            Expression::Cron(cron) => next_of_cron(cron, &self.zone, after),
            Expression::Every(period) => next_of_every(*period, self.anchor, after).map(plain),
            Expression::At(instant) => Some(plain(*instant)).filter(|firing| firing.at > after),
        };
        firing.filter(|firing| self.ends_at.is_none_or(|end| firing.at <= end))
    }

    /// The last occurrence at or before `until`.
    pub fn last(&self, until: Timestamp) -> Option<Timestamp> {
        let until = self.ends_at.map_or(until, |end| until.min(end));
        let last = match &self.expression {
            Expression::Cron(cron) => last_of_cron(cron, &self.zone, until),
            Expression::Every(period) => last_of_every(*period, self.anchor, until),
            Expression::At(instant) => Some(*instant).filter(|instant| *instant <= until),
        };
        last.filter(|at| self.starts_at.is_none_or(|start| *at >= start))
    }

    /// The occurrences strictly after `after`, in order.
    pub fn after(&self, after: Timestamp) -> impl Iterator<Item = Firing> + '_ {
        std::iter::successors(self.next(after), |firing| self.next(firing.at))
    }
}

fn plain(at: Timestamp) -> Firing {
    Firing { at, note: None }
}

fn next_of_every(period: Duration, anchor: Timestamp, after: Timestamp) -> Option<Timestamp> {
    if after < anchor {
        return Some(anchor);
    }
    let period = period.as_micros().max(1);
    let passed = after.since(anchor).as_micros() / period;
    nth_of_every(period, anchor, passed + 1)
}

fn last_of_every(period: Duration, anchor: Timestamp, until: Timestamp) -> Option<Timestamp> {
    if until < anchor {
        return None;
    }
    let period = period.as_micros().max(1);
    nth_of_every(period, anchor, until.since(anchor).as_micros() / period)
}

fn nth_of_every(period: u128, anchor: Timestamp, n: u128) -> Option<Timestamp> {
    let since_anchor = i64::try_from(period.checked_mul(n)?).ok()?;
    Timestamp::from_micros(anchor.as_micros().checked_add(since_anchor)?)
}

fn next_of_cron(cron: &Cron, zone: &Zone, after: Timestamp) -> Option<Firing> {
    if cron.is_interval() {
        next_of_interval(cron, zone, after).map(plain)
    } else {
        next_fixed(cron, zone, after)
    }
}

fn last_of_cron(cron: &Cron, zone: &Zone, until: Timestamp) -> Option<Timestamp> {
    if cron.is_interval() {
        last_of_interval(cron, zone, until)
    } else {
        last_fixed(cron, zone, until)
    }
}

/// Walks along the wall-clock times. Their instants never decrease, so the first one after `after`
/// is the answer.
fn next_fixed(cron: &Cron, zone: &Zone, after: Timestamp) -> Option<Firing> {
    let mut wall = zone.jiff().to_datetime(after.to_jiff());
    loop {
        wall = cron.next_after(wall)?;
        let firing = firing_of(wall, zone)?;
        if firing.at > after {
            return Some(firing);
        }
    }
}

fn last_fixed(cron: &Cron, zone: &Zone, until: Timestamp) -> Option<Timestamp> {
    let mut wall = zone.jiff().to_datetime(until.to_jiff());
    // In the second pass of a repeated hour, later times of that hour have already run.
    if let AmbiguousOffset::Fold { before, after } =
        zone.jiff().to_ambiguous_timestamp(wall).offset()
    {
        wall = wall.checked_add(after.duration_until(before)).ok()?;
    }
    loop {
        wall = cron.last_until(wall)?;
        let at = firing_of(wall, zone)?.at;
        if at <= until {
            return Some(at);
        }
        wall = wall.checked_sub(SignedDuration::from_secs(1)).ok()?;
    }
}

/// The instant of a fixed wall-clock time.
fn firing_of(wall: DateTime, zone: &Zone) -> Option<Firing> {
    let ambiguous = zone.jiff().to_ambiguous_timestamp(wall);
    let (at, note) = match ambiguous.offset() {
        AmbiguousOffset::Unambiguous { offset } => (offset.to_timestamp(wall).ok()?, None),
        AmbiguousOffset::Fold { before, .. } => (
            before.to_timestamp(wall).ok()?,
            Some(ClockChange::Repeated {
                wall: WallTime(wall),
            }),
        ),
        AmbiguousOffset::Gap { before, .. } => {
            // By the old offset, this time is at or after the change: go back to the change.
            let after_change = before.to_timestamp(wall).ok()?;
            (
                change_until(zone, after_change)?,
                Some(ClockChange::Skipped {
                    wall: WallTime(wall),
                }),
            )
        }
    };
    let at = Timestamp::from_jiff(at)?;
    Some(Firing { at, note })
}

/// Walks from one clock change to the next; between two changes, wall-clock time and real time
/// advance equally.
fn next_of_interval(cron: &Cron, zone: &Zone, after: Timestamp) -> Option<Timestamp> {
    let mut from = after.to_jiff();
    let mut wall = zone.jiff().to_datetime(from);
    for _ in 0..CHANGES_MAX {
        let offset = zone.jiff().to_offset(from);
        let at = offset.to_timestamp(cron.next_after(wall)?).ok()?;
        let mut changes = zone.jiff().following(from);
        let Some(change) = changes
            .next()
            .map(|change| change.timestamp())
            .filter(|change| at >= *change)
        else {
            return Timestamp::from_jiff(at);
        };
        let far = from.checked_add(CHANGE_MAX).ok()? < change;
        from = match at.checked_sub(CHANGE_MAX) {
            // Nothing matches before `at`, and no change moves the clock by 48 hours: skip years.
            Ok(near) if far && near > change => near,
            _ => change,
        };
        // Start just before, so that the instant itself can match.
        let second = SignedDuration::from_secs(1);
        wall = zone.jiff().to_datetime(from).checked_sub(second).ok()?;
    }
    None
}

fn last_of_interval(cron: &Cron, zone: &Zone, until: Timestamp) -> Option<Timestamp> {
    let mut until = until.to_jiff();
    for _ in 0..CHANGES_MAX {
        let offset = zone.jiff().to_offset(until);
        let at = offset
            .to_timestamp(cron.last_until(offset.to_datetime(until))?)
            .ok()?;
        let Some(change) = change_until(zone, until).filter(|change| at < *change) else {
            return Timestamp::from_jiff(at);
        };
        let far = until.checked_sub(CHANGE_MAX).ok()? > change;
        until = match at.checked_add(CHANGE_MAX) {
            Ok(near) if far && near < change => near,
            _ => change.checked_sub(SignedDuration::from_micros(1)).ok()?,
        };
    }
    None
}

/// The last clock change of a zone at or before an instant.
fn change_until(zone: &Zone, until: jiff::Timestamp) -> Option<jiff::Timestamp> {
    let just_after = until.checked_add(SignedDuration::from_nanos(1)).ok()?;
    let mut changes = zone.jiff().preceding(just_after);
    changes.next().map(|change| change.timestamp())
}

#[cfg(test)]
mod tests;
