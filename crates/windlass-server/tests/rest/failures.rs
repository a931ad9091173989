//! The causes of failures.

use serde_json::{Value, json};

use crate::support::{Events, Server};

async fn fail(server: &Server, job: &Value, error: &str) -> String {
    let id = server.job(job).await;
    let queue = job["queue"].as_str().unwrap_or("default");
    server
        .run_claimed(
            &json!({"queue": queue}),
            &json!({"outcome": "failed", "error": error}),
        )
        .await;
    id
}

fn groups(answer: &crate::support::Answer) -> Vec<(String, u64, u64)> {
    assert_eq!(answer.status, 200, "{answer:?}");
    let data = answer.json["data"].as_array().unwrap();
    let row = |group: &Value| {
        (
            group["kind"].as_str().unwrap().to_owned(),
            group["dead"].as_u64().unwrap(),
            group["retrying"].as_u64().unwrap(),
        )
    };
    data.iter().map(row).collect()
}

#[tokio::test]
async fn failing_jobs_are_grouped_by_cause_the_largest_group_first() {
    let server = Server::open().await;
    let dies = |kind: &str| json!({"kind": kind, "max_attempts": 1});
    fail(&server, &dies("b"), "timeout after 30 s").await;
    fail(&server, &dies("a"), "timeout after 30 s").await;
    let last = fail(&server, &dies("a"), "timeout after 31 s").await;
    let retries = json!({"kind": "a", "queue": "mail", "retry": "patient"});
    fail(&server, &retries, "refused").await;
    let list = server.get("/api/v1/failures").await;
    let all = groups(&list);
    assert_eq!(all[0], ("a".to_owned(), 2, 0));
    assert_eq!(all.len(), 3, "{all:?}");
    let first = list.json["data"][0].clone();
    assert_eq!(
        first["sample"],
        json!({"job_id": last, "error": "timeout after 31 s"})
    );
    let hours = first["hours"].as_array().unwrap();
    assert_eq!((hours.len(), &hours[23]), (24, &json!(2)));
    assert!(first["first_seen_at"].as_str() < first["last_seen_at"].as_str());
    let job = server.get(&format!("/api/v1/jobs/{last}")).await;
    assert_eq!(job.json["fingerprint"], first["fingerprint"]);

    let cause = first["fingerprint"].as_str().unwrap();
    for (query, found) in [
        ("queue=mail".to_owned(), vec![("a", 0, 1)]),
        ("kind=b".to_owned(), vec![("b", 1, 0)]),
        (format!("fingerprint={cause}"), vec![("a", 2, 0)]),
        ("state=retrying".to_owned(), vec![("a", 0, 1)]),
        ("state=dead".to_owned(), vec![("a", 2, 0), ("b", 1, 0)]),
        ("fingerprint=other".to_owned(), vec![]),
    ] {
        let seen = groups(&server.get(&format!("/api/v1/failures?{query}")).await);
        let seen: Vec<_> = seen.iter().map(|(a, b, c)| (a.as_str(), *b, *c)).collect();
        assert_eq!(seen, found, "{query}");
    }
    for (query, pointer) in [
        ("state=ready", "/state"),
        ("fingerprint=x", "/fingerprint"),
        ("cursor=x", "/cursor"),
        ("error=x", "/error"),
    ] {
        let refused = server.get(&format!("/api/v1/failures?{query}")).await;
        assert_eq!(refused.pointer(), pointer);
    }
}

#[tokio::test]
async fn failures_have_pages() {
    let server = Server::open().await;
    for kind in ["a", "b", "c"] {
        fail(&server, &json!({"kind": kind, "max_attempts": 1}), "x").await;
    }
    let first = server.get("/api/v1/failures?limit=2").await;
    assert_eq!(groups(&first).len(), 2);
    assert!(first.header("link").is_some());
    let cursor = first.text_at("/next_cursor");
    let rest = server
        .get(&format!("/api/v1/failures?limit=2&cursor={cursor}"))
        .await;
    assert_eq!(groups(&rest).len(), 1);
    assert_eq!(rest.json["next_cursor"], Value::Null);
}

#[tokio::test]
async fn a_new_cause_is_an_event() {
    let server = Server::open().await;
    let path = "/api/v1/events?event=failure_group_created";
    let mut events = Events::listen(&server, path, &[]).await;
    let id = fail(&server, &json!({"kind": "a", "max_attempts": 1}), "one").await;
    fail(&server, &json!({"kind": "a", "max_attempts": 1}), "one").await;
    fail(&server, &json!({"kind": "b", "max_attempts": 1}), "two").await;
    let seen = events.until("\"kind\":\"b\"").await;
    assert_eq!(seen.matches("event: failure_group_created").count(), 2);
    let job = server.get(&format!("/api/v1/jobs/{id}")).await;
    let cause = job.text_at("/fingerprint");
    assert!(
        seen.contains(&format!("\"fingerprint\":\"{cause}\"")),
        "{seen}"
    );
    let metrics = server.get("/metrics").await;
    let line = "windlass_failure_groups_created_total{queue=\"default\"} 2";
    assert!(metrics.text().contains(line), "{}", metrics.text());
}
