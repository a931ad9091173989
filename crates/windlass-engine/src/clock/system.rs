//! The clock of a running program. It advances by monotonic time and is steered towards the wall
//! clock.
//!
//! The wall clock can be set, jump or be adjusted by NTP, and job times must not run backwards. So
//! the clock never copies a wall clock that is behind: it runs up to 10 % slower until the wall
//! clock has caught up. It runs up to 10 % faster towards a wall clock that is slightly ahead, and
//! jumps to one that is more than 1 s ahead (the machine was suspended, or its clock was
//! corrected).

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use windlass_core::Timestamp;
use windlass_store::{Store, StoreError};

use super::{Clock, Wait};
use crate::poison::lock;

/// The interval between two readings of the wall clock.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A wall clock that is further ahead than this is followed at once.
const STEP_MICROS: i64 = 1_000_000;
/// The maximum change of speed towards the wall clock.
const SLEW_MAX: f64 = 0.1;
/// The longest uninterrupted part of a sleep, after which the sleep reads the clock again.
const NAP: Duration = Duration::from_secs(5);

type Wall = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The clock of a running program.
#[derive(Clone)]
pub struct SystemClock {
    started: Instant,
    reading: Arc<Mutex<Reading>>,
    wall: Option<Wall>,
}

/// The state of the clock at the last reading of the wall clock.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// The monotonic time of that reading.
    looked_at: Duration,
    /// The time of this clock at that reading.
    then: Timestamp,
    /// The difference between the speed of this clock and that of monotonic time.
    slew: f64,
}

impl SystemClock {
    /// A clock that starts at the machine's time and follows it.
    pub fn new() -> Self {
        SystemClock::following(Arc::new(wall))
    }

    /// A clock that starts at `start` and follows only monotonic time.
    pub fn starting_at(start: Timestamp) -> Self {
        SystemClock::with(start, None)
    }

    /// A clock for the jobs of a store. It follows the store's own clock, if there is one, so that
    /// all nodes agree on the time.
    pub async fn of_store(store: &Arc<dyn Store>) -> Result<Self, StoreError> {
        super::store_clock::following(store).await
    }

    /// A clock that follows the given wall clock.
    pub fn following(wall: Wall) -> Self {
        SystemClock::with(wall(), Some(wall))
    }

    fn with(then: Timestamp, wall: Option<Wall>) -> Self {
        let reading = Reading {
            looked_at: Duration::ZERO,
            then,
            slew: 0.0,
        };
        SystemClock {
            started: Instant::now(),
            reading: Arc::new(Mutex::new(reading)),
            wall,
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock::new()
    }
}

impl fmt::Debug for SystemClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SystemClock({})", self.now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let mut reading = lock(&self.reading);
        let elapsed = self.started.elapsed();
        if let Some(wall) = &self.wall
            && elapsed.saturating_sub(reading.looked_at) >= LOOK_EVERY
        {
            *reading = reading.look(elapsed, wall());
        }
        reading.at(elapsed)
    }

    fn sleep_until(&self, at: Timestamp) -> Wait {
        let clock = self.clone();
        Box::pin(async move {
            loop {
                let left = at.since(clock.now());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left.min(NAP)).await;
            }
        })
    }

    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    fn sleep(&self, time: Duration) -> Wait {
        Box::pin(tokio::time::sleep(time))
    }

    fn machine_ahead_micros(&self) -> Option<i64> {
        let machine = wall().as_micros();
        Some(machine.saturating_sub(self.now().as_micros()))
    }
}

impl Reading {
    /// The time of this clock at a monotonic time.
    fn at(&self, elapsed: Duration) -> Timestamp {
        let run = elapsed.saturating_sub(self.looked_at);
        if self.slew == 0.0 {
            return self.then.saturating_add(run);
        }
        self.then.saturating_add(run.mul_f64(1.0 + self.slew))
    }

    /// Takes a reading of the wall clock. It changes the speed from now on, or jumps ahead, but
    /// never back.
    fn look(&self, elapsed: Duration, wall: Timestamp) -> Reading {
        let then = self.at(elapsed);
        let ahead = wall.as_micros().saturating_sub(then.as_micros());
        if ahead > STEP_MICROS {
            return Reading {
                looked_at: elapsed,
                then: wall,
                slew: 0.0,
            };
        }
        let until_next_look = LOOK_EVERY.as_micros() as f64;
        Reading {
            looked_at: elapsed,
            then,
            slew: (ahead as f64 / until_next_look).clamp(-SLEW_MAX, SLEW_MAX),
        }
    }
}

/// The machine's wall clock.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn wall() -> Timestamp {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    Timestamp::UNIX_EPOCH.saturating_add(since_1970.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    fn noon() -> Timestamp {
        "2026-01-01T12:00:00Z".parse().unwrap()
    }

    /// A clock whose wall clock is off by the returned number of microseconds.
    fn with_skew() -> (SystemClock, Arc<AtomicI64>) {
        let skew = Arc::new(AtomicI64::new(0));
        let (wall_skew, started) = (Arc::clone(&skew), Instant::now());
        let wall = move || {
            let micros = noon().saturating_add(started.elapsed()).as_micros();
            Timestamp::from_micros(micros + wall_skew.load(Ordering::SeqCst)).unwrap()
        };
        (SystemClock::following(Arc::new(wall)), skew)
    }

    #[tokio::test(start_paused = true)]
    async fn a_wall_clock_that_jumps_back_slows_time_down_but_never_stops_it() {
        let (clock, skew) = with_skew();
        tokio::time::advance(Duration::from_secs(10)).await;
        let before = clock.now();
        skew.store(-3_600_000_000, Ordering::SeqCst);
        let mut last = before;
        for _ in 0..100 {
            tokio::time::advance(Duration::from_millis(500)).await;
            let now = clock.now();
            let step = now.since(last);
            assert!(step >= Duration::from_millis(449), "stopped: {step:?}");
            assert!(step <= Duration::from_millis(501), "too fast: {step:?}");
            last = now;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wall_clock_that_jumps_ahead_is_followed() {
        let (clock, skew) = with_skew();
        skew.store(3_600_000_000, Ordering::SeqCst);
        tokio::time::advance(LOOK_EVERY).await;
        assert_eq!(clock.now().since(noon()), Duration::from_secs(3601));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wall_clock_that_is_a_little_off_is_reached_step_by_step() {
        let (clock, skew) = with_skew();
        skew.store(250_000, Ordering::SeqCst);
        for _ in 0..6 {
            tokio::time::advance(LOOK_EVERY).await;
            clock.now();
        }
        let off = clock.now().as_micros() - noon().as_micros() - 6_250_000;
        assert!(off.abs() < 1000, "{off} µs off");
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_knows_how_far_the_machine_is_ahead() {
        let hour = 3_600_000_000;
        let behind = Timestamp::from_micros(wall().as_micros() - hour).unwrap();
        let ahead = SystemClock::starting_at(behind).machine_ahead_micros();
        // The machine's clock runs between the two readings.
        assert!(ahead >= Some(hour) && ahead < Some(2 * hour), "{ahead:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleep_ends_at_its_time() {
        let clock = SystemClock::starting_at(noon());
        let at = noon().saturating_add(Duration::from_secs(12));
        clock.sleep_until(at).await;
        assert_eq!(clock.now(), at);
        clock.sleep_until(noon()).await;
        assert_eq!(clock.now(), at);
    }
}
