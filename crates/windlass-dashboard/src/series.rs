//! Statistics over a range of time, in equal buckets.

use std::time::Duration;

use windlass_api::{Activity, Statistics, StatisticsPoint};
use windlass_core::{Timestamp, format_duration};

use crate::draw::{Mark, Tick};
use crate::failure::Failure;
use crate::fields::escaped;
use crate::show::{self, Zone};
use crate::visit::Visit;

const MINUTE: u64 = 60;
const HOUR: u64 = 3600;
const DAY: u64 = 86_400;

/// A range of time that a page can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    /// The value of the parameter `range`.
    pub(crate) key: &'static str,
    /// The range in words, after "last".
    pub(crate) words: &'static str,
    span: u64,
    step: u64,
}

impl Range {
    const fn new(key: &'static str, words: &'static str, span: u64, step: u64) -> Self {
        Range {
            key,
            words,
            span,
            step,
        }
    }

    /// Returns the range that a page asks for, or one hour.
    pub(crate) fn of(visit: &Visit) -> Range {
        let asked = visit.query().get("range");
        let found = RANGES.into_iter().find(|range| Some(range.key) == asked);
        found.unwrap_or(RANGE_DEFAULT)
    }

    /// Its length.
    pub(crate) fn span(&self) -> Duration {
        Duration::from_secs(self.span)
    }

    /// The key with a space that does not break: `15 m`.
    pub(crate) fn label(&self) -> String {
        let at = self.key.len().saturating_sub(1);
        let (number, unit) = self.key.split_at_checked(at).unwrap_or((self.key, ""));
        format!("{number}{}{unit}", show::SPACE)
    }
}

const RANGE_DEFAULT: Range = Range::new("1h", "hour", HOUR, MINUTE);

/// The ranges that pages offer. Each has 30 to 84 buckets.
pub(crate) const RANGES: [Range; 6] = [
    Range::new("15m", "15 minutes", 15 * MINUTE, 30),
    RANGE_DEFAULT,
    Range::new("6h", "6 hours", 6 * HOUR, 5 * MINUTE),
    Range::new("24h", "24 hours", DAY - HOUR / 3, 20 * MINUTE),
    Range::new("7d", "7 days", 7 * DAY, 2 * HOUR),
    Range::new("30d", "30 days", 30 * DAY - HOUR, 12 * HOUR),
];

/// What happened in a range, a bucket for each step. Buckets in which nothing happened are `None`.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    pub(crate) from: Timestamp,
    pub(crate) step: Duration,
    pub(crate) buckets: Vec<Option<Activity>>,
    /// Instants that explain what the charts show.
    pub(crate) marks: Vec<Mark>,
    /// The whole range and its queues.
    pub(crate) statistics: Statistics,
}

impl Series {
    /// Reads the statistics of a range, of one queue or of all.
    pub(crate) async fn read(
        visit: &Visit,
        range: Range,
        queue: Option<&str>,
    ) -> Result<Series, Failure> {
        let now = visit.now();
        let from = now.saturating_sub(range.span());
        let step = Duration::from_secs(range.step);
        let queue = queue
            .map(|queue| format!("&queue={}", escaped(queue)))
            .unwrap_or_default();
        let path = format!(
            "/api/v1/stats?from={}&to={}&step={}{queue}",
            escaped(&from.to_string()),
            escaped(&now.to_string()),
            escaped(&format_duration(step)),
        );
        Ok(Series::new(visit.get(&path).await?, now))
    }

    /// Puts the points of statistics into buckets. The last bucket is left out until it is complete,
    /// because a part of it would look like a fall.
    fn new(statistics: Statistics, now: Timestamp) -> Series {
        let (from, step) = (statistics.from, statistics.step.0);
        let length = statistics.to.since(from).as_micros() / step.as_micros().max(1);
        let length = usize::try_from(length).unwrap_or(0).min(2000);
        let mut buckets = vec![None; length];
        for StatisticsPoint { at, activity } in &statistics.data {
            let index = at.since(from).as_micros() / step.as_micros().max(1);
            if let Some(bucket) = usize::try_from(index)
                .ok()
                .and_then(|index| buckets.get_mut(index))
            {
                *bucket = Some(activity.clone());
            }
        }
        if statistics.to > now && buckets.len() > 1 {
            buckets.pop();
        }
        Series {
            from,
            step,
            buckets,
            marks: Vec::new(),
            statistics,
        }
    }

    /// The marks without their texts, for charts that have no space for them.
    pub(crate) fn mark_lines(&self) -> Vec<Mark> {
        let line = |mark: &Mark| Mark {
            text: String::new(),
            ..mark.clone()
        };
        self.marks.iter().map(line).collect()
    }

    /// A series in which nothing happened.
    #[cfg(test)]
    pub(crate) fn empty(from: Timestamp, step: Duration, buckets: usize) -> Series {
        let none = tests::activity(0, 0);
        let statistics = serde_json::json!({
            "from": from, "to": from, "step": "1m", "data": [], "totals": none, "queues": [],
            "other": null,
        });
        Series {
            from,
            step,
            buckets: vec![None; buckets],
            marks: Vec::new(),
            statistics: serde_json::from_value(statistics).unwrap(),
        }
    }

    /// Returns a number for each bucket, zero where nothing happened.
    pub(crate) fn counts(&self, count: impl Fn(&Activity) -> u64) -> Vec<f64> {
        let count =
            |bucket: &Option<Activity>| bucket.as_ref().map_or(0.0, |bucket| count(bucket) as f64);
        self.buckets.iter().map(count).collect()
    }

    /// Returns events per second for each bucket.
    pub(crate) fn rates(&self, count: impl Fn(&Activity) -> u64) -> Vec<f64> {
        let seconds = self.step.as_secs_f64().max(1.0);
        self.counts(count)
            .into_iter()
            .map(|count| count / seconds)
            .collect()
    }

    /// Returns a value for each bucket that has one.
    pub(crate) fn values(&self, value: impl Fn(&Activity) -> Option<f64>) -> Vec<Option<f64>> {
        self.buckets
            .iter()
            .map(|bucket| value(bucket.as_ref()?))
            .collect()
    }

    /// Returns how many jobs waited or ran at the end of each bucket, from `now` backwards: what was
    /// enqueued minus what ended. Jobs that operators revived, cancelled or deleted while they
    /// waited are no attempts, so the line is an estimate.
    pub(crate) fn depths(&self, now: u64) -> Vec<f64> {
        let mut depth = now as f64;
        let mut depths: Vec<f64> = Vec::with_capacity(self.buckets.len());
        for bucket in self.buckets.iter().rev() {
            depths.push(depth.max(0.0));
            if let Some(bucket) = bucket {
                depth += ended(bucket) as f64 - bucket.enqueued as f64;
            }
        }
        depths.reverse();
        depths
    }

    /// Returns the labels of the time axis, five at most.
    pub(crate) fn times(&self, zone: &Zone) -> Vec<Tick> {
        let span = self.step * u32::try_from(self.buckets.len()).unwrap_or(u32::MAX);
        let days = span > Duration::from_secs(2 * DAY);
        let label = |part: u32| Tick {
            at: f64::from(part) / 4.0,
            text: zone.axis(self.from.saturating_add(span * part / 4), days),
        };
        (0..=4).map(label).collect()
    }

    /// Returns the time at which each bucket begins.
    pub(crate) fn bucket_times(&self, zone: &Zone) -> Vec<String> {
        let days = self.step >= Duration::from_secs(HOUR);
        let time = |index: usize| {
            let at = self
                .from
                .saturating_add(self.step * u32::try_from(index).unwrap_or(0));
            match days {
                true => format!("{} {}", zone.axis(at, true), zone.axis(at, false)),
                false => zone.axis(at, false),
            }
        };
        (0..self.buckets.len()).map(time).collect()
    }

    /// Returns a title for each bucket: its time and what `text` says about it.
    pub(crate) fn titles(&self, zone: &Zone, text: impl Fn(usize) -> String) -> Vec<String> {
        let times = self.bucket_times(zone).into_iter().enumerate();
        times
            .map(|(index, time)| format!("{time} · {}", text(index)))
            .collect()
    }

    /// How many buckets at the end fulfil a condition without interruption, as a time.
    pub(crate) fn lasting(&self, holds: impl Fn(&Activity) -> bool) -> Duration {
        let buckets = self.buckets.iter().rev();
        let holds = |bucket: &&Option<Activity>| bucket.as_ref().is_some_and(&holds);
        self.step * u32::try_from(buckets.take_while(holds).count()).unwrap_or(u32::MAX)
    }
}

/// The share of attempts that fail and are retried, if there were attempts.
pub(crate) fn retry_rate(activity: &Activity) -> Option<f64> {
    (activity.run.count > 0).then(|| activity.retried as f64 / activity.run.count as f64)
}

/// Attempts that ended with a failure, whatever followed.
pub(crate) fn failures(activity: &Activity) -> u64 {
    let all = [activity.failed, activity.timed_out, activity.lost];
    all.into_iter().map(|split| split.fresh + split.retry).sum()
}

/// Jobs that an attempt ended for good.
pub(crate) fn ended(activity: &Activity) -> u64 {
    let cancelled = activity.cancelled.fresh + activity.cancelled.retry;
    successes(activity) + activity.dead + cancelled
}

/// Attempts that succeeded.
pub(crate) fn successes(activity: &Activity) -> u64 {
    activity.succeeded.fresh + activity.succeeded.retry
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    pub(super) fn activity(retried: u64, run: u64) -> serde_json::Value {
        let none = json!({"fresh": 0, "retry": 0});
        let times = |count| json!({"count": count, "p50_ms": null, "p95_ms": null, "p99_ms": null});
        json!({
            "enqueued": 0, "started": none, "succeeded": {"fresh": run - retried, "retry": 0},
            "failed": {"fresh": retried, "retry": 0}, "timed_out": none, "lost": none, "snoozed": none,
            "released": none, "cancelled": none, "retried": retried, "dead": 0,
            "wait": times(run), "run": times(run),
        })
    }

    fn series(now: &str) -> Series {
        let mut point = activity(3, 10);
        point["at"] = json!("2026-03-17T12:01:00Z");
        let statistics = json!({
            "from": "2026-03-17T12:00:00Z", "to": "2026-03-17T12:03:00Z", "step": "1m",
            "data": [point], "totals": activity(3, 10), "queues": [], "other": null,
        });
        Series::new(serde_json::from_value(statistics).unwrap(), at(now))
    }

    #[test]
    fn buckets_without_events_are_empty_and_the_unfinished_one_is_left_out() {
        let whole = series("2026-03-17T12:03:00Z");
        assert_eq!(whole.counts(|bucket| bucket.retried), [0.0, 3.0, 0.0]);
        let running = series("2026-03-17T12:02:30Z");
        assert_eq!(running.counts(|bucket| bucket.retried), [0.0, 3.0]);
        assert_eq!(running.values(retry_rate), [None, Some(0.3)]);
        assert_eq!(running.rates(|bucket| bucket.retried), [0.0, 0.05]);
    }

    #[test]
    fn the_depth_is_counted_backwards_from_now() {
        // Seven of ten attempts succeeded in the second bucket, so seven more jobs waited before.
        let whole = series("2026-03-17T12:03:00Z");
        assert_eq!(whole.depths(5), [12.0, 5.0, 5.0]);
    }

    #[test]
    fn a_condition_lasts_until_it_is_interrupted() {
        let high = |bucket: &Activity| retry_rate(bucket).is_some_and(|rate| rate > 0.1);
        assert_eq!(
            series("2026-03-17T12:02:30Z").lasting(high),
            Duration::from_secs(60)
        );
        assert_eq!(series("2026-03-17T12:03:00Z").lasting(high), Duration::ZERO);
    }

    #[test]
    fn every_range_has_a_step_that_the_statistics_allow() {
        for range in RANGES {
            let buckets = range.span / range.step;
            assert!((30..=90).contains(&buckets), "{}", range.key);
            let finest = match range.span {
                0..=7200 => 10,
                7201..=86_400 => 60,
                _ => 3600,
            };
            assert_eq!(range.step % finest, 0, "{}", range.key);
        }
    }
}
