//! Batches with rows that a constraint or trigger of the database refuses: the other rows are still
//! written.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use windlass_core::{JobId, Random, Timestamp};

use crate::{StoreError, Swept};

/// A sweep tries a refused job again after this time, which doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_secs(60);
const RETRY_MAX: Duration = Duration::from_secs(600);
/// The most refused jobs that are remembered. Further ones make sweeps slower, not wrong.
const REFUSALS_MAX: usize = 1000;
/// The most jobs that one sweep ends one by one.
const SINGLES_MAX: usize = 200;

/// Writes a batch in one step. If the database refuses it, writes its halves instead, and so on,
/// until each refused item is alone. `refused` makes the answer for such an item from the reason.
///
/// An error after a part was written is [`StoreError::Indeterminate`].
pub async fn split_on_refusal<T, A, F, Step>(
    items: Vec<T>,
    step: F,
    refused: impl Fn(String) -> A,
) -> Result<Vec<A>, StoreError>
where
    T: Clone,
    F: Fn(Arc<Vec<T>>) -> Step,
    Step: Future<Output = Result<Vec<A>, StoreError>>,
{
    let mut answers = Vec::with_capacity(items.len());
    let mut parts = vec![items];
    while let Some(part) = parts.pop() {
        let part = Arc::new(part);
        match step(Arc::clone(&part)).await {
            Ok(written) => answers.extend(written),
            Err(StoreError::Refused { reason }) if part.len() == 1 => answers.push(refused(reason)),
            Err(StoreError::Refused { .. }) if part.len() > 1 => {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second.to_vec(), first.to_vec()]);
            }
            Err(error @ (StoreError::Unavailable(_) | StoreError::StorageFull(_)))
                if !answers.is_empty() =>
            {
                return Err(StoreError::Indeterminate(error.into()));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(answers)
}

/// Which of the overdue jobs a step sweeps.
#[derive(Debug, Clone)]
pub enum SweepPart {
    /// All except these.
    AllExcept(Vec<JobId>),
    /// Only this one.
    One(JobId),
}

/// The atomic steps that make up a driver's sweep.
#[async_trait]
pub trait SweepSteps: Send + Sync {
    /// Sweeps up to `limit` jobs.
    async fn sweep_part(
        &self,
        part: SweepPart,
        limit: usize,
        now: Timestamp,
        random: u64,
    ) -> Result<Swept, StoreError>;

    /// Returns up to `limit` overdue jobs, except those in `except`.
    async fn to_sweep(
        &self,
        except: Vec<JobId>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<JobId>, StoreError>;
}

/// The jobs that the database refused to end during a sweep. Sweeps skip each of them until its
/// next try.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<BTreeMap<JobId, Refusal>>);

#[derive(Debug, Clone, Copy)]
struct Refusal {
    tries: u32,
    retry_at: Timestamp,
}

impl Refusals {
    /// Sweeps all jobs in one step. If the database refuses that, sweeps them one by one, so that a
    /// refused job does not hold up others.
    pub async fn sweep(
        &self,
        store: &dyn SweepSteps,
        limit: usize,
        now: Timestamp,
        random: u64,
    ) -> Result<Swept, StoreError> {
        let (known, due) = self.known(now);
        let all = SweepPart::AllExcept(known.clone());
        let mut swept = Swept::default();
        match store.sweep_part(all, limit, now, random).await {
            Err(StoreError::Refused { .. }) => {
                let limit = limit.min(SINGLES_MAX);
                let ids = store.to_sweep(known, limit, now).await?;
                self.sweep_one_by_one(store, ids, now, random, &mut swept)
                    .await?;
            }
            done => swept = done?,
        }
        self.sweep_one_by_one(store, due, now, random, &mut swept)
            .await?;
        Ok(swept)
    }

    /// Sweeps jobs one by one. Stops at an error, and returns it only if nothing was swept: the
    /// next sweep meets it again.
    async fn sweep_one_by_one(
        &self,
        store: &dyn SweepSteps,
        ids: Vec<JobId>,
        now: Timestamp,
        random: u64,
        swept: &mut Swept,
    ) -> Result<(), StoreError> {
        let mut random = Random::new(random);
        for id in ids {
            let one = SweepPart::One(id);
            match store.sweep_part(one, 1, now, random.bits()).await {
                Ok(more) => {
                    self.entries().remove(&id);
                    swept.lost.extend(more.lost);
                    swept.expired.extend(more.expired);
                }
                Err(StoreError::Refused { reason }) => self.note(id, &reason, now),
                Err(_) if *swept != Swept::default() => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The refused jobs, and those of them that are due for another try.
    fn known(&self, now: Timestamp) -> (Vec<JobId>, Vec<JobId>) {
        let refusals = self.entries();
        // A time further ahead means that the clock was set back.
        let is_due = |retry_at| retry_at <= now || retry_at > now.saturating_add(RETRY_MAX);
        let due = refusals.iter().filter(|(_, known)| is_due(known.retry_at));
        let due = due.map(|(id, _)| *id).take(SINGLES_MAX).collect();
        (refusals.keys().copied().collect(), due)
    }

    /// Remembers a refusal. Logs the first one of a job as a warning.
    fn note(&self, id: JobId, reason: &str, now: Timestamp) {
        let mut refusals = self.entries();
        let tries = refusals.get(&id).map_or(0, |known| known.tries);
        if tries == 0 {
            tracing::warn!(job.id = %id, reason, "the database refused to end a job whose lease or deadline has expired; trying again later");
        } else {
            tracing::debug!(job.id = %id, reason, tries, "the database refused again to end an overdue job");
        }
        if tries > 0 || refusals.len() < REFUSALS_MAX {
            let wait = RETRY_MIN
                .saturating_mul(2_u32.saturating_pow(tries))
                .min(RETRY_MAX);
            let refusal = Refusal {
                tries: tries.saturating_add(1),
                retry_at: now.saturating_add(wait),
            };
            refusals.insert(id, refusal);
        }
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, BTreeMap<JobId, Refusal>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_job_is_tried_again_after_growing_delays() {
        let refusals = Refusals::default();
        let id = JobId::from_u128(7);
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000).unwrap();
        refusals.note(id, "no", at(0));
        assert_eq!(refusals.known(at(59)), (vec![id], vec![]));
        assert_eq!(refusals.known(at(60)), (vec![id], vec![id]));
        refusals.note(id, "no", at(60));
        assert_eq!(refusals.known(at(179)).1, []);
        assert_eq!(refusals.known(at(180)).1, [id]);
        for _ in 0..40 {
            refusals.note(id, "no", at(1000));
        }
        assert_eq!(refusals.known(at(1599)).1, []);
        assert_eq!(refusals.known(at(1600)).1, [id]);
        assert_eq!(refusals.known(at(900)).1, [id], "the clock was set back");
    }
}
