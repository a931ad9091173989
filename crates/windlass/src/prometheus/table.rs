//! Every metric, said once: its name, kind, labels and meaning. The recorder and the reference page both come from here.

/// What a metric counts, and under which name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Its name without the prefix and without what its kind puts behind it.
    pub(super) name: &'static str,
    /// How it moves.
    pub kind: MetricKind,
    /// The labels that it has.
    pub labels: &'static [&'static str],
    /// What it counts.
    pub help: &'static str,
}

/// How a metric moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// How often it was how large.
    Histogram,
}

impl MetricKind {
    /// As Prometheus calls it.
    pub fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

impl Metric {
    /// Its whole name, as it is asked for.
    pub fn full_name(&self) -> String {
        let end = match self.kind {
            MetricKind::Counter => "_total",
            MetricKind::Gauge | MetricKind::Histogram => "",
        };
        format!("{}{}{end}", self.prefix(), self.name)
    }

    /// What its name begins with; metrics about the process have the names that every Prometheus client uses.
    pub(super) fn prefix(&self) -> &'static str {
        match self.name.starts_with("process_") {
            true => "",
            false => "windlass_",
        }
    }
}

const fn metric(
    name: &'static str,
    kind: MetricKind,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric {
        name,
        kind,
        labels,
        help,
    }
}

/// All metrics, in the order of the reference page.
pub const METRICS: &[Metric] = {
    use MetricKind::{Counter, Gauge, Histogram};
    &[
        metric(
            "jobs_enqueued",
            Counter,
            &["queue"],
            "Jobs stored by this process",
        ),
        metric(
            "jobs_finished",
            Counter,
            &["queue", "outcome"],
            "Jobs that are over: succeeded, dead, cancelled",
        ),
        metric(
            "jobs_dead",
            Counter,
            &["queue", "reason"],
            "Jobs that became dead: exhausted, unrecoverable, expired, lost, poison",
        ),
        metric(
            "job_wait_seconds",
            Histogram,
            &["queue"],
            "How long a job was due before it was claimed",
        ),
        metric(
            "job_run_seconds",
            Histogram,
            &["queue"],
            "How long an attempt took",
        ),
        metric(
            "job_total_seconds",
            Histogram,
            &["queue", "outcome"],
            "Time from enqueue to the final state",
        ),
        metric(
            "retries",
            Counter,
            &["queue"],
            "Failed attempts after which another follows",
        ),
        metric(
            "retry_exhausted",
            Counter,
            &["queue"],
            "Jobs dead because no attempt was left",
        ),
        metric(
            "retry_latency_seconds",
            Histogram,
            &["queue"],
            "Time in backoff before a retry",
        ),
        metric(
            "leases_lost",
            Counter,
            &["queue"],
            "Attempts whose worker died or hung, found by this process",
        ),
        metric(
            "outcomes_refused",
            Counter,
            &["queue"],
            "Outcomes that the store kept refusing and a worker dropped: the attempts count as lost",
        ),
        metric(
            "dead_removed",
            Counter,
            &["queue"],
            "Dead jobs that this process removed because they were older than the retention of dead jobs",
        ),
        metric(
            "queue_depth",
            Gauge,
            &["queue", "state"],
            "Jobs in the store, counted every ten seconds",
        ),
        metric(
            "queue_oldest_ready_seconds",
            Gauge,
            &["queue"],
            "For how long the oldest ready job is due",
        ),
        metric(
            "schedule_lag_seconds",
            Histogram,
            &[],
            "How late occurrences fired",
        ),
        metric(
            "schedule_skipped",
            Counter,
            &["reason"],
            "Occurrences that did not fire",
        ),
        metric(
            "store_op_seconds",
            Histogram,
            &["op"],
            "How long a verb of the store took",
        ),
        metric(
            "workers",
            Gauge,
            &["type"],
            "Workers of the store with a recent heartbeat, counted when the server's metrics are read",
        ),
        metric(
            "worker_slots",
            Gauge,
            &["state"],
            "Slots of the workers in this process: used, free",
        ),
        metric(
            "loop_restarts",
            Counter,
            &["loop"],
            "Loops of this process that hung or panicked and were restarted",
        ),
        metric(
            "http_job_results",
            Counter,
            &["target", "result"],
            "Requests of HTTP jobs by class of target (public, opened, refused, unknown) and result (2xx to 5xx, other, not_sent, no_answer, refused, timed_out, stopped)",
        ),
        metric(
            "http_requests",
            Counter,
            &["method", "route", "status"],
            "Requests to the server by route and status class",
        ),
        metric(
            "http_request_seconds",
            Histogram,
            &["method", "route"],
            "Time from the head of a request to its answer, long polls included",
        ),
        metric(
            "log_lines_dropped",
            Counter,
            &[],
            "Log lines of the server that were left out because nobody took them",
        ),
        metric("build_info", Gauge, &["version"], "Always 1"),
        metric(
            "process_cpu_seconds",
            Counter,
            &[],
            "CPU time of this process (Linux)",
        ),
        metric(
            "process_resident_memory_bytes",
            Gauge,
            &[],
            "Resident memory of this process (Linux)",
        ),
        metric(
            "process_open_fds",
            Gauge,
            &[],
            "Open file descriptors of this process (Linux)",
        ),
        metric(
            "process_max_fds",
            Gauge,
            &[],
            "File descriptors that this process may open (Linux)",
        ),
        metric(
            "process_start_time_seconds",
            Gauge,
            &[],
            "When this process started, in seconds since 1970 (Linux)",
        ),
    ]
};
