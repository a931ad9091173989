//! The figures, for Prometheus. What each means is in `docs/metrics.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric as Registered, Registry};
use windlass_core::{DeadReason, QueueName, Timestamp};
use windlass_engine::{Event, JobEvent, JobRef, Recorder, ScheduleEvent};
use windlass_store::Counts;

mod process;
mod table;
mod text;

use process::Process;
pub use table::{METRICS, Metric, MetricKind};
pub use text::MetricsFormat;

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
/// # use windlass::prometheus::PrometheusRecorder;
/// # use windlass::{Client, Error};
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
    store_op: Histograms,
    workers: Family<Labels, Gauge>,
    slots: Family<Labels, Gauge>,
    loop_restarts: Family<Labels, Counter>,
    http_job_results: Family<Labels, Counter>,
    http_requests: Family<Labels, Counter>,
    http_request: Histograms,
    log_lines_dropped: Counter,
    process: Option<Process>,
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
            store_op: histograms(),
            workers: Family::default(),
            slots: Family::default(),
            loop_restarts: Family::default(),
            http_job_results: Family::default(),
            http_requests: Family::default(),
            http_request: histograms(),
            log_lines_dropped: Counter::default(),
            process: Process::new(),
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
        add(to, "jobs_dead", self.dead.clone());
        add(to, "job_wait_seconds", self.wait.clone());
        add(to, "job_run_seconds", self.run.clone());
        add(to, "job_total_seconds", self.total.clone());
        add(to, "retries", self.retries.clone());
        add(to, "retry_exhausted", self.retry_exhausted.clone());
        add(to, "retry_latency_seconds", self.retry_latency.clone());
        add(to, "leases_lost", self.leases_lost.clone());
        add(to, "outcomes_refused", self.outcomes_refused.clone());
        add(to, "dead_removed", self.dead_removed.clone());
        add(to, "queue_depth", self.depth.clone());
        add(to, "queue_oldest_ready_seconds", self.oldest_ready.clone());
        add(to, "schedule_lag_seconds", self.schedule_lag.clone());
        add(to, "schedule_skipped", self.schedule_skipped.clone());
        add(to, "store_op_seconds", self.store_op.clone());
        add(to, "workers", self.workers.clone());
        add(to, "worker_slots", self.slots.clone());
        add(to, "loop_restarts", self.loop_restarts.clone());
        add(to, "http_job_results", self.http_job_results.clone());
        add(to, "http_requests", self.http_requests.clone());
        add(to, "http_request_seconds", self.http_request.clone());
        add(to, "log_lines_dropped", self.log_lines_dropped.clone());
        add(to, "build_info", build);
    }

    /// All metrics in the classic text format of Prometheus.
    pub fn text(&self) -> String {
        self.text_in(MetricsFormat::Classic)
    }

    /// All metrics in a text format.
    pub fn text_in(&self, format: MetricsFormat) -> String {
        let _whole = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        let mut open = String::new();
        // Writing into memory does not fail.
        let _ = encode_registry(&mut open, &self.registry);
        if let Some(process) = &self.process {
            process.update();
            let _ = encode_registry(&mut open, &process.registry);
        }
        let _ = encode_eof(&mut open);
        match format {
            MetricsFormat::OpenMetrics => open,
            MetricsFormat::Classic => text::classic(&open),
        }
    }

    /// A server answered a request: the route as its table names it, never a path.
    pub fn http_request(&self, method: &str, route: &str, status: u16, took: Duration) {
        let mut labels = vec![("method", method.to_owned()), ("route", route.to_owned())];
        let time = self.http_request.get_or_create(&labels);
        time.observe(took.as_secs_f64());
        drop(time);
        labels.push(("status", format!("{}xx", status / 100)));
        self.http_requests.get_or_create(&labels).inc();
    }

    /// How many workers of each type are alive.
    pub fn workers(&self, alive: &BTreeMap<&'static str, u64>) {
        let _whole = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        self.workers.clear();
        for (kind, count) in alive {
            let labels = vec![("type", (*kind).to_owned())];
            self.workers.get_or_create(&labels).set(gauged(*count));
        }
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

    fn job(&self, at: Timestamp, job: &JobRef, what: &JobEvent) {
        let labels = self.queue(&job.queue);
        let and = |name, value: &str| {
            let mut labels = labels.clone();
            labels.push((name, value.to_owned()));
            labels
        };
        let finished = |outcome: &str| {
            let labels = and("outcome", outcome);
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
                self.dead.get_or_create(&and("reason", reason.name())).inc();
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
            Event::Job { at, job, what } => self.job(*at, job, what),
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
        let _whole = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        // A queue that has no jobs any more is not shown with those it had.
        self.depth.clear();
        self.oldest_ready.clear();
        // Several queues may share a label: what they have is added up.
        let mut shown: BTreeMap<Labels, Counts> = BTreeMap::new();
        for (queue, counts) in counts {
            add_up(shown.entry(self.queue(queue)).or_default(), counts);
        }
        for (labels, counts) in &shown {
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
                gauge.set(gauged(count));
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
            self.slots.get_or_create(&labels).set(gauged(count));
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

fn gauged(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn add_up(sum: &mut Counts, more: &Counts) {
    sum.scheduled += more.scheduled;
    sum.ready += more.ready;
    sum.retrying += more.retrying;
    sum.running += more.running;
    sum.succeeded += more.succeeded;
    sum.dead += more.dead;
    sum.cancelled += more.cancelled;
    sum.oldest_ready = [sum.oldest_ready, more.oldest_ready]
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
        let told = told(&text);
        for metric in METRICS {
            let name = metric.full_name();
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
