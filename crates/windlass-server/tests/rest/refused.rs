//! A database that does not accept the end of one job.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass_postgres::PostgresStore;

use crate::support::Server;
use windlass_testkit::cluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_that_the_database_refuses_is_answered_alone() {
    let url = cluster::database().await;
    let store = PostgresStore::connect(cluster::options(&url))
        .await
        .unwrap();
    let server = Server::on(Arc::new(store)).await;
    for _ in 0..3 {
        server.job(&json!({"kind": "a"})).await;
    }
    let jobs = server.claim(&json!({"limit": 3})).await;
    let refuse = format!(
        "create function refuse() returns trigger language plpgsql as $$ begin
             if old.id = '{}' then raise exception 'no'; end if;
             return old;
         end $$;
         create trigger refuse before delete on windlass.jobs for each row execute function refuse()",
        jobs[1]["id"].as_str().unwrap()
    );
    cluster::execute(&url, &refuse).await;
    let ended = |job: &Value| json!({"id": job["id"], "attempt": 1, "outcome": "succeeded"});
    let outcomes: Vec<Value> = jobs.iter().map(ended).collect();
    let settled = server
        .post("/api/v1/settle", &json!({"outcomes": outcomes}))
        .await;
    let data = settled.json["data"].as_array().unwrap();
    let statuses: Vec<&Value> = data.iter().map(|ended| &ended["status"]).collect();
    assert_eq!(statuses, ["done", "refused", "done"]);
    assert_eq!(server.get("/readyz").await.status, 200);
}
