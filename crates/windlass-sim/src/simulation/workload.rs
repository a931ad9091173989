//! What clients and operators do: submit jobs, change them, pause queues, start actions.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass_core::fairness::Rate;
use windlass_core::retry::{Backoff, Jitter, RetryPolicy};
use windlass_core::schedule::{Expression, Missed, NewSchedule, Overlap};
use windlass_core::{
    BulkChange, Concurrency, Consent, Deadline, Delivery, Edit, Filter, Job, JobId, Key, Kind,
    ListedState, NewJob, OnDuplicate, Payload, Random, ReplayRules, Revival, ScheduleName, Start,
    Timeout, Unique,
};
use windlass_engine::{Actions, Actor, Engine, NewAction, Work};
use windlass_store::{Change, EnqueueMode, Expected, Pause, QueueLimits, Schedule, StoreError};

use super::handler::Script;
use super::node::{KINDS, QUEUES, constant, queue};
use super::plan::{CHAOS, Ingredient, Plan, below, time_below};
use super::tap::enqueue_answer;
use super::world::{NOBODY, World, beginning, lock};
use crate::history::{Event, JobFacts};

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(6);

/// The ids of submitted jobs.
pub(crate) type Submitted = Arc<Mutex<Vec<JobId>>>;

/// What a client or operator does at some time.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Act {
    /// Submits these jobs: the first and the number.
    Submit(u32, u32),
    /// Changes a job.
    Change(u64),
    /// Pauses or resumes a queue.
    Pause(u64),
    /// Starts a bulk action or a replay.
    Action(u64),
    /// Creates a schedule.
    Schedule(u64),
}

/// All acts with their times, in order.
pub(crate) fn acts(plan: &Plan) -> Vec<(Duration, Act)> {
    let mut acts = Vec::new();
    let mut random = plan.stream("batches", 0);
    let mut first = 0;
    while first < plan.jobs {
        let many = (1 + u32::try_from(below(&mut random, 8)).unwrap_or(0)).min(plan.jobs - first);
        let at = time_below(&mut random, CHAOS * 3 / 4);
        acts.push((at, Act::Submit(first, many)));
        first += many;
    }
    let mut random = plan.stream("operators", 0);
    let mut add = |one: Ingredient, most: u64, act: fn(u64) -> Act| {
        for _ in 0..most {
            let (at, bits) = (time_below(&mut random, CHAOS), random.bits());
            if plan.has(one) {
                acts.push((at, act(bits)));
            }
        }
    };
    add(Ingredient::Operators, 30, Act::Change);
    add(Ingredient::Pauses, 4, Act::Pause);
    add(Ingredient::Actions, 2, Act::Action);
    add(Ingredient::Schedules, 3, Act::Schedule);
    acts.sort_by_key(|(at, _)| *at);
    acts
}

/// Does one thing through one node.
pub(crate) async fn perform(
    plan: Arc<Plan>,
    world: Arc<World>,
    engine: Arc<Engine>,
    submitted: Submitted,
    act: Act,
) {
    let done = async {
        match act {
            Act::Submit(first, many) => {
                submit(&plan, &world, &engine, &submitted, first, many).await
            }
            Act::Change(bits) => change(&world, &engine, &submitted, bits).await,
            Act::Pause(bits) => pause(&engine, bits).await,
            Act::Action(bits) => start_action(&plan, &engine, bits).await,
            Act::Schedule(bits) => create_schedule(&engine, bits).await,
        }
    };
    // The process that a client talks to may be dead or stopped.
    let _ = tokio::time::timeout(PATIENCE, done).await;
}

async fn submit(
    plan: &Plan,
    world: &World,
    engine: &Engine,
    submitted: &Submitted,
    first: u32,
    many: u32,
) {
    let now = engine.now();
    let jobs: Vec<Job> = (first..first + many)
        .map(|number| new_job(plan, number).into_stored_job(engine.ids().job(now), now))
        .collect();
    lock(submitted).extend(jobs.iter().map(|job| job.id));
    let mode = if many.is_multiple_of(2) {
        EnqueueMode::AllOrNone
    } else {
        EnqueueMode::Independent
    };
    let batch = u64::from(first);
    world.record(
        NOBODY,
        Event::Submitted {
            batch,
            all_or_none: mode == EnqueueMode::AllOrNone,
            jobs: jobs.iter().map(JobFacts::of).collect(),
        },
    );
    let answers = engine.enqueue(jobs, mode).await.ok();
    let answers = answers.map(|answers| answers.iter().map(enqueue_answer).collect());
    world.record(NOBODY, Event::Answered { batch, answers });
}

fn new_job(plan: &Plan, number: u32) -> NewJob {
    let mut random = plan.stream("job", u64::from(number));
    let mut draw = |limit| below(&mut random, limit);
    let kind = KINDS[draw(3) as usize % KINDS.len()];
    let mut job = NewJob::new(Kind::new(kind).expect("a valid kind"));
    job.queue = queue(QUEUES[[0, 0, 1, 2][draw(4) as usize % 4]]);
    job.timeout = Some(Timeout::After(Duration::from_secs(if draw(3) == 0 {
        2
    } else {
        12
    })));
    let (later, priority, once, late) = (draw(4), draw(5), draw(4), draw(8));
    let (unique, keyed, policy) = (draw(5), draw(5), draw(4));
    let (unique_key, unique_for, replace) = (draw(6), draw(3), draw(3));
    let (concurrency_key, delay) = (draw(2), draw(4000));
    if later == 0 {
        job.start = Start::After(Duration::from_millis(delay));
    }
    if plan.has(Ingredient::Priorities) {
        job.priority = [0, 0, 0, 5, -3][priority as usize % 5];
    }
    if plan.has(Ingredient::AtMostOnce) && once == 0 {
        job.delivery = Delivery::AtMostOnce;
    }
    if plan.has(Ingredient::Deadlines) && late == 0 {
        job.deadline = Some(Deadline::After(Duration::from_millis(500 + delay)));
    }
    if plan.has(Ingredient::Policies) && policy == 0 {
        job.retry = Some(Arc::new(exponential()));
    } else if plan.has(Ingredient::Policies) && policy == 1 {
        job.retry = Some(Arc::new(constant(
            Duration::from_millis(200 + delay / 4),
            3,
        )));
    }
    if plan.has(Ingredient::Unique) && unique == 0 {
        job.unique = Some(Unique {
            key: Key::new(&format!("u{unique_key}")).expect("a valid key"),
            unique_for: (unique_for == 0).then_some(Duration::from_secs(4)),
            on_duplicate: if replace == 0 {
                OnDuplicate::Replace
            } else {
                OnDuplicate::Keep
            },
        });
    }
    if plan.has(Ingredient::Keys) && keyed == 0 {
        job.concurrency = Some(Concurrency {
            key: Key::new(&format!("c{concurrency_key}")).expect("a valid key"),
            limit: 2,
        });
    }
    let script = script(plan, &mut random, number);
    job.payload = Payload::from_serialize(&script, 1000).expect("a short payload");
    job
}

fn exponential() -> RetryPolicy {
    let backoff = Backoff::Exponential {
        base: Duration::from_millis(200),
        multiplier: 2.0,
        max: Duration::from_secs(2),
    };
    let policy = RetryPolicy::new(backoff, Jitter::Full);
    let policy = policy.and_then(|policy| policy.with_max_attempts(4));
    policy.expect("a valid policy")
}

fn script(plan: &Plan, random: &mut Random, number: u32) -> Script {
    let mut acts = String::new();
    for _ in 0..below(random, 4) {
        let act = match below(random, 24) {
            0..=7 => 'f',
            8 if plan.has(Ingredient::Panic) => 'p',
            9 if plan.has(Ingredient::Hang) => 'h',
            10 if plan.has(Ingredient::Hang) => 'c',
            11 | 12 if plan.has(Ingredient::Slow) => 'w',
            13 | 14 if plan.has(Ingredient::Snoozes) => 'z',
            15 => 'u',
            _ => break,
        };
        acts.push(act);
    }
    acts.push(if below(random, 12) == 0 { 'f' } else { 's' });
    let ms = [0, 0, 5, 50, 300][below(random, 5) as usize % 5];
    Script {
        n: number,
        acts,
        ms,
    }
}

async fn change(world: &World, engine: &Engine, submitted: &Submitted, bits: u64) {
    let mut random = Random::new(bits);
    let job = {
        let ids = lock(submitted);
        if ids.is_empty() {
            return;
        }
        let index = below(&mut random, ids.len() as u64) as usize;
        ids.get(index).copied()
    };
    let Some(job) = job else { return };
    let change = match below(&mut random, 8) {
        0..=2 => Change::Cancel,
        3 | 4 => Change::Revive(Revival {
            consent: if below(&mut random, 2) == 0 {
                Consent::MayRunTwice
            } else {
                Consent::NotGiven
            },
            ..Revival::default()
        }),
        5 => Change::RunNow,
        6 => Change::Edit(Edit {
            priority: Some(7),
            ..Edit::default()
        }),
        _ => Change::Purge,
    };
    let done = engine.change(&[job], &change).await;
    world.record(NOBODY, Event::Note("change", u64::from(done.is_ok())));
}

async fn pause(engine: &Engine, bits: u64) {
    let queue = queue(QUEUES[(bits % 3) as usize % QUEUES.len()]);
    // Without its answer no one knows; the run resumes all queues when the faults end.
    let _ = toggle(engine, &queue, bits & 8 == 0).await;
}

pub(crate) async fn toggle(
    engine: &Engine,
    queue: &windlass_core::QueueName,
    is_paused: bool,
) -> Result<(), StoreError> {
    let before = engine.store().queues().await?.remove(queue);
    let limits = QueueLimits {
        paused: is_paused.then(|| Pause {
            by: "simulation".to_owned(),
            at: engine.now(),
            reason: None,
        }),
        ..before.clone().unwrap_or_default()
    };
    engine.store().put_queue(queue, &limits, None).await?;
    Ok(())
}

async fn start_action(plan: &Plan, engine: &Arc<Engine>, bits: u64) {
    let (filter, work) = match bits % 3 {
        0 if plan.has(Ingredient::Replays) => {
            let rules = ReplayRules {
                canary_jobs: 2,
                rate: 20,
                canary_timeout_ms: 5000,
                ..ReplayRules::default()
            };
            (Filter::state(ListedState::Dead), Work::replay(rules))
        }
        1 => {
            let change = BulkChange::Reprioritise { priority: 3 };
            (
                Filter::state(ListedState::Scheduled),
                Work::Bulk { change, rate: None },
            )
        }
        _ => {
            let change = BulkChange::RunNow;
            (
                Filter::state(ListedState::Scheduled),
                Work::Bulk {
                    change,
                    rate: Some(50),
                },
            )
        }
    };
    let new = NewAction {
        filter,
        work,
        reason: "simulated".to_owned(),
    };
    let actor = Actor {
        id: "s".to_owned(),
        name: "simulation".to_owned(),
    };
    let _ = Actions::new(Arc::clone(engine)).create(new, &actor).await;
}

async fn create_schedule(engine: &Engine, bits: u64) {
    let now = engine.now();
    let every = Duration::from_millis(1000 + (bits >> 8) % 1500);
    let script = Script {
        n: u32::MAX,
        acts: "s".to_owned(),
        ms: 20,
    };
    let mut job = NewJob::new(Kind::new("one").expect("a valid kind"));
    job.payload = Payload::from_serialize(&script, 1000).expect("a short payload");
    let name = ScheduleName::new(&format!("s{}", bits % 1000)).expect("a valid name");
    let expression = Expression::every(every).expect("at least a second");
    let mut definition = NewSchedule::new(name, expression, job);
    definition.missed = Some([Missed::Skip, Missed::Once, Missed::All][(bits >> 20) as usize % 3]);
    definition.missed_after = Duration::from_millis(1500);
    definition.catch_up_max = 3;
    definition.overlap = [Overlap::Skip, Overlap::Allow][(bits >> 24) as usize % 2];
    definition.ends_at = Some(beginning().saturating_add(CHAOS + Duration::from_secs(6)));
    let next_at = definition.next_at(now, None);
    let schedule = Schedule {
        id: engine.ids().schedule(now),
        version: 0,
        definition,
        created_at: now,
        last_at: None,
        next_at,
    };
    let _ = engine
        .store()
        .put_schedule(&schedule, Expected::Absent)
        .await;
}

/// Sets the limits of a queue before anything starts.
pub(crate) async fn set_limits(plan: &Plan, engine: &Engine) -> Result<(), StoreError> {
    let mut random = plan.stream("limits", 0);
    let concurrency = 1 + below(&mut random, 3) as u32;
    let count = 3 + below(&mut random, 6) as u32;
    let has_rate = below(&mut random, 2) == 0;
    let limits = QueueLimits {
        concurrency: Some(concurrency).filter(|_| !has_rate),
        rate: has_rate.then_some(Rate {
            count,
            period: Duration::from_secs(1),
        }),
        ..QueueLimits::default()
    };
    engine
        .store()
        .put_queue(&queue("limited"), &limits, None)
        .await?;
    Ok(())
}
