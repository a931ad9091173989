//! Draining a worker pass by pass: when time passes, and what a crash loses.

use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use windlass_core::fairness::{Guards, RetryLane};
use windlass_core::retry::AttemptLimit;
use windlass_core::{NewJob, Outcome, Report, Timeout};
use windlass_engine::{RunningAttempt, StopReason};
use windlass_testkit::world::{World, constant, new_job, seconds, worker};

async fn a_handler_that_only_waits_for_its_stop_signal_times_out(world: World) {
    let waits = |attempt: Arc<RunningAttempt>| async move {
        assert_eq!(attempt.stop().wait().await, StopReason::TimedOut);
        Report::Succeeded(None)
    };
    let (worker, _) = worker(2).with("a", waits).build(&world);
    let once = NewJob {
        timeout: Some(Timeout::After(seconds(7.0))),
        max_attempts: AttemptLimit::from_max_attempts(1).unwrap(),
        ..new_job("a")
    };
    let id = world.enqueue(once).await;
    worker.drain(&world.clock).await.unwrap();
    let row = world.history(id).await.remove(0);
    assert_eq!(row.outcome, Outcome::TimedOut);
    assert_eq!(row.finished_at.since(row.started_at), seconds(7.0));
}

async fn no_time_passes_while_a_handler_waits_for_a_remote_answer(world: World) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answers = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let listener = listener.into_std().unwrap();
        runtime.block_on(async move {
            let (mut stream, _) = TcpListener::from_std(listener)
                .unwrap()
                .accept()
                .await
                .unwrap();
            // Far more turns than the asking side needs to fall asleep.
            for _ in 0..20_000 {
                tokio::task::yield_now().await;
            }
            stream.write_all(b"!").await.unwrap();
        });
    });
    let asks = move |attempt: Arc<RunningAttempt>| async move {
        let before = attempt.engine().now();
        let mut stream = TcpStream::connect(address).await.unwrap();
        let mut answer = [0];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(attempt.engine().now(), before);
        Report::Succeeded(None)
    };
    let sleeps = |attempt: Arc<RunningAttempt>| async move {
        let clock = Arc::clone(attempt.engine().clock());
        clock.sleep(seconds(60.0)).await;
        Report::Succeeded(None)
    };
    let build = worker(2).with("asks", asks).with("sleeps", sleeps);
    let (worker, _) = build.build(&world);
    let asks = world.enqueue(new_job("asks")).await;
    let sleeps = world.enqueue(new_job("sleeps")).await;
    worker.drain(&world.clock).await.unwrap();
    answers.await.unwrap();
    for (id, took) in [(asks, 0.0), (sleeps, 60.0)] {
        let row = world.history(id).await.remove(0);
        assert_eq!(row.outcome, Outcome::Succeeded);
        assert_eq!(row.finished_at.since(row.started_at), seconds(took));
    }
}

async fn a_crash_after_the_claim_also_loses_retries_of_the_retry_lane(world: World) {
    let lane = RetryLane {
        concurrency: 3,
        rate: None,
    };
    let guards = Guards {
        retry_lane: Some(lane),
        ..Guards::default()
    };
    let build = worker(2).policy(constant(1, 9)).guards(guards).fails("a");
    let (worker, _) = build.build(&world);
    for _ in 0..2 {
        world.enqueue(new_job("a")).await;
    }
    worker.pass(&world.clock).await.unwrap();
    world.clock.advance(seconds(1.0));
    world.enqueue(new_job("a")).await;
    assert_eq!(worker.crash_after_claim().await.unwrap(), 3);
}

windlass_testkit::on_every_store! {
    a_handler_that_only_waits_for_its_stop_signal_times_out;
    no_time_passes_while_a_handler_waits_for_a_remote_answer;
    a_crash_after_the_claim_also_loses_retries_of_the_retry_lane;
}
