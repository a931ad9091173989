//! Random sequences of commands, which must get the same answers from every driver as from memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use proptest::option::weighted;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::json;
use windlass_core::fairness::{Credit, Guards, Pool, Rate, Ratio, Slots};
use windlass_core::retry::{AttemptLimit, Preset};
use windlass_core::{
    ActionId, AttemptError, Concurrency, Consent, Delivery, Edit, Failure, FailureCount, Job,
    OnDuplicate, Patch, PayloadPatch, QueuePattern, Report, Revival, RevivalChanges, State,
    Timestamp, Unique,
};

use super::build::*;
use crate::{
    ActionStep, AttemptId, AttemptReport, Change, Claim, Claimed, DueQueues, Enqueue, EnqueueMode,
    Expected, Filter, GroupFilter, Kinds, ListOrder, Listed, ListedState, Page, Pause, QueueLimits,
    RecordRange, StoreError,
};

/// How many different jobs a sequence uses.
const JOBS: u64 = 12;

/// One verb with its arguments. There are few different values, so that commands interact.
#[derive(Debug, Clone)]
pub enum Command {
    Enqueue(Vec<JobSketch>, bool),
    Claim {
        queue: u8,
        limit: u32,
        kinds: Option<bool>,
        named: Option<Vec<u64>>,
        ratio: Option<u8>,
        cap: Option<u32>,
    },
    Renew(Vec<(u64, u32)>),
    Settle(Vec<(u64, u32, u8)>, u64),
    Sweep(usize, u64),
    Cancel(Vec<u64>),
    Revive(Vec<u64>, bool, bool, Option<u8>),
    RunNow(Vec<u64>),
    Edit(u64, Option<i16>, Option<u8>),
    Resolve(Vec<u64>),
    Purge(Vec<u64>),
    /// A step of an action: which action, which change, which jobs, how long ago it was frozen.
    Step(u128, u8, Vec<u64>, u64),
    Groups,
    Tally(u128),
    ListFinished(u8),
    Limits(u8, u8),
    Counts,
    DueQueues(u8, Option<u8>, usize),
    List(Option<usize>, u8),
    Attempts(u64),
    Document(u8, u8),
    Append(u8),
    Pass(u64),
}

/// The fields of a job that vary.
#[derive(Debug, Clone)]
pub struct JobSketch {
    number: u64,
    queue: u8,
    kind: bool,
    priority: i16,
    delay: u64,
    key: Option<(bool, Option<u64>, bool)>,
    concurrency: Option<(bool, u32)>,
    deadline: Option<u64>,
    at_most_once: bool,
    limit: i64,
}

impl JobSketch {
    fn job(&self, now: Timestamp) -> Job {
        let after = |seconds: u64| now.saturating_add(Duration::from_secs(seconds));
        Job {
            queue: queue_of(self.queue),
            kind: kind(if self.kind { "a" } else { "b" }),
            priority: self.priority,
            run_at: after(self.delay),
            created_at: now,
            waiting_since: now,
            unique: self.key.map(|(which, hold, replace)| Unique {
                key: key(if which { "u1" } else { "u2" }),
                unique_for: hold.map(Duration::from_secs),
                on_duplicate: if replace {
                    OnDuplicate::Replace
                } else {
                    OnDuplicate::Keep
                },
            }),
            concurrency: self.concurrency.map(|(which, limit)| Concurrency {
                key: key(if which { "c1" } else { "c2" }),
                limit,
            }),
            deadline: self.deadline.map(after),
            delivery: if self.at_most_once {
                Delivery::AtMostOnce
            } else {
                Delivery::AtLeastOnce
            },
            max_attempts: AttemptLimit::from_max_attempts(self.limit).unwrap(),
            ..job(self.number)
        }
    }
}

fn queue_of(number: u8) -> windlass_core::QueueName {
    queue(if number == 0 { "default" } else { "other" })
}

fn reported(number: u8, now: Timestamp) -> Report {
    match number {
        0 | 1 => Report::Succeeded(Some(payload("[1]"))),
        2 => failed(),
        3 => Report::Failed(Failure::retryable(AttemptError::new("refused"))),
        4 => Report::Failed(Failure::unrecoverable(AttemptError::new("never"))),
        5 => Report::Released { started: true },
        6 => Report::Snoozed {
            until: now.saturating_add(Duration::from_secs(5)),
        },
        7 => Report::TimedOut {
            timeout: Duration::from_secs(1),
            grace: windlass_core::CANCEL_GRACE,
        },
        _ => Report::Cancelled,
    }
}

/// Runs the commands in order and returns the answers.
pub async fn run(store: &Opened, commands: &[Command]) -> Vec<String> {
    run_from(store, commands, at(0)).await
}

/// Like [`run`], one day later.
pub async fn run_later(store: &Opened, commands: &[Command]) -> Vec<String> {
    run_from(store, commands, at(86_400)).await
}

async fn run_from(store: &Opened, commands: &[Command], mut now: Timestamp) -> Vec<String> {
    let mut answers = Vec::new();
    for (step, command) in commands.iter().enumerate() {
        if let Command::Pass(seconds) = command {
            now = now.saturating_add(Duration::from_secs(*seconds));
        }
        answers.push(format!(
            "{step} {command:?} → {}",
            answer(store, command, now).await
        ));
    }
    for check in [
        Command::Groups,
        Command::Tally(0),
        Command::Tally(1),
        Command::Tally(2),
        Command::Tally(3),
        Command::Counts,
    ] {
        answers.push(answer(store, &check, now).await);
    }
    let all: Vec<_> = (0..JOBS).map(id).collect();
    answers.push(debug_text(&store.get(&all).await));
    for job in all {
        answers.push(debug_text(&store.attempts(job, 100).await));
    }
    answers
}

fn debug_text(answer: &impl Debug) -> String {
    format!("{answer:?}")
}

async fn answer(store: &Opened, command: &Command, now: Timestamp) -> String {
    let ids = |numbers: &[u64]| numbers.iter().map(|number| id(*number)).collect::<Vec<_>>();
    match command {
        Command::Enqueue(sketches, each) => {
            let jobs = sketches.iter().map(|sketch| sketch.job(now)).collect();
            let mode = if *each {
                EnqueueMode::Independent
            } else {
                EnqueueMode::AllOrNone
            };
            debug_text(&store.enqueue(Enqueue { jobs, mode }, now).await)
        }
        Command::Claim { .. } => {
            let claimed = store.claim(&claim_of(command), now).await;
            // How long a queue stays idle is a hint that only some stores give.
            debug_text(&claimed.map(|claimed| Claimed {
                idle_until: None,
                ..claimed
            }))
        }
        Command::Renew(attempts) => {
            let attempts: Vec<_> = attempts
                .iter()
                .map(|(n, attempt)| attempt_id(*n, *attempt))
                .collect();
            debug_text(&store.renew(&attempts, Duration::from_secs(20), now).await)
        }
        Command::Settle(reports, random) => {
            let report = |(number, attempt, how): &(u64, u32, u8)| AttemptReport {
                attempt_id: attempt_id(*number, *attempt),
                report: reported(*how, now),
                random: *random,
                detail: (*how == 1).then(|| json!({"status": 200})),
            };
            debug_text(
                &store
                    .settle(reports.iter().map(report).collect(), now)
                    .await,
            )
        }
        Command::Sweep(limit, random) => debug_text(&store.sweep(*limit, now, *random).await),
        Command::Cancel(jobs) => {
            debug_text(&store.change(&ids(jobs), &Change::Cancel, None, now).await)
        }
        Command::Revive(jobs, keep, force, to) => {
            let revival = Revival {
                failures: if *keep {
                    FailureCount::Keep
                } else {
                    FailureCount::Reset
                },
                consent: if *force {
                    Consent::MayRunTwice
                } else {
                    Consent::NotGiven
                },
                changes: RevivalChanges {
                    queue: to.map(queue_of),
                    ..RevivalChanges::default()
                },
                ..Revival::default()
            };
            debug_text(
                &store
                    .change(&ids(jobs), &Change::Revive(revival), None, now)
                    .await,
            )
        }
        Command::RunNow(jobs) => {
            debug_text(&store.change(&ids(jobs), &Change::RunNow, None, now).await)
        }
        Command::Edit(number, priority, to) => {
            let edit = Edit {
                priority: *priority,
                queue: to.map(queue_of),
                ..Edit::default()
            };
            debug_text(
                &store
                    .change(&[id(*number)], &Change::Edit(edit), None, now)
                    .await,
            )
        }
        Command::Resolve(jobs) => {
            debug_text(&store.change(&ids(jobs), &Change::Resolve, None, now).await)
        }
        Command::Purge(jobs) => {
            debug_text(&store.change(&ids(jobs), &Change::Purge, None, now).await)
        }
        Command::Step(number, which, jobs, ago) => {
            let as_new = |id| (id, (State::Waiting, 0));
            let step = ActionStep {
                action: ActionId::from_u128(*number),
                frozen_at: now.saturating_sub(Duration::from_secs(*ago)),
                is_replay: number % 2 == 1,
                seen: match number {
                    2 => ids(jobs).into_iter().map(as_new).collect(),
                    _ => BTreeMap::new(),
                },
            };
            let change = step_change(*which);
            debug_text(&store.change(&ids(jobs), &change, Some(&step), now).await)
        }
        Command::Groups => {
            let all = GroupFilter::default();
            debug_text(&store.failure_groups(&all, None, 100, now).await)
        }
        Command::Tally(number) => {
            debug_text(&store.action_tally(ActionId::from_u128(*number)).await)
        }
        Command::ListFinished(queue) => {
            let filter = Filter {
                queue: (*queue < 2).then(|| queue_of(*queue)),
                ..Filter::default()
            };
            let page = Page {
                order: ListOrder::Finished,
                ..Page::first(5)
            };
            listed_text(store.list(&filter, page, now).await)
        }
        Command::Limits(queue, which) => debug_text(
            &store
                .put_queue(&queue_of(*queue), &limits_of(*which, now), None)
                .await,
        ),
        Command::Counts => debug_text(&store.counts(now).await),
        Command::DueQueues(kinds, after, limit) => {
            let kinds: &[&str] = match kinds {
                0 => &["a"],
                1 => &["b"],
                _ => &["a", "b"],
            };
            let look = DueQueues {
                kinds: kinds.iter().map(|text| kind(text)).collect(),
                pattern: QueuePattern::all(),
                after: after.map(queue_of),
                limit: *limit,
            };
            debug_text(&store.due_queues(&look, now).await)
        }
        Command::List(state, queue) => {
            let filter = Filter {
                state: state.and_then(|state| ListedState::ALL.get(state).copied()),
                queue: (*queue < 2).then(|| queue_of(*queue)),
                ..Filter::default()
            };
            listed_text(store.list(&filter, Page::first(5), now).await)
        }
        Command::Attempts(number) => debug_text(&store.attempts(id(*number), 3).await),
        Command::Document(value, expected) => {
            let expected = match expected {
                0 => Expected::Absent,
                1 => Expected::Any,
                version => Expected::Version(u64::from(*version) - 1),
            };
            let expires_at = (value % 3 > 0)
                .then(|| now.saturating_add(Duration::from_secs(u64::from(*value) % 10)));
            let json = json!(value);
            let put = store.put_document("model", "d", &json, expected, expires_at, now);
            let put = put.await;
            let read = store.documents("model", now).await;
            debug_text(&(put, read, store.remove_expired(1, now).await))
        }
        Command::Append(value) => {
            store.append("model", &[json!(value)], now).await.unwrap();
            let records = store
                .records("model", RecordRange::OLDEST, 100)
                .await
                .unwrap();
            debug_text(
                &records
                    .iter()
                    .map(|record| &record.value)
                    .collect::<Vec<_>>(),
            )
        }
        Command::Pass(_) => String::new(),
    }
}

/// The page without the number of examined jobs, which differs with the indexes of a store.
fn listed_text(listed: Result<Listed, StoreError>) -> String {
    debug_text(&listed.map(|listed| (listed.jobs, listed.next)))
}

fn step_change(which: u8) -> Change {
    let payload = |json| Some(PayloadPatch::new(json).unwrap());
    match which {
        0 | 1 => Change::Revive(Revival::default()),
        2 => Change::Revive(Revival {
            failures: FailureCount::Keep,
            payload_patch: payload(json!({"patched": true})),
            ..Revival::default()
        }),
        3 => Change::Patch(Patch {
            payload: payload(json!([{"op": "move", "from": "/number", "path": "/n"}])),
            queue: Some(queue_of(1)),
            ..Patch::default()
        }),
        4 => Change::Patch(Patch {
            priority: Some(1),
            tags: Some(vec!["patched".parse().unwrap()]),
            ..Patch::default()
        }),
        5 => Change::Cancel,
        6 => Change::Purge,
        _ => Change::RunNow,
    }
}

fn attempt_id(number: u64, attempt: u32) -> AttemptId {
    AttemptId {
        job: id(number),
        attempt,
    }
}

fn claim_of(command: &Command) -> Claim {
    let Command::Claim {
        queue,
        limit,
        kinds,
        named,
        ratio,
        cap,
    } = command
    else {
        panic!("{command:?} is no claim");
    };
    let slots = Slots {
        total: *limit,
        free: *limit,
        retries_running: 0,
    };
    let guards = Guards {
        retry_fetch_ratio: ratio.map(|tenths| Ratio::new(f64::from(tenths) / 10.0).unwrap()),
        fresh_reserve: Some(0),
        max_inflight_retries: *cap,
        retry_lane: None,
    };
    Claim {
        queue: queue_of(*queue),
        kinds: match kinds {
            None => Kinds::ALL,
            Some(true) => Kinds::Only(BTreeSet::from([kind("a")])),
            Some(false) => Kinds::AllExcept(BTreeSet::from([kind("a")])),
        },
        jobs: named
            .as_ref()
            .map(|numbers| numbers.iter().map(|number| id(*number)).collect()),
        plan: guards.plan(Pool::Main, slots, Credit::default()),
        lease: Duration::from_secs(10),
        retry: worker(Preset::Standard.policy()),
        ..claim(*limit)
    }
}

fn limits_of(which: u8, now: Timestamp) -> QueueLimits {
    let none = QueueLimits::default();
    match which {
        0 => QueueLimits {
            paused: Some(Pause {
                by: "ann".into(),
                at: now,
                reason: None,
            }),
            ..none
        },
        1 => QueueLimits {
            max_depth: Some(3),
            ..none
        },
        2 => QueueLimits {
            concurrency: Some(2),
            ..none
        },
        3 => QueueLimits {
            rate: Some(Rate {
                count: 2,
                period: Duration::from_secs(3),
            }),
            ..none
        },
        _ => none,
    }
}

fn sketch() -> impl Strategy<Value = JobSketch> {
    (
        (
            0..JOBS,
            0u8..2,
            any::<bool>(),
            -2i16..3,
            prop_oneof![Just(0u64), 0u64..8],
        ),
        weighted(
            0.3,
            (any::<bool>(), proptest::option::of(0u64..10), any::<bool>()),
        ),
        weighted(0.3, (any::<bool>(), 1u32..3)),
        (
            weighted(0.2, 0u64..10),
            proptest::bool::weighted(0.2),
            0i64..3,
        ),
    )
        .prop_map(
            |(
                (number, queue, kind, priority, delay),
                key,
                concurrency,
                (deadline, at_most_once, limit),
            )| {
                JobSketch {
                    number,
                    queue,
                    kind,
                    priority,
                    delay,
                    key,
                    concurrency,
                    deadline,
                    at_most_once,
                    limit,
                }
            },
        )
}

fn command() -> impl Strategy<Value = Command> {
    let numbers = || proptest::collection::vec(0..JOBS, 1..4);
    let attempts = || proptest::collection::vec((0..JOBS, 1u32..4), 1..4);
    let reports = proptest::collection::vec((0..JOBS, 1u32..4, 0u8..9), 1..6);

    prop_oneof![
        6 => (proptest::collection::vec(sketch(), 1..4), any::<bool>())
            .prop_map(|(jobs, each)| Command::Enqueue(jobs, each)),
        6 => (0u8..2, 1u32..5, weighted(0.2, any::<bool>()), weighted(0.2, numbers()), weighted(0.8, 0u8..=10), weighted(0.2, 1u32..3))
            .prop_map(|(queue, limit, kinds, named, ratio, cap)| Command::Claim { queue, limit, kinds, named, ratio, cap }),
        2 => attempts().prop_map(Command::Renew),
        8 => (reports, any::<u64>()).prop_map(|(reports, random)| Command::Settle(reports, random)),
        2 => (0usize..4, any::<u64>()).prop_map(|(limit, random)| Command::Sweep(limit, random)),
        1 => numbers().prop_map(Command::Cancel),
        1 => (numbers(), any::<bool>(), any::<bool>(), weighted(0.3, 0u8..2))
            .prop_map(|(jobs, keep, force, to)| Command::Revive(jobs, keep, force, to)),
        1 => numbers().prop_map(Command::RunNow),
        1 => (0..JOBS, weighted(0.5, -2i16..3), weighted(0.5, 0u8..2))
            .prop_map(|(number, priority, to)| Command::Edit(number, priority, to)),
        1 => numbers().prop_map(Command::Resolve),
        1 => numbers().prop_map(Command::Purge),
        3 => (0u128..4, 0u8..8, numbers(), 0u64..10)
            .prop_map(|(action, which, jobs, ago)| Command::Step(action, which, jobs, ago)),
        2 => Just(Command::Groups),
        1 => (0u128..4).prop_map(Command::Tally),
        1 => (0u8..3).prop_map(Command::ListFinished),
        1 => (0u8..2, 0u8..8).prop_map(|(queue, which)| Command::Limits(queue, which)),
        1 => Just(Command::Counts),
        3 => (0u8..3, weighted(0.3, 0u8..2), 0usize..3)
            .prop_map(|(kinds, after, limit)| Command::DueQueues(kinds, after, limit)),
        1 => (weighted(0.7, 0usize..6), 0u8..3).prop_map(|(state, queue)| Command::List(state, queue)),
        1 => (0..JOBS).prop_map(Command::Attempts),
        1 => (any::<u8>(), 0u8..5).prop_map(|(value, expected)| Command::Document(value, expected)),
        1 => any::<u8>().prop_map(Command::Append),
        4 => (0u64..15).prop_map(Command::Pass),
    ]
}

/// Checks random sequences of commands: one for every `share` cases of a property.
///
/// The macro `proptest!` would let `PROPTEST_CASES` override this smaller number.
pub fn for_random_commands(share: u32, check: impl Fn(&[Command]) -> Result<(), TestCaseError>) {
    let config = ProptestConfig {
        cases: ProptestConfig::default().cases.div_ceil(share),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let sequences = proptest::collection::vec(command(), 1..60);
    let checked = TestRunner::new(config).run(&sequences, |commands| check(&commands));
    checked.unwrap_or_else(|error| panic!("{error}"));
}
