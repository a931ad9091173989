//! Reading jobs, lists and counts.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use windlass_core::{Job, JobId, Lane, QueueName, State as JobState, Timestamp};
use windlass_store::{Attempt, Counts, Filter, ListCursor, Listed, ListedState, Lister, Page};

use crate::state::State;

impl State {
    pub(crate) fn get(&self, jobs: &[JobId]) -> Vec<Option<Job>> {
        jobs.iter().map(|id| self.jobs.get(id).cloned()).collect()
    }

    pub(crate) fn list(&self, filter: &Filter, page: Page, now: Timestamp) -> Listed {
        let mut positions: Vec<(ListCursor, &Job)> = self
            .jobs
            .values()
            .filter_map(|job| Some((page.position(job)?, job)))
            .filter(|(position, _)| page.after.is_none_or(|after| *position < after))
            .collect();
        positions.sort_by_key(|(position, _)| Reverse(*position));
        let mut positions = positions.into_iter();
        let mut list = Lister::new(page);
        while !list.is_full()
            && let Some((position, job)) = positions.next()
        {
            let job = Some(job).filter(|job| filter.matches(job, now));
            list.look(position, job.cloned());
        }
        list.finish()
    }

    pub(crate) fn attempts(&self, job: JobId, limit: usize) -> Vec<Attempt> {
        let rows = self.attempts.range((job, 0)..=(job, u32::MAX)).rev();
        rows.map(|(_, row)| row.clone()).take(limit).collect()
    }

    pub(crate) fn counts(&self, now: Timestamp) -> BTreeMap<QueueName, Counts> {
        let mut queues: BTreeMap<QueueName, Counts> = BTreeMap::new();
        for job in self.jobs.values() {
            let counts = queues.entry(job.queue.clone()).or_default();
            let count = match ListedState::of(job, now) {
                ListedState::Scheduled => &mut counts.scheduled,
                ListedState::Ready => {
                    let oldest = counts
                        .oldest_ready
                        .map_or(job.run_at, |at| at.min(job.run_at));
                    counts.oldest_ready = Some(oldest);
                    &mut counts.ready
                }
                ListedState::Running => &mut counts.running,
                ListedState::Succeeded => &mut counts.succeeded,
                ListedState::Dead => &mut counts.dead,
                ListedState::Cancelled => &mut counts.cancelled,
            };
            *count += 1;
            counts.retrying +=
                u64::from(job.state() == JobState::Waiting && job.lane() == Lane::Retry);
        }
        for (queue, counts) in &mut queues {
            let rate = self.queues.get(queue).and_then(|limits| limits.rate);
            let starts = self.starts.get(queue);
            let starts = starts.into_iter().flatten().map(|at| (*at, 1));
            counts.rate_until = rate.and_then(|rate| rate.used_up_until(starts, now));
        }
        queues
    }
}
