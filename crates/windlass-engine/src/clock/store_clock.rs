//! The clock of the store, which all nodes share.
//!
//! Nodes must agree on when a job is due and when a lease has expired, but the clocks of machines
//! differ. A store with a clock of its own (PostgreSQL) is sampled every 10 s; between two samples,
//! monotonic time counts. So setting a node's own clock has no effect.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;
use windlass_core::Timestamp;
use windlass_store::{Store, StoreError};

use super::SystemClock;
use crate::poison::lock;

/// The interval between two samples of the store's clock.
const SAMPLE_EVERY: Duration = Duration::from_secs(10);

/// Creates a clock that follows the store's clock, or the machine's clock if the store has none.
pub(super) async fn following(store: &Arc<dyn Store>) -> Result<SystemClock, StoreError> {
    let Some(first) = sample(store.time()).await? else {
        return Ok(SystemClock::new());
    };
    let store = Arc::downgrade(store);
    let next = move || {
        let store = store.upgrade();
        async move {
            match store {
                Some(store) => sample(store.time()).await,
                None => Ok(None),
            }
        }
    };
    Ok(following_samples(&first, next))
}

/// Creates a clock that follows the samples of another clock, until there are no more.
fn following_samples<F>(first: &ClockSample, next: impl Fn() -> F + Send + 'static) -> SystemClock
where
    F: Future<Output = Result<Option<ClockSample>, StoreError>> + Send,
{
    let estimate = Arc::new(Mutex::new(ClockEstimate::first(first)));
    let wall = Arc::clone(&estimate);
    let clock = SystemClock::following(Arc::new(move || {
        let estimate = lock(&wall);
        estimate.at(Instant::now())
    }));
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(SAMPLE_EVERY).await;
            match next().await {
                Ok(Some(sample)) => lock(&estimate).correct(&sample),
                Ok(None) => return, // the store was dropped
                // Meanwhile, monotonic time continues.
                Err(error) => warn!(%error, "reading the store's clock failed; retrying"),
            }
        }
    });
    clock
}

/// One reading of the store's clock, and the local times around it.
#[derive(Debug, Clone, Copy)]
struct ClockSample {
    asked: Instant,
    answered: Instant,
    store_time: Timestamp,
}

async fn sample(
    read: impl Future<Output = Result<Option<Timestamp>, StoreError>>,
) -> Result<Option<ClockSample>, StoreError> {
    let asked = Instant::now();
    let store_time = read.await?;
    let answered = Instant::now();
    Ok(store_time.map(|store_time| ClockSample {
        asked,
        answered,
        store_time,
    }))
}

/// An estimate of the store's clock: it showed `store_time` at the local time `instant`.
#[derive(Debug, Clone, Copy)]
struct ClockEstimate {
    instant: Instant,
    store_time: Timestamp,
}

impl ClockEstimate {
    /// Takes a first sample. The store read its clock at some point between the question and the
    /// answer, so the middle is the best guess.
    fn first(sample: &ClockSample) -> Self {
        let half = sample.answered.duration_since(sample.asked) / 2;
        ClockEstimate {
            instant: sample.answered,
            store_time: sample.store_time.saturating_add(half),
        }
    }

    fn at(&self, instant: Instant) -> Timestamp {
        self.store_time
            .saturating_add(instant.duration_since(self.instant))
    }

    /// Moves the estimate as little as the sample requires. The sample only says that the store's
    /// time was within a range as wide as the round trip, so an estimate within that range stays. A
    /// slow answer therefore makes nothing worse.
    fn correct(&mut self, sample: &ClockSample) {
        let latest = sample
            .store_time
            .saturating_add(sample.answered.duration_since(sample.asked));
        let estimated = self.at(sample.answered);
        *self = ClockEstimate {
            instant: sample.answered,
            store_time: estimated.clamp(sample.store_time, latest),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;
    use crate::clock::Clock as _;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn noon() -> Timestamp {
        "2026-01-01T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn the_first_look_is_taken_in_the_middle() {
        let asked = Instant::now();
        let estimate = ClockEstimate::first(&ClockSample {
            asked,
            answered: asked + MS(10),
            store_time: noon(),
        });
        assert_eq!(estimate.at(asked + MS(10)), noon().saturating_add(MS(5)));
        assert_eq!(estimate.at(asked + MS(25)), noon().saturating_add(MS(20)));
    }

    #[test]
    fn a_look_moves_time_as_little_as_it_must() {
        let start = Instant::now();
        let estimate = ClockEstimate {
            instant: start,
            store_time: noon(),
        };
        let after = |took: u64, store_time: u64| {
            let mut estimate = estimate;
            estimate.correct(&ClockSample {
                asked: start + MS(1000),
                answered: start + MS(1000 + took),
                store_time: noon().saturating_add(MS(store_time)),
            });
            estimate.at(start + MS(1000 + took)).since(noon())
        };
        assert_eq!(after(100, 1050), MS(1100), "within the range: unchanged");
        assert_eq!(after(100, 1300), MS(1300), "behind: up to the earliest");
        assert_eq!(after(100, 400), MS(500), "ahead: back to the latest");
    }

    const HOUR: i64 = 3_600_000_000;

    /// A clock that follows a store whose clock is off by the returned number of microseconds.
    async fn follow_a_store() -> (SystemClock, Arc<AtomicI64>) {
        let (skew, started) = (Arc::new(AtomicI64::new(0)), Instant::now());
        let store_skew = Arc::clone(&skew);
        let next = move || {
            let micros = noon().saturating_add(started.elapsed()).as_micros();
            let time = Timestamp::from_micros(micros + store_skew.load(Ordering::SeqCst));
            sample(std::future::ready(Ok(time)))
        };
        let first = next().await.unwrap().unwrap();
        (following_samples(&first, next), skew)
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_clock_that_jumps_back_slows_time_down_but_never_turns_it_back() {
        let (clock, skew) = follow_a_store().await;
        tokio::time::sleep(MS(60_000)).await;
        assert_eq!(clock.now(), noon().saturating_add(MS(60_000)));
        skew.store(-HOUR, Ordering::SeqCst);
        let mut last = clock.now();
        for _ in 0..1000 {
            tokio::time::sleep(MS(500)).await;
            let step = clock.now().since(last);
            assert!((MS(449)..=MS(501)).contains(&step), "{step:?} in 500 ms");
            last = clock.now();
        }
        let slowed = noon().saturating_add(MS(560_000)).since(last);
        assert!(slowed >= MS(40_000), "only {slowed:?} closer");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_clock_that_jumps_ahead_is_followed_at_its_next_sample() {
        let (clock, skew) = follow_a_store().await;
        skew.store(HOUR, Ordering::SeqCst);
        tokio::time::sleep(SAMPLE_EVERY + MS(1000)).await;
        let expected = noon().saturating_add(MS(3_600_000) + SAMPLE_EVERY + MS(1000));
        assert_eq!(clock.now(), expected);
    }
}
