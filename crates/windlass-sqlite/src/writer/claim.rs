//! Claims: jobs start, each under a lease.

use std::collections::VecDeque;

use windlass_core::fairness::{ClaimPlan, Rate, Taken};
use windlass_core::{Job, JobId, Lane, Timestamp};
use windlass_store::stored::LastAttempt;
use windlass_store::{AttemptId, CLAIM_MAX, Claim, Claimed, WorkerLocation};

use super::{Answer, Writer};
use crate::error::{DriverError, DriverResult};
use crate::index::{ClaimOrder, Entry, Waiting};
use crate::row;

impl Writer<'_> {
    pub(crate) fn claim(&mut self, claim: &Claim, now: Timestamp) -> Answer<Claimed> {
        self.index.promote(now);
        if let Some(claimed) = self.repeated_claim(claim.id)? {
            return Ok(Ok(claimed));
        }
        let Some(queue) = self.names.known(claim.queue.as_str()) else {
            return Ok(Ok(Claimed::default()));
        };
        let rate = self.limits(&claim.queue).and_then(|limits| limits.rate);
        // With a rate limit, starts must not go back in time even if a claim has an older `now`;
        // otherwise a window of the period could hold more starts than the rate allows.
        let last = rate.and_then(|_| self.index.last_start(queue));
        let now = last.map_or(now, |last| last.max(now));
        let plan = self.plan(claim, queue, now);
        let (jobs, both_lanes_ready) = loop {
            let (chosen, both_lanes_ready) = match &claim.jobs {
                Some(named) => self.choose_named(claim, named.iter().copied(), queue, plan, now)?,
                None => self.choose(claim, queue, plan, now)?,
            };
            let chosen_count = chosen.len();
            let jobs: Vec<Job> = chosen.into_iter().flatten().collect();
            // If all chosen jobs were unreadable, they are out of the order now: choose again.
            if chosen_count == 0 || !jobs.is_empty() {
                break (jobs, both_lanes_ready);
            }
        };
        if let Some(rate) = rate.filter(|_| !jobs.is_empty()) {
            self.write_starts(queue, rate, jobs.len(), now)?;
            // Counted from the start before this one, which a rollback takes back.
            if let Some(last) = last {
                let until = last.saturating_sub(rate.period);
                self.index.forget_starts(queue, until);
            }
        }
        self.remember(claim, &jobs);
        Ok(Ok(Claimed {
            jobs,
            both_lanes_ready,
            repeated: false,
            idle_until: None,
        }))
    }

    /// Returns the plan of the claim, reduced to what the limits of the queue allow.
    fn plan(&mut self, claim: &Claim, queue: u32, now: Timestamp) -> ClaimPlan {
        let count = self.index.count(queue);
        let mut plan = claim.plan.limited_by_running(count.retries_running);
        plan.limit = plan.limit.min(u32::try_from(CLAIM_MAX).unwrap_or(u32::MAX));
        let Some(limits) = self.limits(&claim.queue).cloned() else {
            return plan;
        };
        if limits.paused.is_some() {
            plan.limit = 0;
        }
        if let Some(concurrency) = limits.concurrency {
            plan.limit = plan.limit.min(concurrency.saturating_sub(count.running));
        }
        if let Some(rate) = limits.rate {
            let started = self.index.started_since(queue, now, rate.period);
            plan.limit = plan.limit.min(rate.count.saturating_sub(started));
        }
        plan
    }

    /// Takes jobs in claim order, one by one as the plan says. `None` stands for an unreadable job.
    fn choose(
        &mut self,
        claim: &Claim,
        queue: u32,
        plan: ClaimPlan,
        now: Timestamp,
    ) -> DriverResult<(Vec<Option<Job>>, bool)> {
        let (kinds, includes) = claim.kinds.parts();
        let kinds: Vec<u32> = kinds
            .iter()
            .filter_map(|kind| self.names.known(kind.as_str()))
            .collect();
        let wants = |kind: u32| kinds.contains(&kind) == includes;
        let (mut taken, mut chosen) = (Taken::default(), Vec::new());
        let mut fresh = self
            .index
            .first_startable(queue, Lane::Fresh, wants, &claim.except, now);
        let mut retry = self
            .index
            .first_startable(queue, Lane::Retry, wants, &claim.except, now);
        let both_lanes_ready = fresh.is_some() && retry.is_some();
        while let Some(lane) = plan.next_lane(taken, fresh, retry) {
            let (order, taken) = match lane {
                Lane::Fresh => (fresh, &mut taken.fresh),
                Lane::Retry => (retry, &mut taken.retries),
            };
            let Some((_, _, id)) = order else { break };
            *taken += 1;
            let waiting = self.take_waiting(id)?;
            // A job with a concurrency key starts at once: it may fill the key, which can change
            // the next job of both lanes.
            let keyed = waiting.concurrency.is_some();
            chosen.push(if keyed {
                Chosen::Started(self.start(id, &waiting, None, claim, now)?.map(Box::new))
            } else {
                Chosen::Pending(id, waiting)
            });
            if lane == Lane::Fresh || keyed {
                fresh = self
                    .index
                    .first_startable(queue, Lane::Fresh, wants, &claim.except, now);
            }
            if lane == Lane::Retry || keyed {
                retry = self
                    .index
                    .first_startable(queue, Lane::Retry, wants, &claim.except, now);
            }
        }
        Ok((self.start_all(chosen, claim, now)?, both_lanes_ready))
    }

    /// Reads the chosen jobs, neighbours with one range scan, and gives each its lease. `None`
    /// stands for an unreadable job.
    fn start_all(
        &mut self,
        chosen: Vec<Chosen>,
        claim: &Claim,
        now: Timestamp,
    ) -> DriverResult<Vec<Option<Job>>> {
        const SCAN_MIN: usize = 4;
        let fresh = chosen.iter().filter_map(|chosen| match chosen {
            Chosen::Pending(id, waiting) if !waiting.has_state => Some(*id),
            _ => None,
        });
        let mut fresh: Vec<JobId> = fresh.collect();
        fresh.sort_unstable();
        let mut bodies: Vec<Option<Job>> = Vec::new();
        if fresh.len() >= SCAN_MIN {
            let scanned = row::scan_fresh(self.connection, &mut self.names, &fresh)?;
            fresh = scanned.iter().map(|job| job.id).collect();
            bodies = scanned.into_iter().map(Some).collect();
        }
        let mut body_of = |id: JobId| {
            let position = fresh.binary_search(&id).ok()?;
            bodies.get_mut(position)?.take()
        };
        let mut jobs = Vec::with_capacity(chosen.len());
        for chosen in chosen {
            jobs.push(match chosen {
                Chosen::Started(job) => job.map(|job| *job),
                Chosen::Pending(id, waiting) => {
                    self.start(id, &waiting, body_of(id), claim, now)?
                }
            });
        }
        Ok(jobs)
    }

    /// Takes jobs that the claim names, in claim order.
    fn choose_named(
        &mut self,
        claim: &Claim,
        named: impl Iterator<Item = JobId>,
        queue: u32,
        plan: ClaimPlan,
        now: Timestamp,
    ) -> DriverResult<(Vec<Option<Job>>, bool)> {
        let mut lanes: [Vec<ClaimOrder>; 2] = Default::default();
        for id in named {
            let Some((order, waiting)) = self.index.startable(id, now) else {
                continue;
            };
            let (lane, kind, in_queue) = (waiting.lane, waiting.kind, waiting.queue == queue);
            let kind = self.names.kind(kind);
            if in_queue && kind.is_ok_and(|kind| claim.wants(id, &kind)) {
                lanes
                    .iter_mut()
                    .skip(usize::from(lane == Lane::Retry))
                    .take(1)
                    .for_each(|lane| lane.push(order));
            }
        }
        let [fresh, retries] = &mut lanes;
        fresh.sort_unstable();
        retries.sort_unstable();
        let both_lanes_ready = !fresh.is_empty() && !retries.is_empty();
        let (mut fresh, mut retries) = (
            VecDeque::from(fresh.clone()),
            VecDeque::from(retries.clone()),
        );
        let (mut taken, mut jobs) = (Taken::default(), Vec::new());
        while let Some(lane) = plan.next_lane(taken, fresh.front(), retries.front()) {
            let order = match lane {
                Lane::Fresh => fresh.pop_front(),
                Lane::Retry => retries.pop_front(),
            };
            let Some((_, _, id)) = order else { break };
            if self.index.startable(id, now).is_none() {
                continue; // a job that was just taken filled its concurrency key
            }
            match lane {
                Lane::Fresh => taken.fresh += 1,
                Lane::Retry => taken.retries += 1,
            }
            let waiting = self.take_waiting(id)?;
            jobs.push(self.start(id, &waiting, None, claim, now)?);
        }
        Ok((jobs, both_lanes_ready))
    }

    /// Records how many jobs of a queue with a rate limit started, so that the limit holds across a
    /// restart.
    fn write_starts(
        &self,
        queue: u32,
        rate: Rate,
        count: usize,
        now: Timestamp,
    ) -> DriverResult<()> {
        let since = now.saturating_sub(rate.period).as_micros();
        self.connection
            .prepare_cached("delete from starts where queue = ?1 and at <= ?2")?
            .execute((queue, since))?;
        self.connection
            .prepare_cached("insert into starts (queue, at, count) values (?1, ?2, ?3)")?
            .execute((queue, now.as_micros(), row::sql_limit(count)))?;
        Ok(())
    }

    fn take_waiting(&mut self, id: JobId) -> DriverResult<Waiting> {
        match self.index.take(id) {
            Some(Entry::Waiting(waiting)) => Ok(waiting),
            _ => Err(DriverError::damaged(format!("job {id} is not waiting"))),
        }
    }

    /// Gives a waiting job its lease. Reads the job unless `body` has it. Returns `None` if the job
    /// is unreadable; it keeps waiting, outside of the claim order.
    fn start(
        &mut self,
        id: JobId,
        waiting: &Waiting,
        body: Option<Job>,
        claim: &Claim,
        now: Timestamp,
    ) -> DriverResult<Option<Job>> {
        let found = match body {
            Some(job) => Ok(Some(job)),
            None if waiting.has_state => self.find(id).map(|found| found.map(|(job, _)| job)),
            None => row::find_fresh(self.connection, &mut self.names, id),
        };
        if found
            .as_ref()
            .is_err_and(|error| error.unreadable().is_some())
        {
            self.index.put(id, Entry::Waiting(waiting.clone()));
        }
        let Some(found) = self.skip_unreadable(id, found)? else {
            return Ok(None);
        };
        let mut job = found.ok_or_else(|| DriverError::damaged(format!("job {id} is missing")))?;
        let lease = claim.lease_for(&job, now);
        job.claim(claim.worker.clone(), lease, now)
            .map_err(|conflict| DriverError::damaged(format!("job {id}: {conflict}")))?;
        if self
            .limits(&job.queue)
            .is_some_and(|limits| limits.rate.is_some())
        {
            self.index.note_start(waiting.queue, now);
        }
        if waiting.has_state {
            self.write(&mut job, &LastAttempt::default())?;
        } else {
            row::insert_first_state(
                &mut self.statements.insert_first_state,
                self.connection,
                &mut self.names,
                &job,
            )?;
            self.index_job(&mut job, waiting.queue, waiting.kind, true);
        }
        if claim.worker_location == WorkerLocation::Remote {
            row::set_claim(self.connection, id, claim.id)?;
        }
        Ok(Some(job))
    }

    /// Returns the answer to a claim that was made before: its attempts that still run.
    fn repeated_claim(&mut self, claim: u128) -> DriverResult<Option<Claimed>> {
        let Some(attempts) = self.claims.attempts_of(claim) else {
            return Ok(None);
        };
        let running: Vec<AttemptId> = attempts
            .iter()
            .copied()
            .filter(|attempt| self.index.running_attempt(*attempt).is_some())
            .collect();
        let mut jobs = Vec::with_capacity(running.len());
        for attempt in running {
            let found = self.find(attempt.job);
            jobs.extend(
                self.skip_unreadable(attempt.job, found)?
                    .flatten()
                    .map(|(job, _)| job),
            );
        }
        Ok(Some(Claimed {
            jobs,
            both_lanes_ready: false,
            repeated: true,
            idle_until: None,
        }))
    }

    /// Remembers a claim, in case the caller repeats it. A claim without jobs is not remembered:
    /// when repeated, it may get some.
    fn remember(&mut self, claim: &Claim, jobs: &[Job]) {
        let attempts = jobs.iter().map(|job| AttemptId {
            job: job.id,
            attempt: job.attempt,
        });
        if !jobs.is_empty() {
            self.claims
                .add(claim.worker_location, claim.id, attempts.collect());
        }
    }
}

/// A job that a claim takes. A job with a concurrency key starts at once, so that the next choice
/// sees it running; others are read and started together.
enum Chosen {
    Started(Option<Box<Job>>),
    Pending(JobId, Waiting),
}
