//! Metrics of this process, under the names that every Prometheus client uses. On Linux only.

use std::fs;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The unit of CPU times in `/proc`: always hundredths of a second, whatever the kernel uses.
const TICKS_PER_SECOND: f64 = 100.0;

/// Metrics about this process.
#[derive(Debug)]
pub(super) struct ProcessMetrics {
    pub(super) registry: Registry,
    cpu_seconds: Counter<f64, AtomicU64>,
    resident_bytes: Gauge,
    open_fds: Gauge,
    max_fds: Gauge,
    start_seconds: Gauge<f64, AtomicU64>,
}

/// The values of one moment, read from `/proc`.
#[derive(Debug, PartialEq)]
struct Reading {
    cpu_seconds: f64,
    resident_bytes: i64,
    open_fds: i64,
    max_fds: i64,
    start_seconds: f64,
}

impl ProcessMetrics {
    /// Returns `None` if the system has no `/proc`.
    pub(super) fn new() -> Option<Self> {
        let reading = Reading::now()?;
        let mut process = ProcessMetrics {
            registry: Registry::default(),
            cpu_seconds: Counter::default(),
            resident_bytes: Gauge::default(),
            open_fds: Gauge::default(),
            max_fds: Gauge::default(),
            start_seconds: Gauge::default(),
        };
        let registry = &mut process.registry;
        super::add(registry, "process_cpu_seconds", process.cpu_seconds.clone());
        super::add(
            registry,
            "process_resident_memory_bytes",
            process.resident_bytes.clone(),
        );
        super::add(registry, "process_open_fds", process.open_fds.clone());
        super::add(registry, "process_max_fds", process.max_fds.clone());
        super::add(
            registry,
            "process_start_time_seconds",
            process.start_seconds.clone(),
        );
        process.set(&reading);
        Some(process)
    }

    /// Reads the current values.
    pub(super) fn update(&self) {
        if let Some(reading) = Reading::now() {
            self.set(&reading);
        }
    }

    fn set(&self, reading: &Reading) {
        let cpu = reading.cpu_seconds.to_bits();
        self.cpu_seconds.inner().store(cpu, Relaxed);
        self.resident_bytes.set(reading.resident_bytes);
        self.open_fds.set(reading.open_fds);
        self.max_fds.set(reading.max_fds);
        self.start_seconds.set(reading.start_seconds);
    }
}

impl Reading {
    fn now() -> Option<Self> {
        let read = |path: &str| fs::read_to_string(path).ok();
        let open_fds = fs::read_dir("/proc/self/fd").ok()?.count();
        Reading::parse(
            &read("/proc/self/stat")?,
            &read("/proc/self/status")?,
            &read("/proc/self/limits")?,
            &read("/proc/stat")?,
            // Reading the folder opens one descriptor itself.
            i64::try_from(open_fds).ok()?.saturating_sub(1),
        )
    }

    fn parse(stat: &str, status: &str, limits: &str, system: &str, open_fds: i64) -> Option<Self> {
        // The name of the program comes first, in parentheses, and may contain any characters.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |index: usize| Some(fields.get(index)?.parse::<f64>().ok()? / TICKS_PER_SECOND);
        let number = |text: &str, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next().map(str::to_owned)
        };
        let resident_kib: i64 = number(status, "VmRSS:")?.parse().ok()?;
        let booted_at: f64 = number(system, "btime")?.parse().ok()?;
        let max_fds = number(limits, "Max open files")?;
        Some(Reading {
            cpu_seconds: ticks(11)? + ticks(12)?,
            resident_bytes: resident_kib * 1024,
            open_fds,
            max_fds: max_fds.parse().unwrap_or(i64::MAX), // the text may be `unlimited`
            start_seconds: booted_at + ticks(19)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_kernel_are_read() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 3 0 1000 9 8 7";
        let status = "Name:\tx\nVmRSS:\t    2048 kB\n";
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  4096  files\n";
        let system = "cpu 1 2\nbtime 1700000000\n";
        let expected = Reading {
            cpu_seconds: 2.0,
            resident_bytes: 2 * 1024 * 1024,
            open_fds: 7,
            max_fds: 1024,
            start_seconds: 1_700_000_010.0,
        };
        let read = |stat| Reading::parse(stat, status, limits, system, 7);
        assert_eq!(read(stat), Some(expected));
        assert_eq!(read("42 (x) S"), None);
        assert_eq!(read(""), None);
    }
}
