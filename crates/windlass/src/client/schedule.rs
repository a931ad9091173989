//! Schedules as a program and people see and change them.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use windlass_core::schedule::{Firing, NewSchedule, SkippedRange};
use windlass_core::{Invalid, Job as StoredJob, JobId, ScheduleId, ScheduleName, Timestamp};
use windlass_engine::{Event, ScheduleEvent, occurrence_job};
use windlass_store::{
    Document, Expected, FIRE_MAX, Fire, Fired, FiredOccurrence, PAGE_MAX,
    Schedule as StoredSchedule, ScheduleRef, Written, skipped_record,
};

use super::Client;
use crate::error::Error;
use crate::schedule::Schedule;

/// The collection of documents that say which schedules a program declares.
const SETS: &str = "schedule-sets";

/// So often a change is tried that meets another one.
const TRIES: usize = 10;

impl Client {
    /// Creates a schedule, or changes the one of that name. A person's pause stays.
    pub async fn put_schedule(&self, schedule: &Schedule) -> Result<ScheduleId, Error> {
        let definition = schedule.checked(self.now())?;
        for _ in 0..TRIES {
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
            {
                return Ok(found.id);
            }
            match self.write_schedule(wanted, expected).await {
                Err(Error::ScheduleChanged { .. }) => {} // by somebody else, just now
                written => return Ok(written?.id),
            }
        }
        Err(busy(&definition.name))
    }

    /// Writes a schedule by its name, if the one that is there is what the writer believes. A rule that changes does not fire
    /// for the past.
    pub async fn write_schedule(
        &self,
        definition: NewSchedule,
        expected: Expected,
    ) -> Result<StoredSchedule, Error> {
        let now = self.now();
        definition.check(now)?;
        let found = self.find(&definition.name).await?;
        let version = found.as_ref().map(|found| found.version);
        let changed = |version| Error::ScheduleChanged {
            name: definition.name.to_string(),
            version,
        };
        if !expected.allows(version) {
            return Err(changed(version));
        }
        let mut kept = found.unwrap_or_else(|| StoredSchedule {
            id: self.engine.ids().schedule(now),
            version: 0,
            definition: definition.clone(),
            created_at: now,
            last_at: None,
            next_at: None,
        });
        kept.definition = definition.clone();
        plan(&mut kept, now);
        let believed = version.map_or(Expected::Absent, Expected::Version);
        match self.engine.store().put_schedule(&kept, believed).await? {
            Written::Version(version) => Ok(StoredSchedule { version, ..kept }),
            Written::Conflict(version) => Err(changed(version)),
        }
    }

    /// The schedules that will fire again, or are paused; by name.
    pub async fn schedules(&self) -> Result<Vec<StoredSchedule>, Error> {
        let mut schedules = self.engine.store().schedules().await?;
        schedules.retain(|one| one.next_at.is_some() || one.definition.paused);
        Ok(schedules)
    }

    /// One schedule, also one that is over.
    pub async fn schedule(&self, which: &ScheduleRef) -> Result<Option<StoredSchedule>, Error> {
        Ok(self.engine.store().schedule(which).await?)
    }

    /// A schedule does not fire until it is resumed.
    pub async fn pause_schedule(&self, name: &str) -> Result<StoredSchedule, Error> {
        self.change_schedule(name, |schedule, _| {
            schedule.definition.paused = true;
            schedule.next_at = None;
            None
        })
        .await
    }

    /// A schedule fires again. What it missed while it was paused is recorded as skipped.
    pub async fn resume_schedule(&self, name: &str) -> Result<StoredSchedule, Error> {
        self.change_schedule(name, |schedule, now| {
            if !schedule.definition.paused {
                return None;
            }
            schedule.definition.paused = false;
            let last = schedule.last_at.unwrap_or(schedule.created_at);
            let definition = &schedule.definition;
            let skipped = definition.skipped_while_paused(schedule.created_at, last, now);
            schedule.last_at = skipped.map(|range| range.last).or(schedule.last_at);
            plan(schedule, now);
            skipped
        })
        .await
    }

    /// Removes a schedule; its jobs stay. Whether it was there.
    pub async fn remove_schedule(&self, name: &str) -> Result<bool, Error> {
        match self.find(&checked(name)?).await? {
            None => Ok(false),
            Some(found) => Ok(self.engine.store().remove_schedule(found.id).await?),
        }
    }

    /// Runs the job of a schedule now, beside its occurrences: none of them is used up. A schedule that is paused runs too.
    pub async fn run_schedule_now(&self, name: &str) -> Result<JobId, Error> {
        let made = self
            .fire_extra(name, |schedule, now| {
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
        let job = made.first().map(|job| job.id);
        job.ok_or_else(|| Error::ScheduleHeld(name.to_owned()))
    }

    /// Runs the occurrences between two instants, both included, that were not fired: what was missed or skipped, or what lies
    /// before the schedule was made. At most 1000 of them. How many jobs that made.
    pub async fn backfill(
        &self,
        name: &str,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<usize, Error> {
        let made = self
            .fire_extra(name, |schedule, now| {
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

    /// Makes the schedules of a set what a program declares: creates, changes, and removes those that are gone from it.
    pub(crate) async fn declare(&self, set: &str, schedules: &[Schedule]) -> Result<(), Error> {
        let store = self.engine.store();
        let before = store.document(SETS, set).await?;
        let mut names = BTreeSet::new();
        for schedule in schedules {
            if !schedule.is_over(self.now()) {
                self.put_schedule(schedule).await?;
            }
            names.extend(schedule.name().map(ToString::to_string));
        }
        for gone in declared_before(before.as_ref(), &names) {
            self.remove_schedule(&gone).await?;
        }
        let value = json!(names);
        if before.is_none_or(|document| document.value != value) {
            store
                .put_document(SETS, set, &value, Expected::Anything, self.now())
                .await?;
        }
        Ok(())
    }

    /// Fires instants of a schedule as jobs, now, without moving it on.
    async fn fire_extra(
        &self,
        name: &str,
        instants: impl Fn(&StoredSchedule, Timestamp) -> Result<Vec<Timestamp>, Invalid>,
    ) -> Result<Vec<StoredJob>, Error> {
        let (name, store) = (checked(name)?, self.engine.store());
        for _ in 0..TRIES {
            let schedule = self.find_known(&name).await?;
            let now = self.now();
            let jobs = instants(&schedule, now)?.into_iter().map(|at| StoredJob {
                run_at: now,
                ..occurrence_job(&self.engine, &schedule, at, now)
            });
            let jobs: Vec<StoredJob> = jobs.collect();
            let fire = Fire {
                schedule: schedule.id,
                version: schedule.version,
                jobs: jobs.clone(),
                skipped: Vec::new(),
                last_at: schedule.last_at,
                next_at: schedule.next_at,
            };
            if let Fired::Done { .. } = store.fire(fire, now).await? {
                let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
                let made = store.get(&ids).await?;
                let made: Vec<StoredJob> = made.into_iter().flatten().collect();
                self.tell_fired(&schedule, &made, now);
                return Ok(made);
            }
        }
        Err(busy(&name))
    }

    fn tell_fired(&self, schedule: &StoredSchedule, made: &[StoredJob], now: Timestamp) {
        for job in made {
            self.engine.emit(|| Event::Schedule {
                at: now,
                id: schedule.id,
                name: schedule.definition.name.clone(),
                what: ScheduleEvent::Fired {
                    scheduled_for: job.occurrence.map_or(now, |of| of.scheduled_for),
                    job: job.id,
                    lag: Duration::ZERO,
                },
            });
        }
        self.engine.enqueued(made.iter(), now);
    }

    async fn change_schedule(
        &self,
        name: &str,
        change: impl Fn(&mut StoredSchedule, Timestamp) -> Option<SkippedRange>,
    ) -> Result<StoredSchedule, Error> {
        let (name, store) = (checked(name)?, self.engine.store());
        for _ in 0..TRIES {
            let mut schedule = self.find_known(&name).await?;
            let expected = Expected::Version(schedule.version);
            let now = self.now();
            let skipped = change(&mut schedule, now);
            let Written::Version(version) = store.put_schedule(&schedule, expected).await? else {
                continue;
            };
            if let Some(range) = skipped {
                let record = skipped_record(schedule.id, &range);
                store.append(Fire::SKIPPED_TOPIC, &[record], now).await?;
            }
            return Ok(StoredSchedule {
                version,
                ..schedule
            });
        }
        Err(busy(&name))
    }

    async fn find(&self, name: &ScheduleName) -> Result<Option<StoredSchedule>, Error> {
        self.schedule(&ScheduleRef::Name(name.clone())).await
    }

    async fn find_known(&self, name: &ScheduleName) -> Result<StoredSchedule, Error> {
        let found = self.find(name).await?;
        found.ok_or_else(|| Error::NoSchedule(name.to_string()))
    }
}

fn checked(name: &str) -> Result<ScheduleName, Invalid> {
    ScheduleName::new(name).map_err(|error| error.within("name"))
}

/// The names that a set had and no longer has.
fn declared_before(before: Option<&Document>, names: &BTreeSet<String>) -> Vec<String> {
    let listed = before.and_then(|document| document.value.as_array());
    let known = listed.into_iter().flatten().filter_map(Value::as_str);
    let gone = known.filter(|name| !names.contains(*name));
    gone.map(str::to_owned).collect()
}

/// Works out when a schedule is due next, if it is not paused.
fn plan(schedule: &mut StoredSchedule, now: Timestamp) {
    let recurrence = schedule.definition.recurrence(schedule.created_at);
    let from = schedule.last_at.map_or(now, |last| last.max(now));
    let next = recurrence.next(from).map(|firing| firing.at);
    schedule.next_at = next.filter(|_| !schedule.definition.paused);
    schedule.last_at = Some(from);
}

fn busy(name: &ScheduleName) -> Error {
    let rule = format!("{name} is changed by others all the time: try again");
    Invalid::new("schedule", rule).into()
}
