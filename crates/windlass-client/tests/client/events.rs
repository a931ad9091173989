//! The event stream, from a real server and from one that breaks the connection.

use std::time::Duration;

use windlass_client::Client;
use windlass_client::api::{EventName, EventParams, NewJob, Scope};
use windlass_core::{Kind, QueueName};

use crate::support::{Script, Server, Step, new_key};

#[tokio::test]
async fn a_reader_gets_the_events_of_its_filter() {
    let server = Server::start().await;
    let client = server.client();
    let params = EventParams {
        queue: Some(QueueName::new("mail").unwrap()),
        ..EventParams::default()
    };
    let mut events = client.events(&params).await.unwrap();
    let mut ids = Vec::new();
    for queue in ["other", "mail", "mail"] {
        let job = NewJob {
            queue: Some(QueueName::new(queue).unwrap()),
            ..NewJob::new(Kind::new("a").unwrap())
        };
        ids.push(client.create_job(&job).await.unwrap().id);
    }
    let first = events.next().await.unwrap();
    assert_eq!(
        (first.event, first.job_id),
        (EventName::Enqueued, Some(ids[1]))
    );
    let resumed = EventParams {
        last_event_id: events.last_event_id().map(str::to_owned),
        ..params
    };
    for mut reader in [events, client.events(&resumed).await.unwrap()] {
        assert_eq!(reader.next().await.unwrap().job_id, Some(ids[2]));
    }
}

#[tokio::test]
async fn a_reader_reconnects_and_resumes_after_its_last_event() {
    let script = Script::start(&[
        Step::AnswerAndClose(
            "200 OK\n\nretry: 1\n\nid: a-1\ndata: {\"event\":\"enqueued\"}\n\nid: a-2\ndata: {\"ev",
        ),
        Step::Answer("503 Service Unavailable\n\n{}"),
        Step::Answer("200 OK\n\nid: a-2\ndata: {\"event\":\"claimed\"}\n\n"),
    ])
    .await;
    let client = Client::new(&script.url).unwrap();
    let mut events = client.events(&EventParams::default()).await.unwrap();
    for (event, id) in [(EventName::Enqueued, "a-1"), (EventName::Claimed, "a-2")] {
        let next = tokio::time::timeout(Duration::from_secs(30), events.next());
        assert_eq!(next.await.unwrap().unwrap().event, event);
        assert_eq!(events.last_event_id(), Some(id));
    }
    let requests = script.requests();
    assert!(!requests[0].contains("last-event-id"), "{requests:?}");
    for request in &requests[1..] {
        assert!(request.contains("last-event-id: a-1"), "{requests:?}");
    }
}

#[tokio::test]
async fn a_reader_without_the_right_key_is_refused() {
    let server = Server::start().await;
    let admin = server.admin_key().await;
    let client = server.builder().key(&admin.key).build().unwrap();
    let weak = client.create_key(&new_key(Scope::Enqueue)).await.unwrap();
    let weak = server.builder().key(&weak.key).build().unwrap();
    let refused = weak.events(&EventParams::default()).await.unwrap_err();
    assert_eq!(refused.code(), Some("scope_missing"));
}
