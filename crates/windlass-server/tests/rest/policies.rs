//! Policies: presets, and what one will do.

use serde_json::json;

use crate::support::Server;

#[tokio::test]
async fn presets_are_listed_and_explained() {
    let server = Server::open().await;
    let list = server.get("/api/v1/policies").await;
    let names: Vec<_> = list.json["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].clone())
        .collect();
    assert_eq!(names.len(), 9);
    assert_eq!(names[0], "standard");
    let told = server
        .get("/api/v1/policies/patient/explain?jobs=10&max_attempts=3")
        .await;
    insta::assert_snapshot!(told.redacted());
    let unknown = server.get("/api/v1/policies/nothing/explain").await;
    assert_eq!(unknown.status, 404);
}

#[tokio::test]
async fn a_policy_of_ones_own_is_explained() {
    let server = Server::open().await;
    let policy = json!({"max_attempts": 3, "backoff": {"type": "constant", "delay": "2s"}});
    let told = server
        .post(
            "/api/v1/policies/explain",
            &json!({"policy": policy, "jobs": 5}),
        )
        .await;
    assert_eq!(told.json["horizon_ms"]["nominal"], 4000, "{told:?}");
    let refused = server
        .post(
            "/api/v1/policies/explain",
            &json!({"policy": {"backoff": 5}}),
        )
        .await;
    assert_eq!(refused.pointer(), "/policy/backoff");
}
