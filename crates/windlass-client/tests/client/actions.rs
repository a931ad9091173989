//! Failures, replays and bulk actions, on a real server.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests: what is missing fails them"
)]

use serde_json::{Value, json};
use windlass_client::Method;
use windlass_client::api::{
    BulkActionName, FailureParams, JobFilter, JobOrder, NewBulkAction, NewJob, NewReplay, Text,
};
use windlass_client::core::{ActionCommand, ActionId, ActionState, Kind};

use crate::support::Server;

fn kind(name: &str) -> Kind {
    Kind::new(name).expect("a kind")
}

fn of_kind(name: &str) -> Option<JobFilter> {
    Some(JobFilter {
        kind: Some(kind(name)),
        ..JobFilter::default()
    })
}

/// Lets a job of each kind die.
async fn die(client: &windlass_client::Client, kinds: &[&str]) {
    for name in kinds {
        client.create_job(&NewJob::new(kind(name))).await.unwrap();
        let claimed: Value = client
            .call(Method::Post, "/api/v1/claim", Some(&json!({})))
            .await
            .unwrap();
        let (id, attempt) = (&claimed["data"][0]["id"], &claimed["data"][0]["attempt"]);
        let outcome = json!({
            "id": id, "attempt": attempt, "outcome": "failed", "error": "boom", "unrecoverable": true,
        });
        let outcomes = json!({"outcomes": [outcome]});
        let settled: Value = client
            .call(Method::Post, "/api/v1/settle", Some(&outcomes))
            .await
            .unwrap();
        assert_eq!(settled["data"][0]["status"], "done");
    }
}

#[tokio::test]
async fn failures_are_read_page_by_page() {
    let server = Server::start().await;
    let client = server.client();
    die(&client, &["a", "b", "b"]).await;
    let all = client.failures(&FailureParams::default()).limit(1);
    let all = all.all().await.unwrap();
    let seen: Vec<_> = all
        .iter()
        .map(|group| (group.kind.as_str(), group.dead))
        .collect();
    assert_eq!(seen, [("b", 2), ("a", 1)]);
    let only = FailureParams {
        kind: Some(kind("a")),
        ..FailureParams::default()
    };
    assert_eq!(client.failures(&only).all().await.unwrap().len(), 1);
    let by_end = client.jobs_by(JobOrder::FinishedAt, &JobFilter::default());
    assert_eq!(by_end.limit(2).all().await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_replay_is_previewed_created_controlled_and_listed() {
    let server = Server::start().await;
    let client = server.client();
    die(&client, &["a"]).await;
    let new = NewReplay {
        filter: of_kind("a"),
        reason: Text::new("again".to_owned()).ok(),
        ..NewReplay::default()
    };
    let preview = client.preview_replay(&new).await.unwrap();
    assert_eq!((preview.matched, preview.diff.len()), (1, 1));
    assert!(client.replays().all().await.unwrap().is_empty());
    let keyed = client.idempotency_key("one");
    let replay = keyed.create_replay(&new).await.unwrap();
    assert_eq!(keyed.create_replay(&new).await.unwrap().id, replay.id);
    assert_eq!(client.replay(replay.id).await.unwrap().reason, "again");
    for (command, state) in [
        (ActionCommand::Pause, ActionState::Paused),
        (ActionCommand::Resume, ActionState::Running),
        (ActionCommand::Abort, ActionState::Aborted),
    ] {
        let after = client.command_replay(replay.id, command).await.unwrap();
        assert_eq!(after.state, state);
    }
    let refused = client
        .command_replay(replay.id, ActionCommand::Continue)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Some("wrong_state"));
    assert_eq!(client.replays().all().await.unwrap().len(), 1);
    let missing = client.replay(ActionId::from_u128(1)).await.unwrap_err();
    assert_eq!(missing.code(), Some("not_found"));
}

#[tokio::test]
async fn a_bulk_action_is_previewed_created_controlled_and_listed() {
    let server = Server::start().await;
    let client = server.client();
    die(&client, &["a"]).await;
    let new = NewBulkAction {
        action: Some(BulkActionName::Revive),
        filter: of_kind("a"),
        reason: Text::new("again".to_owned()).ok(),
        ..NewBulkAction::default()
    };
    assert_eq!(client.preview_bulk_action(&new).await.unwrap().matched, 1);
    let action = client.create_bulk_action(&new).await.unwrap();
    assert_eq!(action.action, BulkActionName::Revive);
    let read = client.bulk_action(action.id).await.unwrap();
    assert_eq!(read.matched, 1);
    let after = client.command_bulk_action(action.id, ActionCommand::Abort);
    assert_eq!(after.await.unwrap().state, ActionState::Aborted);
    assert_eq!(client.bulk_actions().all().await.unwrap().len(), 1);
}
