//! Every resource, on a real server.

use windlass_client::Error;
use windlass_client::api::{
    AuditParams, BoundedInt, CreateQueue, DurationText, ExplainParams, ExplainRequest, NewKey,
    NewSecret, PauseQueue, Retry, Scope, StatisticsParams, StatusWord, Text,
};
use windlass_core::QueueName;
use windlass_core::retry::Preset;

use crate::support::{Server, new_key};

fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a name")
}

const CREATE: CreateQueue = CreateQueue { create: Some(true) };

#[tokio::test]
async fn keys_are_created_listed_and_revoked() {
    let server = Server::start().await;
    let admin = server.admin_key().await;
    let client = server.builder().key(&admin.key).build().unwrap();
    let day = std::time::Duration::from_secs(86_400);
    let new = NewKey {
        expires_in: Some(DurationText(day)),
        ..new_key(Scope::ReadPayload)
    };
    let created = client.create_key(&new).await.unwrap();
    let expires_at = created.about.created_at.saturating_add(day);
    assert_eq!(created.about.expires_at, Some(expires_at));
    let ids: Vec<String> = client
        .keys()
        .await
        .unwrap()
        .into_iter()
        .map(|key| key.id)
        .collect();
    assert_eq!(ids, [admin.about.id, created.about.id.clone()]);
    let revoked = client.revoke_key(&created.about.id).await.unwrap();
    assert_eq!(revoked.scopes, [Scope::ReadPayload]);
    assert!(revoked.revoked_at.is_some());
}

#[tokio::test]
async fn a_missing_wrong_or_weak_key_is_refused_with_a_code() {
    let server = Server::start().await;
    let admin = server.admin_key().await;
    let client = server.builder().key(&admin.key).build().unwrap();
    let weak = client.create_key(&new_key(Scope::Enqueue)).await.unwrap();
    for (key, status, code) in [
        (None, 401, "key_missing"),
        (Some("wl_nonsense".to_owned()), 401, "key_malformed"),
        (Some(weak.key), 403, "scope_missing"),
    ] {
        let client = key
            .into_iter()
            .fold(server.builder(), |client, key| client.key(key));
        let refused = client.build().unwrap().keys().await.unwrap_err();
        let problem = refused.problem().expect("a refusal");
        assert_eq!((problem.status, problem.code.as_str()), (status, code));
        assert!(!refused.is_temporary());
    }
}

#[tokio::test]
async fn a_refusal_names_every_invalid_field() {
    let server = Server::start().await;
    let new = NewKey {
        name: Some(" ".to_owned()),
        scopes: Some(Vec::new()),
        ..NewKey::default()
    };
    let refused = server.client().create_key(&new).await.unwrap_err();
    let problem = refused.problem().expect("a refusal");
    let fields: Vec<&str> = problem
        .errors
        .iter()
        .map(|error| error.pointer.as_str())
        .collect();
    assert_eq!((problem.status, fields), (422, vec!["/name", "/scopes"]));
    assert!(
        refused
            .to_string()
            .starts_with("the server refused the request (422): ")
    );
}

#[tokio::test]
async fn secrets_are_stored_listed_rotated_and_deleted() {
    let server = Server::start().await;
    let client = server.client();
    let new = NewSecret {
        value: Some("s3cret".to_owned()),
        hosts: Some(vec!["api.example.com".to_owned()]),
        any_host: None,
    };
    client.put_secret("hook", &new).await.unwrap();
    let listed = client.secrets().await.unwrap();
    let [secret] = &listed[..] else {
        panic!("one secret: {listed:?}");
    };
    assert_eq!((secret.name.as_str(), secret.any_host), ("hook", false));
    assert_eq!(secret.hosts, ["api.example.com"]);
    assert_eq!(client.rotate_secrets().await.unwrap(), 0);
    client.remove_secret("hook").await.unwrap();
    let gone = client.remove_secret("hook").await.unwrap_err();
    assert_eq!(gone.code(), Some("not_found"));
}

#[tokio::test]
async fn the_audit_log_is_read_page_by_page_and_verified() {
    let server = Server::start().await;
    let client = server.client();
    for name in ["a", "b", "c"] {
        let (name, silent) = (queue(name), PauseQueue::default());
        client.pause_queue(&name, &silent, CREATE).await.unwrap();
        client.resume_queue(&name).await.unwrap();
    }
    let pauses = AuditParams {
        action: Some("queue.pause".to_owned()),
        ..AuditParams::default()
    };
    let all = client.audit(&pauses).limit(1).all().await.unwrap();
    let targets: Vec<&str> = all.iter().map(|record| record.target.as_str()).collect();
    assert_eq!(targets, ["c", "b", "a"]);
    let mut pager = client.audit(&pauses).limit(2);
    let first = pager.next_page().await.unwrap().expect("a page");
    assert_eq!(first.data, all[..2]);
    let cursor = first.next_cursor.expect("there is more");
    let rest = client.audit(&pauses).after(cursor).all().await.unwrap();
    assert_eq!(rest, all[2..]);
    let verified = client.verify_audit(None).await.unwrap();
    assert_eq!((verified.records, &verified.broken), (6, &None));
    let known = client.verify_audit(Some("ab")).await.unwrap();
    assert!(known.broken.is_some());
}

#[tokio::test]
async fn policies_are_explained() {
    let server = Server::start().await;
    let client = server.client();
    let policies = client.policies().await.unwrap();
    assert_eq!(policies.len(), Preset::ALL.len());
    let params = ExplainParams {
        max_attempts: BoundedInt::new(6),
        jobs: BoundedInt::new(10),
    };
    let preset = client
        .explain_preset(Preset::Patient, params)
        .await
        .unwrap();
    assert_eq!((preset.attempts.len(), preset.herd[0].requests), (6, 10));
    let request = ExplainRequest {
        policy: Some(Retry::Policy(Box::new(preset.policy))),
        ..ExplainRequest::default()
    };
    let again = client.explain_policy(&request).await.unwrap();
    assert_eq!(again.attempts.len(), 6);
}

#[tokio::test]
async fn queues_are_set_up_paused_and_listed() {
    let server = Server::start().await;
    let (client, mail) = (server.client(), queue("mail"));
    let missing = client.queue(&mail).await.unwrap_err();
    assert!(matches!(&missing, Error::Refused(problem) if problem.status == 404));
    let settings = windlass_client::api::QueueSettings {
        concurrency: BoundedInt::new(3),
        ..Default::default()
    };
    let put = client.put_queue_settings(&mail, &settings, CREATE);
    assert_eq!(put.await.unwrap().concurrency, BoundedInt::new(3));
    let read = client.queue_settings(&mail).await.unwrap();
    assert_eq!(read.concurrency, BoundedInt::new(3));
    let deploy = PauseQueue {
        reason: Text::new("deploy".to_owned()).ok(),
    };
    let paused = client.pause_queue(&mail, &deploy, CreateQueue::default());
    let pause = paused.await.unwrap().paused.unwrap();
    assert_eq!(pause.reason.as_deref(), Some("deploy"));
    let resumed = client.resume_queue(&mail).await.unwrap();
    assert!(resumed.paused.is_none());
    let names: Vec<QueueName> = client
        .queues()
        .all()
        .await
        .unwrap()
        .into_iter()
        .map(|one| one.name)
        .collect();
    assert_eq!(names, [mail]);
}

#[tokio::test]
async fn statistics_are_read_for_a_range_and_a_queue() {
    let server = Server::start().await;
    let minute = DurationText(std::time::Duration::from_secs(60));
    let params = StatisticsParams {
        step: Some(minute),
        queue: Some(queue("mail")),
        ..StatisticsParams::default()
    };
    let statistics = server.client().statistics(&params).await.unwrap();
    assert_eq!(statistics.step, minute);
    assert!(statistics.data.is_empty() && statistics.queues.is_empty());
    assert_eq!(statistics.totals.wait.p50_ms, None);
    let backwards = StatisticsParams {
        from: Some(statistics.to),
        to: Some(statistics.from),
        ..params
    };
    let refused = server.client().statistics(&backwards).await.unwrap_err();
    assert_eq!(refused.problem().unwrap().status, 422);
}

#[tokio::test]
async fn ready_and_metrics_return_the_state_of_the_server() {
    let server = Server::start_with("/jobs", None).await;
    let client = server.client();
    assert_eq!(client.ready().await.unwrap().status, StatusWord::Ok);
    let none = client.metrics().await.unwrap_err();
    assert_eq!(
        none.code(),
        Some("no_metrics"),
        "it is mounted under a path"
    );
}
