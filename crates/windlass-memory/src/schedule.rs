//! Schedules and their occurrences.

use windlass_core::{Job, ScheduleId, Timestamp};
use windlass_store::{
    Expected, Fire, Fired, FiredOccurrence, Schedule, ScheduleRef, UNFINISHED_SCAN_MAX, Written,
};

use crate::state::State;

impl State {
    pub(crate) fn put_schedule(&mut self, schedule: &Schedule, expected: Expected) -> Written {
        let name = &schedule.definition.name;
        let same_name = self
            .schedules
            .values()
            .find(|other| other.definition.name == *name);
        if let Some(other) = same_name.filter(|other| other.id != schedule.id) {
            return Written::Conflict(Some(other.version));
        }
        let existing = self
            .schedules
            .get(&schedule.id)
            .map(|existing| existing.version);
        if !expected.allows(existing) {
            return Written::Conflict(existing);
        }
        let version = existing.unwrap_or(0) + 1;
        let stored = Schedule {
            version,
            ..schedule.clone()
        };
        self.schedules.insert(schedule.id, stored);
        Written::Version(version)
    }

    pub(crate) fn schedules(&self) -> Vec<Schedule> {
        let mut schedules: Vec<Schedule> = self.schedules.values().cloned().collect();
        schedules.sort_by(|a, b| a.definition.name.cmp(&b.definition.name));
        schedules
    }

    pub(crate) fn schedule(&self, which: &ScheduleRef) -> Option<Schedule> {
        match which {
            ScheduleRef::Id(id) => self.schedules.get(id).cloned(),
            ScheduleRef::Name(name) => {
                let mut schedules = self.schedules.values();
                schedules
                    .find(|schedule| schedule.definition.name == *name)
                    .cloned()
            }
        }
    }

    pub(crate) fn due(&self, limit: usize, now: Timestamp) -> Vec<Schedule> {
        let is_due = |schedule: &&Schedule| schedule.next_at.is_some_and(|next| next <= now);
        let mut due: Vec<Schedule> = self.schedules.values().filter(is_due).cloned().collect();
        due.sort_by_key(|schedule| (schedule.next_at, schedule.id));
        due.truncate(limit);
        due
    }

    pub(crate) fn fire(&mut self, fire: Fire, now: Timestamp) -> Fired {
        let Some(schedule) = self.schedules.get_mut(&fire.schedule) else {
            return Fired::Stale;
        };
        if schedule.version != fire.version {
            return Fired::Stale;
        }
        schedule.version += 1;
        schedule.last_at = fire.last_at;
        schedule.next_at = fire.next_at;
        if let Some(definition) = &fire.definition {
            schedule.definition = definition.clone();
        }
        let topic = Fire::skipped_topic(fire.schedule);
        if let Some(cursor) = fire.lengthened {
            self.records.remove(&(topic.clone(), cursor));
        }
        self.append(&topic, &fire.skipped_records(), now);
        let mut created = Vec::new();
        for job in fire.jobs {
            let occurrence = job
                .occurrence
                .map(|occurrence| (occurrence.schedule_id, occurrence.scheduled_for));
            if occurrence.is_some_and(|occurrence| self.occurrences.contains_key(&occurrence)) {
                continue;
            }
            let key = job.unique.as_ref().map(|unique| &unique.key);
            let held = key.is_some_and(|key| {
                self.key_holder(&job.queue, key, now).is_some()
                    || self.removed_holder(&job.queue, key, now).is_some()
            });
            if let Some(occurrence) = occurrence {
                let fired = Some(job.id).filter(|_| !held);
                self.occurrences.insert(occurrence, fired);
            }
            if !held {
                self.take_key(&job);
                created.push(job.id);
                self.put(job);
            }
        }
        Fired::Done { jobs: created }
    }

    pub(crate) fn unfinished(&self, schedule: ScheduleId) -> Vec<Job> {
        let newest = self.occurrences(schedule, None, UNFINISHED_SCAN_MAX);
        let jobs = newest
            .into_iter()
            .filter_map(|fired| self.jobs.get(&fired.job?));
        jobs.filter(|job| !job.state().is_final())
            .cloned()
            .collect()
    }

    pub(crate) fn occurrences(
        &self,
        schedule: ScheduleId,
        before: Option<Timestamp>,
        limit: usize,
    ) -> Vec<FiredOccurrence> {
        let of_schedule = self
            .occurrences
            .range((schedule, Timestamp::MIN)..=(schedule, Timestamp::MAX));
        let older = of_schedule
            .rev()
            .filter(|((_, at), _)| before.is_none_or(|before| *at < before));
        let fired = older.map(|((_, at), job)| FiredOccurrence {
            scheduled_for: *at,
            job: *job,
        });
        fired.take(limit).collect()
    }

    pub(crate) fn remove_schedule(&mut self, schedule: ScheduleId, expected: Expected) -> Written {
        let existing = self
            .schedules
            .get(&schedule)
            .map(|existing| existing.version);
        let Some(version) = existing.filter(|_| expected.allows(existing)) else {
            return Written::Conflict(existing);
        };
        let topic = Fire::skipped_topic(schedule);
        self.records
            .retain(|(record_topic, _), _| *record_topic != topic);
        self.occurrences.retain(|(id, _), _| *id != schedule);
        self.schedules.remove(&schedule);
        Written::Version(version)
    }
}
