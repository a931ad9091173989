//! The time that all nodes of a store share: the store's own clock, looked at now and then.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;
use windlass_core::Timestamp;
use windlass_store::{Store, StoreError};

use super::SystemClock;

/// How often the store's clock is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// A clock for a store: it follows the store's own clock where it has one, else the machine's.
///
/// Nodes whose clocks differ agree so on when a job is due and a lease has expired. A node's own clock may be set to anything
/// without effect: between two looks it is monotonic time that counts.
pub(super) async fn following(store: &Arc<dyn Store>) -> Result<SystemClock, StoreError> {
    let Some(seen) = look(&**store).await? else {
        return Ok(SystemClock::new());
    };
    let seen = Arc::new(Mutex::new(Seen::first(&seen)));
    let wall = Arc::clone(&seen);
    let clock = SystemClock::following(Arc::new(move || {
        let seen = wall.lock().unwrap_or_else(PoisonError::into_inner);
        seen.at(Instant::now())
    }));
    tokio::spawn(keep_looking(Arc::downgrade(store), seen));
    Ok(clock)
}

/// Looks until the store is gone. While it does not answer, monotonic time goes on.
async fn keep_looking(store: Weak<dyn Store>, seen: Arc<Mutex<Seen>>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(store) = store.upgrade() else { return };
        match look(&*store).await {
            Ok(Some(look)) => seen
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .correct(&look),
            Ok(None) => return,
            Err(error) => warn!(%error, "the store's clock was not seen, trying again"),
        }
    }
}

/// One look at the store's clock.
#[derive(Debug, Clone, Copy)]
struct Look {
    asked: Instant,
    answered: Instant,
    said: Timestamp,
}

async fn look(store: &dyn Store) -> Result<Option<Look>, StoreError> {
    let asked = Instant::now();
    let said = store.time().await?;
    let answered = Instant::now();
    Ok(said.map(|said| Look {
        asked,
        answered,
        said,
    }))
}

/// What the store's clock said at an instant.
#[derive(Debug, Clone, Copy)]
struct Seen {
    instant: Instant,
    was: Timestamp,
}

impl Seen {
    /// The store read its clock somewhere between the question and the answer: the middle is the best guess.
    fn first(look: &Look) -> Self {
        let half = look.answered.duration_since(look.asked) / 2;
        Seen {
            instant: look.answered,
            was: look.said.saturating_add(half),
        }
    }

    fn at(&self, instant: Instant) -> Timestamp {
        self.was
            .saturating_add(instant.duration_since(self.instant))
    }

    /// Moves as little as the look demands: what it allows for is not changed, so a slow answer makes nothing worse.
    fn correct(&mut self, look: &Look) {
        let latest = look
            .said
            .saturating_add(look.answered.duration_since(look.asked));
        let ours = self.at(look.answered);
        *self = Seen {
            instant: look.answered,
            was: ours.clamp(look.said, latest),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn noon() -> Timestamp {
        "2026-01-01T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn the_first_look_is_taken_in_the_middle() {
        let asked = Instant::now();
        let seen = Seen::first(&Look {
            asked,
            answered: asked + MS(10),
            said: noon(),
        });
        assert_eq!(seen.at(asked + MS(10)), noon().saturating_add(MS(5)));
        assert_eq!(seen.at(asked + MS(25)), noon().saturating_add(MS(20)));
    }

    #[test]
    fn a_look_moves_time_as_little_as_it_must() {
        let start = Instant::now();
        let seen = Seen {
            instant: start,
            was: noon(),
        };
        let after = |took: u64, said: u64| {
            let mut seen = seen;
            seen.correct(&Look {
                asked: start + MS(1000),
                answered: start + MS(1000 + took),
                said: noon().saturating_add(MS(said)),
            });
            seen.at(start + MS(1000 + took)).since(noon())
        };
        assert_eq!(after(100, 1050), MS(1100), "it may have been so");
        assert_eq!(after(100, 1300), MS(1300), "behind: up to the earliest");
        assert_eq!(after(100, 400), MS(500), "ahead: back to the latest");
    }
}
