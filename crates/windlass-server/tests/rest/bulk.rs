//! Many jobs in one request.

use serde_json::{Value, json};

use crate::support::Server;

#[tokio::test]
async fn ten_thousand_jobs_are_created_at_once_and_one_more_is_refused() {
    let server = Server::open().await;
    let job = json!({"kind": "a", "payload": {"n": 1}});
    let jobs: Vec<&Value> = vec![&job; 10_000];
    let created = server
        .post("/api/v1/jobs/bulk", &json!({"jobs": jobs}))
        .await;
    assert_eq!(
        (created.status, &created.json["created"]),
        (200, &json!(10_000))
    );
    assert_eq!(created.json["data"].as_array().unwrap().len(), 10_000);
    let queue = server.get("/api/v1/queues/default").await;
    assert_eq!(queue.json["counts"]["ready"], 10_000);
    let jobs: Vec<&Value> = vec![&job; 10_001];
    let refused = server
        .post("/api/v1/jobs/bulk", &json!({"jobs": jobs}))
        .await;
    assert_eq!(refused.pointer(), "/jobs");
}

#[tokio::test]
async fn all_or_none_stores_nothing_where_one_is_wrong() {
    let server = Server::open().await;
    let jobs = json!({"jobs": [{"kind": "a"}, {"kind": "b c"}, {"kind": "a", "x": 1}]});
    let refused = server.post("/api/v1/jobs/bulk", &jobs).await;
    assert_eq!(refused.pointer(), "/jobs/1/kind");
    assert_eq!(refused.text_at("/errors/1/pointer"), "/jobs/2/x");
    assert_eq!(server.get("/api/v1/jobs").await.json["data"], json!([]));
    server
        .put(
            "/api/v1/queues/small/settings?create=true",
            &json!({"max_depth": 1}),
        )
        .await;
    let two = json!({"jobs": [{"kind": "a", "queue": "small"}, {"kind": "a", "queue": "small"}]});
    let full = server.post("/api/v1/jobs/bulk", &two).await;
    assert_eq!((full.status, full.code().as_str()), (429, "queue_full"));
    assert_eq!(server.get("/api/v1/jobs").await.json["data"], json!([]));
}

#[tokio::test]
async fn independent_jobs_report_their_problems_one_by_one() {
    let server = Server::open().await;
    server
        .put(
            "/api/v1/queues/small/settings?create=true",
            &json!({"max_depth": 1}),
        )
        .await;
    let jobs = json!({"mode": "each", "jobs": [
        {"kind": "a", "unique_key": "u"}, {"kind": "b c"}, {"kind": "a", "unique_key": "u"},
        {"kind": "a", "queue": "small"}, {"kind": "a", "queue": "small"},
    ]});
    let answer = server.post("/api/v1/jobs/bulk", &jobs).await;
    assert_eq!(answer.status, 200);
    let counts = ["created", "duplicates", "refused"].map(|name| answer.json[name].clone());
    assert_eq!(counts, [json!(2), json!(1), json!(2)]);
    let data = &answer.json["data"];
    assert_eq!(data[2]["id"], data[0]["id"]);
    assert_eq!(data[2]["duplicate"], true);
    assert_eq!(data[1]["problem"]["errors"][0]["pointer"], "/jobs/1/kind");
    assert_eq!(data[4]["problem"]["code"], "queue_full");
}

#[tokio::test]
async fn a_problem_with_an_http_job_names_its_position() {
    let server = Server::open().await;
    let jobs = json!([{"kind": "a"}, {"http": {"url": "ftp://a.example/"}}]);
    for mode in ["all_or_none", "each"] {
        let body = json!({"jobs": jobs, "mode": mode});
        let answer = server.post("/api/v1/jobs/bulk", &body).await;
        let problem = match mode {
            "each" => answer.json["data"][1]["problem"].clone(),
            _ => answer.json.clone(),
        };
        assert_eq!(
            problem["errors"][0]["pointer"], "/jobs/1/payload/url",
            "{answer:?}"
        );
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.starts_with("jobs[1]: "), "{detail}");
    }
}
