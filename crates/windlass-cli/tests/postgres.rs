//! `windlass migrate` and `windlass bench store --driver postgres`, as a whole.

#[path = "../../windlass-postgres/tests/support/cluster.rs"]
mod cluster;

use std::process::{Command, Output};

fn windlass(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_windlass"))
        .args(arguments)
        .output()
        .expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_is_migrated_and_measured() {
    let url = cluster::empty_database().await;
    let status = windlass(&["migrate", "status", "--url", &url]);
    assert!(text(&status.stdout).contains("missing"), "{status:?}");
    let up = windlass(&["migrate", "up", "--url", &url]);
    assert_eq!(text(&up.stdout), "applied 1 jobs\n", "{up:?}");
    let again = windlass(&["migrate", "up", "--url", &url, "--json"]);
    let applied: serde_json::Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(applied, serde_json::json!({"applied": []}));
    let status = windlass(&["migrate", "status", "--url", &url]);
    assert!(text(&status.stdout).contains("applied"), "{status:?}");

    let small = [
        "--jobs",
        "200",
        "--batch",
        "30",
        "--clients",
        "2",
        "--backlog",
        "40",
        "--future",
        "50",
    ];
    let bench = [
        "bench", "store", "--driver", "postgres", "--json", "--url", &url,
    ];
    let measured = windlass(&[&bench[..], &small].concat());
    assert!(measured.status.success(), "{measured:?}");
    let figures: serde_json::Value = serde_json::from_slice(&measured.stdout).unwrap();
    for key in [
        "postgres_baseline_per_s",
        "ratio",
        "enqueue_per_s",
        "lifecycle_per_s",
        "backlog_claim_per_s",
    ] {
        assert!(
            figures[key].as_f64().is_some_and(|figure| figure > 0.0),
            "{key}: {figures}"
        );
    }
    let client = cluster::client(&url).await;
    let waiting: i64 = client
        .query_one("select count(*) from windlass.jobs", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(waiting, 40 + 50, "all else is done");
    let refused = windlass(&bench);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        text(&refused.stderr).contains("there are jobs in that database already"),
        "{refused:?}"
    );
}

#[test]
fn what_is_wrong_is_told() {
    let sql = windlass(&["migrate", "sql"]);
    assert!(
        text(&sql.stdout).contains("create table windlass.jobs"),
        "{sql:?}"
    );
    let nowhere = windlass(&["migrate", "up", "--url", "postgres://127.0.0.1:1/nowhere"]);
    assert_eq!(nowhere.status.code(), Some(1), "{nowhere:?}");
    let wrong = windlass(&[
        "migrate",
        "up",
        "--url",
        "postgres://db/jobs?pool_size=many",
    ]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    assert!(text(&wrong.stderr).contains("pool_size"), "{wrong:?}");
    let missing = windlass(&["bench", "store", "--driver", "postgres"]);
    assert_eq!(missing.status.code(), Some(2), "{missing:?}");
    assert!(text(&missing.stderr).contains("--url"), "{missing:?}");
}
