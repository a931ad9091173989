//! How much memory the bodies of all requests may take together, while they are read and worked on.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::Problem;

/// The unit in which room is counted.
const KIB: usize = 1024;
/// The beginning of every body. It has room of its own: large bodies that come slowly do not keep out workers.
const SMALL_BYTES: usize = 64 * KIB;
/// So many beginnings fit.
const SMALL_BODIES: usize = 1000;
/// So many bodies of the largest kind fit.
const LARGE_BODIES: usize = 4;

/// The room for bodies. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Bodies {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Bodies {
    /// For bodies of at most so many bytes each.
    pub(crate) fn new(bytes_max: usize) -> Self {
        let large = units(bytes_max).saturating_mul(LARGE_BODIES);
        Bodies {
            small: Arc::new(Semaphore::new(units(SMALL_BYTES) * SMALL_BODIES)),
            large: Arc::new(Semaphore::new(large.min(Semaphore::MAX_PERMITS))),
        }
    }

    /// The room of one body, which has none yet.
    pub(crate) fn room(&self) -> Room {
        Room {
            bodies: self.clone(),
            small: None,
            large: None,
        }
    }
}

/// The room that one body takes, until it is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    bodies: Bodies,
    small: Option<OwnedSemaphorePermit>,
    large: Option<OwnedSemaphorePermit>,
}

impl Room {
    /// Takes as much as so many bytes need; refused where others have it.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), Problem> {
        let small = units(bytes.min(SMALL_BYTES));
        let large = units(bytes.saturating_sub(SMALL_BYTES));
        let fits = take(&self.bodies.small, &mut self.small, small)
            && take(&self.bodies.large, &mut self.large, large);
        match fits {
            true => Ok(()),
            false => Err(Problem::busy("large requests")),
        }
    }
}

/// Takes what is missing to so many units; whether it was there.
fn take(from: &Arc<Semaphore>, have: &mut Option<OwnedSemaphorePermit>, wanted: usize) -> bool {
    let held = have.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
    let Ok(missing) = u32::try_from(wanted.saturating_sub(held)) else {
        return false;
    };
    if missing == 0 {
        return true;
    }
    let Ok(more) = Arc::clone(from).try_acquire_many_owned(missing) else {
        return false;
    };
    match have {
        Some(have) => have.merge(more),
        None => *have = Some(more),
    }
    true
}

fn units(bytes: usize) -> usize {
    bytes.div_ceil(KIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_bodies_are_bounded_together_and_small_ones_still_fit() {
        let bodies = Bodies::new(1_000_000);
        let mut rooms: Vec<Room> = (0..LARGE_BODIES).map(|_| bodies.room()).collect();
        for room in &mut rooms {
            for bytes in (0..=1_000_000).step_by(10_000) {
                room.grow_to(bytes).unwrap();
            }
        }
        let mut one_more = bodies.room();
        one_more.grow_to(SMALL_BYTES).unwrap();
        let refused = one_more.grow_to(1_000_000).unwrap_err();
        assert_eq!(refused.status(), 503);
        rooms.pop();
        one_more.grow_to(1_000_000).unwrap();
        drop((rooms, one_more));
        assert_eq!(bodies.small.available_permits(), 64 * SMALL_BODIES);
        assert_eq!(bodies.large.available_permits(), 977 * LARGE_BODIES);
    }

    #[test]
    fn small_bodies_are_bounded_too() {
        let bodies = Bodies::new(1_000_000);
        let mut rooms: Vec<Room> = (0..=SMALL_BODIES).map(|_| bodies.room()).collect();
        let fit = rooms.iter_mut().map(|room| room.grow_to(SMALL_BYTES));
        assert_eq!(fit.filter(Result::is_ok).count(), SMALL_BODIES);
    }
}
