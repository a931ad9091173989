//! How durations are distributed, in fixed buckets.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The last bucket. It starts at about 45 days and also holds everything longer.
const BUCKET_LAST: u8 = 163;

/// The number of durations in each bucket.
///
/// Each power of two of microseconds has four buckets of equal width, so a bucket is at most a
/// quarter as wide as its lower bound. The buckets are the same for all processes and versions:
/// that makes histograms addable. JSON contains only the buckets that are not empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histogram(BTreeMap<u8, u64>);

impl Histogram {
    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        self.add(bucket_of(duration), 1);
    }

    fn add(&mut self, bucket: u8, count: u64) {
        let known = self.0.entry(bucket.min(BUCKET_LAST)).or_default();
        *known = known.saturating_add(count);
    }

    /// Adds another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        for (bucket, count) in &other.0 {
            self.add(*bucket, *count);
        }
    }

    /// How many durations were counted.
    pub fn count(&self) -> u64 {
        self.0.values().copied().fold(0, u64::saturating_add)
    }

    /// Whether no duration was counted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Estimates the duration that this share of all durations does not exceed, in thousandths: 500
    /// is the median, 990 the 99th percentile. `None` if the histogram is empty.
    ///
    /// The exact value is in the same bucket, so the estimate is at most a quarter off.
    pub fn percentile(&self, thousandths: u16) -> Option<Duration> {
        let count = u128::from(self.count());
        let rank = (count * u128::from(thousandths.min(1000))).div_ceil(1000);
        let rank = rank.max(1);
        let mut before = 0;
        for (bucket, count) in &self.0 {
            let count = u128::from(*count);
            if before + count >= rank {
                let (start, end) = (start_of(*bucket), start_of(bucket.saturating_add(1)));
                // As if the durations of a bucket were spread evenly over it.
                let share = (end - start) * (2 * (rank - before) - 1) / (2 * count);
                let micros = u64::try_from(start + share).unwrap_or(u64::MAX);
                return Some(Duration::from_micros(micros));
            }
            before += count;
        }
        None
    }
}

fn bucket_of(duration: Duration) -> u8 {
    let micros = duration.as_micros();
    let Some(octave) = micros.checked_ilog2().filter(|octave| *octave >= 2) else {
        return u8::try_from(micros).unwrap_or(0); // 0 to 3 µs have a bucket each
    };
    let quarter = (micros >> (octave - 2)) & 3;
    let bucket = u128::from(octave - 1) * 4 + quarter;
    u8::try_from(bucket).unwrap_or(BUCKET_LAST).min(BUCKET_LAST)
}

/// The shortest duration of a bucket, in microseconds.
fn start_of(bucket: u8) -> u128 {
    match bucket {
        0..4 => u128::from(bucket),
        _ => (4 + u128::from(bucket % 4)) << (bucket / 4 - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(durations: impl IntoIterator<Item = Duration>) -> Histogram {
        let mut histogram = Histogram::default();
        for duration in durations {
            histogram.record(duration);
        }
        histogram
    }

    #[test]
    fn the_buckets_never_change() {
        // Stored histograms contain these numbers.
        let micros = [0, 3, 4, 7, 8, 10, 1000, 1_000_000, 3_600_000_000, u64::MAX];
        let buckets = micros.map(|micros| bucket_of(Duration::from_micros(micros)));
        assert_eq!(buckets, [0, 3, 4, 7, 8, 9, 35, 75, 122, BUCKET_LAST]);
    }

    #[test]
    fn percentiles_are_close() {
        let histogram = of((1..=1000).map(Duration::from_millis));
        assert_eq!(histogram.count(), 1000);
        for (thousandths, exact) in [(500, 500.0), (950, 950.0), (990, 990.0)] {
            let estimate = histogram.percentile(thousandths).unwrap();
            let off = (estimate.as_secs_f64() * 1000.0 / exact - 1.0).abs();
            assert!(off < 0.05, "{thousandths}: {estimate:?}");
        }
        assert_eq!(Histogram::default().percentile(500), None);
        let long = of([Duration::from_secs(1_000_000_000)]);
        assert!(long.percentile(990).is_some());
    }

    #[test]
    fn json_contains_only_buckets_that_are_used() {
        let histogram = of([1, 1, 4000].map(Duration::from_micros));
        let json = serde_json::to_string(&histogram).unwrap();
        assert_eq!(json, r#"{"1":2,"43":1}"#);
        assert_eq!(serde_json::from_str::<Histogram>(&json).unwrap(), histogram);
    }

    proptest! {
        #[test]
        fn a_duration_is_in_its_bucket(micros in 0..1u64 << 41) {
            let bucket = bucket_of(Duration::from_micros(micros));
            let micros = u128::from(micros);
            prop_assert!(start_of(bucket) <= micros && micros < start_of(bucket + 1));
            prop_assert!(start_of(bucket + 1) - start_of(bucket) <= (micros / 4).max(1));
        }

        #[test]
        fn no_stored_histogram_panics(buckets: BTreeMap<u8, u64>, thousandths: u16) {
            let _ = Histogram(buckets).percentile(thousandths);
        }
    }
}
