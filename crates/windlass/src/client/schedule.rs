//! Reading, changing and running schedules.

mod declare;
mod run;

use windlass_core::schedule::{Firing, NewSchedule, SkipReason, SkippedRange};
use windlass_core::{Invalid, JobId, ScheduleId, ScheduleName, Timestamp};
use windlass_engine::{Event, Origin, ScheduleEvent};
use windlass_store::{
    Change, Expected, Fire, Fired, FiredOccurrence, PAGE_MAX, RECORDS_MAX, RecordRange,
    Schedule as StoredSchedule, ScheduleRef, UnreadableSchedule, Written, compare_and_set,
    fire_one, read_skipped,
};

use super::Client;
use crate::error::Error;
use crate::schedule::Schedule;

impl Client {
    /// Creates a schedule, or changes the existing one with the same name.
    ///
    /// If the schedule is paused, it stays paused. A program normally declares its schedules with
    /// [`Worker::schedules`](crate::Worker::schedules) instead.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the definition breaks a rule; [`Error::ScheduleChanged`] if other
    /// writers keep changing the schedule.
    pub async fn put_schedule(&self, schedule: &Schedule) -> Result<ScheduleId, Error> {
        let definition = schedule.checked(self.now())?;
        until_written(&definition.name, || async {
            let found = self.find(&definition.name).await?;
            let (paused, expected) = match &found {
                None => (false, Expected::Absent),
                Some(found) => (found.definition.paused, Expected::Version(found.version)),
            };
            let desired = NewSchedule {
                paused,
                ..definition.clone()
            };
            if let Some(found) = &found
                && found.definition == desired
                && found.next_at == desired.next_at(found.created_at, found.last_at)
            {
                return Ok(found.id);
            }
            let mut written = self.write_schedule(desired.clone(), expected).await;
            if let Err(Error::ScheduleChanged { .. }) = written
                && let Some(unreadable) = self.find_unreadable(definition.name.as_str()).await?
            {
                let expected = Expected::Version(unreadable.version);
                written = self.write_schedule(desired, expected).await;
            }
            Ok(written?.id)
        })
        .await
    }

    /// Writes a schedule by name if the stored one is as `expected`.
    ///
    /// A changed rule does not fire for the past. A schedule whose stored definition cannot be read
    /// is overwritten if `expected` has its version. The size of the payload is not checked.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the definition breaks a rule; [`Error::ScheduleChanged`] if the stored
    /// schedule is not as expected.
    pub async fn write_schedule(
        &self,
        definition: NewSchedule,
        expected: Expected,
    ) -> Result<StoredSchedule, Error> {
        let origin = self.origin();
        self.write_schedule_from(definition, expected, origin).await
    }

    /// Writes a schedule like [`Client::write_schedule`], with the time and the id of an [`Origin`].
    ///
    /// The same origin creates the same schedule, so a repeated request does not create another.
    ///
    /// # Errors
    ///
    /// As [`Client::write_schedule`].
    pub async fn write_schedule_from(
        &self,
        definition: NewSchedule,
        expected: Expected,
        origin: Origin,
    ) -> Result<StoredSchedule, Error> {
        let now = origin.now;
        definition.check_with(now, usize::MAX)?;
        let found = self.find(&definition.name).await?;
        if let (None, Expected::Version(version)) = (&found, expected)
            && let Some(unreadable) = self.find_unreadable(definition.name.as_str()).await?
            && unreadable.version == version
        {
            return self.replace_unreadable(unreadable, definition, now).await;
        }
        let version = found.as_ref().map(|found| found.version);
        if !expected.allows(version) {
            return Err(changed(&definition.name, version));
        }
        match found {
            Some(found) => self.redefine(found, definition, now).await,
            None => {
                let id = origin.ids().schedule(now);
                let created = StoredSchedule {
                    id,
                    version: 0,
                    next_at: definition.next_at(now, None),
                    definition,
                    created_at: now,
                    last_at: None,
                };
                self.write(created, Expected::Absent).await
            }
        }
    }

    /// Replaces the definition of an unreadable schedule. Its missed occurrences are unknown, so none
    /// is recorded as skipped.
    async fn replace_unreadable(
        &self,
        unreadable: UnreadableSchedule,
        definition: NewSchedule,
        now: Timestamp,
    ) -> Result<StoredSchedule, Error> {
        let last_at = Some(unreadable.last_at.map_or(now, |last| last.max(now)));
        let replaced = StoredSchedule {
            id: unreadable.id,
            version: unreadable.version,
            next_at: definition.next_at(unreadable.created_at, last_at),
            definition,
            created_at: unreadable.created_at,
            last_at,
        };
        self.write(replaced, Expected::Version(unreadable.version))
            .await
    }

    /// Gives a schedule another definition.
    ///
    /// If the rule is the same, the schedule continues where it was, and due occurrences stay due.
    /// If the rule changes, the occurrences that the old rule has not fired are recorded as skipped,
    /// in the same step.
    async fn redefine(
        &self,
        mut found: StoredSchedule,
        definition: NewSchedule,
        now: Timestamp,
    ) -> Result<StoredSchedule, Error> {
        let created_at = found.created_at;
        let rule = |definition: &NewSchedule| definition.recurrence(created_at);
        let was_paused = found.definition.paused;
        let same_rule = rule(&found.definition) == rule(&definition);
        let mut skipped = None;
        if !same_rule || was_paused != definition.paused {
            let reason = if was_paused {
                SkipReason::Paused
            } else {
                SkipReason::Changed
            };
            let last = found.last_at.unwrap_or(created_at);
            let former = &found.definition;
            skipped = former.skipped_for(reason, created_at, last, now);
            found.last_at = Some(last.max(now));
        }
        found.next_at = definition.next_at(created_at, found.last_at);
        let fire = Fire {
            last_at: found.last_at,
            next_at: found.next_at,
            skipped: skipped.into_iter().collect(),
            definition: Some(definition.clone()),
            ..Fire::nothing(&found)
        };
        if fire_one(self.engine.store(), fire, now).await? == Fired::Stale {
            return Err(changed(&definition.name, None));
        }
        found.version += 1;
        found.definition = definition;
        if let Some(range) = skipped {
            self.emit_schedule_event(&found, ScheduleEvent::Skipped(range), now);
        }
        Ok(found)
    }

    async fn write(
        &self,
        schedule: StoredSchedule,
        expected: Expected,
    ) -> Result<StoredSchedule, Error> {
        let written = self.engine.store().put_schedule(&schedule, expected);
        match written.await? {
            Written::Version(version) => Ok(StoredSchedule {
                version,
                ..schedule
            }),
            Written::Conflict(version) => Err(changed(&schedule.definition.name, version)),
        }
    }

    /// Returns the schedules that will fire again or are paused, sorted by name.
    ///
    /// Schedules that have ended are left out; [`Client::schedule`] still finds them.
    pub async fn schedules(&self) -> Result<Vec<StoredSchedule>, Error> {
        let mut schedules = self.engine.store().schedules().await?.readable;
        schedules.retain(|schedule| schedule.next_at.is_some() || schedule.definition.paused);
        Ok(schedules)
    }

    /// Returns the schedules whose stored definition cannot be read, sorted by name.
    ///
    /// They do not fire, for example because their time zone no longer exists. Overwrite them with
    /// [`Client::put_schedule`], or remove them.
    pub async fn unreadable_schedules(&self) -> Result<Vec<UnreadableSchedule>, Error> {
        Ok(self.engine.store().schedules().await?.unreadable)
    }

    async fn find_unreadable(&self, name: &str) -> Result<Option<UnreadableSchedule>, Error> {
        let all = self.unreadable_schedules().await?;
        Ok(all.into_iter().find(|schedule| schedule.name == name))
    }

    /// Returns a schedule by its id or name, also if it has ended.
    pub async fn schedule(&self, which: &ScheduleRef) -> Result<Option<StoredSchedule>, Error> {
        Ok(self.engine.store().schedule(which).await?)
    }

    /// Pauses a schedule: it does not fire until it is resumed. The pause survives deploys.
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleNotFound`] if there is no schedule with this name.
    pub async fn pause_schedule(&self, name: &str) -> Result<StoredSchedule, Error> {
        self.set_paused(name, true).await
    }

    /// Resumes a paused schedule. The occurrences that it missed meanwhile are recorded as skipped.
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleNotFound`] if there is no schedule with this name.
    pub async fn resume_schedule(&self, name: &str) -> Result<StoredSchedule, Error> {
        self.set_paused(name, false).await
    }

    async fn set_paused(&self, name: &str, paused: bool) -> Result<StoredSchedule, Error> {
        let name = parse_name(name)?;
        until_written(&name, || async {
            let found = self.find_existing(&name).await?;
            self.set_schedule_paused(found, paused).await
        })
        .await
    }

    /// Pauses or resumes a schedule if it has not changed since the caller read it.
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleChanged`] if the schedule has changed.
    pub async fn set_schedule_paused(
        &self,
        found: StoredSchedule,
        paused: bool,
    ) -> Result<StoredSchedule, Error> {
        let expected = Expected::Version(found.version);
        let mut definition = found.definition.clone();
        if definition.paused == paused {
            return Ok(found);
        }
        definition.paused = paused;
        if !paused {
            return self.redefine(found, definition, self.now()).await;
        }
        // Resuming it records the occurrences that are due now as skipped.
        let paused = StoredSchedule {
            definition,
            next_at: None,
            ..found
        };
        self.write(paused, expected).await
    }

    /// Removes a schedule and returns whether it existed. Its jobs stay.
    pub async fn remove_schedule(&self, name: &str) -> Result<bool, Error> {
        let name = parse_name(name)?;
        let id = match self.find(&name).await? {
            Some(found) => Some(found.id),
            None => {
                let unreadable = self.find_unreadable(name.as_str()).await?;
                unreadable.map(|schedule| schedule.id)
            }
        };
        let Some(id) = id else {
            return Ok(false);
        };
        let removed = self.engine.store().remove_schedule(id, Expected::Any);
        Ok(matches!(removed.await?, Written::Version(_)))
    }

    /// Removes a schedule if it still has the version that the caller read, and returns whether it
    /// did. The jobs of the schedule stay.
    pub async fn remove_schedule_if(
        &self,
        id: ScheduleId,
        expected: Expected,
    ) -> Result<bool, Error> {
        let removed = self.engine.store().remove_schedule(id, expected).await?;
        Ok(matches!(removed, Written::Version(_)))
    }

    /// Removes a schedule and cancels its jobs that are not finished, those of the newest 1,000
    /// occurrences. Returns whether the schedule existed.
    pub async fn remove_schedule_and_jobs(&self, name: &str) -> Result<bool, Error> {
        let (name, store) = (parse_name(name)?, self.engine.store());
        // The version makes sure that no occurrence is fired after the jobs were listed.
        let removed = until_written(&name, || async {
            let Some(found) = self.find(&name).await? else {
                return Ok(None);
            };
            let fired = store.occurrences(found.id, None, PAGE_MAX).await?;
            let expected = Expected::Version(found.version);
            match store.remove_schedule(found.id, expected).await? {
                Written::Version(_) => Ok(Some(fired)),
                Written::Conflict(version) => Err(changed(&name, version)),
            }
        })
        .await?;
        let Some(fired) = removed else {
            return Ok(false);
        };
        let jobs: Vec<JobId> = fired.iter().filter_map(|fired| fired.job).collect();
        self.change_many(&jobs, &Change::Cancel).await?;
        Ok(true)
    }

    /// Returns the next occurrences of a schedule, as if it were not paused: at most `limit`, and at
    /// most 1000.
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleNotFound`] if there is no schedule with this name.
    pub async fn preview_schedule(&self, name: &str, limit: usize) -> Result<Vec<Firing>, Error> {
        let schedule = self.find_existing(&parse_name(name)?).await?;
        let recurrence = schedule.definition.recurrence(schedule.created_at);
        let upcoming = recurrence.after(self.now());
        Ok(upcoming.take(limit.min(PAGE_MAX)).collect())
    }

    /// Returns the occurrences of a schedule that fired, with their jobs, newest first.
    ///
    /// Returns at most `limit`, and at most 1000. With `before`, only those before that instant.
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleNotFound`] if there is no schedule with this name.
    pub async fn occurrences(
        &self,
        name: &str,
        before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Vec<FiredOccurrence>, Error> {
        let schedule = self.find_existing(&parse_name(name)?).await?;
        let store = self.engine.store();
        Ok(store.occurrences(schedule.id, before, limit).await?)
    }

    /// Returns up to `limit` ranges of skipped occurrences that begin before an instant, newest
    /// first.
    pub async fn skipped_occurrences(
        &self,
        id: ScheduleId,
        before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Vec<SkippedRange>, Error> {
        let (topic, mut cursor, mut ranges) = (Fire::skipped_topic(id), u64::MAX, Vec::new());
        while ranges.len() < limit {
            let range = RecordRange::Before(cursor);
            let page = self
                .engine
                .store()
                .records(&topic, range, RECORDS_MAX)
                .await?;
            let Some(oldest) = page.last() else { break };
            cursor = oldest.cursor;
            let skipped = page.iter().filter_map(|record| read_skipped(&record.value));
            ranges.extend(skipped.filter(|range| before.is_none_or(|before| range.first < before)));
        }
        ranges.truncate(limit);
        Ok(ranges)
    }

    fn emit_schedule_event(&self, schedule: &StoredSchedule, what: ScheduleEvent, now: Timestamp) {
        self.engine.emit(|| Event::Schedule {
            at: now,
            id: schedule.id,
            name: schedule.definition.name.clone(),
            what,
        });
    }

    async fn find(&self, name: &ScheduleName) -> Result<Option<StoredSchedule>, Error> {
        self.schedule(&ScheduleRef::Name(name.clone())).await
    }

    async fn find_existing(&self, name: &ScheduleName) -> Result<StoredSchedule, Error> {
        let found = self.find(name).await?;
        found.ok_or_else(|| Error::ScheduleNotFound(name.to_string()))
    }
}

/// Repeats a change to a schedule for as long as another writer changes it first, up to a bound.
async fn until_written<T, Step>(
    name: &ScheduleName,
    mut step: impl FnMut() -> Step,
) -> Result<T, Error>
where
    Step: Future<Output = Result<T, Error>>,
{
    let contended = || changed(name, None);
    compare_and_set(contended, || {
        let written = step();
        async {
            match written.await {
                Err(Error::ScheduleChanged { .. }) => Ok(None),
                written => written.map(Some),
            }
        }
    })
    .await
}

fn parse_name(name: &str) -> Result<ScheduleName, Invalid> {
    ScheduleName::new(name).map_err(|error| error.within("name"))
}

fn changed(name: &ScheduleName, version: Option<u64>) -> Error {
    Error::ScheduleChanged {
        name: name.to_string(),
        version,
    }
}
