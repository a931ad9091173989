//! Metrics for Prometheus. Requires the feature `prometheus`.
//!
//! A [`PrometheusRecorder`] counts everything that happens in a process: jobs by outcome, waiting
//! and running times, retries, queue depths, store latency, and the process itself. Give it to
//! [`Client::open_with_recorder`](crate::Client::open_with_recorder), and serve
//! [`PrometheusRecorder::text`] at `/metrics`. [`METRICS`] lists all metrics with their labels and
//! meaning. For another metrics system, implement [`Recorder`].
//!
//! The number of series is bounded: queues beyond the first 200 share the label `other`, and kinds
//! and paths are never labels.
//!
//! ```
//! use std::sync::Arc;
//!
//! use serde_json::json;
//! use windlass::Client;
//! use windlass::prometheus::PrometheusRecorder;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), windlass::Error> {
//! let metrics = Arc::new(PrometheusRecorder::new());
//! let client = Client::open_with_recorder("memory:", metrics.clone()).await?;
//! client.enqueue_json("email:send", &json!({ "to": "ann@example.org" })).queue("mail").await?;
//!
//! let text = metrics.text(); // the body of the answer to Prometheus
//! assert!(text.contains(r#"windlass_jobs_enqueued_total{queue="mail"} 1"#));
//! # Ok(())
//! # }
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric as Registered, Registry};
use windlass_core::{DeadReason, QueueName, Timestamp};
use windlass_engine::{ActionEvent, Event, JobEvent, JobRef, Recorder, ScheduleEvent};
use windlass_store::Counts;

mod process;
mod table;
mod text;

use process::ProcessMetrics;
pub use table::{METRICS, Metric, MetricKind};
pub use text::MetricsFormat;

/// Further queues share the label `other`, so that the number of series is bounded.
const QUEUES_MAX: usize = 200;

type Labels = Vec<(&'static str, String)>;
type Histograms = Family<Labels, Histogram, Buckets>;

/// The upper bounds of the histogram buckets in seconds, from 0.1 ms to a day.
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

/// A [`Recorder`] that counts everything and prints it in the text formats of Prometheus.
///
/// The module [`prometheus`](crate::prometheus) has an example.
pub struct PrometheusRecorder {
    registry: Registry,
    queues: Mutex<BTreeSet<QueueName>>,
    retries: Family<Labels, Counter>,
    retry_exhausted: Family<Labels, Counter>,
    retry_latency: Histograms,
    enqueued: Family<Labels, Counter>,
    finished: Family<Labels, Counter>,
    dead: Family<Labels, Counter>,
    wait: Histograms,
    run: Histograms,
    total: Histograms,
    depth: Family<Labels, Gauge>,
    oldest_ready: Family<Labels, Gauge<f64, AtomicU64>>,
    schedule_lag: Histogram,
    schedule_skipped: Family<Labels, Counter>,
    leases_lost: Family<Labels, Counter>,
    outcomes_refused: Family<Labels, Counter>,
    dead_removed: Family<Labels, Counter>,
    failure_groups_created: Family<Labels, Counter>,
    replays_stopped: Counter,
    store_op: Histograms,
    workers: Family<Labels, Gauge>,
    slots: Family<Labels, Gauge>,
    loop_restarts: Family<Labels, Counter>,
    http_job_results: Family<Labels, Counter>,
    http_requests: Family<Labels, Counter>,
    http_request: Histograms,
    log_lines_dropped: Counter,
    process: Option<ProcessMetrics>,
    /// Held while gauges are replaced and while they are read, so that a reader never sees only
    /// some of the new values.
    gauge_update: Mutex<()>,
}

impl PrometheusRecorder {
    /// Returns a recorder in which all counters are zero.
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
            dead: Family::default(),
            wait: histograms(),
            run: histograms(),
            total: histograms(),
            depth: Family::default(),
            oldest_ready: Family::default(),
            schedule_lag: Buckets.new_metric(),
            schedule_skipped: Family::default(),
            leases_lost: Family::default(),
            outcomes_refused: Family::default(),
            dead_removed: Family::default(),
            failure_groups_created: Family::default(),
            replays_stopped: Counter::default(),
            store_op: histograms(),
            workers: Family::default(),
            slots: Family::default(),
            loop_restarts: Family::default(),
            http_job_results: Family::default(),
            http_requests: Family::default(),
            http_request: histograms(),
            log_lines_dropped: Counter::default(),
            process: ProcessMetrics::new(),
            gauge_update: Mutex::default(),
        };
        recorder.register();
        recorder
    }

    /// Registers every metric with the help text of the table.
    fn register(&mut self) {
        let build: Family<Labels, Gauge> = Family::default();
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        build.get_or_create(&version).set(1);
        let registry = &mut self.registry;
        add(registry, "jobs_enqueued", self.enqueued.clone());
        add(registry, "jobs_finished", self.finished.clone());
        add(registry, "jobs_dead", self.dead.clone());
        add(registry, "job_wait_seconds", self.wait.clone());
        add(registry, "job_run_seconds", self.run.clone());
        add(registry, "job_total_seconds", self.total.clone());
        add(registry, "retries", self.retries.clone());
        add(registry, "retry_exhausted", self.retry_exhausted.clone());
        add(
            registry,
            "retry_latency_seconds",
            self.retry_latency.clone(),
        );
        add(registry, "leases_lost", self.leases_lost.clone());
        add(registry, "outcomes_refused", self.outcomes_refused.clone());
        add(registry, "dead_removed", self.dead_removed.clone());
        add(
            registry,
            "failure_groups_created",
            self.failure_groups_created.clone(),
        );
        add(registry, "replays_stopped", self.replays_stopped.clone());
        add(registry, "queue_depth", self.depth.clone());
        add(
            registry,
            "queue_oldest_ready_seconds",
            self.oldest_ready.clone(),
        );
        add(registry, "schedule_lag_seconds", self.schedule_lag.clone());
        add(registry, "schedule_skipped", self.schedule_skipped.clone());
        add(registry, "store_op_seconds", self.store_op.clone());
        add(registry, "workers", self.workers.clone());
        add(registry, "worker_slots", self.slots.clone());
        add(registry, "loop_restarts", self.loop_restarts.clone());
        add(registry, "http_job_results", self.http_job_results.clone());
        add(registry, "http_requests", self.http_requests.clone());
        add(registry, "http_request_seconds", self.http_request.clone());
        add(
            registry,
            "log_lines_dropped",
            self.log_lines_dropped.clone(),
        );
        add(registry, "build_info", build);
    }

    /// Returns all metrics in the classic text format of Prometheus.
    pub fn text(&self) -> String {
        self.text_in(MetricsFormat::Classic)
    }

    /// Returns all metrics in the given text format.
    pub fn text_in(&self, format: MetricsFormat) -> String {
        let _guard = locked(&self.gauge_update);
        let mut open_metrics = String::new();
        // Writing to a string does not fail.
        let _ = encode_registry(&mut open_metrics, &self.registry);
        if let Some(process) = &self.process {
            process.update();
            let _ = encode_registry(&mut open_metrics, &process.registry);
        }
        let _ = encode_eof(&mut open_metrics);
        match format {
            MetricsFormat::OpenMetrics => open_metrics,
            MetricsFormat::Classic => text::classic(&open_metrics),
        }
    }

    /// Counts a request to an HTTP server. `route` is the pattern of the route, never a path with ids.
    pub fn http_request(&self, method: &str, route: &str, status: u16, took: Duration) {
        let mut labels = vec![("method", method.to_owned()), ("route", route.to_owned())];
        let time = self.http_request.get_or_create(&labels);
        time.observe(took.as_secs_f64());
        drop(time);
        labels.push(("status", format!("{}xx", status / 100)));
        self.http_requests.get_or_create(&labels).inc();
    }

    /// Sets the number of live workers of each type.
    pub fn workers(&self, alive: &BTreeMap<&'static str, u64>) {
        let _guard = locked(&self.gauge_update);
        self.workers.clear();
        for (worker_type, count) in alive {
            let labels = vec![("type", (*worker_type).to_owned())];
            self.workers.get_or_create(&labels).set(gauge_value(*count));
        }
    }

    /// Sets the number of log lines that were dropped since the process started.
    pub fn log_lines_dropped(&self, total: u64) {
        self.log_lines_dropped.inner().store(total, Relaxed);
    }

    /// Returns the label of a queue: its name, or `other` beyond [`QUEUES_MAX`].
    fn queue(&self, queue: &QueueName) -> Labels {
        let mut known = locked(&self.queues);
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

    fn job(&self, at: Timestamp, job: &JobRef, what: &JobEvent) {
        let labels = self.queue(&job.queue);
        let with_label = |name, value: &str| {
            let mut labels = labels.clone();
            labels.push((name, value.to_owned()));
            labels
        };
        let finished = |outcome: &str| {
            let labels = with_label("outcome", outcome);
            self.finished.get_or_create(&labels).inc();
            let total = at.since(job.created_at).as_secs_f64();
            self.total.get_or_create(&labels).observe(total);
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
                let labels_and_reason = with_label("reason", reason.name());
                self.dead.get_or_create(&labels_and_reason).inc();
                if matches!(reason, DeadReason::Exhausted | DeadReason::Poison) {
                    self.retry_exhausted.get_or_create(&labels).inc();
                }
            }
            JobEvent::FailureGroupCreated { .. } => {
                self.failure_groups_created.get_or_create(&labels).inc();
            }
            JobEvent::Started
            | JobEvent::Snoozed { .. }
            | JobEvent::Released
            | JobEvent::Revived => {}
        }
    }
}

fn add(registry: &mut Registry, name: &'static str, metric: impl Registered) {
    let entry = METRICS.iter().find(|entry| entry.name == name);
    let entry = entry.expect("every metric is in the table, which a test checks");
    registry.register(entry.name, entry.help, metric);
}

impl Recorder for PrometheusRecorder {
    fn event(&self, event: &Event) {
        match event {
            Event::Job { at, job, what } => self.job(*at, job, what),
            Event::Action { what, .. } => match what {
                ActionEvent::Stopped { .. } => {
                    self.replays_stopped.inc();
                }
                ActionEvent::Finished => {}
            },
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

    fn outcome_refused(&self, queue: &QueueName) {
        let labels = self.queue(queue);
        self.outcomes_refused.get_or_create(&labels).inc();
    }

    fn dead_removed(&self, queue: &QueueName, count: u64) {
        let labels = self.queue(queue);
        self.dead_removed.get_or_create(&labels).inc_by(count);
    }

    fn counts(&self, counts: &BTreeMap<QueueName, Counts>, now: Timestamp) {
        let _guard = locked(&self.gauge_update);
        // Removes the values of queues that no longer have jobs.
        self.depth.clear();
        self.oldest_ready.clear();
        // Several queues may share the label `other`: their counts are added up.
        let mut by_label: BTreeMap<Labels, Counts> = BTreeMap::new();
        for (queue, counts) in counts {
            add_counts(by_label.entry(self.queue(queue)).or_default(), counts);
        }
        for (labels, counts) in &by_label {
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
                gauge.set(gauge_value(count));
            }
            let oldest = counts
                .oldest_ready
                .map_or(Duration::ZERO, |at| now.since(at));
            let gauge = self.oldest_ready.get_or_create(labels);
            gauge.set(oldest.as_secs_f64());
        }
    }

    fn slots(&self, used: u64, total: u64) {
        for (state, count) in [("used", used), ("free", total.saturating_sub(used))] {
            let labels = vec![("state", state.to_owned())];
            self.slots.get_or_create(&labels).set(gauge_value(count));
        }
    }

    fn loop_restarted(&self, name: &str) {
        let labels = vec![("loop", name.to_owned())];
        self.loop_restarts.get_or_create(&labels).inc();
    }

    fn http_job(&self, target: &'static str, result: &'static str) {
        let labels = vec![("target", target.to_owned()), ("result", result.to_owned())];
        self.http_job_results.get_or_create(&labels).inc();
    }
}

fn gauge_value(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Locks a mutex, also after a panic of another holder: the data are only metrics.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn add_counts(sum: &mut Counts, counts: &Counts) {
    sum.scheduled += counts.scheduled;
    sum.ready += counts.ready;
    sum.retrying += counts.retrying;
    sum.running += counts.running;
    sum.succeeded += counts.succeeded;
    sum.dead += counts.dead;
    sum.cancelled += counts.cancelled;
    sum.oldest_ready = [sum.oldest_ready, counts.oldest_ready]
        .into_iter()
        .flatten()
        .min();
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

    /// Parses the kind and the labels of each metric.
    fn parse_metrics(text: &str) -> BTreeMap<&str, (&str, BTreeSet<&str>)> {
        let mut metrics = BTreeMap::new();
        let mut current = "";
        for line in text.lines() {
            if let Some((name, kind)) = line
                .strip_prefix("# TYPE ")
                .and_then(|rest| rest.split_once(' '))
            {
                current = name;
                metrics.insert(name, (kind, BTreeSet::new()));
            } else if let Some((_, labels)) = line.split_once('{') {
                let labels = labels.split_once('}').map_or("", |(labels, _)| labels);
                let names = labels
                    .split(',')
                    .filter_map(|label| Some(label.split_once('=')?.0));
                let seen = metrics.get_mut(current).map(|(_, seen)| seen);
                seen.into_iter()
                    .for_each(|seen| seen.extend(names.clone().filter(|name| *name != "le")));
            }
        }
        metrics
    }

    #[test]
    fn queues_that_share_a_label_are_added_up() {
        let recorder = PrometheusRecorder::new();
        let oldest = |seconds| Timestamp::UNIX_EPOCH.saturating_add(Duration::from_secs(seconds));
        let counts = (0..300).map(|number| {
            let queue = QueueName::new(&format!("q{number:03}")).unwrap();
            let counts = Counts {
                ready: 1,
                dead: 2,
                oldest_ready: Some(oldest(number)),
                ..Counts::default()
            };
            (queue, counts)
        });
        recorder.counts(&counts.collect(), oldest(1000));
        let text = recorder.text();
        for line in [
            r#"windlass_queue_depth{queue="other",state="ready"} 100"#,
            r#"windlass_queue_depth{queue="other",state="dead"} 200"#,
            r#"windlass_queue_oldest_ready_seconds{queue="other"} 800.0"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn both_formats_have_the_same_samples() {
        let recorder = PrometheusRecorder::new();
        recorder.store_op("claim", Duration::from_secs(1));
        let open = recorder.text_in(MetricsFormat::OpenMetrics);
        assert!(open.ends_with("# EOF\n"));
        let samples = |text: &str| -> BTreeSet<String> {
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            let names = lines.filter_map(|line| line.rsplit_once(' '));
            names.map(|(name, _)| name.to_owned()).collect()
        };
        let classic = recorder.text();
        assert!(!classic.contains("# EOF"));
        assert_eq!(samples(&open), samples(&classic));
    }

    #[test]
    fn the_table_says_what_is_recorded() {
        let recorder = PrometheusRecorder::new();
        let queue = QueueName::new("mail").unwrap();
        let job = JobRef {
            id: windlass_core::JobId::from_u128(1),
            kind: "a".parse().unwrap(),
            queue: queue.clone(),
            attempt: 1,
            created_at: Timestamp::UNIX_EPOCH,
        };
        let second = Duration::from_secs(1);
        for event in [
            JobEvent::Enqueued,
            JobEvent::Claimed {
                waited: second,
                lane: windlass_core::Lane::Fresh,
            },
            JobEvent::Succeeded { ran: second },
            JobEvent::Lost,
            JobEvent::FailureGroupCreated {
                fingerprint: windlass_core::Fingerprint::OTHER,
            },
        ] {
            recorder.job(Timestamp::UNIX_EPOCH, &job, &event);
        }
        let (reason, failures) = (DeadReason::Exhausted, 1);
        let dead = JobEvent::Dead { reason, failures };
        recorder.job(Timestamp::UNIX_EPOCH, &job, &dead);
        recorder.slots(1, 2);
        recorder.workers(&BTreeMap::from([("rest", 1)]));
        recorder.loop_restarted("sweeper");
        recorder.http_job("public", "2xx");
        recorder.http_request("GET", "/livez", 200, second);
        recorder.outcome_refused(&queue);
        recorder.dead_removed(&queue, 1);
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
        let recorded = parse_metrics(&text);
        for metric in METRICS {
            let name = metric.full_name();
            let labels: BTreeSet<&str> = metric.labels.iter().copied().collect();
            assert_eq!(
                recorded.get(name.as_str()),
                Some(&(metric.kind.name(), labels)),
                "{name}"
            );
            let help = format!("# HELP {name} {}.", metric.help);
            assert!(text.contains(&help), "{help}");
        }
        assert_eq!(recorded.len(), METRICS.len(), "{text}");
    }
}
