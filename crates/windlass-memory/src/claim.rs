//! Claiming jobs, each under a lease.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use windlass_core::fairness::Taken;
use windlass_core::{Job, JobId, Key, Lane, QueueName, Timestamp};
use windlass_store::{AttemptId, CLAIM_MAX, Claim, Claimed, DueQueues, PAGE_MAX};

use crate::state::State;

/// How many claims are kept to answer repeated ones.
const CLAIMS_KEPT: usize = 1024;

impl State {
    pub(crate) fn claim(&mut self, claim: &Claim, now: Timestamp) -> Claimed {
        if let Some(again) = self.claimed_before(claim.id) {
            return again;
        }
        let now = self.rate_now(&claim.queue, now);
        let mut plan = claim
            .plan
            .limited_by_running(self.retries_running(&claim.queue));
        plan.limit = plan.limit.min(self.startable(&claim.queue, now));
        let mut keys = self.running_by_key();
        let mut lanes = self.candidates(claim, now);
        lanes.drop_blocked(self, &keys);
        let both_lanes_ready = lanes.fresh.front().is_some() && lanes.retries.front().is_some();
        let (mut taken, mut jobs) = (Taken::default(), Vec::new());
        let order = |id: Option<&JobId>| id.and_then(|id| self.jobs.get(id)).map(Job::claim_order);
        while let Some(lane) = plan.next_lane(
            taken,
            order(lanes.fresh.front()),
            order(lanes.retries.front()),
        ) {
            let id = match lane {
                Lane::Fresh => lanes.fresh.pop_front(),
                Lane::Retry => lanes.retries.pop_front(),
            };
            match lane {
                Lane::Fresh => taken.fresh += 1,
                Lane::Retry => taken.retries += 1,
            }
            let Some(job) = id.and_then(|id| self.jobs.get(&id)) else {
                break;
            };
            if let Some(concurrency) = &job.concurrency {
                *keys.entry(concurrency.key.clone()).or_default() += 1;
            }
            jobs.push(job.clone());
            lanes.drop_blocked(self, &keys);
        }
        for job in &mut jobs {
            self.start(job, claim, now);
        }
        self.remember(claim.id, &jobs);
        Claimed {
            jobs,
            both_lanes_ready,
            repeated: false,
            idle_until: None,
        }
    }

    pub(crate) fn due_queues(&self, look: &DueQueues, now: Timestamp) -> Vec<QueueName> {
        let is_paused = |queue: &QueueName| {
            let limits = self.queues.get(queue);
            limits.is_some_and(|limits| limits.paused.is_some())
        };
        let is_due = |job: &Job| job.run_at <= now && look.kinds.contains(&job.kind);
        let has_due = |(queue, waiting): &(&QueueName, &BTreeSet<_>)| {
            let mut jobs = waiting.iter().filter_map(|(_, _, id)| self.jobs.get(id));
            look.names(queue) && !is_paused(queue) && jobs.any(is_due)
        };
        let due = self.waiting.iter().filter(has_due);
        let due = due.map(|(queue, _)| queue.clone());
        due.take(look.limit.min(PAGE_MAX)).collect()
    }

    fn start(&mut self, job: &mut Job, claim: &Claim, now: Timestamp) {
        let lease = claim.lease_for(job, now);
        job.claim(claim.worker.clone(), lease, now)
            .expect("only waiting jobs are candidates, and the lock is held");
        self.put(job.clone());
        if let Some(rate) = self.queues.get(&job.queue).and_then(|queue| queue.rate) {
            let starts = self.starts.entry(job.queue.clone()).or_default();
            starts.push_back(now);
            // Only here: a claim that starts nothing may be ahead of the next one.
            starts.retain(|start| now.since(*start) < rate.period);
        }
    }

    /// The jobs that the claim could take, in claim order.
    fn candidates(&self, claim: &Claim, now: Timestamp) -> Lanes {
        let mut lanes = Lanes::default();
        let waiting = self.waiting.get(&claim.queue).into_iter().flatten();
        for job in waiting.filter_map(|(_, _, id)| self.jobs.get(id)) {
            if job.is_ready(now) && claim.wants(job.id, &job.kind) {
                match job.lane() {
                    Lane::Fresh => lanes.fresh.push_back(job.id),
                    Lane::Retry => lanes.retries.push_back(job.id),
                }
            }
        }
        lanes
    }

    /// The start time of jobs that are claimed at `now`. In a queue with a rate, never before the
    /// last start.
    fn rate_now(&self, queue: &QueueName, now: Timestamp) -> Timestamp {
        let limits = self.queues.get(queue);
        let last = limits
            .and_then(|limits| limits.rate)
            .and_then(|_| self.starts.get(queue)?.back().copied());
        last.map_or(now, |last| last.max(now))
    }

    /// How many more jobs of a queue may start now.
    fn startable(&self, queue: &QueueName, now: Timestamp) -> u32 {
        let mut startable = u32::try_from(CLAIM_MAX).unwrap_or(u32::MAX);
        let Some(limits) = self.queues.get(queue) else {
            return startable;
        };
        if limits.paused.is_some() {
            return 0;
        }
        if let Some(concurrency) = limits.concurrency {
            let running = saturating_u32(self.running().filter(|job| job.queue == *queue).count());
            startable = startable.min(concurrency.saturating_sub(running));
        }
        if let Some(rate) = limits.rate {
            let starts = self.starts.get(queue).into_iter().flatten();
            let started = starts.filter(|start| now.since(**start) < rate.period);
            let started = saturating_u32(started.count());
            startable = startable.min(rate.count.saturating_sub(started));
        }
        startable
    }

    fn retries_running(&self, queue: &QueueName) -> u32 {
        let retries = self
            .running()
            .filter(|job| job.queue == *queue && job.lane() == Lane::Retry);
        saturating_u32(retries.count())
    }

    fn running_by_key(&self) -> BTreeMap<Key, u32> {
        let mut keys = BTreeMap::new();
        for concurrency in self.running().filter_map(|job| job.concurrency.as_ref()) {
            *keys.entry(concurrency.key.clone()).or_default() += 1;
        }
        keys
    }

    fn claimed_before(&self, claim: u128) -> Option<Claimed> {
        let (_, attempts) = self.claims.iter().find(|(id, _)| *id == claim)?;
        let live = attempts
            .iter()
            .filter_map(|attempt| self.running_attempt(*attempt));
        Some(Claimed {
            jobs: live.cloned().collect(),
            both_lanes_ready: false,
            repeated: true,
            idle_until: None,
        })
    }

    fn remember(&mut self, claim: u128, jobs: &[Job]) {
        let attempts = jobs.iter().map(|job| AttemptId {
            job: job.id,
            attempt: job.attempt,
        });
        if jobs.is_empty() {
            return; // a repeated claim may get jobs
        }
        self.claims.push_back((claim, attempts.collect()));
        if self.claims.len() > CLAIMS_KEPT {
            self.claims.pop_front();
        }
    }
}

/// The candidates of a claim, by lane.
#[derive(Default)]
struct Lanes {
    fresh: VecDeque<JobId>,
    retries: VecDeque<JobId>,
}

impl Lanes {
    /// Drops jobs from the front of each lane whose concurrency key is at its limit, so that the
    /// jobs after them can start.
    fn drop_blocked(&mut self, state: &State, running: &BTreeMap<Key, u32>) {
        let blocked = |id: &JobId| {
            let concurrency = state.jobs.get(id).and_then(|job| job.concurrency.as_ref());
            concurrency.is_some_and(|concurrency| {
                let count = running.get(&concurrency.key);
                count.is_some_and(|count| *count >= concurrency.limit)
            })
        };
        for lane in [&mut self.fresh, &mut self.retries] {
            while lane.front().is_some_and(blocked) {
                lane.pop_front();
            }
        }
    }
}

fn saturating_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
