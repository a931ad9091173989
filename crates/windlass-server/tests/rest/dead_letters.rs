//! Dead letters: a list of dead jobs.

use serde_json::json;

use crate::support::Server;

#[tokio::test]
async fn dead_jobs_are_listed() {
    let server = Server::open().await;
    let mut dead = Vec::new();
    for kind in ["a", "a", "b"] {
        dead.push(server.job(&json!({"kind": kind, "max_attempts": 1})).await);
        server
            .run(&json!({"outcome": "failed", "error": "boom"}))
            .await;
    }
    server.job(&json!({"kind": "a"})).await;
    let list = server.get("/api/v1/dead-letters?kind=a").await;
    assert_eq!(list.json["data"].as_array().unwrap().len(), 2);
    assert_eq!(list.json["data"][0]["id"], dead[1].as_str());
    let by_end = server.get("/api/v1/dead-letters?order=finished_at").await;
    assert_eq!(by_end.json["data"][0]["id"], dead[2].as_str());
    let cause = list.text_at("/data/0/fingerprint");
    let alike = server
        .get(&format!("/api/v1/dead-letters?fingerprint={cause}"))
        .await;
    assert_eq!(alike.json["data"].as_array().unwrap().len(), 2);
    let refused = server.get("/api/v1/dead-letters?state=ready").await;
    assert_eq!(refused.pointer(), "/state");
}
