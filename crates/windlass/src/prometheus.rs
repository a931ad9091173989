//! The figures, for Prometheus. What each means is in `docs/metrics.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric as Registered, Registry};
use windlass_core::{DeadReason, QueueName, Timestamp};
use windlass_engine::{Event, JobEvent, Recorder, ScheduleEvent};
use windlass_store::Counts;

mod table;

pub use table::{METRICS, Metric, MetricKind};

/// Queues beyond this many share the label `other`: labels are bounded.
const QUEUES_MAX: usize = 200;

type Labels = Vec<(&'static str, String)>;
type Histograms = Family<Labels, Histogram, Buckets>;

/// From a tenth of a millisecond to a day.
const BUCKETS: [f64; 17] = [
    0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0,
    3600.0, 21_600.0, 86_400.0,
];

#[derive(Debug, Clone, Copy)]
struct Buckets;

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(BUCKETS)
    }
}

/// Counts what happens, in the text form that Prometheus reads.
///
/// ```
/// # use std::sync::Arc;
/// # use windlass::{Client, Error, PrometheusRecorder};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// let metrics = Arc::new(PrometheusRecorder::new());
/// let client = Client::open_with_recorder("memory:", metrics.clone()).await?;
/// assert!(metrics.text().contains("windlass_build_info"));
/// # Ok(())
/// # }
/// ```
pub struct PrometheusRecorder {
    registry: Registry,
    queues: Mutex<BTreeSet<QueueName>>,
    retries: Family<Labels, Counter>,
    retry_exhausted: Family<Labels, Counter>,
    retry_latency: Histograms,
    enqueued: Family<Labels, Counter>,
    finished: Family<Labels, Counter>,
    wait: Histograms,
    run: Histograms,
    depth: Family<Labels, Gauge>,
    oldest_ready: Family<Labels, Gauge<f64, AtomicU64>>,
    schedule_lag: Histogram,
    schedule_skipped: Family<Labels, Counter>,
    leases_lost: Family<Labels, Counter>,
    store_op: Histograms,
    log_lines_dropped: Counter,
    /// Held while gauges are filled anew and while they are read: nobody sees them half filled.
    filling: Mutex<()>,
}

impl PrometheusRecorder {
    /// Nothing counted yet.
    pub fn new() -> Self {
        let histograms = || Histograms::new_with_constructor(Buckets);
        let mut recorder = PrometheusRecorder {
            registry: Registry::with_prefix("windlass"),
            queues: Mutex::default(),
            retries: Family::default(),
            retry_exhausted: Family::default(),
            retry_latency: histograms(),
            enqueued: Family::default(),
            finished: Family::default(),
            wait: histograms(),
            run: histograms(),
            depth: Family::default(),
            oldest_ready: Family::default(),
            schedule_lag: Buckets.new_metric(),
            schedule_skipped: Family::default(),
            leases_lost: Family::default(),
            store_op: histograms(),
            log_lines_dropped: Counter::default(),
            filling: Mutex::default(),
        };
        recorder.register();
        recorder
    }

    /// Every metric, with what the table says about it.
    fn register(&mut self) {
        let build: Family<Labels, Gauge> = Family::default();
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        build.get_or_create(&version).set(1);
        let to = &mut self.registry;
        add(to, "jobs_enqueued", self.enqueued.clone());
        add(to, "jobs_finished", self.finished.clone());
        add(to, "job_wait_seconds", self.wait.clone());
        add(to, "job_run_seconds", self.run.clone());
        add(to, "retries", self.retries.clone());
        add(to, "retry_exhausted", self.retry_exhausted.clone());
        add(to, "retry_latency_seconds", self.retry_latency.clone());
        add(to, "leases_lost", self.leases_lost.clone());
        add(to, "queue_depth", self.depth.clone());
        add(to, "queue_oldest_ready_seconds", self.oldest_ready.clone());
        add(to, "schedule_lag_seconds", self.schedule_lag.clone());
        add(to, "schedule_skipped", self.schedule_skipped.clone());
        add(to, "store_op_seconds", self.store_op.clone());
        add(to, "log_lines_dropped", self.log_lines_dropped.clone());
        add(to, "build_info", build);
    }

    /// All metrics in the text form that Prometheus reads.
    pub fn text(&self) -> String {
        let _whole = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        // Writing into memory does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    /// So many log lines were left out so far.
    pub fn log_lines_dropped(&self, so_far: u64) {
        self.log_lines_dropped.inner().store(so_far, Relaxed);
    }

    /// The label of a queue.
    fn queue(&self, queue: &QueueName) -> Labels {
        let mut known = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains(queue) && known.len() < QUEUES_MAX {
            known.insert(queue.clone());
        }
        let name = if known.contains(queue) {
            queue.as_str()
        } else {
            "other"
        };
        vec![("queue", name.to_owned())]
    }

    fn job(&self, queue: &QueueName, what: &JobEvent) {
        let labels = self.queue(queue);
        let finished = |outcome: &str| {
            let mut labels = labels.clone();
            labels.push(("outcome", outcome.to_owned()));
            self.finished.get_or_create(&labels).inc();
        };
        let ran = |time: &Duration| {
            let run = self.run.get_or_create(&labels);
            run.observe(time.as_secs_f64());
        };
        match what {
            JobEvent::Enqueued => {
                self.enqueued.get_or_create(&labels).inc();
            }
            JobEvent::Claimed { waited, .. } => {
                let wait = self.wait.get_or_create(&labels);
                wait.observe(waited.as_secs_f64());
            }
            JobEvent::Succeeded { ran: time } => {
                ran(time);
                finished("succeeded");
            }
            JobEvent::Failed { ran: time, .. } | JobEvent::TimedOut { ran: time } => ran(time),
            JobEvent::Lost => {
                self.leases_lost.get_or_create(&labels).inc();
            }
            JobEvent::Retried { delay, .. } => {
                self.retries.get_or_create(&labels).inc();
                let latency = self.retry_latency.get_or_create(&labels);
                latency.observe(delay.as_secs_f64());
            }
            JobEvent::Cancelled => finished("cancelled"),
            JobEvent::Dead { reason, .. } => {
                finished("dead");
                if matches!(reason, DeadReason::Exhausted | DeadReason::Poison) {
                    self.retry_exhausted.get_or_create(&labels).inc();
                }
            }
            JobEvent::Started
            | JobEvent::Snoozed { .. }
            | JobEvent::Released
            | JobEvent::Revived => {}
        }
    }
}

fn add(registry: &mut Registry, name: &'static str, metric: impl Registered) {
    let about = METRICS.iter().find(|about| about.name == name);
    let about = about.expect("every metric is in the table, which a test checks");
    registry.register(about.name, about.help, metric);
}

impl Recorder for PrometheusRecorder {
    fn event(&self, event: &Event) {
        match event {
            Event::Job { job, what, .. } => self.job(&job.queue, what),
            Event::Schedule { what, .. } => match what {
                ScheduleEvent::Fired { lag, .. } => self.schedule_lag.observe(lag.as_secs_f64()),
                ScheduleEvent::Skipped(range) => {
                    let labels = vec![("reason", range.reason.name().to_owned())];
                    let count = u64::try_from(range.count.unwrap_or(1)).unwrap_or(1);
                    self.schedule_skipped.get_or_create(&labels).inc_by(count);
                }
            },
        }
    }

    fn store_op(&self, op: &'static str, took: Duration) {
        let labels = vec![("op", op.to_owned())];
        self.store_op
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    fn counts(&self, counts: &BTreeMap<QueueName, Counts>, now: Timestamp) {
        let _whole = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        // A queue that has no jobs any more is not shown with those it had.
        self.depth.clear();
        self.oldest_ready.clear();
        for (queue, counts) in counts {
            let labels = self.queue(queue);
            let states = [
                ("scheduled", counts.scheduled),
                ("ready", counts.ready),
                ("running", counts.running),
                ("succeeded", counts.succeeded),
                ("dead", counts.dead),
                ("cancelled", counts.cancelled),
            ];
            for (state, count) in states {
                let mut labels = labels.clone();
                labels.push(("state", state.to_owned()));
                let gauge = self.depth.get_or_create(&labels);
                gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
            }
            let oldest = counts
                .oldest_ready
                .map_or(Duration::ZERO, |at| now.since(at));
            let gauge = self.oldest_ready.get_or_create(&labels);
            gauge.set(oldest.as_secs_f64());
        }
    }
}

impl Default for PrometheusRecorder {
    fn default() -> Self {
        PrometheusRecorder::new()
    }
}

impl fmt::Debug for PrometheusRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrometheusRecorder")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told about each metric: its kind, and the labels that it was seen with.
    fn told(text: &str) -> BTreeMap<&str, (&str, BTreeSet<&str>)> {
        let mut told = BTreeMap::new();
        let mut current = "";
        for line in text.lines() {
            if let Some((name, kind)) = line
                .strip_prefix("# TYPE ")
                .and_then(|rest| rest.split_once(' '))
            {
                current = name;
                told.insert(name, (kind, BTreeSet::new()));
            } else if let Some((_, labels)) = line.split_once('{') {
                let labels = labels.split_once('}').map_or("", |(labels, _)| labels);
                let names = labels
                    .split(',')
                    .filter_map(|label| Some(label.split_once('=')?.0));
                let seen = told.get_mut(current).map(|(_, seen)| seen);
                seen.into_iter()
                    .for_each(|seen| seen.extend(names.clone().filter(|name| *name != "le")));
            }
        }
        told
    }

    #[test]
    fn the_table_says_what_is_recorded() {
        let recorder = PrometheusRecorder::new();
        let queue = QueueName::new("mail").unwrap();
        let second = Duration::from_secs(1);
        for event in [
            JobEvent::Enqueued,
            JobEvent::Claimed {
                waited: second,
                lane: windlass_core::Lane::Fresh,
            },
            JobEvent::Succeeded { ran: second },
            JobEvent::Lost,
        ] {
            recorder.job(&queue, &event);
        }
        let labels = recorder.queue(&queue);
        recorder.retries.get_or_create(&labels).inc();
        recorder.retry_exhausted.get_or_create(&labels).inc();
        recorder.retry_latency.get_or_create(&labels).observe(1.0);
        let counts = BTreeMap::from([(queue, Counts::default())]);
        recorder.counts(&counts, Timestamp::UNIX_EPOCH);
        let reason = vec![("reason", "paused".to_owned())];
        recorder.schedule_skipped.get_or_create(&reason).inc();
        recorder.schedule_lag.observe(1.0);
        recorder.store_op("claim", second);
        let text = recorder.text();
        let told = told(&text);
        for metric in METRICS {
            let name = format!("windlass_{}", metric.name);
            let labels: BTreeSet<&str> = metric.labels.iter().copied().collect();
            assert_eq!(
                told.get(name.as_str()),
                Some(&(metric.kind.name(), labels)),
                "{name}"
            );
            let help = format!("# HELP {name} {}.", metric.help);
            assert!(text.contains(&help), "{help}");
        }
        assert_eq!(told.len(), METRICS.len(), "{text}");
    }
}
