//! Replays.

use super::*;

windlass_testkit::on_every_store! {
    a_replay_goes_from_canary_to_rate_to_its_end;
    a_canary_that_fails_stops_the_replay_and_leaves_the_rest_alone;
    a_continued_replay_starts_with_another_canary;
    the_rate_and_the_pending_bound_hold;
    a_rate_phase_that_fails_stops_the_replay;
    a_replay_waits_for_a_paused_and_for_a_full_queue;
    jobs_that_changed_since_are_skipped;
    lost_jobs_need_force;
    another_runner_goes_on_when_the_lease_ends;
    a_preview_creates_nothing;
    a_filter_without_counters_is_counted_in_parts;
    the_end_of_a_replay_is_emitted_and_audited;
}

async fn a_replay_goes_from_canary_to_rate_to_its_end(world: World) {
    let stage = Stage::new(world);
    let jobs = stage.dead(40, "no route to host").await;
    let id = stage.replay(rules()).await;
    assert_eq!(stage.get(id).await.action.matched, 40);
    stage.settle_down().await;
    let status = stage.get(id).await;
    assert_eq!((phase(&status), status.tally.pending), (Phase::Canary, 5));
    assert_eq!(status.action.waiting_for, Some(WaitingFor::Canary));
    stage.settle_down().await;
    assert_eq!(
        stage.get(id).await.tally.pending,
        5,
        "it waits for the canary"
    );
    assert_eq!(stage.run_jobs(100, succeeds).await, 5);
    let mut rounds = 0;
    while !stage.get(id).await.action.state.is_final() {
        stage.advance(0.1);
        stage.settle_down().await;
        stage.run_jobs(100, succeeds).await;
        check_sum(&stage.get(id).await);
        rounds += 1;
        assert!(rounds < 20, "{:?}", stage.get(id).await);
    }
    let status = stage.get(id).await;
    assert_eq!(status.action.state, ActionState::Finished);
    assert_eq!((status.tally.recovered, status.to_do()), (40, 0));
    assert_eq!(status.action.skipped_total(), 0);
    for job in jobs {
        assert_eq!(stage.world.state(job).await, State::Succeeded);
        assert_eq!(
            stage.world.history(job).await.len(),
            2,
            "each job ran once more"
        );
    }
}

async fn a_canary_that_fails_stops_the_replay_and_leaves_the_rest_alone(world: World) {
    let stage = Stage::new(world);
    let jobs = stage.dead(20, "no route to host").await;
    let id = stage.replay(rules()).await;
    stage.settle_down().await;
    stage
        .run_jobs(1, |_| unrecoverable("no route to host"))
        .await;
    stage.settle_down().await;
    let status = stage.get(id).await;
    assert_eq!(status.action.state, ActionState::Stopped);
    assert_eq!(status.action.stop_reason, Some(StopReason::SameFingerprint));
    assert_eq!((status.done(), status.to_do()), (5, 15));
    check_sum(&status);
    stage.advance(60.0);
    stage.settle_down().await;
    assert_eq!(
        stage.get(id).await.done(),
        5,
        "a stopped replay revives nothing"
    );
    let mut dead = 0;
    for job in jobs {
        dead += usize::from(matches!(stage.world.state(job).await, State::Dead(_)));
    }
    assert_eq!(dead, 16);
}

async fn a_continued_replay_starts_with_another_canary(world: World) {
    let stage = Stage::new(world);
    stage.dead(20, "no route to host").await;
    let id = stage.replay(rules()).await;
    stage.settle_down().await;
    stage
        .run_jobs(100, |_| unrecoverable("no route to host"))
        .await;
    stage.settle_down().await;
    assert_eq!(stage.get(id).await.action.state, ActionState::Stopped);
    assert!(stage.command(id, ActionCommand::Resume).await.is_err());
    stage.command(id, ActionCommand::Continue).await.unwrap();
    stage.settle_down().await;
    let status = stage.get(id).await;
    assert_eq!(
        (status.action.state, phase(&status)),
        (ActionState::Running, Phase::Canary)
    );
    assert_eq!((status.tally.pending, status.tally.failed_again), (5, 5));
    for _ in 0..10 {
        stage.run_jobs(100, succeeds).await;
        stage.advance(1.0);
        stage.settle_down().await;
    }
    let status = stage.get(id).await;
    assert_eq!(status.action.state, ActionState::Finished);
    assert_eq!((status.tally.recovered, status.tally.failed_again), (15, 5));
    check_sum(&status);
}

async fn the_rate_and_the_pending_bound_hold(world: World) {
    let stage = Stage::new(world);
    stage.dead(100, "boom").await;
    let rules = ReplayRules {
        rate: 10,
        max_pending: Some(15),
        ..rules()
    };
    let id = stage.replay(rules).await;
    stage.settle_down().await;
    stage.run_jobs(100, succeeds).await;
    stage.settle_down().await;
    let mut before = stage.get(id).await.done();
    for _ in 0..15 {
        stage.advance(0.1);
        stage.settle_down().await;
        let done = stage.get(id).await.done();
        assert!(done - before <= 1, "10 per second are 1 in 100 ms");
        before = done;
    }
    assert_eq!(before, 5 + 15);
    stage.advance(10.0);
    stage.settle_down().await;
    let status = stage.get(id).await;
    assert_eq!(status.tally.pending, 15, "no more than max_pending");
    assert_eq!(status.action.waiting_for, Some(WaitingFor::MaxPending));
    stage.run_jobs(15, succeeds).await;
    stage.settle_down().await;
    assert_eq!(
        stage.get(id).await.tally.pending,
        10,
        "a pause is not made up for"
    );
}

async fn a_rate_phase_that_fails_stops_the_replay(world: World) {
    let stage = Stage::new(world);
    stage.dead(200, "boom").await;
    let id = stage.replay(rules()).await;
    stage.settle_down().await;
    stage.run_jobs(100, succeeds).await;
    for _ in 0..10 {
        stage.advance(0.1);
        stage.settle_down().await;
        stage
            .run_jobs(100, |_| unrecoverable("something else"))
            .await;
    }
    let status = stage.get(id).await;
    assert_eq!(status.action.state, ActionState::Stopped);
    assert_eq!(status.action.stop_reason, Some(StopReason::FailedShare));
    assert!(status.to_do() > 100, "{status:?}");
}

async fn a_replay_waits_for_a_paused_and_for_a_full_queue(world: World) {
    let stage = Stage::new(world);
    stage.dead(10, "boom").await;
    let limits = |limits: QueueLimits| {
        let store = Arc::clone(&stage.world.store);
        async move {
            store
                .put_queue(&QueueName::default(), &limits, None)
                .await
                .unwrap()
        }
    };
    let none = QueueLimits::default;
    let paused = Pause {
        by: "ann".to_owned(),
        at: stage.world.engine.now(),
        reason: None,
    };
    limits(QueueLimits {
        paused: Some(paused),
        ..none()
    })
    .await;
    let id = stage.replay(rules()).await;
    stage.settle_down().await;
    let status = stage.get(id).await;
    assert_eq!(status.action.waiting_for, Some(WaitingFor::QueuePaused));
    assert_eq!(status.action.waiting_queue, Some(QueueName::default()));
    assert_eq!(status.done(), 0);
    limits(QueueLimits {
        max_depth: Some(3),
        ..none()
    })
    .await;
    stage.settle_down().await;
    let status = stage.get(id).await;
    assert_eq!(status.action.waiting_for, Some(WaitingFor::QueueFull));
    assert_eq!(status.done(), 3);
    check_sum(&status);
    limits(none()).await;
    for _ in 0..10 {
        stage.settle_down().await;
        stage.run_jobs(100, succeeds).await;
        stage.advance(1.0);
    }
    let status = stage.get(id).await;
    assert_eq!(
        (status.action.state, status.tally.recovered),
        (ActionState::Finished, 10)
    );
}

async fn jobs_that_changed_since_are_skipped(world: World) {
    let stage = Stage::new(world);
    let jobs = stage.dead(10, "boom").await;
    let id = stage.replay(rules()).await;
    stage.advance(1.0);
    let (store, now) = (stage.world.engine.store(), stage.world.engine.now());
    // One job is removed, one is revived by hand and dies again, one dies later.
    let by_hand = Change::Revive(windlass_core::Revival::default());
    store
        .change(&jobs[..1], &Change::Purge, None, now)
        .await
        .unwrap();
    store
        .change(&jobs[1..2], &by_hand, None, now)
        .await
        .unwrap();
    stage.run_jobs(1, |_| unrecoverable("boom")).await;
    stage.dead(1, "boom").await;
    for _ in 0..10 {
        stage.settle_down().await;
        stage.run_jobs(100, succeeds).await;
        stage.advance(1.0);
    }
    let status = stage.get(id).await;
    assert_eq!(
        (status.action.state, status.tally.recovered),
        (ActionState::Finished, 8)
    );
    assert_eq!(status.action.skipped.get(&SkipReason::Changed), Some(&2));
    check_sum(&status);
}

async fn lost_jobs_need_force(world: World) {
    let stage = Stage::new(world);
    let once = NewJob {
        delivery: Delivery::AtMostOnce,
        ..new_job("k")
    };
    stage.world.enqueue(once).await;
    stage.run_jobs(1, |_| Report::Lost).await;
    stage.advance(1.0);
    let id = stage.replay(rules()).await;
    stage.settle_down().await;
    let status = stage.get(id).await;
    assert_eq!(status.action.state, ActionState::Finished);
    assert_eq!(
        status.action.skipped.get(&SkipReason::LostNeedsForce),
        Some(&1)
    );
    assert_eq!(status.action.failures.len(), 1);
    let force = BulkRevival {
        force: true,
        ..BulkRevival::default()
    };
    let id = stage.create(dead(), replay(rules(), force)).await;
    stage.settle_down().await;
    assert_eq!(stage.get(id).await.done(), 1);
}

async fn another_runner_goes_on_when_the_lease_ends(world: World) {
    let stage = Stage::new(world);
    stage.dead(20, "boom").await;
    let id = stage.replay(rules()).await;
    stage.settle_down().await;
    let engine = Arc::clone(&stage.world.engine);
    let second = ActionRunner::new(engine, "two", ActionRunnerConfig::default());
    stage.run_jobs(100, succeeds).await;
    stage.advance(1.0);
    assert_eq!(
        second.pass().await.unwrap(),
        Activity::Idle,
        "the first one holds it"
    );
    assert_eq!(stage.get(id).await.done(), 5);
    stage.advance(10.0);
    for _ in 0..20 {
        second.pass().await.unwrap();
        stage.run_jobs(100, succeeds).await;
        stage.advance(0.5);
    }
    let status = stage.get(id).await;
    assert_eq!(
        (status.action.state, status.tally.recovered),
        (ActionState::Finished, 20)
    );
}

async fn a_preview_creates_nothing(world: World) {
    let stage = Stage::new(world);
    stage.dead(8, "boom").await;
    let new = |filter| NewAction {
        filter,
        work: replay(rules(), BulkRevival::default()),
        reason: "just looking".to_owned(),
    };
    let preview = stage.actions.preview(new(dead())).await.unwrap();
    assert_eq!((preview.matched, preview.is_complete), (8, true));
    assert_eq!(preview.samples.len(), 5);
    let (before, after) = &preview.samples[0];
    assert!(matches!(before.state(), State::Dead(_)));
    assert_eq!(
        after.as_ref().unwrap().as_ref().unwrap().state(),
        State::Waiting
    );
    assert!(stage.actions.list(true, None, 10).await.unwrap().is_empty());
    stage.settle_down().await;
    let counts = stage
        .world
        .engine
        .store()
        .counts(stage.world.engine.now())
        .await
        .unwrap();
    assert_eq!(counts[&QueueName::default()].dead, 8);
    let refused = stage
        .actions
        .preview(new(Filter::default()))
        .await
        .unwrap_err();
    assert!(matches!(refused, ActionError::Invalid(_)), "{refused}");
}

async fn a_filter_without_counters_is_counted_in_parts(world: World) {
    let stage = Stage::new(world);
    stage.dead(30, "connection refused").await;
    let filter = Filter {
        error: Some("REFUSED".to_owned()),
        ..dead()
    };
    let id = stage
        .create(filter, replay(rules(), BulkRevival::default()))
        .await;
    let status = stage.get(id).await;
    assert_eq!(
        (status.action.matched, status.action.is_counted()),
        (30, true)
    );
    stage.settle_down().await;
    check_sum(&stage.get(id).await);
}

async fn the_end_of_a_replay_is_emitted_and_audited(world: World) {
    let stage = Stage::new(world);
    let mut events = stage.world.engine.subscribe();
    stage.dead(1, "boom").await;
    let id = stage.replay(rules()).await;
    stage.settle_down().await;
    stage.run_jobs(1, |_| unrecoverable("boom")).await;
    stage.settle_down().await;
    let mut names = Vec::new();
    while let Some(Received::Event(event)) = events.try_next() {
        if matches!(*event, Event::Action { id: other, .. } if other == id) {
            names.push(event.name());
        }
    }
    assert_eq!(names, ["replay_stopped"]);
    let audit = windlass_engine::Audit::new(Arc::clone(&stage.world.engine));
    let check = audit.verify(None).await.unwrap();
    assert_eq!((check.records, check.broken), (2, None));
}
