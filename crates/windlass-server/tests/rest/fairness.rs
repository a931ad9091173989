//! Claims over REST share slots between fresh work and retries as the engine's own do.

use serde_json::{Value, json};

use crate::support::Server;

/// A queue with so many due retries and fresh jobs.
async fn backlog(server: &Server, retries: usize, fresh: usize) {
    let job = json!({"kind": "a", "retry": "immediate"});
    for chunk in 0..retries.div_ceil(1000) {
        let count = (retries - chunk * 1000).min(1000);
        server
            .post("/api/v1/jobs/bulk", &json!({"jobs": vec![&job; count]}))
            .await;
        let jobs = server.claim(&json!({"limit": count})).await;
        let failed = jobs
            .iter()
            .map(|job| json!({"id": job["id"], "attempt": 1, "outcome": "failed", "error": "x"}));
        let outcomes: Vec<Value> = failed.collect();
        server
            .post("/api/v1/settle", &json!({"outcomes": outcomes}))
            .await;
    }
    if fresh > 0 {
        server
            .post("/api/v1/jobs/bulk", &json!({"jobs": vec![&job; fresh]}))
            .await;
    }
}

fn retries(jobs: &[Value]) -> usize {
    jobs.iter().filter(|job| job["failures"] != 0).count()
}

#[tokio::test]
async fn a_batch_has_its_share_of_retries() {
    for (due, fresh, limit, ratio, taken) in [
        (5, 20, 10, json!(0.2), (2, 8)),
        (10, 10, 10, json!(0.5), (5, 5)),
        (20, 0, 10, json!(0.2), (10, 0)),
        (5, 2, 6, json!(0.2), (4, 2)),
        (5, 5, 4, json!(0), (0, 4)),
    ] {
        let server = Server::open().await;
        backlog(&server, due, fresh).await;
        server
            .put(
                "/api/v1/queues/default/settings",
                &json!({"retry_fetch_ratio": ratio}),
            )
            .await;
        let jobs = server.claim(&json!({"limit": limit})).await;
        let got = (retries(&jobs), jobs.len() - retries(&jobs));
        assert_eq!(got, taken, "{due} {fresh} {limit} {ratio}");
    }
}

#[tokio::test]
async fn one_at_a_time_gives_one_retry_in_five() {
    let server = Server::open().await;
    backlog(&server, 50, 100).await;
    let (mut taken, mut row, mut longest) = (0, 0, 0);
    for _ in 0..50 {
        let jobs = server.claim(&json!({"limit": 1})).await;
        if retries(&jobs) == 1 {
            taken += 1;
            row = 0;
        } else {
            row += 1;
            longest = longest.max(row);
        }
    }
    assert_eq!(taken, 10);
    assert!(longest <= 5, "never six fresh in a row");
}

#[tokio::test]
async fn retries_in_flight_are_capped_and_slots_kept_for_fresh_work() {
    let server = Server::open().await;
    backlog(&server, 30, 0).await;
    let reserved = server.claim(&json!({"limit": 10, "slots": 10})).await;
    assert_eq!(
        reserved.len(),
        9,
        "one slot of ten stays free for fresh work"
    );
    server
        .put(
            "/api/v1/queues/default/settings",
            &json!({"max_inflight_retries": 12}),
        )
        .await;
    assert_eq!(
        server.claim(&json!({"limit": 10})).await.len(),
        3,
        "twelve in all"
    );
    assert!(server.claim(&json!({"limit": 10})).await.is_empty());
    server
        .put(
            "/api/v1/queues/default/settings",
            &json!({"fresh_reserve": 4}),
        )
        .await;
    let reserved = server
        .claim(&json!({"limit": 3, "slots": 10, "retries_running": 5}))
        .await;
    assert_eq!(reserved.len(), 1, "six of ten slots may hold retries");
    server
        .put(
            "/api/v1/queues/default/settings",
            &json!({"retry_lane": 4, "fresh_reserve": 0}),
        )
        .await;
    let lane = server
        .claim(&json!({"limit": 10, "slots": 10, "retries_running": 2}))
        .await;
    assert_eq!(lane.len(), 2, "four of its jobs may be retries");
}
