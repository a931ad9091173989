//! Many schedules that are due in the same second: how late each one fires.
//!
//! `cargo run --release -p windlass-engine --example schedules_at_once -- 10000 [postgres://…]`
//!
//! A PostgreSQL database that is named is measured too; no one else may use it.
#![allow(clippy::print_stdout, reason = "its figures are what it is for")]

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use windlass_core::schedule::{Expression, NewSchedule};
use windlass_core::{Kind, NewJob, ScheduleName, Timestamp};
use windlass_engine::{
    Clock as _, Engine, Event, Ids, Received, ScheduleEvent, Scheduler, SchedulerConfig,
    SystemClock,
};
use windlass_memory::MemoryStore;
use windlass_sqlite::SqliteStore;
use windlass_store::{Expected, Schedule, Store};

type Failed = Box<dyn std::error::Error>;

async fn put(engine: &Engine, number: usize, at: Timestamp) -> Result<(), Failed> {
    let now = engine.now();
    let job = NewJob::new(Kind::new("unhandled")?);
    let name = ScheduleName::new(&format!("s{number}"))?;
    let schedule = Schedule {
        id: engine.ids().schedule(now),
        version: 0,
        definition: NewSchedule::new(name, Expression::At(at), job),
        created_at: now,
        last_at: None,
        next_at: Some(at),
    };
    engine
        .store()
        .put_schedule(&schedule, Expected::Absent)
        .await?;
    Ok(())
}

/// The time by which this percentage of schedules has fired.
fn part(lags: &[Duration], hundredths: usize) -> Duration {
    let index = (lags.len() * hundredths / 100).min(lags.len().saturating_sub(1));
    lags.get(index).copied().unwrap_or_default()
}

async fn run(name: &str, store: Arc<dyn Store>, many: usize) -> Result<(), Failed> {
    let clock = Arc::new(SystemClock::new());
    let engine = Arc::new(Engine::new(store, Arc::clone(&clock) as _, Ids::seeded(1)));
    // Leaves enough time to write them all. They are due within one second.
    let first = clock.now().saturating_add(Duration::from_secs(20));
    let spread = |number: usize| {
        let micros = number * 1_000_000 / many;
        first.saturating_add(Duration::from_micros(u64::try_from(micros).unwrap_or(0)))
    };
    let engine_ref = &engine;
    let mut written = futures_util::stream::iter(0..many)
        .map(async |number| put(engine_ref, number, spread(number)).await)
        .buffer_unordered(256);
    while let Some(put) = written.next().await {
        put?;
    }
    let ready = clock.now();
    clock.sleep_until(first).await;
    let scheduler = Scheduler::new(Arc::clone(&engine), SchedulerConfig::default());
    let mut heard = engine.subscribe();
    let mut lags = Vec::with_capacity(many);
    let mut made = 0;
    while made < many {
        let fired = scheduler.pass(clock.now()).await?;
        let done = clock.now();
        made += fired;
        while let Some(told) = heard.try_next() {
            if let Received::Event(event) = told
                && let Event::Schedule {
                    what: ScheduleEvent::Fired { scheduled_for, .. },
                    ..
                } = &*event
            {
                lags.push(done.since(*scheduled_for));
            }
        }
        if fired == 0 {
            clock
                .sleep_until(done.saturating_add(Duration::from_millis(1)))
                .await;
        }
    }
    lags.sort_unstable();
    println!(
        "{name}: {many} schedules due in one second fired {made} jobs; lag p50 {:?}, p99 {:?}, last {:?}; written in {:?}",
        part(&lags, 50),
        part(&lags, 99),
        part(&lags, 100),
        Duration::from_secs(20).saturating_sub(first.since(ready)),
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let many = std::env::args()
        .nth(1)
        .map_or(Ok(10_000), |text| text.parse())?;
    run("memory", Arc::new(MemoryStore::new()), many).await?;
    let folder = tempfile::tempdir()?;
    let now = SystemClock::new().now();
    let store = SqliteStore::open(folder.path().join("jobs.db"), now, 1)?;
    run("sqlite", Arc::new(store), many).await?;
    if let Some(url) = std::env::args().nth(2) {
        let options = windlass_postgres::Options::parse(&url)?;
        windlass_postgres::PostgresStore::migrate(&options).await?;
        let store = windlass_postgres::PostgresStore::connect(options).await?;
        run("postgres", Arc::new(store), many).await?;
    }
    Ok(())
}
