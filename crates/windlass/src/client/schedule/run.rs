//! Runs of a schedule by hand: now, or for instants of the past.

use std::time::Duration;

use windlass_core::{Invalid, Job as StoredJob, JobId, Timestamp};
use windlass_engine::{ManualRun, Origin, ScheduleEvent, manual_run_job};
use windlass_store::{FIRE_MAX, Fire, Fired, Schedule as StoredSchedule, fire_one};

use super::{changed, parse_name, until_written};
use crate::client::Client;
use crate::error::Error;

/// The most jobs to read in one step: each may have a large payload.
const READ_BATCH: usize = 10;

impl Client {
    /// Runs the job of a schedule now, in addition to its occurrences, also if it is paused.
    ///
    /// [`Schedule::overlap`](crate::schedule::Schedule::overlap) ignores this run: it never causes an occurrence to be skipped, queued or
    /// cancelled.
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleNotFound`] if there is no schedule with this name; [`Error::ScheduleKeyTaken`] if
    /// another job holds the unique key of its job.
    pub async fn run_schedule_now(&self, name: &str) -> Result<JobId, Error> {
        self.run_schedule_now_from(name, self.origin()).await
    }

    /// Runs a schedule like [`Client::run_schedule_now`], with the time and the id of an [`Origin`].
    ///
    /// The same origin makes the same job, so a repeated request does not run it twice.
    ///
    /// # Errors
    ///
    /// As [`Client::run_schedule_now`].
    pub async fn run_schedule_now_from(&self, name: &str, origin: Origin) -> Result<JobId, Error> {
        let jobs = self
            .fire_extra(name, ManualRun::RunNow, origin, |schedule, now| {
                // Moves to an instant that is not an occurrence: each instant fires only once.
                let recurrence = schedule.definition.recurrence(schedule.created_at);
                let tick = Duration::from_micros(1);
                let mut at = now;
                while recurrence
                    .next(at.saturating_sub(tick))
                    .is_some_and(|next| next.at == at)
                {
                    at = at.saturating_add(tick);
                }
                Ok(vec![at])
            })
            .await?;
        let job = jobs.first().copied();
        job.ok_or_else(|| Error::ScheduleKeyTaken(name.to_owned()))
    }

    /// Runs the occurrences from `from` to `to`, both included, that were not fired.
    ///
    /// These are occurrences that were missed or skipped, or that lie before the schedule was
    /// created; at most 1000 of them. Returns the number of new jobs.
    ///
    /// [`Schedule::overlap`](crate::schedule::Schedule::overlap) ignores these runs: they never cause a later occurrence to be skipped,
    /// queued or cancelled. Under [`Overlap::Queue`](crate::schedule::Overlap::Queue) they run one
    /// after the other.
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleNotFound`] if there is no schedule with this name; [`Error::Invalid`] if `to` is
    /// in the future or there are too many occurrences.
    pub async fn backfill(
        &self,
        name: &str,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<usize, Error> {
        self.backfill_from(name, from, to, self.origin()).await
    }

    /// Backfills like [`Client::backfill`], with the time and the ids of an [`Origin`].
    ///
    /// The same origin makes the same jobs, so a repeated request runs nothing twice and returns the
    /// same number.
    ///
    /// # Errors
    ///
    /// As [`Client::backfill`].
    pub async fn backfill_from(
        &self,
        name: &str,
        from: Timestamp,
        to: Timestamp,
        origin: Origin,
    ) -> Result<usize, Error> {
        let jobs = self
            .fire_extra(name, ManualRun::Backfill, origin, |schedule, now| {
                if to > now {
                    return Err(Invalid::new("to", "must not be in the future"));
                }
                let (definition, created_at) = (&schedule.definition, schedule.created_at);
                definition.occurrences_between(created_at, from, to, FIRE_MAX)
            })
            .await?;
        Ok(jobs.len())
    }

    /// Enqueues jobs for some instants of a schedule now, without advancing the schedule.
    async fn fire_extra(
        &self,
        name: &str,
        extra: ManualRun,
        origin: Origin,
        instants: impl Fn(&StoredSchedule, Timestamp) -> Result<Vec<Timestamp>, Invalid>,
    ) -> Result<Vec<JobId>, Error> {
        let (name, store, now) = (parse_name(name)?, self.engine.store(), origin.now);
        until_written(&name, || async {
            let schedule = self.find_existing(&name).await?;
            let id_source = origin.ids();
            let jobs = instants(&schedule, now)?.into_iter().map(|at| {
                let mut job = manual_run_job(&self.engine, &schedule, extra, at, now);
                job.id = id_source.job(now);
                job
            });
            let mut jobs: Vec<StoredJob> = jobs.collect();
            // An earlier request with the same origin may have made some of the jobs. If one does
            // so from here on, it changes the schedule, and this step is stale.
            let mut job_ids = if origin.repeats {
                self.existing_ids(&jobs).await?
            } else {
                Vec::new()
            };
            jobs.retain(|job| !job_ids.contains(&job.id));
            if jobs.is_empty() {
                return Ok(job_ids);
            }
            let fire = Fire {
                jobs: jobs.clone(),
                ..Fire::nothing(&schedule)
            };
            if let Fired::Done { jobs: made } = fire_one(store, fire, now).await? {
                jobs.retain(|job| made.contains(&job.id));
                self.emit_fired(&schedule, &jobs, now);
                job_ids.extend(made);
                return Ok(job_ids);
            }
            Err(changed(&name, None))
        })
        .await
    }

    /// Returns the ids of those of these jobs that are in the store.
    async fn existing_ids(&self, jobs: &[StoredJob]) -> Result<Vec<JobId>, Error> {
        let mut existing = Vec::new();
        for batch in jobs.chunks(READ_BATCH) {
            let ids: Vec<JobId> = batch.iter().map(|job| job.id).collect();
            let stored = self.engine.store().get(&ids).await?;
            existing.extend(stored.into_iter().flatten().map(|job| job.id));
        }
        Ok(existing)
    }

    /// An origin for one call: the current time and a random seed.
    pub(super) fn origin(&self) -> Origin {
        Origin {
            now: self.now(),
            seed: self.engine.ids().bits(),
            repeats: false,
        }
    }

    fn emit_fired(&self, schedule: &StoredSchedule, jobs: &[StoredJob], now: Timestamp) {
        for job in jobs {
            let occurrence = job.occurrence;
            let fired = ScheduleEvent::Fired {
                scheduled_for: occurrence.map_or(now, |occurrence| occurrence.scheduled_for),
                job: job.id,
                lag: Duration::ZERO, // the caller asked for it now
            };
            self.emit_schedule_event(schedule, fired, now);
        }
        self.engine.enqueued(jobs.iter(), now);
    }
}
