//! The script: 200 operations on a store, the same in every run.
//!
//! Jobs succeed, fail, die, get lost, are replayed, patched, moved, cancelled and purged; schedules
//! fire; the store is closed and opened again, and its disk is full for a moment. So the WAL starts
//! again several times, and every table and checkpoint is written in the middle of the script.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use windlass_core::schedule::{NewSchedule, SkipReason, SkippedRange};
use windlass_core::{
    ActionId, AttemptError, Delivery, Edit, Failure, Job, NewJob, Occurrence, OnDuplicate, Patch,
    Report, Revival, ScheduleId, ScheduleName, Timestamp, Unique, WorkerName,
};
use windlass_store::conformance::build::*;
use windlass_store::{
    ActionStep, AttemptId, AttemptReport, Change, Claim, Claimed, Enqueue, Expected, Fire,
    QueueLimits, Schedule, StoreError, WorkerLocation, fire_one,
};

pub(crate) const ROUNDS: u64 = 8;

/// Jobs of a round have the numbers from 100 times the round on.
const ROUND_JOBS: u64 = 100;

/// Claims with this lease end only with the sweep after the script.
const LONG_LEASE: Duration = Duration::from_secs(10_000);

/// How an attempt ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Succeeds,
    Fails,
    Dies,
    Snoozes,
}

/// One operation, which the store must do whole or not at all.
#[derive(Debug, Clone)]
pub(crate) enum Operation {
    Enqueue(Vec<Job>),
    Claim {
        jobs: Vec<u64>,
        location: WorkerLocation,
        lease: Duration,
    },
    Settle(Vec<(u64, u32, End)>),
    Change(Vec<u64>, Change, Option<ActionStep>),
    PutSchedule(Schedule),
    Fire(Fire),
    Sweep,
    PutQueue(&'static str, QueueLimits),
    PutDocument(String, u64),
    Append(u64),
    Beat(u64),
    /// Closes the store and opens it again.
    Restart,
}

#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) operation: Operation,
    pub(crate) at: Timestamp,
    pub(crate) number: u64,
    /// Whether the disk is full when the operation starts, and has space again at once.
    pub(crate) is_full_once: bool,
}

pub(crate) fn steps() -> Vec<Step> {
    let rounds = (1..=ROUNDS).flat_map(round);
    let steps = (1..).zip(rounds).map(|(number, operation)| Step {
        operation,
        at: at(number),
        number,
        is_full_once: number % 40 == 20,
    });
    steps.collect()
}

/// Schedules of the script, one for each round.
pub(crate) fn schedule_id(round: u64) -> ScheduleId {
    ScheduleId::from_u128(u128::from(round))
}

/// Actions of the script, two for each round: a replay, then a bulk action.
pub(crate) fn action_ids() -> impl Iterator<Item = ActionId> {
    (1..=ROUNDS).flat_map(|round| [replay(round).action, bulk(round).action])
}

fn round(round: u64) -> Vec<Operation> {
    use Operation::{
        Append, Beat, Change as Changing, Claim, Enqueue, PutDocument, PutQueue, Settle, Sweep,
    };
    let first = round * ROUND_JOBS;
    let job_at = |offset: u64| first + offset;
    let local = |jobs: Vec<u64>, lease: u64| Claim {
        jobs,
        location: WorkerLocation::Local,
        lease: Duration::from_secs(lease),
    };
    let remote = |jobs: Vec<u64>, lease: Duration| Claim {
        jobs,
        location: WorkerLocation::Remote,
        lease,
    };
    let large = payload(&format!("\"{}\"", "large ".repeat(4000)));
    let keyed = |number: u64| Job {
        unique: Some(Unique {
            key: key(&format!("k{round}")),
            unique_for: Some(Duration::from_secs(30)),
            on_duplicate: OnDuplicate::Keep,
        }),
        ..job(number)
    };
    let once = |number: u64| Job {
        delivery: Delivery::AtMostOnce,
        ..job(number)
    };
    let schedule = schedule(round);
    let second_version = Schedule {
        version: 2,
        last_at: Some(at(first + 1)),
        ..schedule.clone()
    };
    let limits = QueueLimits {
        max_depth: Some(1000 + round),
        ..QueueLimits::default()
    };
    let patch = Patch {
        priority: Some(3),
        ..Patch::default()
    };
    let edit = Edit {
        queue: Some(queue("other")),
        ..Edit::default()
    };
    vec![
        Enqueue(vec![
            job(job_at(0)),
            job(job_at(1)),
            Job {
                payload: large,
                ..job(job_at(2))
            },
        ]),
        Enqueue(vec![keyed(job_at(3)), once(job_at(4)), once(job_at(5))]),
        Enqueue(vec![keyed(job_at(6))]),
        local(vec![job_at(0), job_at(1), job_at(2)], 30),
        Settle(vec![
            (job_at(0), 1, End::Succeeds),
            (job_at(1), 1, End::Fails),
            (job_at(2), 1, End::Dies),
        ]),
        remote(vec![job_at(4)], Duration::from_secs(5)),
        local(vec![job_at(3)], 30),
        Settle(vec![(job_at(3), 1, End::Dies)]),
        Operation::PutSchedule(schedule.clone()),
        Operation::Fire(fire(&schedule, &[job_at(10), job_at(11)], true)),
        Operation::Fire(fire(&second_version, &[job_at(12)], false)),
        Changing(
            vec![job_at(2), job_at(3)],
            Change::Revive(Revival::default()),
            Some(replay(round)),
        ),
        remote(vec![job_at(1), job_at(2)], LONG_LEASE),
        Settle(vec![
            (job_at(1), 2, End::Snoozes),
            (job_at(2), 2, End::Succeeds),
        ]),
        Changing(
            vec![job_at(1), job_at(3)],
            Change::Patch(patch),
            Some(bulk(round)),
        ),
        PutDocument(format!("d{}", round % 3), round),
        Append(round),
        PutQueue("default", limits),
        Beat(round),
        Changing(vec![job_at(10)], Change::Cancel, None),
        Changing(vec![job_at(12)], Change::Edit(edit), None),
        Sweep,
        Changing(vec![job_at(0), job_at(10)], Change::Purge, None),
        local(vec![job_at(5), job_at(11)], 1),
        remote(vec![job_at(3)], LONG_LEASE),
        Operation::Restart,
    ]
}

fn schedule(round: u64) -> Schedule {
    let name = ScheduleName::new(&format!("s{round}")).expect("a name");
    let every = "*/5 * * * *".parse().expect("a rule");
    Schedule {
        id: schedule_id(round),
        version: 1,
        definition: NewSchedule::new(name, every, NewJob::new(kind("a"))),
        created_at: at(0),
        last_at: None,
        next_at: Some(at(10)),
    }
}

fn fire(schedule: &Schedule, numbers: &[u64], skips: bool) -> Fire {
    let fired = |number: &u64| Job {
        occurrence: Some(Occurrence {
            schedule_id: schedule.id,
            scheduled_for: at(*number),
        }),
        ..job(*number)
    };
    let skipped = SkippedRange {
        first: at(1),
        last: at(9),
        reason: SkipReason::Missed,
        count: Some(9),
    };
    Fire {
        jobs: numbers.iter().map(fired).collect(),
        skipped: skips.then_some(skipped).into_iter().collect(),
        last_at: numbers.last().map(|number| at(*number)),
        next_at: Some(at(100_000_000)),
        ..Fire::nothing(schedule)
    }
}

fn replay(round: u64) -> ActionStep {
    ActionStep {
        action: ActionId::from_u128(u128::from(2 * round)),
        frozen_at: at(1_000_000),
        is_replay: true,
        seen: BTreeMap::new(),
    }
}

fn bulk(round: u64) -> ActionStep {
    ActionStep {
        action: ActionId::from_u128(u128::from(2 * round + 1)),
        is_replay: false,
        ..replay(round)
    }
}

impl Step {
    pub(crate) fn is_restart(&self) -> bool {
        matches!(self.operation, Operation::Restart)
    }

    /// Whether a client repeats it if it got no answer. A worker in the process of the store has
    /// ended with it, and its claims are forgotten.
    pub(crate) fn can_be_repeated(&self) -> bool {
        let local = WorkerLocation::Local;
        let is_local =
            matches!(self.operation, Operation::Claim { location, .. } if location == local);
        !is_local && !self.is_restart()
    }

    /// Runs the operation. Returns the answer as text.
    pub(crate) async fn run(&self, store: &Opened) -> Result<String, StoreError> {
        let now = self.at;
        let ids = |numbers: &[u64]| numbers.iter().map(|number| id(*number)).collect::<Vec<_>>();
        Ok(match &self.operation {
            Operation::Enqueue(jobs) => {
                let created = |job: &Job| Job {
                    created_at: now,
                    run_at: now,
                    waiting_since: now,
                    ..job.clone()
                };
                let jobs = jobs.iter().map(created).collect();
                text(&store.enqueue(Enqueue::all(jobs), now).await?)
            }
            Operation::Claim {
                jobs,
                location,
                lease,
            } => {
                let claim = Claim {
                    id: u128::from(self.number),
                    jobs: Some(ids(jobs).into_iter().collect()),
                    worker_location: *location,
                    worker: WorkerName::new("w1").expect("a name"),
                    lease: *lease,
                    ..claim(10)
                };
                let claimed = store.claim(&claim, now).await?;
                // How long a queue stays idle is a hint that only some stores give.
                text(&Claimed {
                    idle_until: None,
                    ..claimed
                })
            }
            Operation::Settle(ends) => {
                let report = |(number, attempt, end): &(u64, u32, End)| AttemptReport {
                    attempt_id: AttemptId {
                        job: id(*number),
                        attempt: *attempt,
                    },
                    report: report_of(*end, now),
                    random: 0,
                    detail: None,
                };
                text(&store.settle(ends.iter().map(report).collect(), now).await?)
            }
            Operation::Change(jobs, change, step) => {
                text(&store.change(&ids(jobs), change, step.as_ref(), now).await?)
            }
            Operation::PutSchedule(schedule) => {
                text(&store.put_schedule(schedule, Expected::Absent).await?)
            }
            Operation::Fire(fire) => text(&fire_one(&**store, fire.clone(), now).await?),
            Operation::Sweep => text(&store.sweep(1000, now, 0).await.map(|_| ())?),
            Operation::PutQueue(name, limits) => {
                text(&store.put_queue(&queue(name), limits, None).await?)
            }
            Operation::PutDocument(name, value) => {
                let value = json!({"round": value});
                let put = store.put_document("points", name, &value, Expected::Any, None, now);
                text(&put.await?)
            }
            Operation::Append(value) => {
                let values = [json!({"round": value}), json!("second")];
                text(&store.append("points", &values, now).await?)
            }
            Operation::Beat(value) => {
                text(&store.beat("node", &json!({"round": value}), now).await?)
            }
            // What opening a file does to the attempts of the process that is gone: their leases
            // have expired by now, so a sweep does the same in memory.
            Operation::Restart => text(&store.sweep(1000, now, 0).await.map(|_| ())?),
        })
    }
}

fn report_of(end: End, now: Timestamp) -> Report {
    match end {
        End::Succeeds => Report::Succeeded(Some(payload("[1,2]"))),
        End::Fails => Report::Failed(Failure::retryable(AttemptError::new("refused"))),
        End::Dies => Report::Failed(Failure::unrecoverable(AttemptError::new("timed out"))),
        End::Snoozes => Report::Snoozed {
            until: now.saturating_add(Duration::from_secs(60)),
        },
    }
}

fn text(answer: &impl std::fmt::Debug) -> String {
    format!("{answer:?}")
}
