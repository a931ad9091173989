//! The memory budget that the bodies of all requests share while the server reads and handles them.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::Problem;

/// The unit of the budget.
const KIB: usize = 1024;
/// The first bytes of every body have a budget of their own, so that slow uploads of large bodies
/// do not block the small requests of workers.
const SMALL_BYTES: usize = 64 * KIB;
/// How many small bodies fit into the budget at once.
const SMALL_BODIES: usize = 1000;
/// How many bodies of the maximum size fit into the budget at once.
const LARGE_BODIES: usize = 4;

/// The memory budget of request bodies. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct BodyBudget {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl BodyBudget {
    /// A budget for bodies of at most `bytes_max` bytes each.
    pub(crate) fn new(bytes_max: usize) -> Self {
        let large = units(bytes_max).saturating_mul(LARGE_BODIES);
        BodyBudget {
            small: Arc::new(Semaphore::new(units(SMALL_BYTES) * SMALL_BODIES)),
            large: Arc::new(Semaphore::new(large.min(Semaphore::MAX_PERMITS))),
        }
    }

    /// A permit for one body, which reserves nothing yet.
    pub(crate) fn permit(&self) -> BodyPermit {
        BodyPermit {
            budget: self.clone(),
            small: None,
            large: None,
        }
    }
}

/// The part of the budget that one body has reserved. Dropping it returns the memory.
#[derive(Debug)]
pub(crate) struct BodyPermit {
    budget: BodyBudget,
    small: Option<OwnedSemaphorePermit>,
    large: Option<OwnedSemaphorePermit>,
}

impl BodyPermit {
    /// Reserves memory for a body of `bytes` bytes in total, or refuses if the budget is used up.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), Problem> {
        let small = units(bytes.min(SMALL_BYTES));
        let large = units(bytes.saturating_sub(SMALL_BYTES));
        let fits = reserve(&self.budget.small, &mut self.small, small)
            && reserve(&self.budget.large, &mut self.large, large);
        if fits {
            Ok(())
        } else {
            Err(Problem::busy("large requests"))
        }
    }
}

/// Extends a permit to `units` units. Returns whether the semaphore had enough.
fn reserve(
    semaphore: &Arc<Semaphore>,
    permit: &mut Option<OwnedSemaphorePermit>,
    units: usize,
) -> bool {
    let held = permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
    let Ok(missing) = u32::try_from(units.saturating_sub(held)) else {
        return false;
    };
    if missing == 0 {
        return true;
    }
    let Ok(more) = Arc::clone(semaphore).try_acquire_many_owned(missing) else {
        return false;
    };
    match permit {
        Some(permit) => permit.merge(more),
        None => *permit = Some(more),
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
        let budget = BodyBudget::new(1_000_000);
        let mut permits: Vec<BodyPermit> = (0..LARGE_BODIES).map(|_| budget.permit()).collect();
        for permit in &mut permits {
            for bytes in (0..=1_000_000).step_by(10_000) {
                permit.grow_to(bytes).unwrap();
            }
        }
        let mut another = budget.permit();
        another.grow_to(SMALL_BYTES).unwrap();
        let refused = another.grow_to(1_000_000).unwrap_err();
        assert_eq!(refused.status(), 503);
        permits.pop();
        another.grow_to(1_000_000).unwrap();
        drop((permits, another));
        assert_eq!(budget.small.available_permits(), 64 * SMALL_BODIES);
        assert_eq!(budget.large.available_permits(), 977 * LARGE_BODIES);
    }

    #[test]
    fn small_bodies_are_bounded_too() {
        let budget = BodyBudget::new(1_000_000);
        let mut permits: Vec<BodyPermit> = (0..=SMALL_BODIES).map(|_| budget.permit()).collect();
        let fit = permits.iter_mut().map(|permit| permit.grow_to(SMALL_BYTES));
        assert_eq!(fit.filter(Result::is_ok).count(), SMALL_BODIES);
    }
}
