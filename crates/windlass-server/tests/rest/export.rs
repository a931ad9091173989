//! Exports of jobs.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use windlass_memory::MemoryStore;
use windlass_server::access::Scope;
use windlass_testkit::{Faulty, client};

use crate::support::{Answer, Server};

const EXPORT: &str = "/api/v1/jobs/export";

async fn create(server: &Server, queue: &str, count: usize) {
    let job = |number| json!({"kind": "a", "queue": queue, "payload": {"number": number}});
    let jobs: Vec<Value> = (0..count).map(job).collect();
    let created = server
        .post("/api/v1/jobs/bulk", &json!({"jobs": jobs}))
        .await;
    assert_eq!(created.status, 200, "{created:?}");
}

fn lines(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{answer:?}");
    let text = String::from_utf8(answer.body.clone()).unwrap();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn an_export_has_all_jobs_of_a_filter_and_says_that_it_is_complete() {
    let server = Server::open().await;
    create(&server, "many", 2100).await;
    create(&server, "other", 3).await;
    let answer = server.get(&format!("{EXPORT}?queue=many")).await;
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    let name = answer.header("content-disposition").unwrap();
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    let name = name.strip_prefix("attachment; filename=\"jobs-").unwrap();
    let name = name.strip_suffix(".ndjson\"").unwrap();
    assert!(name.bytes().all(is_safe), "{name}");
    let mut lines = lines(&answer);
    let end = lines.pop().unwrap();
    assert_eq!(end, json!({"export": {"complete": true, "jobs": 2100}}));
    let listed = server.get("/api/v1/jobs?queue=many&limit=1").await;
    assert_eq!(
        lines[0], listed.json["data"][0],
        "newest first, as in a list"
    );
    let mut numbers: Vec<u64> = lines
        .iter()
        .map(|job| job["payload"]["number"].as_u64().unwrap())
        .collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..2100), "each job once");
    let broken = b"{\"kind\": \"a\", \"queue\": \"broken\", \"payload\": {\n\"a\":\r\n1}}";
    server.send("POST", "/api/v1/jobs", &[], Some(broken)).await;
    let broken = server.get(&format!("{EXPORT}?queue=broken")).await;
    assert_eq!(
        self::lines(&broken)[0]["payload"],
        json!({"a": 1}),
        "on one line"
    );
    let none = server.get(&format!("{EXPORT}?queue=none")).await;
    let end = json!({"export": {"complete": true, "jobs": 0}});
    assert_eq!(self::lines(&none), [end]);
    for query in ["format=xml", "limit=3", "state=lost"] {
        let refused = server.get(&format!("{EXPORT}?{query}")).await;
        let pointer = format!("/{}", query.split('=').next().unwrap());
        assert_eq!(refused.pointer(), pointer, "{query}");
    }
}

#[tokio::test]
async fn a_table_can_be_opened_in_a_spreadsheet() {
    let server = Server::open().await;
    let new = json!({
        "kind": "a", "payload": {"text": "a,b"}, "priority": -3, "tags": ["=1+1", "x"],
        "max_attempts": 1,
    });
    let id = server.job(&new).await;
    server
        .run(&json!({"outcome": "failed", "error": "@SUM(A1)\nsecond \"line\""}))
        .await;
    let answer = server.get(&format!("{EXPORT}?format=csv")).await;
    let content_type = answer.header("content-type");
    assert_eq!(content_type, Some("text/csv; charset=utf-8"));
    assert!(
        answer
            .header("content-disposition")
            .unwrap()
            .ends_with("Z.csv\"")
    );
    let text = String::from_utf8(answer.body).unwrap();
    let (header, row) = text.split_once("\r\n").unwrap();
    assert!(
        header.starts_with("id,kind,queue,state,dead_reason,"),
        "{header}"
    );
    assert!(row.starts_with(&format!("{id},a,default,dead,")), "{row}");
    assert!(row.ends_with("\r\n"), "{row}");
    for cell in [
        ",\"'@SUM(A1)\nsecond \"\"line\"\"\",",
        ",-3,",
        ",'=1+1 x,",
        ",\"{\"\"text\"\":\"\"a,b\"\"}\",",
    ] {
        assert!(row.contains(cell), "{cell} is not in {row}");
    }
}

#[tokio::test]
async fn payloads_and_errors_need_their_scope() {
    let mut server = Server::closed().await;
    server.key = Some(server.new_key(&[Scope::Admin]).await);
    create(&server, "q", 1).await;
    let reader = server.new_key(&[Scope::Read]).await;
    let seen = lines(&server.get(EXPORT).await);
    assert_eq!(seen[0]["payload"], json!({"number": 0}));
    server.key = Some(reader);
    let seen = lines(&server.get(EXPORT).await);
    assert_eq!(
        (&seen[0]["payload"], &seen[0]["payload_withheld"]),
        (&Value::Null, &json!(true))
    );
    let table = server.get(&format!("{EXPORT}?format=csv")).await;
    assert!(!String::from_utf8_lossy(&table.body).contains("number"));
    for query in ["error=x", "payload_path=/number&payload_value=0"] {
        let refused = server.get(&format!("{EXPORT}?{query}")).await;
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (403, "scope_missing")
        );
    }
}

#[tokio::test]
async fn an_export_that_fails_is_broken_off_and_does_not_look_complete() {
    let store = Faulty::new(Arc::new(MemoryStore::new()));
    let server = Server::on(Arc::clone(&store) as _).await;
    let large = "x".repeat(900_000);
    for _ in 0..2 {
        let jobs: Vec<Value> = (0..15)
            .map(|_| json!({"kind": "a", "payload": large}))
            .collect();
        server
            .post("/api/v1/jobs/bulk", &json!({"jobs": jobs}))
            .await;
    }
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = client::request(server.address, "GET", EXPORT, &[], None);
    stream.write_all(&request).await.unwrap();
    let mut first = vec![0; 1000];
    stream.read_exact(&mut first).await.unwrap();
    assert!(first.starts_with(b"HTTP/1.1 200 "));
    // The rest of the first page does not fit into the buffers of the connection, so the server has
    // not read the second page yet.
    store.fail("list");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    let rest = String::from_utf8_lossy(&rest);
    assert!(!rest.ends_with("\r\n0\r\n\r\n"), "the response has no end");
    assert!(
        !rest.contains("\"export\""),
        "nothing says that it is complete"
    );
    let unavailable = server.get(EXPORT).await;
    assert_eq!(
        unavailable.status, 503,
        "before the first job it is an ordinary error"
    );
}
