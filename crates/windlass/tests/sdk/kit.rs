//! How time passes in the test kit while handlers sleep and schedules fire.

use std::time::Duration;

use crate::support::{every_store, seconds};
use serde::{Deserialize, Serialize};
use windlass::schedule::Overlap;
use windlass::testing::TestKit;
use windlass::{Context, Error, Failure, Filter, Job, ListedState, Queue, Schedule, Worker};

const PERIOD: Duration = Duration::from_secs(60);

/// Sleeps, or stops early when it is cancelled.
#[derive(Clone, Serialize, Deserialize)]
struct Sleep {
    seconds: f64,
}

impl Job for Sleep {
    const KIND: &'static str = "sleep";
}

async fn sleep(job: Sleep, ctx: Context) -> Result<(), Failure> {
    tokio::select! {
        () = ctx.sleep(seconds(job.seconds)) => Ok(()),
        _ = ctx.stopped() => Err("stopped".into()),
    }
}

/// Enqueues itself without a delay.
#[derive(Serialize, Deserialize)]
struct Again;

impl Job for Again {
    const KIND: &'static str = "again";
}

async fn again(_: Again, ctx: Context) -> Result<(), Failure> {
    ctx.enqueue(Again).await?;
    Ok(())
}

const RULES: [Overlap; 4] = [
    Overlap::Skip,
    Overlap::Queue,
    Overlap::Allow,
    Overlap::CancelRunning,
];

every_store! {
    async fn a_handler_that_sleeps_its_period_runs_at_every_occurrence(kit: TestKit) {
        for overlap in RULES {
            let start = kit.now();
            let schedule = Schedule::every("s", PERIOD, Sleep { seconds: 60.0 }).overlap(overlap);
            let worker = Worker::new(kit.client(), ()).handle(sleep).schedules("tests", [schedule]);
            let worker = kit.worker(worker).await.unwrap();
            let ran = worker.run_for(5 * PERIOD).await.unwrap();
            assert_eq!(ran.attempts, 5, "{overlap:?}: one at each occurrence");
            assert_eq!(kit.now().since(start), 5 * PERIOD, "{overlap:?}: no more time passed");
            let running = Filter::state(ListedState::Running);
            assert_eq!(kit.client().count(&running).await.unwrap(), 1, "{overlap:?}: the last one sleeps");
            kit.client().remove_schedule("s").await.unwrap();
            worker.drain().await.unwrap();
            assert_eq!(kit.client().count(&running).await.unwrap(), 0, "{overlap:?}");
        }
    }

    async fn overlap_is_seen_in_virtual_time(kit: TestKit) {
        let client = kit.client();
        for (overlap, attempts, skipped, cancelled) in [
            (Overlap::Skip, 3, 2, 0),
            (Overlap::Queue, 3, 1, 0),
            (Overlap::Allow, 5, 0, 0),
            (Overlap::CancelRunning, 5, 0, 4),
        ] {
            let count = async |state| client.count(&Filter::state(state)).await.unwrap();
            let before = count(ListedState::Cancelled).await;
            let mut events = client.events();
            let schedule = Schedule::every("s", PERIOD, Sleep { seconds: 90.0 }).overlap(overlap);
            let worker = Worker::new(client, ()).handle(sleep).schedules("tests", [schedule]);
            let worker = kit.worker(worker).await.unwrap();
            let ran = worker.run_for(5 * PERIOD).await.unwrap();
            assert_eq!(ran.attempts, attempts, "{overlap:?}");
            assert_eq!(count(ListedState::Cancelled).await - before, cancelled, "{overlap:?}");
            let mut left_out = 0;
            while let Some(windlass::events::Received::Event(event)) = events.try_next() {
                left_out += usize::from(event.name() == "skipped");
            }
            assert_eq!(left_out, skipped, "{overlap:?}");
            client.remove_schedule("s").await.unwrap();
            worker.drain().await.unwrap();
        }
    }

    async fn a_drain_ends_although_a_handler_sleeps_its_period(kit: TestKit) {
        let schedule = Schedule::every("s", PERIOD, Sleep { seconds: 60.0 });
        let worker = Worker::new(kit.client(), ()).handle(sleep).schedules("tests", [schedule]);
        let worker = kit.worker(worker).await.unwrap();
        kit.advance(PERIOD);
        assert_eq!(worker.drain().await.unwrap().attempts, 1);
        assert_eq!(worker.pass().await.unwrap().attempts, 1);
    }
}

#[tokio::test]
async fn jobs_that_keep_coming_at_one_instant_are_an_error() {
    for (how, called) in [("pass", 0), ("drain", 1), ("run_for", 2)] {
        let kit = TestKit::new();
        let many: Vec<Again> = (0..64).map(|_| Again).collect();
        kit.client().enqueue_many(&many).await.unwrap();
        let worker = Worker::new(kit.client(), ()).queue_with(Queue::new("default", 64));
        let worker = kit.worker(worker.handle(again)).await.unwrap();
        let ended = match called {
            0 => worker.pass().await,
            1 => worker.drain().await,
            _ => worker.run_for(PERIOD).await,
        };
        let Err(Error::NoProgress { at, attempts }) = ended else {
            panic!("{how}: {ended:?}")
        };
        assert_eq!(at, kit.now(), "{how}");
        assert!((10_000..11_000).contains(&attempts), "{how}: {attempts}");
    }
}

#[tokio::test]
async fn a_large_backlog_at_one_instant_is_no_error() {
    let kit = TestKit::new();
    let many = vec![Sleep { seconds: 0.0 }; 10_500];
    kit.client().enqueue_many(&many).await.unwrap();
    let worker = Worker::new(kit.client(), ()).queue_with(Queue::new("default", 500));
    let worker = kit.worker(worker.handle(sleep)).await.unwrap();
    assert_eq!(worker.drain().await.unwrap().attempts, 10_500);
}
