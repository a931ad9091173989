//! Statistics over REST.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass_engine::StatisticsWriter;

use crate::support::Server;

/// Writes what the server has counted, without waiting for the end of the 10 s.
async fn write(server: &Server) {
    let engine = windlass::admin::engine_of(&server.client);
    let writer = StatisticsWriter::new(Arc::clone(engine));
    writer.flush(server.client.now()).await.unwrap();
}

async fn read(server: &Server, query: &str) -> Value {
    let answer = server.get(&format!("/api/v1/stats{query}")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json
}

/// Two jobs in `mail`, one of which fails once, and one waiting job in `report`.
async fn with_activity() -> Server {
    let server = Server::open().await;
    let retry = json!({"max_attempts": 3, "backoff": {"type": "constant", "delay": "0s"}});
    for (kind, queue) in [("send", "mail"), ("send", "mail"), ("sum", "report")] {
        let body = json!({"kind": kind, "queue": queue, "retry": retry});
        server.job(&body).await;
    }
    let mail = json!({"queues": ["mail"]});
    for outcome in ["failed", "succeeded", "succeeded"] {
        let outcome = match outcome {
            "failed" => json!({"outcome": "failed", "error": "boom"}),
            other => json!({"outcome": other}),
        };
        server.run_claimed(&mail, &outcome).await;
    }
    write(&server).await;
    server
}

#[tokio::test]
async fn statistics_split_outcomes_by_fresh_and_retry() {
    let server = with_activity().await;
    let answer = read(&server, "").await;
    assert_eq!(answer["step"], "10s");
    let totals = &answer["totals"];
    let split = |fresh: u64, retry: u64| json!({"fresh": fresh, "retry": retry});
    assert_eq!(totals["enqueued"], 3);
    assert_eq!(totals["started"], split(2, 1));
    assert_eq!(totals["succeeded"], split(1, 1));
    assert_eq!(totals["failed"], split(1, 0));
    for none in ["timed_out", "lost", "snoozed", "released", "cancelled"] {
        assert_eq!(totals[none], split(0, 0), "{none}");
    }
    assert_eq!(
        (&totals["retried"], &totals["dead"]),
        (&json!(1), &json!(0))
    );
    for times in ["wait", "run"] {
        assert_eq!(totals[times]["count"], 3);
        let [p50, p95, p99] = ["p50_ms", "p95_ms", "p99_ms"].map(|name| &totals[times][name]);
        let [p50, p95, p99] = [p50, p95, p99].map(|value| value.as_f64().unwrap());
        assert!(p50 <= p95 && p95 <= p99, "{times}: {p50} {p95} {p99}");
    }
    let points = answer["data"].as_array().unwrap();
    let enqueued: u64 = points
        .iter()
        .map(|point| point["enqueued"].as_u64().unwrap())
        .sum();
    assert_eq!(enqueued, 3);
    assert!(points.iter().all(|point| point["at"].is_string()));
}

#[tokio::test]
async fn statistics_list_all_queues_or_show_one() {
    let server = with_activity().await;
    let all = read(&server, "?step=1m").await;
    let queues = all["queues"].as_array().unwrap();
    let names: Vec<_> = queues
        .iter()
        .map(|queue| (&queue["queue"], &queue["enqueued"]))
        .collect();
    assert_eq!(
        names,
        [(&json!("mail"), &json!(2)), (&json!("report"), &json!(1))]
    );
    assert_eq!(all["other"], Value::Null);
    assert_eq!(all["step"], "1m");
    let report = read(&server, "?queue=report&step=1h").await;
    assert_eq!(report["totals"]["enqueued"], 1);
    assert_eq!(
        report["totals"]["wait"],
        json!({"count": 0, "p50_ms": null, "p95_ms": null, "p99_ms": null})
    );
    assert_eq!(report["queues"].as_array().unwrap().len(), 1);
    assert_eq!(report["data"].as_array().unwrap().len(), 1);
    let unknown = read(&server, "?queue=unknown").await;
    assert_eq!(
        (&unknown["data"], &unknown["queues"]),
        (&json!([]), &json!([]))
    );
}

#[tokio::test]
async fn a_range_selects_its_steps() {
    let server = with_activity().await;
    let now = server.client.now();
    let before = |hours: u64| now.saturating_sub(Duration::from_secs(hours * 3600));
    let past = read(&server, &format!("?from={}&to={}", before(3), before(2))).await;
    assert_eq!((&past["step"], &past["data"]), (&json!("1m"), &json!([])));
    let days = read(&server, &format!("?from={}", before(100))).await;
    assert_eq!(
        (&days["step"], &days["totals"]["enqueued"]),
        (&json!("1h"), &json!(3))
    );
    for (query, field) in [
        (format!("?from={}", before(31 * 24)), "/from"),
        (format!("?from={}&step=1m", before(25)), "/step"),
        (format!("?from={}&to={}", before(1), before(2)), "/to"),
        ("?step=7s".to_owned(), "/step"),
        ("?queue=a%20b".to_owned(), "/queue"),
    ] {
        let refused = server.get(&format!("/api/v1/stats{query}")).await;
        assert_eq!(refused.status, 422, "{query}: {refused:?}");
        assert_eq!(refused.text_at("/errors/0/pointer"), field, "{query}");
    }
}
