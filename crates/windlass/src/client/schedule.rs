//! Schedules as a program and people see and change them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use windlass_core::schedule::{Firing, NewSchedule, SkipReason};
use windlass_core::{Invalid, Job as StoredJob, JobId, ScheduleId, ScheduleName, Timestamp};
use windlass_engine::{Event, Extra, Origin, ScheduleEvent, extra_job};
use windlass_store::{
    Document, Expected, FIRE_MAX, Fire, Fired, FiredOccurrence, PAGE_MAX,
    Schedule as StoredSchedule, ScheduleRef, UnreadableSchedule, Written, compare_and_set,
};

use super::Client;
use crate::error::Error;
use crate::schedule::Schedule;

/// The collection of documents that say which schedules a program declares.
const SETS: &str = "schedule-sets";

/// The most jobs that are read in one step: each may carry a large payload.
const READ_AT_ONCE: usize = 10;

impl Client {
    /// Creates a schedule, or changes the one of that name. A person's pause stays.
    pub async fn put_schedule(&self, schedule: &Schedule) -> Result<ScheduleId, Error> {
        let definition = schedule.checked(self.now())?;
        until_written(&definition.name, || async {
            let found = self.find(&definition.name).await?;
            let (paused, expected) = match &found {
                None => (false, Expected::Absent),
                Some(found) => (found.definition.paused, Expected::Version(found.version)),
            };
            let wanted = NewSchedule {
                paused,
                ..definition.clone()
            };
            if let Some(found) = &found
                && found.definition == wanted
                && found.next_at == wanted.next_at(found.created_at, found.last_at)
            {
                return Ok(found.id);
            }
            let mut written = self.write_schedule(wanted.clone(), expected).await;
            if let Err(Error::ScheduleChanged { .. }) = written
                && let Some(unreadable) = self.find_unreadable(definition.name.as_str()).await?
            {
                let expected = Expected::Version(unreadable.version);
                written = self.write_schedule(wanted, expected).await;
            }
            Ok(written?.id)
        })
        .await
    }

    /// Writes a schedule by its name, if the one that is there is what the writer believes. A rule that changes does not fire
    /// for the past. One that cannot be read any more is written anew, if its version is given. How large a payload may be is
    /// the caller's to check.
    pub async fn write_schedule(
        &self,
        definition: NewSchedule,
        expected: Expected,
    ) -> Result<StoredSchedule, Error> {
        let origin = self.origin();
        self.write_schedule_from(definition, expected, origin).await
    }

    /// The same, with the time and, where the schedule is new, the id that come from an origin.
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
            return self.write_anew(unreadable, definition, now).await;
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

    /// Gives a schedule that cannot be read a definition. What the former one did not fire is not known.
    async fn write_anew(
        &self,
        unreadable: UnreadableSchedule,
        definition: NewSchedule,
        now: Timestamp,
    ) -> Result<StoredSchedule, Error> {
        let last_at = Some(unreadable.last_at.map_or(now, |last| last.max(now)));
        let anew = StoredSchedule {
            id: unreadable.id,
            version: unreadable.version,
            next_at: definition.next_at(unreadable.created_at, last_at),
            definition,
            created_at: unreadable.created_at,
            last_at,
        };
        self.write(anew, Expected::Version(unreadable.version))
            .await
    }

    /// Gives a schedule another definition. The same rule goes on where it was, and what is due stays due; of another rule,
    /// what the former one did not fire is recorded as skipped, in the same step.
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
            let reason = match was_paused {
                true => SkipReason::Paused,
                false => SkipReason::Changed,
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
        if self.engine.store().fire(fire, now).await? == Fired::Stale {
            return Err(changed(&definition.name, None));
        }
        found.version += 1;
        found.definition = definition;
        if let Some(range) = skipped {
            self.tell_schedule(&found, ScheduleEvent::Skipped(range), now);
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

    /// The schedules that will fire again, or are paused; by name.
    pub async fn schedules(&self) -> Result<Vec<StoredSchedule>, Error> {
        let mut schedules = self.engine.store().schedules().await?.readable;
        schedules.retain(|one| one.next_at.is_some() || one.definition.paused);
        Ok(schedules)
    }

    /// The schedules whose definition cannot be read any more, by name. They do not fire; they can be put anew, or removed.
    pub async fn unreadable_schedules(&self) -> Result<Vec<UnreadableSchedule>, Error> {
        Ok(self.engine.store().schedules().await?.unreadable)
    }

    async fn find_unreadable(&self, name: &str) -> Result<Option<UnreadableSchedule>, Error> {
        let all = self.unreadable_schedules().await?;
        Ok(all.into_iter().find(|one| one.name == name))
    }

    /// One schedule, also one that is over.
    pub async fn schedule(&self, which: &ScheduleRef) -> Result<Option<StoredSchedule>, Error> {
        Ok(self.engine.store().schedule(which).await?)
    }

    /// A schedule does not fire until it is resumed.
    pub async fn pause_schedule(&self, name: &str) -> Result<StoredSchedule, Error> {
        self.set_paused(name, true).await
    }

    /// A schedule fires again. What it missed while it was paused is recorded as skipped.
    pub async fn resume_schedule(&self, name: &str) -> Result<StoredSchedule, Error> {
        self.set_paused(name, false).await
    }

    async fn set_paused(&self, name: &str, paused: bool) -> Result<StoredSchedule, Error> {
        let name = checked(name)?;
        until_written(&name, || async {
            let found = self.find_known(&name).await?;
            self.set_schedule_paused(found, paused).await
        })
        .await
    }

    /// Pauses or resumes a schedule, if it is still what the caller found.
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
        // What is due now is dealt with when it is resumed.
        let kept = StoredSchedule {
            definition,
            next_at: None,
            ..found
        };
        self.write(kept, expected).await
    }

    /// Removes a schedule; its jobs stay. Whether it was there.
    pub async fn remove_schedule(&self, name: &str) -> Result<bool, Error> {
        let name = checked(name)?;
        let id = match self.find(&name).await? {
            Some(found) => Some(found.id),
            None => self.find_unreadable(name.as_str()).await?.map(|one| one.id),
        };
        let Some(id) = id else {
            return Ok(false);
        };
        let removed = self.engine.store().remove_schedule(id, Expected::Anything);
        Ok(matches!(removed.await?, Written::Version(_)))
    }

    /// Runs the job of a schedule now, in addition to its occurrences. A paused schedule runs too.
    ///
    /// `overlap` ignores this run: it never causes an occurrence to be skipped, queued or cancelled.
    pub async fn run_schedule_now(&self, name: &str) -> Result<JobId, Error> {
        self.run_schedule_now_from(name, self.origin()).await
    }

    /// The same, with the time and the id that come from an origin: the same one again makes no second job.
    pub async fn run_schedule_now_from(&self, name: &str, origin: Origin) -> Result<JobId, Error> {
        let made = self
            .fire_extra(name, Extra::RunNow, origin, |schedule, now| {
                // Its instant is nobody else's: not that of an occurrence.
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
        let job = made.first().copied();
        job.ok_or_else(|| Error::ScheduleHeld(name.to_owned()))
    }

    /// Runs the occurrences between two instants, both included, that were not fired: what was missed or skipped, or what lies
    /// before the schedule was made. At most 1000 of them. How many jobs that made.
    ///
    /// `overlap` ignores these runs: they never cause a later occurrence to be skipped, queued or cancelled. Under
    /// [`Overlap::Queue`](crate::schedule::Overlap::Queue) they run one after the other.
    pub async fn backfill(
        &self,
        name: &str,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<usize, Error> {
        self.backfill_from(name, from, to, self.origin()).await
    }

    /// The same, with the time and the ids that come from an origin: the same one again tells the same number.
    pub async fn backfill_from(
        &self,
        name: &str,
        from: Timestamp,
        to: Timestamp,
        origin: Origin,
    ) -> Result<usize, Error> {
        let made = self
            .fire_extra(name, Extra::Backfill, origin, |schedule, now| {
                if to > now {
                    return Err(Invalid::new("to", "must not lie in the future"));
                }
                let (definition, created_at) = (&schedule.definition, schedule.created_at);
                definition.occurrences_between(created_at, from, to, FIRE_MAX)
            })
            .await?;
        Ok(made.len())
    }

    /// The next occurrences of a schedule, as if it were not paused; at most 1000.
    pub async fn preview_schedule(&self, name: &str, most: usize) -> Result<Vec<Firing>, Error> {
        let schedule = self.find_known(&checked(name)?).await?;
        let recurrence = schedule.definition.recurrence(schedule.created_at);
        let upcoming = recurrence.after(self.now());
        Ok(upcoming.take(most.min(PAGE_MAX)).collect())
    }

    /// The occurrences of a schedule that were fired before an instant, newest first; at most 1000.
    pub async fn occurrences(
        &self,
        name: &str,
        before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Vec<FiredOccurrence>, Error> {
        let schedule = self.find_known(&checked(name)?).await?;
        let store = self.engine.store();
        Ok(store.occurrences(schedule.id, before, limit).await?)
    }

    /// Makes the schedules of some sets what a program declares: creates, changes, and removes what a set declared before and
    /// no set does any more.
    pub(crate) async fn declare(&self, sets: &[(String, Vec<Schedule>)]) -> Result<(), Error> {
        let store = self.engine.store();
        let before = store.documents(SETS, self.now()).await?;
        let mut declared: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for (set, schedules) in sets {
            let names = declared.entry(set).or_default();
            for schedule in schedules {
                self.declare_one(schedule).await?;
                names.extend(schedule.name().map(ToString::to_string));
            }
        }
        let is_ours = |one: &&Document| declared.contains_key(one.name.as_str());
        let (ours, others): (Vec<_>, Vec<_>) = before.iter().partition(is_ours);
        let mut kept: BTreeSet<&str> = others.into_iter().flat_map(names_in).collect();
        kept.extend(declared.values().flatten().map(String::as_str));
        for gone in ours.into_iter().flat_map(names_in) {
            if !kept.contains(gone) {
                self.remove_schedule(gone).await?;
            }
        }
        for (set, names) in &declared {
            let value = json!(names);
            let found = before.iter().find(|one| one.name == *set);
            if found.is_none_or(|document| document.value != value) {
                store
                    .put_document(SETS, set, &value, Expected::Anything, None, self.now())
                    .await?;
            }
        }
        Ok(())
    }

    /// Code may still declare what has fired long ago: such a schedule is not created, and one that is there ends.
    async fn declare_one(&self, schedule: &Schedule) -> Result<(), Error> {
        if !schedule.is_over(self.now()) {
            self.put_schedule(schedule).await?;
            return Ok(());
        }
        let Some(name) = schedule.name() else {
            return Ok(());
        };
        until_written(name, || async {
            let found = self.find(name).await?;
            let Some(mut found) = found.filter(|found| found.next_at.is_some()) else {
                return Ok(());
            };
            let expected = Expected::Version(found.version);
            found.next_at = None;
            self.write(found, expected).await.map(|_| ())
        })
        .await
    }

    /// Fires instants of a schedule as jobs, now, without moving it on.
    async fn fire_extra(
        &self,
        name: &str,
        extra: Extra,
        origin: Origin,
        instants: impl Fn(&StoredSchedule, Timestamp) -> Result<Vec<Timestamp>, Invalid>,
    ) -> Result<Vec<JobId>, Error> {
        let (name, store, now) = (checked(name)?, self.engine.store(), origin.now);
        until_written(&name, || async {
            let schedule = self.find_known(&name).await?;
            let ids = origin.ids();
            let jobs = instants(&schedule, now)?.into_iter().map(|at| {
                let mut job = extra_job(&self.engine, &schedule, extra, at, now);
                job.id = ids.job(now);
                job
            });
            let mut jobs: Vec<StoredJob> = jobs.collect();
            // An earlier try may have made them. One that does so from here on changes the schedule: then this step is stale.
            let mut all = match origin.repeats {
                true => self.already_made(&jobs).await?,
                false => Vec::new(),
            };
            jobs.retain(|job| !all.contains(&job.id));
            if jobs.is_empty() {
                return Ok(all);
            }
            let fire = Fire {
                jobs: jobs.clone(),
                ..Fire::nothing(&schedule)
            };
            if let Fired::Done { jobs: made } = store.fire(fire, now).await? {
                jobs.retain(|job| made.contains(&job.id));
                self.tell_fired(&schedule, &jobs, now);
                all.extend(made);
                return Ok(all);
            }
            Err(changed(&name, None))
        })
        .await
    }

    /// Those of these jobs that are in the store.
    async fn already_made(&self, jobs: &[StoredJob]) -> Result<Vec<JobId>, Error> {
        let mut made = Vec::new();
        for part in jobs.chunks(READ_AT_ONCE) {
            let ids: Vec<JobId> = part.iter().map(|job| job.id).collect();
            let found = self.engine.store().get(&ids).await?;
            made.extend(found.into_iter().flatten().map(|job| job.id));
        }
        Ok(made)
    }

    /// Now, with ids that nobody else makes.
    fn origin(&self) -> Origin {
        Origin {
            now: self.now(),
            seed: self.engine.ids().bits(),
            repeats: false,
        }
    }

    fn tell_fired(&self, schedule: &StoredSchedule, made: &[StoredJob], now: Timestamp) {
        for job in made {
            let fired = ScheduleEvent::Fired {
                scheduled_for: job.occurrence.map_or(now, |of| of.scheduled_for),
                job: job.id,
                lag: Duration::ZERO, // it was asked for now
            };
            self.tell_schedule(schedule, fired, now);
        }
        self.engine.enqueued(made.iter(), now);
    }

    fn tell_schedule(&self, schedule: &StoredSchedule, what: ScheduleEvent, now: Timestamp) {
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

    async fn find_known(&self, name: &ScheduleName) -> Result<StoredSchedule, Error> {
        let found = self.find(name).await?;
        found.ok_or_else(|| Error::NoSchedule(name.to_string()))
    }
}

/// Repeats a change of a schedule that another writer came before.
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

fn checked(name: &str) -> Result<ScheduleName, Invalid> {
    ScheduleName::new(name).map_err(|error| error.within("name"))
}

/// The names that a set declares.
fn names_in(set: &Document) -> impl Iterator<Item = &str> {
    let listed = set.value.as_array();
    listed.into_iter().flatten().filter_map(Value::as_str)
}

fn changed(name: &ScheduleName, version: Option<u64>) -> Error {
    Error::ScheduleChanged {
        name: name.to_string(),
        version,
    }
}
