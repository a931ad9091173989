//! The table of all metrics: name, kind, labels and meaning. The recorder and the reference page
//! `docs/metrics.md` are both made from it.

/// The description of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// The name without the prefix `windlass_` and without the suffix `_total` of counters.
    pub(super) name: &'static str,
    /// The kind of metric.
    pub kind: MetricKind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// What it measures: the help text.
    pub help: &'static str,
}

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// A distribution of values, counted in buckets.
    Histogram,
}

impl MetricKind {
    /// Returns the name of the kind in Prometheus: `counter`, `gauge` or `histogram`.
    pub fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

impl Metric {
    /// Returns the full name, as used in queries: `windlass_jobs_enqueued_total`.
    pub fn full_name(&self) -> String {
        let suffix = match self.kind {
            MetricKind::Counter => "_total",
            MetricKind::Gauge | MetricKind::Histogram => "",
        };
        format!("{}{}{suffix}", self.prefix(), self.name)
    }

    /// Returns the prefix of the name. Metrics of the process have the names that every Prometheus
    /// client uses.
    pub(super) fn prefix(&self) -> &'static str {
        if self.name.starts_with("process_") {
            ""
        } else {
            "windlass_"
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
            "Jobs that finished, by outcome: succeeded, dead, cancelled",
        ),
        metric(
            "jobs_dead",
            Counter,
            &["queue", "reason"],
            "Jobs that became dead, by reason: exhausted, unrecoverable, expired, lost, poison",
        ),
        metric(
            "job_wait_seconds",
            Histogram,
            &["queue"],
            "Time that jobs were due before a worker claimed them",
        ),
        metric(
            "job_run_seconds",
            Histogram,
            &["queue"],
            "Duration of attempts",
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
            "Failed attempts that will be retried",
        ),
        metric(
            "retry_exhausted",
            Counter,
            &["queue"],
            "Jobs that became dead because they reached their attempt limit",
        ),
        metric(
            "retry_latency_seconds",
            Histogram,
            &["queue"],
            "Backoff delay before retries",
        ),
        metric(
            "leases_lost",
            Counter,
            &["queue"],
            "Attempts whose lease expired because their worker died or hung, found by this process",
        ),
        metric(
            "outcomes_refused",
            Counter,
            &["queue"],
            "Outcomes that the store kept refusing until the worker dropped them; their attempts count as lost",
        ),
        metric(
            "dead_removed",
            Counter,
            &["queue"],
            "Dead jobs that this process removed after their retention period",
        ),
        metric(
            "failure_groups_created",
            Counter,
            &["queue"],
            "Causes of failures that a queue and kind did not have in the 24 h before",
        ),
        metric(
            "replays_stopped",
            Counter,
            &[],
            "Replays that stopped themselves because too many jobs failed again",
        ),
        metric(
            "queue_depth",
            Gauge,
            &["queue", "state"],
            "Jobs in the store by state, counted every 10 s",
        ),
        metric(
            "queue_oldest_ready_seconds",
            Gauge,
            &["queue"],
            "Time since the oldest ready job became due",
        ),
        metric(
            "schedule_lag_seconds",
            Histogram,
            &[],
            "Delay between the scheduled time of an occurrence and the time it fired",
        ),
        metric(
            "schedule_skipped",
            Counter,
            &["reason"],
            "Occurrences that did not fire, by reason",
        ),
        metric(
            "store_op_seconds",
            Histogram,
            &["op"],
            "Duration of store operations",
        ),
        metric(
            "workers",
            Gauge,
            &["type"],
            "Workers of the store with a recent heartbeat, counted when the metrics of a server are read",
        ),
        metric(
            "worker_slots",
            Gauge,
            &["state"],
            "Slots of the workers in this process, by state: used, free",
        ),
        metric(
            "loop_restarts",
            Counter,
            &["loop"],
            "Background loops of this process that were restarted because they hung or panicked",
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
            "Time from the head of a request to its response, long polls included",
        ),
        metric(
            "log_lines_dropped",
            Counter,
            &[],
            "Log lines of the server that were dropped because the output was too slow",
        ),
        metric("build_info", Gauge, &["version"], "Always 1"),
        metric(
            "process_cpu_seconds",
            Counter,
            &[],
            "User and system CPU time of this process (Linux)",
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
            "Maximum number of open file descriptors of this process (Linux)",
        ),
        metric(
            "process_start_time_seconds",
            Gauge,
            &[],
            "Start time of this process, in seconds since 1970 (Linux)",
        ),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alert_rules_use_metrics_that_exist() {
        let rules = include_str!("../../../../docs/alerts/windlass.rules.yml");
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let used: Vec<&str> = rules
            .lines()
            .filter(|line| !line.trim_start().starts_with('#'))
            .flat_map(|line| line.split(|c| !is_name(c)))
            .filter(|word| word.starts_with("windlass_"))
            .collect();
        for name in &used {
            let histogram = name.strip_suffix("_bucket").or(name.strip_suffix("_count"));
            let exists = METRICS.iter().any(|metric| match metric.kind {
                MetricKind::Histogram => histogram == Some(metric.full_name().as_str()),
                MetricKind::Counter | MetricKind::Gauge => *name == metric.full_name(),
            });
            assert!(exists, "{name}");
        }
        assert!(used.len() >= 9, "{used:?}");
    }
}
