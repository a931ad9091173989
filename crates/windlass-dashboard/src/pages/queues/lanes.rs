//! How a queue shares its slots between fresh jobs and retries, and its limits.

use windlass_api::{Activity, Job, Queue};

use super::LANES_MAX;
use crate::draw::{self, Bound, Chart, Layer};
use crate::markup::Markup;
use crate::series::{Range, Series};
use crate::show::{self, Zone};

/// The share for retries if the queue sets none.
const RATIO_DEFAULT: f64 = 0.2;

/// The running jobs of a queue.
pub(super) struct Lanes {
    pub(super) fresh: u64,
    pub(super) retries: u64,
    /// Free slots of the queue's own limit.
    pub(super) free: u64,
    is_complete: bool,
}

impl Lanes {
    pub(super) fn new(queue: &Queue, running: &[Job]) -> Self {
        let retries = running.iter().filter(|job| job.failures > 0).count() as u64;
        let fresh = running.len() as u64 - retries;
        let limit = queue.settings.concurrency.map(|limit| limit.to::<u64>());
        Lanes {
            fresh,
            retries,
            free: limit
                .map_or(0, |limit| limit.saturating_sub(fresh + retries))
                .min(LANES_MAX as u64),
            is_complete: running.len() < LANES_MAX,
        }
    }

    /// Whether each slot is drawn: not if there are too many, or none.
    pub(super) fn is_drawn(&self) -> bool {
        self.is_complete && self.fresh + self.retries > 0
    }

    /// The slots in the order in which they are drawn.
    pub(super) fn slots(&self) -> impl Iterator<Item = &'static str> {
        let repeat = |class, count: u64| (0..count).map(move |_| class);
        repeat("fresh", self.fresh)
            .chain(repeat("retry", self.retries))
            .chain(repeat("free", self.free))
    }
}

/// The share of the attempts started that are retries.
pub(super) fn retry_share(activity: &Activity) -> Option<f64> {
    let all = activity.started.fresh + activity.started.retry;
    (all > 0).then(|| activity.started.retry as f64 / all as f64)
}

/// The share of the slots that retries may take while new jobs wait. `None` if it is off.
pub(super) fn ratio_of(queue: &Queue) -> Option<f64> {
    match &queue.settings.retry_fetch_ratio {
        None => Some(RATIO_DEFAULT),
        Some(ratio) => ratio.0.map(|ratio| ratio.get()),
    }
}

/// The allowed share in words.
pub(super) fn ratio_in_words(queue: &Queue) -> String {
    match ratio_of(queue) {
        Some(ratio) => format!("{} allowed", show::percent(Some(ratio)).replace(".0", "")),
        None => "no limit".to_owned(),
    }
}

/// Draws the shares of fresh jobs and retries among the attempts started.
pub(super) fn share_chart(series: &Series, zone: &Zone, queue: &Queue, range: Range) -> Markup {
    let retry: Vec<f64> = series
        .values(retry_share)
        .into_iter()
        .map(|share| share.unwrap_or(0.0) * 100.0)
        .collect();
    let fresh: Vec<f64> = series
        .values(retry_share)
        .into_iter()
        .map(|share| share.map_or(0.0, |share| 100.0 - share * 100.0))
        .collect();
    let started = series.counts(|bucket| bucket.started.fresh + bucket.started.retry);
    let last = retry.last().copied().unwrap_or(0.0);
    let label = format!(
        "Shares of the attempts started, last {}: retries now {last:.1} %",
        range.words
    );
    let chart = Chart {
        label: &label,
        height: 120.0,
        scale: draw::nice_scale(100.0, 100.0, |share| match share {
            0.0 => "0".to_owned(),
            share => format!("{share:.0}{}%", show::SPACE),
        }),
        times: series.times(zone),
        titles: series.titles(zone, |index| {
            let (retry, started) = (
                retry.get(index).unwrap_or(&0.0),
                started.get(index).unwrap_or(&0.0),
            );
            format!("{retry:.1} % of {started:.0} attempts were retries")
        }),
        bound: ratio_of(queue).map(|ratio| Bound {
            value: ratio * 100.0,
            text: "allowed for retries while new jobs wait".to_owned(),
            tick: format!("{:.0}{}%", ratio * 100.0, show::SPACE),
        }),
        marks: series.mark_lines(),
    };
    let layers = [
        Layer {
            colour: "retrying",
            values: &retry,
        },
        Layer {
            colour: "ready",
            values: &fresh,
        },
    ];
    draw::areas(&chart, &layers)
}

/// A limit with its use. Without a limit, it has no bar: an empty one would look unused.
pub(super) struct Gauge {
    pub(super) name: &'static str,
    pub(super) bar: Markup,
    pub(super) text: String,
}

fn gauge(name: &'static str, used: f64, limit: Option<f64>, colour: &str, text: String) -> Gauge {
    let share = limit.map(|limit| used / limit.max(f64::MIN_POSITIVE));
    Gauge {
        name,
        bar: share.map_or_else(Markup::default, |share| {
            draw::bar("bar", share, colour, &text)
        }),
        text,
    }
}

/// The limits of a queue over all nodes.
pub(super) fn limits(queue: &Queue, recent: Option<&Activity>, seconds: f64) -> Vec<Gauge> {
    let settings = &queue.settings;
    let of = |used: u64, limit: Option<u64>| match limit {
        Some(limit) => format!("{} of {}", show::count(used), show::count(limit)),
        None => format!("{}, no limit", show::count(used)),
    };
    let concurrency = settings.concurrency.map(|limit| limit.to::<u64>());
    let depth = settings.max_depth.map(|limit| limit.to::<u64>());
    let started = recent.map_or(0, |activity| {
        activity.started.fresh + activity.started.retry
    });
    let per_second = started as f64 / seconds;
    let rate = settings.rate.as_ref().and_then(|rate| {
        let count = rate.count?.to::<u64>() as f64;
        Some(count / rate.period.as_ref()?.0.as_secs_f64())
    });
    let rate_text = match rate {
        Some(limit) => format!("{} of {}", show::rate(per_second), show::rate(limit)),
        None => format!("{}, no limit", show::rate(per_second)),
    };
    let as_f64 = |limit: Option<u64>| limit.map(|limit| limit as f64);
    vec![
        gauge(
            "Running at once",
            queue.counts.running as f64,
            as_f64(concurrency),
            "running",
            of(queue.counts.running, concurrency),
        ),
        gauge("Rate", per_second, rate, "running", rate_text),
        gauge(
            "Depth",
            queue.depth as f64,
            as_f64(depth),
            "ready",
            of(queue.depth, depth),
        ),
    ]
}

/// What protects fresh jobs from retries.
pub(super) fn guards(queue: &Queue, recent: Option<&Activity>, lanes: &Lanes) -> Vec<Gauge> {
    let settings = &queue.settings;
    let share = recent.and_then(retry_share);
    let ratio = ratio_of(queue);
    let share_text = match ratio {
        Some(ratio) => format!(
            "{} of {}",
            show::percent(share),
            show::percent(Some(ratio)).replace(".0", "")
        ),
        None => format!("{}, off", show::percent(share)),
    };
    let retries = settings.max_inflight_retries.map(|limit| limit.to::<u64>());
    let retries_text = match retries {
        Some(limit) => format!("{} of {}", lanes.retries, show::count(limit)),
        None => format!("{}, no limit", lanes.retries),
    };
    let reserve = match settings.fresh_reserve {
        Some(slots) => format!("{} slots per worker", slots.to::<u64>()),
        None => "1 slot of workers with 4 or more".to_owned(),
    };
    let lane = match settings.retry_lane {
        Some(slots) => format!("{} retries per worker", slots.to::<u64>()),
        None => "off: retries share the slots".to_owned(),
    };
    vec![
        gauge(
            "Retry share",
            share.unwrap_or(0.0),
            ratio,
            "retrying",
            share_text,
        ),
        gauge(
            "Retries at once",
            lanes.retries as f64,
            retries.map(|limit| limit as f64),
            "retrying",
            retries_text,
        ),
        Gauge {
            name: "Fresh reserve",
            bar: Markup::default(),
            text: reserve,
        },
        Gauge {
            name: "Retry lane",
            bar: Markup::default(),
            text: lane,
        },
    ]
}
