//! Bulk actions.

use super::*;

windlass_testkit::on_every_store! {
    a_taken_key_and_a_failed_patch_are_item_failures;
    each_bulk_action_does_what_it_says;
    a_bulk_action_keeps_to_its_rate_and_can_be_paused;
    commands_must_fit_the_state;
    revived_jobs_do_not_displace_fresh_ones;
}

async fn a_taken_key_and_a_failed_patch_are_item_failures(world: World) {
    let stage = Stage::new(world);
    let unique = || NewJob {
        unique: Some(Unique {
            key: "u".parse().unwrap(),
            unique_for: None,
            on_duplicate: windlass_core::OnDuplicate::Keep,
        }),
        ..new_job("k")
    };
    stage.world.enqueue(unique()).await;
    stage.run_jobs(1, |_| unrecoverable("boom")).await;
    stage.dead(1, "boom").await;
    stage.world.enqueue(unique()).await;
    stage.advance(1.0);
    let rename = json!([{"op": "move", "from": "/number", "path": "/n"}]);
    let revival = BulkRevival {
        payload_patch: Some(PayloadPatch::new(rename).unwrap()),
        ..BulkRevival::default()
    };
    let status = stage.bulk(dead(), BulkChange::Revive(revival)).await;
    assert_eq!((status.action.matched, status.done()), (2, 1));
    // The payload of the first job is null. Its key is checked before the patch.
    assert_eq!(status.action.skipped.get(&SkipReason::KeyTaken), Some(&1));
    let patch = Patch {
        payload: Some(PayloadPatch::new(json!([{"op": "remove", "path": "/x"}])).unwrap()),
        ..Patch::default()
    };
    let ready = Filter::state(ListedState::Ready);
    let status = stage.bulk(ready, BulkChange::Patch { patch }).await;
    assert_eq!(status.action.skipped.get(&SkipReason::Patch), Some(&2));
    assert_eq!(status.action.failures.len(), 2);
    let failure = &status.action.failures[0];
    assert!(failure.error.contains("/x"), "{failure:?}");
}

async fn each_bulk_action_does_what_it_says(world: World) {
    let stage = Stage::new(world);
    let jobs = stage.dead(3, "boom").await;
    let waiting = Filter {
        kind: Some("k".parse().unwrap()),
        ..Filter::default()
    };
    let status = stage
        .bulk(
            dead(),
            BulkChange::Revive(BulkRevival {
                run_at: Some(
                    stage
                        .world
                        .engine
                        .now()
                        .saturating_add(Duration::from_secs(3600)),
                ),
                keep_failures: true,
                ..BulkRevival::default()
            }),
        )
        .await;
    assert_eq!(
        (status.action.state, status.done()),
        (ActionState::Finished, 3)
    );
    let job = stage.world.job(jobs[0]).await;
    assert_eq!((job.failures, job.lane()), (1, Lane::Retry));
    stage.advance(1.0);
    let retrying = Filter {
        retrying: Some(true),
        ..Filter::default()
    };
    assert_eq!(stage.bulk(retrying, BulkChange::RunNow).await.done(), 3);
    assert!(
        stage
            .world
            .job(jobs[0])
            .await
            .is_ready(stage.world.engine.now())
    );
    let change = BulkChange::Reprioritise { priority: 9 };
    assert_eq!(stage.bulk(waiting.clone(), change).await.done(), 3);
    assert_eq!(stage.world.job(jobs[0]).await.priority, 9);
    let change = BulkChange::Move {
        queue: "other".parse().unwrap(),
    };
    assert_eq!(stage.bulk(waiting.clone(), change).await.done(), 3);
    assert_eq!(stage.world.job(jobs[0]).await.queue.as_str(), "other");
    stage.advance(1.0);
    assert_eq!(
        stage.bulk(waiting.clone(), BulkChange::Cancel).await.done(),
        3
    );
    assert_eq!(stage.world.state(jobs[0]).await, State::Cancelled);
    stage.advance(1.0);
    let cancelled = Filter {
        state: Some(ListedState::Cancelled),
        ..waiting
    };
    let status = stage.bulk(cancelled.clone(), BulkChange::Resolve).await;
    assert_eq!(status.action.skipped.get(&SkipReason::Changed), Some(&3));
    assert_eq!(stage.bulk(cancelled, BulkChange::Delete).await.done(), 3);
    let store = stage.world.engine.store();
    assert_eq!(store.get(&jobs).await.unwrap(), [None, None, None]);
}

async fn a_bulk_action_keeps_to_its_rate_and_can_be_paused(world: World) {
    let stage = Stage::new(world);
    stage.dead(30, "boom").await;
    let change = BulkChange::Delete;
    let id = stage
        .create(
            dead(),
            Work::Bulk {
                change,
                rate: Some(10),
            },
        )
        .await;
    stage.advance(0.5);
    stage.settle_down().await;
    assert_eq!(stage.get(id).await.done(), 5);
    stage.command(id, ActionCommand::Pause).await.unwrap();
    stage.advance(5.0);
    stage.settle_down().await;
    let status = stage.get(id).await;
    assert_eq!(
        (status.action.state, status.done()),
        (ActionState::Paused, 5)
    );
    stage.command(id, ActionCommand::Resume).await.unwrap();
    stage.settle_down().await;
    assert_eq!(stage.get(id).await.done(), 15, "at most one second at once");
    stage.command(id, ActionCommand::Abort).await.unwrap();
    stage.advance(5.0);
    stage.settle_down().await;
    let status = stage.get(id).await;
    assert_eq!(
        (status.action.state, status.done(), status.to_do()),
        (ActionState::Aborted, 15, 15)
    );
    let listed = stage.actions.list(false, None, 10).await.unwrap();
    assert_eq!(listed, [status]);
    assert!(stage.actions.list(true, None, 10).await.unwrap().is_empty());
}

async fn commands_must_fit_the_state(world: World) {
    let stage = Stage::new(world);
    let unknown = stage
        .command(ActionId::from_u128(1), ActionCommand::Abort)
        .await;
    assert!(matches!(unknown, Err(ActionError::NotFound(_))));
    stage.dead(1, "boom").await;
    let status = stage.bulk(dead(), BulkChange::Delete).await;
    assert_eq!(status.action.state, ActionState::Finished);
    let late = stage.command(status.action.id, ActionCommand::Abort).await;
    assert!(
        matches!(late, Err(ActionError::Conflict { .. })),
        "{late:?}"
    );
    let new = NewAction {
        filter: dead(),
        work: Work::Bulk {
            change: BulkChange::Delete,
            rate: None,
        },
        reason: String::new(),
    };
    let refused = stage.actions.create(new, &operator()).await.unwrap_err();
    assert!(refused.to_string().contains("reason"), "{refused}");
}

async fn revived_jobs_do_not_displace_fresh_ones(world: World) {
    let stage = Stage::new(world);
    stage.dead(20, "boom").await;
    stage
        .bulk(dead(), BulkChange::Revive(BulkRevival::default()))
        .await;
    for _ in 0..20 {
        stage.world.enqueue(new_job("k")).await;
    }
    let claimed = stage.claim(10).await;
    let retries = claimed.iter().filter(|job| job.lane() == Lane::Retry);
    assert_eq!(
        (claimed.len(), retries.count()),
        (10, 2),
        "a fifth of the slots"
    );
}
