//! Read, change and write: repeated until no other writer interferes.

use std::future::Future;

/// The most tries of one change.
const TRIES_MAX: usize = 100;

/// Repeats `step` until its write takes effect, and returns its result.
///
/// A step reads, computes the change and writes it with the read version as
/// [`Expected`](crate::Expected). It returns `None` if another writer was faster. After 100 tries,
/// `contended` makes the error.
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
