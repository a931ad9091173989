//! Runs three schedules of the scheduler form in real time against real targets. Prints when each
//! request arrived, compared with the promised time. Takes about half a minute.
//!
//! `cargo run --release -p windlass-http --example form_times`
#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use windlass_core::{QueueName, ScheduleName, Timestamp, WorkerName};
use windlass_engine::{
    CancellationToken, Clock as _, Engine, Ids, QueueConfig, SystemClock, Worker, WorkerConfig,
};
use windlass_http::form::SchedulerForm;
use windlass_http::{HttpConfig, HttpJobs};
use windlass_memory::MemoryStore;
use windlass_store::{Expected, Schedule};

type Failed = Box<dyn std::error::Error>;

/// When a request arrived, its occurrence, and its retry count.
type Arrival = (Timestamp, Timestamp, u32);

/// A target that fails the attempts with these retry counts and records when each arrived.
async fn start_target(
    clock: SystemClock,
    fails: fn(u32) -> bool,
) -> Result<(SocketAddr, Arc<Mutex<Vec<Arrival>>>), Failed> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let arrivals = Arc::clone(&recorded);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (clock, arrivals) = (clock.clone(), Arc::clone(&arrivals));
            tokio::spawn(async move {
                let mut request = Vec::new();
                while stream
                    .read_buf(&mut request)
                    .await
                    .is_ok_and(|read| read > 0)
                {
                    if !request.ends_with(b"\r\n\r\n") {
                        continue;
                    }
                    let now = clock.now();
                    let text = String::from_utf8_lossy(&request).into_owned();
                    let header = |name: &str| {
                        let line = text.lines().find(|line| line.starts_with(name))?;
                        line.split_once(": ").map(|(_, value)| value.to_owned())
                    };
                    let occurrence =
                        header("windlass-scheduled-for").and_then(|text| text.parse().ok());
                    let retry = header("windlass-retry-count").and_then(|text| text.parse().ok());
                    let (Some(occurrence), Some(retry)) = (occurrence, retry) else {
                        return;
                    };
                    if let Ok(mut arrivals) = arrivals.lock() {
                        arrivals.push((now, occurrence, retry));
                    }
                    request.clear();
                    let answer = if fails(retry) {
                        "503 X\r\ncontent-length: 0"
                    } else {
                        "204 X"
                    };
                    let answer = format!("HTTP/1.1 {answer}\r\n\r\n");
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    Ok((address, recorded))
}

async fn create(engine: &Engine, name: &str, form: &Value) -> Result<(), Failed> {
    let now = engine.now();
    let form = SchedulerForm::from_json(&form.to_string())?;
    let definition = form.into_schedule(ScheduleName::new(name)?, now)?;
    let next_at = definition.recurrence(now).next(now).map(|firing| firing.at);
    let schedule = Schedule {
        id: engine.ids().schedule(now),
        version: 0,
        definition,
        created_at: now,
        last_at: None,
        next_at,
    };
    engine
        .store()
        .put_schedule(&schedule, Expected::Absent)
        .await?;
    Ok(())
}

/// Prints the requests next to the promised times, in seconds after each occurrence.
fn print(name: &str, arrivals: &[Arrival], promised: &[u64]) {
    println!("{name}: promised at {promised:?} s");
    for (at, occurrence, retry) in arrivals {
        let nominal = usize::try_from(*retry).ok().and_then(|n| promised.get(n));
        let Some(nominal) = nominal else {
            println!("  retry {retry} was not promised");
            continue;
        };
        let due = occurrence.saturating_add(Duration::from_secs(*nominal));
        let late = at.since(due).as_secs_f64() - due.since(*at).as_secs_f64();
        println!(
            "  occurrence {occurrence}, retry {retry}: {:+.1} ms",
            late * 1000.0
        );
    }
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let clock = SystemClock::new();
    let engine = Engine::new(
        Arc::new(MemoryStore::new()),
        Arc::new(clock.clone()),
        Ids::seeded(1),
    );
    let engine = Arc::new(engine);
    let (first, first_arrivals) = start_target(clock.clone(), |_| true).await?;
    let (second, second_arrivals) = start_target(clock.clone(), |_| true).await?;
    let (third, third_arrivals) = start_target(clock.clone(), |retry| retry < 2).await?;
    let body = |schedule: &str, target: SocketAddr, kind: &str, recurring: bool, retries: u32| {
        json!({
            "schedule": schedule, "api": format!("http://{target}/"), "type": kind,
            "isRecurring": recurring, "maxRetryCount": retries,
        })
    };
    create(
        &engine,
        "first",
        &body("*/10 * * * * *", first, "AT_LEAST_ONCE", true, 3),
    )
    .await?;
    // At the next full five seconds.
    create(
        &engine,
        "second",
        &body("*/5 * * * * *", second, "AT_MOST_ONCE", false, 5),
    )
    .await?;
    create(
        &engine,
        "third",
        &body("*/5 * * * * *", third, "AT_LEAST_ONCE", true, 2),
    )
    .await?;
    let http = HttpJobs::new(HttpConfig {
        allow: vec!["127.0.0.0/8".parse()?],
        ..HttpConfig::default()
    })?;
    let mut config = WorkerConfig::new(WorkerName::new("form")?);
    config.queues = vec![QueueConfig::new(QueueName::default(), 16)];
    http.register(&mut config);
    let worker = Worker::new(Arc::clone(&engine), config)?;
    let stop = CancellationToken::new();
    let ending = async {
        tokio::time::sleep(Duration::from_secs(28)).await;
        stop.cancel();
    };
    let _ = tokio::join!(ending, worker.run(stop.clone(), CancellationToken::new()));
    for (name, arrivals, promised) in [
        (
            "AT_LEAST_ONCE, every 10 s, always fails",
            &first_arrivals,
            &[0, 1, 3, 7][..],
        ),
        ("AT_MOST_ONCE, once, fails", &second_arrivals, &[0]),
        (
            "AT_LEAST_ONCE, every 5 s, succeeds on the third",
            &third_arrivals,
            &[0, 1, 3],
        ),
    ] {
        if let Ok(arrivals) = arrivals.lock() {
            print(name, &arrivals, promised);
        }
    }
    Ok(())
}
