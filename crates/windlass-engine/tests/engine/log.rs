//! What the log says about failed attempts and schedules: every cause, and never a flood.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing::Level;
use tracing::dispatcher::DefaultGuard;
use windlass_core::schedule::{Expression, NewSchedule};
use windlass_core::{Delivery, NewJob, ScheduleName};
use windlass_store::{Expected, Schedule};
use windlass_testkit::world::{World, constant, failed, new_job, seconds, t0, worker};

/// The lines of one test.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    pub(crate) fn at(level: Level) -> (Lines, DefaultGuard) {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(level)
            .with_writer(move || writer.clone());
        (lines, tracing::subscriber::set_default(subscriber.finish()))
    }

    pub(crate) fn with(&self, text: &str) -> Vec<String> {
        let all = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let found = all.lines().filter(|line| line.contains(text));
        found.map(str::to_owned).collect()
    }
}

#[tokio::test]
async fn each_failed_attempt_is_a_line_with_its_job_error_and_next_step() {
    let (lines, _kept) = Lines::at(Level::INFO);
    let world = World::memory();
    let declined = |_: &_| failed("card 4111111111111111 declined with 402");
    let build = worker(1).policy(constant(1, 2)).on("pay", declined);
    let (worker, _) = build.build(&world);
    let id = world.enqueue(new_job("pay")).await;
    worker.drain(&world.clock).await.unwrap();
    let failures = lines.with("attempt failed");
    let [retried, dead] = &failures[..] else {
        panic!("{failures:#?}")
    };
    for (line, attempt) in [(retried, 1), (dead, 2)] {
        for field in [
            format!("job.id={id} kind=pay queue=default attempt={attempt} worker=w1"),
            "outcome=failed error=\"card # declined with 402\" fingerprint=".to_owned(),
            format!("failures={attempt}"),
        ] {
            assert!(line.contains(&field), "{field} is not in {line}");
        }
        assert!(!line.contains("4111"), "{line}");
    }
    assert!(
        retried.contains("next=retry retry_at=2026-01-01T12:00:01Z"),
        "{retried}"
    );
    assert!(dead.contains("next=dead reason=exhausted"), "{dead}");
}

#[tokio::test]
async fn thousands_of_lost_attempts_are_a_few_lines_and_a_count() {
    let (lines, _kept) = Lines::at(Level::INFO);
    let world = World::memory();
    let (worker, _) = worker(500).succeeds("a").fails("b").build(&world);
    for _ in 0..500 {
        let delivery = Delivery::AtMostOnce;
        world
            .enqueue(NewJob {
                delivery,
                ..new_job("a")
            })
            .await;
    }
    assert_eq!(worker.crash_after_claim().await.unwrap(), 500);
    world.clock.advance(seconds(31.0));
    worker.drain(&world.clock).await.unwrap();
    let failures = lines.with("attempt failed");
    assert_eq!(failures.len(), 5, "{failures:#?}");
    for plain in ["worker=w1 outcome=lost", "failures=1 next=dead reason=lost"] {
        assert!(failures[0].contains(plain), "{}", failures[0]);
    }
    world.clock.advance(seconds(60.0));
    world.enqueue(new_job("b")).await;
    worker.drain(&world.clock).await.unwrap();
    let mut counted = lines.with("more attempts failed");
    counted.retain(|line| line.contains("kind=a"));
    assert_eq!(counted.len(), 1, "{counted:#?}");
    let fields = "queue=default kind=a outcome=lost";
    assert!(
        counted[0].contains("suppressed=495") && counted[0].contains(fields),
        "{}",
        counted[0]
    );
}

#[tokio::test]
async fn firings_of_schedules_are_debug_lines_and_a_summary() {
    let (lines, _kept) = Lines::at(Level::DEBUG);
    let world = World::memory();
    let expression = Expression::every(seconds(1.0)).unwrap();
    let name = ScheduleName::new("tick").unwrap();
    let mut definition = NewSchedule::new(name, expression, new_job("a"));
    definition.ends_at = Some(t0().saturating_add(seconds(100.0)));
    let schedule = Schedule {
        id: world.engine.ids().schedule(t0()),
        version: 0,
        definition,
        created_at: t0(),
        last_at: None,
        next_at: Some(t0().saturating_add(seconds(1.0))),
    };
    let store = world.engine.store();
    store
        .put_schedule(&schedule, Expected::Absent)
        .await
        .unwrap();
    let (worker, _) = worker(1).succeeds("a").build(&world);
    let end = t0().saturating_add(seconds(90.0));
    worker.run_through(&world.clock, end).await.unwrap();
    let fired = lines.with("schedule fired");
    assert_eq!(fired.len(), 90);
    let debug = |line: &String| line.contains("DEBUG") && line.contains("schedule=tick");
    assert!(fired.iter().all(debug), "{}", fired[0]);
    let summaries = lines.with("schedules fired");
    assert!(summaries[0].contains("INFO"), "{}", summaries[0]);
    assert!(summaries[0].contains("fired=60"), "{}", summaries[0]);
}
