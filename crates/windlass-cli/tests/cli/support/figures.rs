//! What a benchmark printed: figures that agree with each other and with the time that it took.

use std::time::Duration;

use serde_json::Value;
use windlass_engine::{Clock as _, SystemClock};

use super::printed;

/// The figures of one run of a benchmark.
pub(crate) struct Figures {
    pub(crate) json: Value,
    took: Duration,
}

impl Figures {
    /// Runs a benchmark, which must succeed.
    pub(crate) fn of(arguments: &[&str]) -> Self {
        let clock = SystemClock::new();
        let began = clock.elapsed();
        let text = printed(&[&["bench"][..], arguments, &["--json"]].concat());
        let took = clock.elapsed().saturating_sub(began);
        let json = serde_json::from_str(&text).expect("JSON");
        Figures { json, took }
    }

    /// Returns the figure at a JSON pointer.
    pub(crate) fn number(&self, pointer: &str) -> f64 {
        let figure = self.json.pointer(pointer).and_then(Value::as_f64);
        assert!(figure.is_some(), "{pointer}: {}", self.json);
        figure.unwrap_or_default()
    }

    /// Checks figures that are larger than zero.
    pub(crate) fn check_positive(&self, pointers: &[&str]) {
        for pointer in pointers {
            assert!(self.number(pointer) > 0.0, "{pointer}: {}", self.json);
        }
    }

    /// Checks the rates of phases that ran one after the other. Each is given with how many things the
    /// phase did at least at this rate: all phases together fit into the time of the run.
    pub(crate) fn check_rates(&self, rates: &[(&str, u64)]) {
        let mut all = 0.0;
        for (pointer, count) in rates {
            self.check_positive(&[pointer]);
            all += *count as f64 / self.number(pointer);
        }
        let took = self.took.as_secs_f64();
        assert!(all <= took, "{all} s of {took} s: {}", self.json);
    }

    /// Checks that one figure is the quotient of two others.
    pub(crate) fn check_ratio(&self, ratio: &str, above: &str, below: &str) {
        let (found, expected) = (self.number(ratio), self.number(above) / self.number(below));
        let is_close = (found / expected - 1.0).abs() < 1e-6;
        assert!(is_close, "{ratio} is not {expected}: {}", self.json);
    }

    /// Checks that there are percentiles in order, above zero.
    pub(crate) fn check_percentiles(&self, pointer: &str) {
        let percentile = |name: &str| self.number(&format!("{pointer}/{name}"));
        let (median, high) = (percentile("p50"), percentile("p99"));
        assert!(0.0 < median && median <= high, "{pointer}: {}", self.json);
    }
}
