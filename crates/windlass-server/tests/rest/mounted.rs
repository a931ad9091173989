//! The router within a program of somebody else's.

use serde_json::json;
use windlass_testkit::child;

use crate::support::Server;

#[tokio::test]
async fn links_hold_wherever_the_router_is_mounted() {
    let server = Server::mounted("/background/jobs").await;
    let created = server
        .post("/background/jobs/api/v1/jobs", &json!({"kind": "a"}))
        .await;
    assert_eq!(created.status, 201, "{created:?}");
    let location = created.header("location").unwrap();
    assert_eq!(
        server.get(location).await.text_at("/id"),
        created.text_at("/id")
    );
    server
        .post("/background/jobs/api/v1/jobs", &json!({"kind": "a"}))
        .await;
    let page = server.get("/background/jobs/api/v1/jobs?limit=1").await;
    let link = page.header("link").unwrap();
    let next = link.trim_start_matches('<').split('>').next().unwrap();
    assert_eq!(
        server.get(next).await.text_at("/data/0/id"),
        created.text_at("/id")
    );
}

#[test]
fn the_example_answers_and_ends() {
    let mut program = child::example(env!("CARGO_MANIFEST_DIR"), "mounted");
    let output = program.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "40 + 2 = 42\n");
}
