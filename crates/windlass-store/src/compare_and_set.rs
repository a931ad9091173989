//! Changes that are worked out from what was read, and written only if no one wrote meanwhile.

use std::future::Future;

/// A change is given up when other writers came first this many times.
const TRIES_MAX: usize = 100;

/// Repeats `step` until its write takes effect; returns what that step returned.
///
/// A step reads, works out the change, and writes with what it read as [`Expected`](crate::Expected).
/// It returns `None` if another writer came first. After 100 such steps, `contended` makes the error.
pub async fn compare_and_set<T, E, Step>(
    contended: impl FnOnce() -> E,
    mut step: impl FnMut() -> Step,
) -> Result<T, E>
where
    Step: Future<Output = Result<Option<T>, E>>,
{
    for _ in 0..TRIES_MAX {
        if let Some(done) = step().await? {
            return Ok(done);
        }
    }
    Err(contended())
}
