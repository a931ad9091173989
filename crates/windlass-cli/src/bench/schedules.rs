//! `windlass bench schedules`: how late schedules fire when many are due in the same second.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinSet;
use windlass::events::{Event, Received, ScheduleEvent, Subscription};
use windlass::{Client, Job as _, Queue};
use windlass_core::schedule::{Expression, NewSchedule};
use windlass_core::{Kind, NewJob, Payload, QueueName, ScheduleName, Timestamp};
use windlass_engine::Engine;
use windlass_store::{Expected, Schedule, Written};

use super::run::{Meter, Noop, PATIENCE, Percentiles, RunningWorker, open_error, percentiles};
use super::{SchedulesBench, progress, runtime, store_url};
use crate::output::Output;

/// The queue of the jobs.
const QUEUE: &str = "schedules";
/// The number of concurrent jobs of the worker that runs them.
const SLOTS: u32 = 200;
/// The number of concurrent writes while the schedules are stored.
const WRITES: usize = 64;
/// The most time that storing takes, for each schedule.
const WRITE_TIME: Duration = Duration::from_millis(4);
/// The time between two rounds.
const INTERVAL: Duration = Duration::from_secs(15);

/// The measurements.
#[derive(Debug, Serialize)]
struct SchedulesResults {
    schedules: u32,
    rounds: Vec<Round>,
}

/// One occurrence of every schedule, all within a second.
#[derive(Debug, Serialize)]
struct Round {
    /// The occurrences that fired.
    fired: usize,
    /// The time from each occurrence to the moment at which its job was stored.
    lag_ms: Percentiles,
}

pub(super) fn run(bench: &SchedulesBench, output: &Output) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let url = store_url(bench.store.as_deref(), folder.path());
    let results = runtime()?.block_on(measure(bench, &url))?;
    output.print(&results, &results)
}

async fn measure(bench: &SchedulesBench, url: &str) -> anyhow::Result<SchedulesResults> {
    let client = Client::open(url).await.map_err(open_error)?;
    let engine = windlass::admin::engine_of(&client);
    anyhow::ensure!(
        engine.store().schedules().await?.readable.is_empty(),
        "the store already holds schedules; use another one"
    );
    let writing_max = Duration::from_secs(2) + WRITE_TIME * bench.schedules;
    let first_at = engine.now().saturating_add(writing_max);
    store_schedules(engine, bench.schedules, first_at).await?;
    anyhow::ensure!(
        engine.now() < first_at,
        "storing the schedules took longer than {} s; use fewer",
        writing_max.as_secs()
    );
    let events = client.events();
    let queue = Queue::new(QUEUE, SLOTS);
    let worker = RunningWorker::start(&client, queue, &Arc::new(Meter::default()), false);
    let lags = lags(bench, engine, events, first_at).await?;
    worker.stop().await?;
    let rounds = lags.into_iter().map(|mut lags| Round {
        fired: lags.len(),
        lag_ms: percentiles(&mut lags),
    });
    Ok(SchedulesResults {
        schedules: bench.schedules,
        rounds: rounds.collect(),
    })
}

/// Stores schedules whose first occurrences are spread evenly over the second after `first_at`.
async fn store_schedules(
    engine: &Arc<Engine>,
    schedules: u32,
    first_at: Timestamp,
) -> anyhow::Result<()> {
    let bar = progress("store schedules", schedules.into());
    let mut writing = JoinSet::new();
    for number in 0..schedules {
        if writing.len() >= WRITES {
            writing.join_next().await.transpose()?.transpose()?;
        }
        let offset = Duration::from_secs(1) * number / schedules;
        let schedule = schedule(engine, number, first_at.saturating_add(offset))?;
        let engine = Arc::clone(engine);
        writing.spawn(async move {
            let written = engine.store().put_schedule(&schedule, Expected::Absent);
            let written = written.await?;
            anyhow::ensure!(written == Written::Version(1), "{written:?}");
            anyhow::Ok(())
        });
        bar.inc(1);
    }
    while let Some(written) = writing.join_next().await {
        written??;
    }
    bar.finish_and_clear();
    Ok(())
}

fn schedule(engine: &Engine, number: u32, first_at: Timestamp) -> anyhow::Result<Schedule> {
    let job = NewJob {
        queue: QueueName::new(QUEUE)?,
        payload: Payload::from_stored(&serde_json::to_string(&Noop { number: 0 })?),
        ..NewJob::new(Kind::new(Noop::KIND)?)
    };
    let name = ScheduleName::new(&format!("bench-{number}"))?;
    let created_at = first_at.saturating_sub(INTERVAL);
    let definition = NewSchedule::new(name, Expression::every(INTERVAL)?, job);
    Ok(Schedule {
        id: engine.ids().schedule(created_at),
        version: 0,
        next_at: definition.next_at(created_at, None),
        definition,
        created_at,
        last_at: None,
    })
}

/// Returns how late the occurrences of each round fired.
async fn lags(
    bench: &SchedulesBench,
    engine: &Engine,
    mut events: Subscription,
    first_at: Timestamp,
) -> anyhow::Result<Vec<Vec<Duration>>> {
    let expected = u64::from(bench.schedules) * u64::from(bench.rounds);
    let bar = progress("fire", expected);
    let mut rounds = vec![Vec::new(); bench.rounds as usize];
    let last_at = first_at.saturating_add(INTERVAL * (bench.rounds - 1));
    let patience = last_at.since(engine.now()) + PATIENCE;
    let receive_all = async {
        while bar.position() < expected {
            let event = match events.next().await {
                Some(Received::Event(event)) => event,
                Some(Received::Missed(events)) => anyhow::bail!("missed {events} events"),
                None => break,
            };
            let Event::Schedule { what, .. } = &*event else {
                continue;
            };
            if let ScheduleEvent::Fired { scheduled_for, .. } = what {
                let number = scheduled_for.since(first_at).as_secs() / INTERVAL.as_secs();
                if let Some(round) = rounds.get_mut(usize::try_from(number)?) {
                    round.push(engine.now().since(*scheduled_for));
                    bar.inc(1);
                }
            }
        }
        Ok(())
    };
    let received = tokio::time::timeout(patience, receive_all).await;
    bar.finish_and_clear();
    received.unwrap_or(Ok(()))?; // after a timeout, the results show how many have fired
    Ok(rounds)
}

impl fmt::Display for SchedulesResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} schedules due in one second", self.schedules)?;
        for (number, round) in (1..).zip(&self.rounds) {
            let Percentiles { p50, p99 } = round.lag_ms;
            let fired = round.fired;
            writeln!(
                f,
                "round {number}: {fired:>8} fired {p50:>10.1} ms p50 {p99:>10.1} ms p99"
            )?;
        }
        Ok(())
    }
}
