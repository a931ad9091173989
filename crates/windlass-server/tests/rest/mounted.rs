//! The router within a program of somebody else's.

use std::process::Command;

use serde_json::json;

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
    // Built beside this test by a run of all tests; built now, where only this test is run.
    let this = std::env::current_exe().unwrap();
    let folder = this.parent().unwrap().parent().unwrap();
    let program = folder.join("examples/mounted");
    if !program.exists() {
        // With the features of such a run: others would compile every dependency again.
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--workspace", "--all-features"]);
        let built = cargo.args(["--example", "mounted"]).status();
        assert!(built.unwrap().success());
    }
    let output = Command::new(program).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "40 + 2 = 42\n");
}
