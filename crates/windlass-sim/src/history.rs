//! What happened: the steps that a store applied, what clients and handlers saw, and the final
//! state of the store.
//!
//! Every event is small and hashable, so that two runs of one seed can be compared by a digest.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use windlass_core::{
    ActionId, ActionTally, Delivery, GroupKey, Job, JobId, Key, Kind, Lane, OnDuplicate, Outcome,
    QueueName, ScheduleId, State, Timestamp,
};
use windlass_store::{Attempt, AttemptId, Counts, Schedule};

/// A history: events in the order in which they happened, and the final read of the store.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The events. Steps of the store are in the order in which the store applied them.
    pub entries: Vec<Entry>,
    /// The store after the drain. `None` if there was no final read.
    pub last: Option<Final>,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    /// When it happened, by a clock that no fault changes.
    pub at: Timestamp,
    /// The node on which it happened.
    pub node: u32,
    /// What happened.
    pub event: Event,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// A client sends jobs.
    Submitted {
        /// The number of the call.
        batch: u64,
        /// Whether all or none must be stored.
        all_or_none: bool,
        /// The jobs.
        jobs: Vec<JobFacts>,
    },
    /// A client gets the answer to its jobs.
    Answered {
        /// The number of the call.
        batch: u64,
        /// The answer for each job, or `None` if the client does not know whether they are stored.
        answers: Option<Vec<EnqueueAnswer>>,
    },
    /// The store applied an enqueue.
    Enqueued {
        /// The caller's time.
        now: Timestamp,
        /// The jobs with the store's answers.
        jobs: Vec<(JobFacts, EnqueueAnswer)>,
    },
    /// The store answered a claim.
    Claimed(ClaimFacts),
    /// The store answered a renewal.
    Renewed {
        /// The caller's time.
        now: Timestamp,
        /// The attempt.
        attempt: AttemptId,
        /// The new end of the lease; `None` if it is lost.
        until: Option<Timestamp>,
    },
    /// The store answered the report of an attempt.
    Settled {
        /// The caller's time.
        now: Timestamp,
        /// The attempt.
        attempt: AttemptId,
        /// The outcome that the report asks for.
        reported: Reported,
        /// The answer.
        answer: SettleAnswer,
    },
    /// A worker saw that the store accepted the end of an attempt.
    SettleAcknowledged {
        /// The attempt.
        attempt: AttemptId,
        /// The outcome.
        outcome: Outcome,
    },
    /// The store swept.
    Swept {
        /// The caller's time.
        now: Timestamp,
        /// Attempts that ended as lost.
        lost: Vec<(AttemptId, EndFacts)>,
        /// Waiting jobs that died because their deadline had passed.
        expired: Vec<JobId>,
    },
    /// The store answered a change to one job.
    Changed {
        /// The caller's time.
        now: Timestamp,
        /// The job.
        job: JobId,
        /// The change.
        change: ChangeFacts,
        /// The action that this is a step of.
        action: Option<u128>,
        /// The answer.
        answer: ChangeAnswer,
    },
    /// The store set the limits of a queue.
    LimitsSet {
        /// The queue.
        queue: QueueName,
        /// The limits.
        limits: LimitFacts,
    },
    /// The store created or changed a schedule.
    SchedulePut(ScheduleFacts),
    /// The store fired a schedule.
    Fired(FireFacts),
    /// A handler started.
    Started {
        /// The attempt.
        attempt: AttemptId,
        /// The digest of the payload that it got.
        payload: u64,
    },
    /// A handler returned, panicked or was aborted.
    Returned {
        /// The attempt.
        attempt: AttemptId,
    },
    /// The process of a node ended at once, with all its handlers.
    Killed,
    /// A process of a node started.
    Booted,
    /// The process of a node was asked to stop. From now on, it must not claim.
    Stopping,
    /// The store was closed without warning, and opened again.
    Restarted {
        /// Attempts that ended as lost, because the processes of their workers had ended.
        lost: Vec<(AttemptId, EndFacts)>,
        /// Digests of the parts of the store before, without these attempts.
        before: Vec<(&'static str, u64)>,
        /// The same after it was opened.
        after: Vec<(&'static str, u64)>,
    },
    /// A handler did its work: an effect outside of the store, which cannot be undone.
    Effect {
        /// The attempt.
        attempt: AttemptId,
    },
    /// A client or nemesis did something that no rule needs; it is part of the digest.
    Note(&'static str, u64),
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JobFacts {
    /// The job.
    pub id: JobId,
    /// The queue.
    pub queue: QueueName,
    /// The kind.
    pub kind: Kind,
    /// The priority.
    pub priority: i16,
    /// When it is due.
    pub run_at: Timestamp,
    /// When it was created.
    pub created_at: Timestamp,
    /// The deadline.
    pub deadline: Option<Timestamp>,
    /// How often it may start.
    pub delivery: Delivery,
    /// The unique key.
    pub unique: Option<UniqueFacts>,
    /// The concurrency key and its limit.
    pub concurrency: Option<(Key, u32)>,
    /// The digest of the payload.
    pub payload: u64,
    /// The schedule and the occurrence that it was enqueued for.
    pub occurrence: Option<(ScheduleId, Timestamp)>,
}

/// A unique key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UniqueFacts {
    /// The key.
    pub key: Key,
    /// Until when the job holds it at least.
    pub until: Option<Timestamp>,
    /// Whether a duplicate replaces the payload.
    pub replaces: bool,
}

/// The answer to one enqueued job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EnqueueAnswer {
    /// The job is stored.
    Created,
    /// Another job holds its key or id.
    Duplicate(JobId),
    /// Another waiting job got its payload and time.
    Replaced(JobId),
    /// The queue is full.
    Full,
}

/// A claim and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimFacts {
    /// The caller's time.
    pub now: Timestamp,
    /// The time of the caller's clock when it sent the claim.
    pub sent_at: Timestamp,
    /// The id of the claim.
    pub id: u128,
    /// When it was sent for the first time, by a clock that no fault changes.
    pub first_sent_at: Timestamp,
    /// Whether it is for a remote worker.
    pub is_remote: bool,
    /// The share of the slots for retries, in thousandths, if fresh jobs and retries share them.
    pub retry_share: Option<u32>,
    /// The queue.
    pub queue: QueueName,
    /// The most jobs that it may get.
    pub limit: u32,
    /// Jobs that it must not get.
    pub except: Vec<JobId>,
    /// The kinds that it takes.
    pub kinds: Vec<Kind>,
    /// The length of a lease.
    pub lease: Duration,
    /// Whether the store says that it answered this claim before.
    pub repeated: bool,
    /// The jobs that it got.
    pub jobs: Vec<ClaimedJob>,
}

/// A job that a claim got.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimedJob {
    /// What the store says about it.
    pub facts: JobFacts,
    /// The number of the attempt.
    pub attempt: u32,
    /// The failed attempts before it.
    pub failures: u32,
    /// The lost attempts in a row before it.
    pub losses_in_a_row: u32,
    /// The limit of failed attempts. `None` means no limit.
    pub failures_max: Option<u32>,
    /// The limit of failed attempts that the settings of the job and its worker lead to, if known.
    pub failures_max_expected: Option<u32>,
    /// The fixed delay before each retry, if its policy has one without jitter.
    pub fixed_delay: Option<Duration>,
    /// When the attempt started.
    pub started_at: Timestamp,
    /// When the lease ends.
    pub lease_until: Timestamp,
    /// The lane that it waited in.
    pub lane: Lane,
}

/// What a report asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reported {
    /// The attempt succeeded.
    Succeeded,
    /// It failed.
    Failed,
    /// It failed, and no retry can help.
    Unrecoverable,
    /// It timed out.
    TimedOut,
    /// Its worker was lost.
    Lost,
    /// It runs again later.
    Snoozed,
    /// It was given back.
    Released,
    /// It was cancelled.
    Cancelled,
}

/// The end of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EndFacts {
    /// The outcome.
    pub outcome: Outcome,
    /// The state of the job after it.
    pub state: State,
    /// When a waiting job is due.
    pub run_at: Option<Timestamp>,
    /// The failed attempts after it.
    pub failures: u32,
}

/// The answer to a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SettleAnswer {
    /// The attempt ended.
    Done(EndFacts),
    /// The same report was written before.
    Repeated,
    /// The attempt ended in another way before.
    LeaseLost,
    /// The database refused it.
    Refused,
}

/// A change to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChangeFacts {
    /// Cancels it.
    Cancel,
    /// Revives it. At-most-once jobs may run twice only with consent.
    Revive {
        /// Whether the caller accepts that it may run twice.
        consent: bool,
        /// Whether the failures count from zero.
        resets: bool,
    },
    /// Makes it due.
    RunNow,
    /// Changes fields of a waiting job.
    Edit,
    /// Changes fields of any job that does not run.
    Patch,
    /// Marks a lost job as succeeded.
    Resolve,
    /// Removes it.
    Purge,
}

/// The answer to a change of one job.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ChangeAnswer {
    /// It is in this state now; with what it looks like.
    Now(State, Option<JobFacts>),
    /// It is removed.
    Removed,
    /// Nothing changed.
    Unchanged,
}

/// The limits of a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct LimitFacts {
    /// Whether no job may start.
    pub paused: bool,
    /// The most jobs that run at once.
    pub concurrency: Option<u32>,
    /// The most jobs that start in each period.
    pub rate: Option<(u32, Duration)>,
    /// The most jobs that wait.
    pub max_depth: Option<u64>,
}

/// A schedule with a fixed interval.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScheduleFacts {
    /// The schedule.
    pub id: ScheduleId,
    /// Its version after the write.
    pub version: u64,
    /// The interval between occurrences, counted from `created_at`.
    pub every: Option<Duration>,
    /// When it was created.
    pub created_at: Timestamp,
    /// The last occurrence.
    pub ends_at: Option<Timestamp>,
    /// The most occurrences that one pass catches up.
    pub catch_up_max: u32,
}

/// A firing and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FireFacts {
    /// The caller's time.
    pub now: Timestamp,
    /// The schedule.
    pub schedule: ScheduleId,
    /// The version that the caller saw.
    pub version: u64,
    /// The jobs of the occurrences.
    pub jobs: Vec<JobFacts>,
    /// The jobs that the store created; `None` if another node was faster.
    pub created: Option<Vec<JobId>>,
    /// The first and last of each range of skipped occurrences, and their number.
    pub skipped: Vec<(Timestamp, Timestamp, Option<usize>)>,
    /// The last occurrence that is dealt with after it.
    pub last_at: Option<Timestamp>,
}

/// The store after the drain.
#[derive(Debug, Clone, Default)]
pub struct Final {
    /// All jobs.
    pub jobs: Vec<Job>,
    /// The ended attempts of each job, oldest first, in the order of `jobs`.
    pub attempts: Vec<Vec<Attempt>>,
    /// All schedules.
    pub schedules: Vec<Schedule>,
    /// How many jobs each queue has in each state. `None` if it was not read.
    pub counts: Option<BTreeMap<QueueName, Counts>>,
    /// How many jobs each failure group has: dead and retrying. `None` if it was not read.
    pub groups: Option<BTreeMap<GroupKey, (u64, u64)>>,
    /// What the store counted for each action.
    pub tallies: BTreeMap<ActionId, ActionTally>,
}

impl JobFacts {
    /// The facts of a job.
    pub fn of(job: &Job) -> Self {
        JobFacts {
            id: job.id,
            queue: job.queue.clone(),
            kind: job.kind.clone(),
            priority: job.priority,
            run_at: job.run_at,
            created_at: job.created_at,
            deadline: job.deadline,
            delivery: job.delivery,
            unique: job.unique.as_ref().map(|unique| UniqueFacts {
                key: unique.key.clone(),
                until: job.key_until(),
                replaces: unique.on_duplicate == OnDuplicate::Replace,
            }),
            concurrency: job
                .concurrency
                .as_ref()
                .map(|concurrency| (concurrency.key.clone(), concurrency.limit)),
            payload: digest_of(job.payload.as_str()),
            occurrence: job
                .occurrence
                .map(|occurrence| (occurrence.schedule_id, occurrence.scheduled_for)),
        }
    }
}

impl History {
    /// A number that is equal for equal events.
    pub fn digest(&self) -> u64 {
        digest_of(&self.entries)
    }
}

/// A digest that is the same in every process.
pub fn digest_of(value: &(impl Hash + ?Sized)) -> u64 {
    let mut digest = Digest(0xcbf2_9ce4_8422_2325);
    value.hash(&mut digest);
    digest.finish()
}

/// FNV-1a: the hasher of the standard library is not the same in every process.
struct Digest(u64);

impl Hasher for Digest {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word)
            .wrapping_mul(0x0000_0100_0000_01b3)
            .rotate_left(29);
    }

    fn write_i64(&mut self, word: i64) {
        self.write_u64(word.cast_unsigned());
    }

    fn write_u128(&mut self, word: u128) {
        self.write_u64((word >> 64) as u64);
        self.write_u64(word as u64);
    }
}
