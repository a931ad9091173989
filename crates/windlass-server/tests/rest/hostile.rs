//! Bodies, names, filters and numbers that mean no good.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use windlass_server::access::Scope;
use windlass_server::{Settings, routes};

use crate::support::{PATIENCE, Server};

async fn post_raw(server: &Server, body: &[u8]) -> crate::support::Answer {
    server.send("POST", "/api/v1/jobs", &[], Some(body)).await
}

#[tokio::test]
async fn json_that_could_harm_is_refused() {
    let server = Server::open().await;
    let deep = |depth: usize| {
        format!(
            "{{\"kind\":\"a\",\"payload\":{}1{}}}",
            "[".repeat(depth),
            "]".repeat(depth)
        )
    };
    let keys: Vec<String> = (0..105_000).map(|n| format!("\"{n}\":1")).collect();
    let bodies: Vec<Vec<u8>> = vec![
        deep(10_000).into_bytes(),
        deep(65).into_bytes(),
        "[".repeat(500_000).into_bytes(),
        format!("{{\"kind\":\"a\",\"payload\":{{{}}}}}", keys.join(",")).into_bytes(),
        br#"{"kind":"a","kind":"b"}"#.to_vec(),
        br#"{"kind":"a","payload":{"x":1,"x":2}}"#.to_vec(),
        br#"{"kind":"a","payload":1e999}"#.to_vec(),
        br#"{"kind":"a","payload":NaN}"#.to_vec(),
        br#"{"kind":"a","payload":"\ud800"}"#.to_vec(),
        br#"{"kind":"a","payload":"\u0000"}"#.to_vec(),
        br#"{"kind":"a","meta":{"\u0000":1}}"#.to_vec(),
        b"{\"kind\":\"a\",\"payload\":\"\x00\"}".to_vec(),
        b"{\"kind\":\"\xff\"}".to_vec(),
        b"\xef\xbb\xbf{\"kind\":\"a\"}".to_vec(),
        b"".to_vec(),
        b"null".to_vec(),
        b"[]".to_vec(),
        b"\"kind\"".to_vec(),
        br#"{"kind":"a"} {"kind":"b"}"#.to_vec(),
        br#"{"kind":"a","meta":{"x":{"$serde_json::private::RawValue":"1"}}}"#.to_vec(),
    ];
    for body in &bodies {
        let refused = post_raw(&server, body).await;
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        assert!([400, 422].contains(&refused.status), "{shown}: {refused:?}");
        assert!(!refused.code().is_empty());
        assert!(refused.body.len() < 2000, "{shown}: the answer is short");
    }
    assert_eq!(server.get("/api/v1/jobs").await.json["data"], json!([]));
    assert_eq!(post_raw(&server, deep(60).as_bytes()).await.status, 201);
    let big_number = br#"{"kind":"a","payload":12345678901234567890123456789}"#;
    let created = post_raw(&server, big_number).await;
    assert_eq!(created.status, 201);
    let read = server
        .get(&format!("/api/v1/jobs/{}", created.text_at("/id")))
        .await;
    assert!(
        read.text()
            .contains("\"payload\":12345678901234567890123456789"),
        "kept to the digit"
    );
}

/// A server with something behind every path: a job, a queue, a schedule, a worker, a policy.
async fn furnished() -> (Server, impl Fn(&str) -> String) {
    let server = Server::open().await;
    let id = server.job(&json!({"kind": "a", "queue": "n"})).await;
    let schedule = json!({"name": "n", "every": "1h", "job": {"kind": "a"}});
    server.post("/api/v1/schedules", &schedule).await;
    server.post("/api/v1/workers", &json!({"name": "n"})).await;
    let path_of = move |path: &str| {
        let path = path.replace("{id}", &id).replace("{preset}", "standard");
        path.replace("{queue}", "n").replace("{name}", "n")
    };
    (server, path_of)
}

#[tokio::test]
async fn every_route_with_a_body_refuses_invalid_json() {
    let (server, path_of) = furnished().await;
    let described = windlass_server::openapi();
    let (mut with_body, mut without) = (0, 0);
    for route in routes() {
        let method = route.method.as_str();
        let about = &described["paths"][route.path][method.to_lowercase()];
        let takes_body = about["requestBody"].is_object();
        let send = async |kind: &str, body: &[u8]| {
            let kind = [("Content-Type", kind)];
            let path = path_of(route.path);
            server.send(method, &path, &kind, Some(body)).await
        };
        if !takes_body {
            without += 1;
            let refused = send("application/json", br#"{"a":1}"#).await;
            assert_eq!(
                (refused.status, refused.code().as_str()),
                (422, "invalid"),
                "{route:?}"
            );
            continue;
        }
        with_body += 1;
        for body in [&b"{"[..], b"\xff", b"[["] {
            let refused = send("application/json", body).await;
            let told = (refused.status, refused.code());
            assert_eq!(told, (400, "malformed_json".to_owned()), "{route:?}");
        }
        let twice = send("application/json", br#"{"a":1,"a":2}"#).await;
        assert!(matches!(twice.status, 400 | 422), "{route:?}: {twice:?}");
        let unknown = send("application/json", br#"{"nobody_knows_this":1}"#).await;
        assert_eq!(unknown.status, 422, "{route:?}: {unknown:?}");
        let form = send("application/x-www-form-urlencoded", b"a=1").await;
        assert_eq!(form.status, 415, "{route:?}: {form:?}");
    }
    assert!(with_body > 15 && without > 30, "{with_body} {without}");
}

#[tokio::test]
async fn an_empty_object_is_no_body_where_none_is_taken() {
    let server = Server::open().await;
    for body in [&b"{}"[..], b" {}\n"] {
        let resumed = server
            .send("POST", "/api/v1/queues/default/resume", &[], Some(body))
            .await;
        assert_eq!(resumed.status, 200, "{resumed:?}");
    }
    let long = vec![b' '; 2000];
    let refused = server
        .send("POST", "/api/v1/queues/default/resume", &[], Some(&long))
        .await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (413, "body_too_large")
    );
}

#[tokio::test]
async fn a_path_that_is_no_text_is_answered_as_every_other_and_only_with_a_key() {
    let mut server = Server::closed().await;
    server.new_key(&[Scope::Admin]).await;
    let key = server.new_key(&[Scope::Read]).await;
    let missing = server.get("/api/v1/jobs/%ff").await;
    assert_eq!(
        (missing.status, missing.code().as_str()),
        (401, "key_missing")
    );
    server.key = Some(key);
    let unknown = server.get("/api/v1/jobs/%ff").await;
    assert_eq!(
        (unknown.status, unknown.code().as_str()),
        (404, "not_found")
    );
    assert!(unknown.header("x-request-id").is_some());
}

#[tokio::test]
async fn names_are_allowed_by_list() {
    let server = Server::open().await;
    let names = [
        "",
        "../../etc/passwd",
        "a\r\nX-Evil: 1",
        "a\u{7}b",
        "\u{202e}cba",
        "🙂",
        "'; drop table jobs; --",
        "{{7*7}}",
        "<script>",
        "a b",
        "%00",
    ];
    let long = "x".repeat(10_000);
    for name in names.iter().copied().chain([long.as_str()]) {
        for field in ["kind", "queue"] {
            let mut body = json!({"kind": "a"});
            body[field] = json!(name);
            let refused = server.post("/api/v1/jobs", &body).await;
            // A kind may hold dots and slashes: it is a name, and never a path.
            if field == "kind" && name == "../../etc/passwd" {
                assert_eq!(refused.status, 201);
                continue;
            }
            assert_eq!(refused.pointer(), format!("/{field}"), "{name}");
        }
        let refused = server
            .post(
                "/api/v1/schedules",
                &json!({"name": name, "every": "1h", "job": {"kind": "a"}}),
            )
            .await;
        assert!(
            refused.status == 422 || name.starts_with("../"),
            "{name}: {refused:?}"
        );
    }
    for key in ["\u{0}", "a\nb", &"x".repeat(257), ""] {
        let refused = server
            .post("/api/v1/jobs", &json!({"kind": "a", "unique_key": key}))
            .await;
        assert!([400, 422].contains(&refused.status));
    }
}

#[tokio::test]
async fn pages_and_filters_are_bounded() {
    let server = Server::open().await;
    for (query, pointer) in [
        ("limit=1000000000", "/limit"),
        ("limit=0", "/limit"),
        ("limit=-1", "/limit"),
        ("limit=1e3", "/limit"),
        ("offset=1000000000000", "/offset"),
        ("sort=payload", "/sort"),
        ("cursor=1", "/cursor"),
        ("cursor=j%27%20or%201=1", "/cursor"),
        ("created_from=0", "/created_from"),
        ("limit=1&limit=2", "/limit"),
    ] {
        assert_eq!(
            server.get(&format!("/api/v1/jobs?{query}")).await.pointer(),
            pointer,
            "{query}"
        );
    }
    let long = server
        .get(&format!("/api/v1/jobs?error={}", "x".repeat(201)))
        .await;
    assert_eq!(long.pointer(), "/error");
}

#[tokio::test]
async fn filters_and_cursors_are_values_and_never_sql() {
    let server = Server::open().await;
    let id = server
        .job(&json!({"kind": "a", "tags": ["t"], "unique_key": "u"}))
        .await;
    let corpus = [
        "' or '1'='1",
        "\" or \"\"=\"",
        "1; drop table jobs",
        "%' --",
        "\\'; select 1",
        "') union select 1 --",
        "$1",
        "?1",
        "jobs",
        "null",
        "%",
        "_",
    ];
    for text in corpus {
        let escaped: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
        for name in [
            "tag",
            "unique_key",
            "error",
            "queue",
            "kind",
            "schedule",
            "cursor",
            "fingerprint",
            "state",
        ] {
            let answer = server.get(&format!("/api/v1/jobs?{name}={escaped}")).await;
            match answer.status {
                200 => assert_eq!(answer.json["data"], json!([]), "{name}={text}"),
                other => assert_eq!(other, 422, "{name}={text}: {answer:?}"),
            }
        }
        let path = format!("/api/v1/jobs?payload_path=%2F{escaped}&payload_value={escaped}");
        assert_eq!(server.get(&path).await.json["data"], json!([]), "{text}");
        let body =
            json!({"action": "run_now", "filter": {"tag": text}, "reason": "r", "dry_run": true});
        let preview = server.post("/api/v1/bulk-actions", &body).await;
        assert_eq!(preview.json["matched"], 0, "{preview:?}");
        for path in ["/api/v1/schedules/", "/api/v1/queues/", "/api/v1/jobs/"] {
            let answer = server.get(&format!("{path}{escaped}")).await;
            assert!(
                [200, 404, 422].contains(&answer.status),
                "{path}{text}: {answer:?}"
            );
        }
    }
    assert_eq!(
        server.get(&format!("/api/v1/jobs/{id}")).await.status,
        200,
        "the job is still there"
    );
}

#[tokio::test]
async fn nothing_that_is_given_becomes_a_header() {
    let server = Server::open().await;
    let sneaky = "x\r\nSet-Cookie: a=b";
    let body = json!({"kind": "a", "meta": {"traceparent": sneaky}, "tags": ["ok"]});
    let created = server.post("/api/v1/jobs", &body).await;
    assert!(created.header("set-cookie").is_none());
    let tag = server
        .post("/api/v1/jobs", &json!({"kind": "a", "tags": [sneaky]}))
        .await;
    assert_eq!(tag.pointer(), "/tags/0");
    let worker = server
        .post("/api/v1/workers", &json!({"name": sneaky}))
        .await;
    assert_eq!(worker.pointer(), "/name");
    let listed = server.get("/api/v1/jobs?limit=1&tag=a%0d%0ab").await;
    assert_eq!(listed.pointer(), "/tag");
}

#[tokio::test]
async fn the_largest_payload_passes_and_one_byte_more_does_not() {
    let settings = Settings {
        payload_bytes_max: 100_000,
        bulk_bytes_max: 500_000,
        ..Settings::default()
    };
    let server = Server::with_settings(settings).await;
    let payload = |bytes: usize| Value::from("x".repeat(bytes - 2));
    let fits = server
        .post(
            "/api/v1/jobs",
            &json!({"kind": "a", "payload": payload(100_000)}),
        )
        .await;
    assert_eq!(fits.status, 201);
    let id = fits.text_at("/id");
    let over = json!({"kind": "a", "payload": payload(100_001)});
    let refused = server.post("/api/v1/jobs", &over).await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (413, "payload_too_large")
    );
    let edit = server
        .patch(
            &format!("/api/v1/jobs/{id}"),
            &json!({"payload": payload(100_001)}),
        )
        .await;
    assert_eq!(edit.status, 413);
    let schedule = json!({"name": "s", "every": "1h", "job": over});
    assert_eq!(
        server.post("/api/v1/schedules", &schedule).await.status,
        413
    );
    let large = server
        .post(
            "/api/v1/jobs",
            &json!({"kind": "a", "payload": "x".repeat(1_000_000)}),
        )
        .await;
    assert_eq!(
        (large.status, large.code().as_str()),
        (413, "body_too_large")
    );
    let bulk = server
        .post(
            "/api/v1/jobs/bulk",
            &json!({"jobs": [over, over, over, over, over]}),
        )
        .await;
    assert_eq!(bulk.status, 413);
}

#[tokio::test]
async fn a_gigabyte_is_refused_before_it_is_read() {
    let server = Server::open().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1073741824\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 413", "not a byte of the body was sent");
}

#[tokio::test]
async fn a_body_without_end_is_cut_off_at_the_limit() {
    let server = Server::open().await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut reads, mut writes) = stream.into_split();
    let head = "POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    writes.write_all(head.as_bytes()).await.unwrap();
    let writing = tokio::spawn(async move {
        let chunk = format!("10000\r\n{}\r\n", "[".repeat(0x10000));
        while writes.write_all(chunk.as_bytes()).await.is_ok() {}
    });
    let mut answer = vec![0; 12];
    reads.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 413");
    writing.abort();
}

#[tokio::test]
async fn large_bodies_are_bounded_together_and_small_ones_still_pass() {
    let settings = Settings {
        payload_bytes_max: 100_000,
        bulk_bytes_max: 200_000,
        ..Settings::default()
    };
    let server = Server::with_settings(settings).await;
    let head = "POST /api/v1/jobs/bulk HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 200000\r\n\r\n";
    let (refused, mut told) = tokio::sync::mpsc::channel(1);
    let mut unfinished = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (address, refused) = (server.address, refused.clone());
        unfinished.spawn(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            let _ = stream.write_all(&[b' '; 190_000]).await; // and then nothing
            let mut answer = vec![0; 12];
            stream.read_exact(&mut answer).await.unwrap();
            let _ = refused.try_send(answer);
        });
    }
    let first = tokio::time::timeout(PATIENCE, told.recv()).await;
    let first = first.expect("not all of them fit").unwrap();
    assert_eq!(first, b"HTTP/1.1 503");
    server.job(&json!({"kind": "a"})).await;
    unfinished.shutdown().await;
}

#[tokio::test]
async fn a_list_that_is_too_long_is_refused_whatever_is_in_it() {
    let server = Server::open().await;
    let zeros = format!("[{}0]", "0,".repeat(1_000_000));
    for (path, list) in [
        ("/api/v1/jobs/bulk", "jobs"),
        ("/api/v1/settle", "outcomes"),
        ("/api/v1/renew", "leases"),
    ] {
        for field in [list, "nobody_knows_this"] {
            let body = format!("{{\"{field}\":{zeros}}}");
            let refused = server.send("POST", path, &[], Some(body.as_bytes())).await;
            let pointer = refused.pointer();
            assert!(
                pointer.starts_with(&format!("/{field}")),
                "{path}: {pointer}"
            );
        }
    }
}

#[tokio::test]
async fn responses_contain_no_secrets_of_others() {
    let server = Server::open().await;
    let secret = "hunter2-very-secret";
    server
        .job(&json!({"kind": "a", "payload": {"password": secret}}))
        .await;
    let bad = server
        .post("/api/v1/jobs", &json!({"kind": "a b", "payload": secret}))
        .await;
    assert!(
        !bad.text().contains(secret),
        "a refusal does not repeat what was given"
    );
    let malformed = post_raw(
        &server,
        format!("{{\"kind\":\"a\",\"payload\":\"{secret}").as_bytes(),
    )
    .await;
    assert!(!malformed.text().contains(secret));
    for path in [
        "/metrics",
        "/openapi.json",
        "/readyz",
        "/livez",
        "/api/v1/queues",
        "/api/v1/workers",
        "/api/v1/failures",
        "/api/v1/policies",
    ] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, 200, "{path}");
        assert!(!answer.text().contains(secret), "{path}");
    }
    let audit = windlass_engine::Audit::new(windlass::admin::engine_of(&server.client).clone());
    let id = server.job(&json!({"kind": "a", "delay": "1h"})).await;
    server
        .patch(&format!("/api/v1/jobs/{id}"), &json!({"payload": secret}))
        .await;
    let page = audit
        .list(&windlass_engine::AuditFilter::default(), None, 100)
        .await;
    let records = page.unwrap().records;
    assert!(!records.is_empty());
    assert!(
        !format!("{records:?}").contains(secret),
        "payloads are in no audit record"
    );
    assert!(!format!("{:?}", server.app).contains(secret));
}

#[tokio::test]
async fn a_change_is_audited_even_if_its_client_disconnects() {
    let server = Server::open().await;
    for number in 0..100 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let head = format!(
            "POST /api/v1/queues/q{number}/pause?create=true HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // Sometimes before the server has looked at it, sometimes while it works on it.
        for _ in 0..number % 10 {
            tokio::task::yield_now().await;
        }
    }
    let audit = windlass_engine::Audit::new(windlass::admin::engine_of(&server.client).clone());
    let mut seen = (0, 0);
    for _ in 0..PATIENCE.as_millis() / 10 {
        let queues = server.get("/api/v1/queues?limit=100").await.json["data"].clone();
        let queues = queues.as_array().expect("a list").clone();
        let paused = queues.iter().filter(|queue| queue["paused"].is_object());
        let page = audit
            .list(&windlass_engine::AuditFilter::default(), None, 1000)
            .await;
        let records = page.unwrap().records;
        seen = (paused.count(), records.len());
        if seen.0 > 0 && seen.0 == seen.1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("paused and audited: {seen:?}");
}
