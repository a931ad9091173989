//! The charts of the overview.

use std::time::Duration;

use windlass_api::{Activity, TimePercentiles};

use super::RETRY_RATE_MAX;
use crate::draw::{self, Bound, Chart, Layer, Line};
use crate::markup::Markup;
use crate::series::{Range, Series, failures, retry_rate, successes};
use crate::show::{self, Zone};

/// The charts and the values of their legends.
pub(crate) struct Charts {
    pub(crate) throughput: Markup,
    pub(crate) succeeded: String,
    pub(crate) retried: String,
    pub(crate) dead: String,
    pub(crate) retry_rate: Markup,
    pub(crate) retry_rate_now: String,
    pub(crate) retries_too_much: bool,
    /// Wait and run times, by name.
    pub(crate) times: [(&'static str, Times); 2],
    /// What happened in each bucket.
    pub(crate) table: Markup,
    /// The retry rate, the waits and the run times of each bucket.
    pub(crate) times_table: Markup,
}

/// A chart of three percentiles.
pub(crate) struct Times {
    pub(crate) drawing: Markup,
    pub(crate) p50: String,
    pub(crate) p95: String,
    pub(crate) p99: String,
}

impl Charts {
    pub(crate) fn new(series: &Series, zone: &Zone, range: Range) -> Self {
        let succeeded = series.rates(successes);
        let retried = series.rates(|bucket| failures(bucket).saturating_sub(bucket.dead));
        let dead = series.rates(|bucket| bucket.dead);
        let sum = |index: usize| -> f64 {
            [&succeeded, &retried, &dead]
                .iter()
                .filter_map(|rates| rates.get(index))
                .sum()
        };
        let max = (0..succeeded.len()).map(sum).fold(0.0, f64::max);
        let at = |rates: &[f64], index: usize| show::rate(rates.get(index).copied().unwrap_or(0.0));
        let last = succeeded.len().saturating_sub(1);
        let now = |rates: &[f64]| at(rates, last);
        let label = format!(
            "Attempts finished per second, last {}: now {} succeed, {} fail and will retry, {} die",
            range.words,
            now(&succeeded),
            now(&retried),
            now(&dead)
        );
        let titles = series.titles(zone, |index| {
            format!(
                "{} succeeded · {} failed, will retry · {} died",
                at(&succeeded, index),
                at(&retried, index),
                at(&dead, index)
            )
        });
        let rows = series.bucket_times(zone).into_iter().enumerate();
        let rows = rows.map(|(index, time)| {
            vec![
                time,
                at(&succeeded, index),
                at(&retried, index),
                at(&dead, index),
            ]
        });
        let heads = ["Time", "Succeeded", "Failed, will retry", "Died"];
        let chart = Chart {
            label: &label,
            height: 176.0,
            scale: draw::nice_scale(max, 0.1, axis_rate),
            times: series.times(zone),
            titles,
            bound: None,
            marks: series.marks.clone(),
        };
        let layers = [
            Layer {
                colour: "succeeded",
                values: &succeeded,
            },
            Layer {
                colour: "retrying",
                values: &retried,
            },
            Layer {
                colour: "dead",
                values: &dead,
            },
        ];
        let rate_now = series
            .buckets
            .iter()
            .rev()
            .flatten()
            .next()
            .and_then(retry_rate);
        Charts {
            throughput: draw::areas(&chart, &layers),
            succeeded: now(&succeeded),
            retried: now(&retried),
            dead: now(&dead),
            retry_rate: retry_chart(series, zone, range),
            retry_rate_now: show::percent(rate_now),
            retries_too_much: rate_now.is_some_and(|rate| rate > RETRY_RATE_MAX),
            times: Times::wait_and_run(series, zone),
            table: draw::table(&heads, rows),
            times_table: times_table(series, zone, "Retried", retry_rate),
        }
    }
}

/// A share, the waits and the run times of each bucket as a table.
pub(crate) fn times_table(
    series: &Series,
    zone: &Zone,
    name: &str,
    share: impl Fn(&Activity) -> Option<f64>,
) -> Markup {
    let millis = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), show::millis);
    let rows = series.bucket_times(zone).into_iter().zip(&series.buckets);
    let rows = rows.map(|(time, bucket)| {
        let bucket = bucket.as_ref();
        let times = [
            bucket.map(|bucket| bucket.wait),
            bucket.map(|bucket| bucket.run),
        ];
        let times = times.into_iter().flat_map(|times| {
            let of = |value: fn(&TimePercentiles) -> Option<f64>| times.as_ref().and_then(value);
            [
                of(|times| times.p50_ms),
                of(|times| times.p95_ms),
                of(|times| times.p99_ms),
            ]
        });
        let share = bucket.and_then(&share);
        [time, show::percent(share)]
            .into_iter()
            .chain(times.map(millis))
            .collect()
    });
    let heads = [
        "Time", name, "Wait p50", "p95", "p99", "Run p50", "p95", "p99",
    ];
    draw::table(&heads, rows)
}

fn retry_chart(series: &Series, zone: &Zone, range: Range) -> Markup {
    let rates = series.values(retry_rate);
    let max = rates.iter().flatten().copied().fold(0.0, f64::max);
    let chart = Chart {
        label: &format!(
            "Share of attempts that are retried, last {}: at most {}; the alert is at 10 %",
            range.words,
            show::percent(Some(max))
        ),
        height: 120.0,
        scale: draw::nice_scale((max * 100.0).min(100.0), 15.0, |share| {
            if share == 0.0 {
                "0".to_owned()
            } else {
                format!("{share:.0}{}%", show::SPACE)
            }
        }),
        times: series.times(zone),
        titles: series.titles(zone, |index| {
            format!(
                "{} retried",
                show::percent(rates.get(index).copied().flatten())
            )
        }),
        bound: Some(Bound {
            value: RETRY_RATE_MAX * 100.0,
            text: "alert above".to_owned(),
            tick: format!("10{}%", show::SPACE),
        }),
        marks: series.mark_lines(),
    };
    let values: Vec<_> = rates
        .iter()
        .map(|rate| rate.map(|rate| rate * 100.0))
        .collect();
    let line = Line {
        class: "s-retrying",
        fill: Some("retrying"),
        values: &values,
    };
    draw::lines(&chart, &[line])
}

impl Times {
    /// The wait and run times of a range.
    pub(crate) fn wait_and_run(series: &Series, zone: &Zone) -> [(&'static str, Times); 2] {
        [
            (
                "Wait",
                Times::new(series, zone, "Wait from due to start", |bucket| bucket.wait),
            ),
            (
                "Run",
                Times::new(series, zone, "Run time of attempts", |bucket| bucket.run),
            ),
        ]
    }

    fn new(
        series: &Series,
        zone: &Zone,
        what: &str,
        times: impl Fn(&Activity) -> TimePercentiles,
    ) -> Self {
        let p50 = series.values(|bucket| times(bucket).p50_ms);
        let p95 = series.values(|bucket| times(bucket).p95_ms);
        let p99 = series.values(|bucket| times(bucket).p99_ms);
        let all = || p50.iter().chain(&p95).chain(&p99).flatten().copied();
        let (min, max) = (
            all().fold(f64::INFINITY, f64::min),
            all().fold(0.0, f64::max),
        );
        let min = if min.is_finite() { min } else { 1.0 };
        let text = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), show::millis);
        let at = |values: &[Option<f64>], index: usize| text(values.get(index).copied().flatten());
        // One unit is enough for a legend, which must fit in one line.
        let short = |value: f64| match value {
            value if value >= 60_000.0 => show::roughly(Duration::from_secs_f64(value / 1000.0)),
            value => show::millis(value),
        };
        let now = |values: &[Option<f64>]| {
            let last = values.iter().rev().flatten().next().copied();
            last.map_or_else(|| "–".to_owned(), short)
        };
        let label = format!(
            "{what}, log scale: now p50 {}, p95 {}, p99 {}",
            now(&p50),
            now(&p95),
            now(&p99)
        );
        let chart = Chart {
            label: &label,
            height: 120.0,
            scale: draw::log_scale(min, max, short_millis),
            times: series.times(zone),
            titles: series.titles(zone, |index| {
                format!(
                    "p50 {} · p95 {} · p99 {}",
                    at(&p50, index),
                    at(&p95, index),
                    at(&p99, index)
                )
            }),
            bound: None,
            marks: series.mark_lines(),
        };
        let lines = [
            Line {
                class: "ln-1",
                fill: None,
                values: &p50,
            },
            Line {
                class: "ln-2",
                fill: None,
                values: &p95,
            },
            Line {
                class: "ln-3",
                fill: None,
                values: &p99,
            },
        ];
        Times {
            drawing: draw::lines(&chart, &lines),
            p50: now(&p50),
            p95: now(&p95),
            p99: now(&p99),
        }
    }
}

/// A rate on an axis, always per second: `0.5/s`, `20/s`.
fn axis_rate(rate: f64) -> String {
    match rate {
        0.0 => "0".to_owned(),
        rate if rate < 1.0 => format!("{rate:.2}/s"),
        rate if rate < 10.0 => format!("{rate:.1}/s"),
        rate => format!("{}/s", show::grouped(rate as u64)),
    }
}

/// A power of ten milliseconds: `10 ms`, `1 s`, `100 s`.
pub(crate) fn short_millis(millis: f64) -> String {
    let space = show::SPACE;
    match millis {
        millis if millis < 1.0 => format!("{millis:.1}{space}ms"),
        millis if millis < 1000.0 => format!("{millis:.0}{space}ms"),
        millis => format!("{:.0}{space}s", millis / 1000.0),
    }
}
