//! What the accepted steps of the store lead to: the state of every job, limit and schedule.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use windlass_core::{
    DeadReason, JobId, Key, Lane, Outcome, QueueName, ScheduleId, State, Timestamp,
};
use windlass_store::AttemptId;

use super::share::{self, Fetcher, Shared};
use crate::history::{
    ChangeAnswer, ChangeFacts, ClaimFacts, ClaimedJob, EndFacts, EnqueueAnswer, Entry, Event,
    JobFacts, LimitFacts, ScheduleFacts, SettleAnswer,
};

/// The claim order of a job.
pub(super) type Order = (Reverse<i16>, Timestamp, JobId);

#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) jobs: BTreeMap<JobId, Record>,
    pub(super) removed: BTreeSet<JobId>,
    pub(super) submitted: BTreeMap<JobId, JobFacts>,
    pub(super) batches: BTreeMap<u64, Vec<JobId>>,
    pub(super) limits: BTreeMap<QueueName, LimitFacts>,
    pub(super) running_by_queue: BTreeMap<QueueName, u32>,
    pub(super) running_by_key: BTreeMap<Key, u32>,
    pub(super) starts: BTreeMap<QueueName, Vec<Timestamp>>,
    pub(super) waiting: BTreeMap<(QueueName, Lane), BTreeSet<Order>>,
    pub(super) keys: BTreeMap<(QueueName, Key), BTreeSet<JobId>>,
    pub(super) schedules: BTreeMap<ScheduleId, ScheduleRecord>,
    /// Handlers that run now, by node and job.
    pub(super) handlers: BTreeMap<(u32, JobId), BTreeSet<u32>>,
    /// Which handlers started, and how often they had an effect.
    pub(super) starts_of: BTreeMap<AttemptId, u32>,
    pub(super) effects_of: BTreeMap<AttemptId, u32>,
    pub(super) acknowledged: Vec<(AttemptId, Outcome)>,
    pub(super) actions: BTreeSet<(u128, JobId)>,
    /// The nodes that were asked to stop, and when.
    pub(super) stopping: BTreeMap<u32, Timestamp>,
    pub(super) shares: BTreeMap<Fetcher, Shared>,
    /// The latest time that a caller passed to the store.
    pub(super) latest: Option<Timestamp>,
}

/// What is known of one job.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) facts: JobFacts,
    pub(super) state: State,
    pub(super) attempt: u32,
    pub(super) failures: u32,
    pub(super) is_revived: bool,
    /// How often an operator accepted that it starts again.
    pub(super) restarts: u32,
    pub(super) lease_until: Timestamp,
    pub(super) fixed_delay: Option<Duration>,
    pub(super) failures_max: Option<u32>,
    pub(super) ends: BTreeMap<u32, Outcome>,
}

#[derive(Debug, Clone)]
pub(super) struct ScheduleRecord {
    pub(super) facts: ScheduleFacts,
    pub(super) fired: BTreeSet<Timestamp>,
    pub(super) skipped: Vec<(Timestamp, Timestamp)>,
    pub(super) last_at: Option<Timestamp>,
}

impl Record {
    pub(super) fn new(facts: JobFacts) -> Self {
        Record {
            lease_until: facts.created_at,
            facts,
            state: State::Waiting,
            attempt: 0,
            failures: 0,
            is_revived: false,
            restarts: 0,
            fixed_delay: None,
            failures_max: None,
            ends: BTreeMap::new(),
        }
    }

    pub(super) fn lane(&self) -> Lane {
        if self.failures == 0 && !self.is_revived {
            Lane::Fresh
        } else {
            Lane::Retry
        }
    }

    pub(super) fn order(&self) -> Order {
        let facts = &self.facts;
        (Reverse(facts.priority), facts.run_at, facts.id)
    }

    /// Whether the job holds its unique key.
    pub(super) fn holds_key(&self, now: Timestamp) -> bool {
        let Some(unique) = &self.facts.unique else {
            return false;
        };
        match self.state {
            State::Waiting | State::Running => true,
            State::Dead(_) => false,
            State::Succeeded | State::Cancelled => unique.until.is_some_and(|until| until > now),
        }
    }

    pub(super) fn is_running(&self, attempt: u32) -> bool {
        self.state == State::Running && self.attempt == attempt
    }
}

impl Ledger {
    pub(super) fn apply(&mut self, entry: &Entry) {
        self.latest = self.latest.max(entry.event.now());
        match &entry.event {
            Event::Submitted { jobs, batch, .. } => {
                let ids = jobs.iter().map(|facts| facts.id).collect();
                self.batches.insert(*batch, ids);
                for facts in jobs {
                    self.submitted.insert(facts.id, facts.clone());
                }
            }
            Event::Enqueued { jobs, .. } => {
                for (facts, answer) in jobs {
                    self.enqueue(facts, *answer);
                }
            }
            Event::Claimed(claim) => {
                self.count_share(entry.node, claim);
                if !claim.repeated {
                    self.claim(claim);
                }
            }
            Event::Renewed { attempt, until, .. } => {
                if let Some((record, until)) = self.jobs.get_mut(&attempt.job).zip(*until) {
                    record.lease_until = until;
                }
            }
            Event::Settled {
                attempt,
                answer: SettleAnswer::Done(end),
                ..
            } => self.end(*attempt, end),
            Event::SettleAcknowledged { attempt, outcome } => {
                self.acknowledged.push((*attempt, *outcome));
            }
            Event::Swept { lost, expired, .. } => {
                for (attempt, end) in lost {
                    self.end(*attempt, end);
                }
                for job in expired {
                    self.update(*job, |record| {
                        record.state = State::Dead(DeadReason::Expired);
                    });
                }
            }
            Event::Changed {
                job,
                change,
                answer,
                action,
                ..
            } => self.change(*job, *change, *action, answer),
            Event::LimitsSet { queue, limits } => {
                self.limits.insert(queue.clone(), limits.clone());
            }
            Event::SchedulePut(facts) => self.put_schedule(facts),
            Event::Fired(fire) => {
                let Some(created) = &fire.created else {
                    return;
                };
                let record = self.schedules.get_mut(&fire.schedule);
                if let Some(record) = record {
                    record.facts.version = fire.version + 1;
                    record.last_at = fire.last_at;
                    let occurrences = fire.jobs.iter().filter_map(|facts| facts.occurrence);
                    record.fired.extend(occurrences.map(|(_, at)| at));
                    let skipped = fire.skipped.iter();
                    record
                        .skipped
                        .extend(skipped.map(|(first, last, _)| (*first, *last)));
                }
                for facts in fire.jobs.iter().filter(|job| created.contains(&job.id)) {
                    self.submitted.insert(facts.id, facts.clone());
                    self.insert(Record::new(facts.clone()));
                }
            }
            Event::Started { attempt, .. } => {
                *self.starts_of.entry(*attempt).or_default() += 1;
                let handlers = self.handlers.entry((entry.node, attempt.job)).or_default();
                handlers.insert(attempt.attempt);
            }
            Event::Returned { attempt } => {
                if let Some(handlers) = self.handlers.get_mut(&(entry.node, attempt.job)) {
                    handlers.remove(&attempt.attempt);
                }
            }
            Event::Killed => {
                self.handlers.retain(|(node, _), _| *node != entry.node);
                self.stopping.remove(&entry.node);
            }
            Event::Booted => {
                self.stopping.remove(&entry.node);
                self.shares.retain(|(node, ..), _| *node != entry.node);
            }
            Event::Stopping => {
                self.stopping.insert(entry.node, entry.at);
            }
            Event::Restarted { lost, .. } => {
                for (attempt, end) in lost {
                    self.end(*attempt, end);
                }
            }
            Event::Effect { attempt } => *self.effects_of.entry(*attempt).or_default() += 1,
            Event::Settled { .. } | Event::Answered { .. } | Event::Note(..) => {}
        }
    }

    fn enqueue(&mut self, facts: &JobFacts, answer: EnqueueAnswer) {
        match answer {
            EnqueueAnswer::Created => self.insert(Record::new(facts.clone())),
            EnqueueAnswer::Replaced(id) => self.update(id, |record| {
                record.facts.payload = facts.payload;
                record.facts.run_at = facts.run_at;
            }),
            EnqueueAnswer::Duplicate(_) | EnqueueAnswer::Full => {}
        }
    }

    fn claim(&mut self, claim: &ClaimFacts) {
        let has_rate = self
            .limits
            .get(&claim.queue)
            .is_some_and(|limits| limits.rate.is_some());
        for claimed in &claim.jobs {
            if has_rate {
                let starts = self.starts.entry(claim.queue.clone()).or_default();
                starts.push(claimed.started_at);
            }
            self.start(claimed);
        }
    }

    /// A claim that says nothing about the share may still change the account of its fetcher, so
    /// the count starts again. One that finds nothing, or no retry, changes nothing.
    fn count_share(&mut self, node: u32, claim: &ClaimFacts) {
        if claim.jobs.is_empty() && !claim.repeated {
            return;
        }
        let fetcher = share::key(node, claim);
        match share::after(self, node, claim) {
            Some(shared) => self.shares.insert(fetcher, shared),
            None => self.shares.remove(&fetcher),
        };
    }

    fn start(&mut self, claimed: &ClaimedJob) {
        self.update(claimed.facts.id, |record| {
            record.state = State::Running;
            record.attempt = claimed.attempt;
            record.lease_until = claimed.lease_until;
            record.fixed_delay = claimed.fixed_delay;
            record.failures_max = claimed.failures_max;
        });
    }

    fn end(&mut self, attempt: AttemptId, end: &EndFacts) {
        self.update(attempt.job, |record| {
            record.ends.insert(attempt.attempt, end.outcome);
            record.state = end.state;
            record.failures = end.failures;
            if let Some(run_at) = end.run_at {
                record.facts.run_at = run_at;
            }
        });
    }

    fn change(
        &mut self,
        job: JobId,
        change: ChangeFacts,
        action: Option<u128>,
        answer: &ChangeAnswer,
    ) {
        if let Some(action) = action.filter(|_| *answer != ChangeAnswer::Unchanged) {
            self.actions.insert((action, job));
        }
        match answer {
            ChangeAnswer::Unchanged => {}
            ChangeAnswer::Removed => {
                self.update(job, |record| record.state = State::Succeeded);
                self.removed.insert(job);
            }
            ChangeAnswer::Now(state, facts) => self.update(job, |record| {
                let was_lost = record.state == State::Dead(DeadReason::Lost);
                record.state = *state;
                if let Some(facts) = facts {
                    record.facts = facts.clone();
                }
                if let ChangeFacts::Revive { consent, resets } = change {
                    record.is_revived = true;
                    record.restarts += u32::from(consent || !was_lost);
                    if resets {
                        record.failures = 0;
                    }
                }
            }),
        }
    }

    fn put_schedule(&mut self, facts: &ScheduleFacts) {
        let record = self.schedules.entry(facts.id);
        let record = record.or_insert_with(|| ScheduleRecord {
            facts: facts.clone(),
            fired: BTreeSet::new(),
            skipped: Vec::new(),
            last_at: None,
        });
        record.facts = facts.clone();
    }

    fn insert(&mut self, record: Record) {
        self.index(&record, true);
        self.jobs.insert(record.facts.id, record);
    }

    /// Changes a record and keeps the indexes true.
    fn update(&mut self, job: JobId, change: impl FnOnce(&mut Record)) {
        let Some(mut record) = self.jobs.remove(&job) else {
            return;
        };
        self.index(&record, false);
        change(&mut record);
        self.index(&record, true);
        self.jobs.insert(job, record);
    }

    fn index(&mut self, record: &Record, is_added: bool) {
        let facts = &record.facts;
        if let Some(unique) = &facts.unique {
            let key = (facts.queue.clone(), unique.key.clone());
            set(self.keys.entry(key).or_default(), facts.id, is_added);
        }
        match record.state {
            State::Waiting => {
                let lane = self.waiting.entry((facts.queue.clone(), record.lane()));
                set(lane.or_default(), record.order(), is_added);
            }
            State::Running => {
                let running = self.running_by_queue.entry(facts.queue.clone());
                count(running.or_default(), is_added);
                if let Some((key, _)) = &facts.concurrency {
                    count(
                        self.running_by_key.entry(key.clone()).or_default(),
                        is_added,
                    );
                }
            }
            State::Succeeded | State::Dead(_) | State::Cancelled => {}
        }
    }
}

fn set<T: Ord>(values: &mut BTreeSet<T>, value: T, is_added: bool) {
    if is_added {
        values.insert(value);
    } else {
        values.remove(&value);
    }
}

fn count(number: &mut u32, is_added: bool) {
    *number = if is_added {
        *number + 1
    } else {
        number.saturating_sub(1)
    };
}
