//! What jobs may be signed with: a secret exists, and the target is one of its hosts.

use serde_json::{Value, json};

use crate::support::{Answer, Server};

/// A server with the secret `shop` for `shop.example`, and `open` for every host.
async fn server() -> Server {
    let server = Server::open().await;
    for (name, to) in [
        (
            "shop",
            json!({"hosts": ["shop.example", "*.shop.example:8443"]}),
        ),
        ("open", json!({"any_host": true})),
    ] {
        let mut body = to;
        body["value"] = json!("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        let put = server.put(&format!("/api/v1/secrets/{name}"), &body).await;
        assert_eq!(put.status, 204, "{}", put.json);
    }
    server
}

fn request(url: &str, sign: &Value) -> Value {
    json!({"url": url, "sign": sign})
}

fn refused(answer: &Answer, pointer: &str, rule: &str) {
    assert_eq!(answer.status, 422, "{}", answer.json);
    assert_eq!(
        answer.text_at("/errors/0/pointer"),
        pointer,
        "{}",
        answer.json
    );
    assert!(
        answer.text_at("/errors/0/rule").contains(rule),
        "{}",
        answer.json
    );
}

#[tokio::test]
async fn a_job_is_refused_whose_secret_is_unknown_or_for_other_hosts() {
    let server = server().await;
    for (url, sign, rule) in [
        (
            "https://evil.example/",
            json!("shop"),
            "must not sign requests to this host",
        ),
        (
            "https://a.shop.example/",
            json!(["open", "shop"]),
            "must not sign requests to this host",
        ),
        ("https://shop.example/", json!("none"), "does not exist"),
        ("https://shop.example/", json!("no name"), "does not exist"),
        (
            "https://shop.example/",
            json!(["shop", "none"]),
            "does not exist",
        ),
    ] {
        let http = request(url, &sign);
        let one = server.post("/api/v1/jobs", &json!({"http": http})).await;
        refused(&one, "/payload/sign", rule);
        for mode in ["all_or_none", "each"] {
            let body = json!({"jobs": [{"kind": "a"}, {"http": http}], "mode": mode});
            let bulk = server.post("/api/v1/jobs/bulk", &body).await;
            assert!(bulk.text().contains(rule), "{}", bulk.json);
            assert!(
                !bulk.text().contains("*.shop.example"),
                "hosts are not shown"
            );
        }
        let schedule =
            json!({"name": "s", "every": "1h", "job": {"kind": "http", "payload": http}});
        let made = server.post("/api/v1/schedules", &schedule).await;
        refused(&made, "/job/payload/sign", rule);
        let put = server.put("/api/v1/schedules/s", &schedule).await;
        refused(&put, "/job/payload/sign", rule);
        let form = json!({"schedule": "0 0 1 1 *", "api": url, "sign": sign});
        let form = server.post("/api/v1/jobs", &form).await;
        assert_eq!(form.status, 422, "{}", form.json);
        assert_eq!(form.text_at("/code"), "INVALID_SIGN");
        assert_eq!(form.text_at("/errors/0/pointer"), "/sign");
    }
}

#[tokio::test]
async fn a_job_is_stored_whose_target_is_one_of_its_secrets_hosts() {
    let server = server().await;
    for (url, sign) in [
        ("https://shop.example/", json!("shop")),
        ("https://a.shop.example:8443/", json!(["shop", "open"])),
        ("https://evil.example/", json!("open")),
    ] {
        let http = request(url, &sign);
        let made = server.post("/api/v1/jobs", &json!({"http": http})).await;
        assert_eq!(made.status, 201, "{}", made.json);
        let form = json!({"schedule": "0 0 1 1 *", "api": url, "sign": sign});
        let made = server.post("/api/v1/jobs", &form).await;
        assert_eq!(
            (made.status, &made.json["sign"]),
            (201, &sign),
            "{}",
            made.json
        );
    }
}

#[tokio::test]
async fn edits_and_revivals_bring_no_signature_for_another_host() {
    let server = server().await;
    let good = request("https://shop.example/", &json!("shop"));
    let job = server.job(&json!({"http": good})).await;
    let path = format!("/api/v1/jobs/{job}");
    let bad = json!({"payload": request("https://evil.example/", &json!("shop"))});
    let rule = "must not sign requests to this host";
    refused(&server.patch(&path, &bad).await, "/payload/sign", rule);
    let dead = json!({"outcome": "failed", "error": "no", "unrecoverable": true});
    server.run_claimed(&json!({"kinds": ["http"]}), &dead).await;
    refused(
        &server.post(&format!("{path}/revive"), &bad).await,
        "/payload/sign",
        rule,
    );
    let fine = json!({"payload": request("https://shop.example/2", &json!("shop"))});
    assert_eq!(
        server.post(&format!("{path}/revive"), &fine).await.status,
        200
    );
    let edited = server.patch(&path, &json!({"payload": good})).await;
    assert_eq!(edited.status, 200, "{}", edited.json);
    let schedule = json!({"name": "s", "every": "1h", "job": {"kind": "http", "payload": good}});
    assert_eq!(
        server.post("/api/v1/schedules", &schedule).await.status,
        201
    );
    let patched = server
        .patch(
            "/api/v1/schedules/s",
            &json!({"job": {"kind": "http", "payload": bad["payload"]}}),
        )
        .await;
    refused(&patched, "/job/payload/sign", rule);
}

#[tokio::test]
async fn one_bulk_names_at_most_a_hundred_secrets() {
    let server = server().await;
    let job = |number: usize| {
        let http = request("https://shop.example/", &json!(format!("s{number}")));
        json!({"http": http})
    };
    let jobs: Vec<Value> = (0..101).map(job).collect();
    let bulk = server
        .post("/api/v1/jobs/bulk", &json!({"jobs": jobs, "mode": "each"}))
        .await;
    assert!(
        bulk.text_at("/data/99/problem/errors/0/rule")
            .contains("does not exist")
    );
    let past = bulk.text_at("/data/100/problem/errors/0/rule");
    assert!(past.contains("more than 100 different secrets"), "{past}");
}

#[tokio::test]
async fn a_secret_names_its_hosts_and_the_list_and_the_audit_log_show_them() {
    let server = server().await;
    let value = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    for (body, pointer) in [
        (json!({"value": value}), "/hosts"),
        (json!({"value": value, "any_host": false}), "/hosts"),
        (json!({"value": value, "hosts": []}), "/hosts"),
        (json!({"value": value, "hosts": [7]}), "/hosts/0"),
        (
            json!({"value": value, "hosts": ["a.example", "*"]}),
            "/hosts/1",
        ),
        (
            json!({"value": value, "hosts": ["a.example"], "any_host": true}),
            "/any_host",
        ),
    ] {
        let put = server.put("/api/v1/secrets/new", &body).await;
        assert_eq!(put.status, 422, "{body}");
        assert_eq!(put.text_at("/errors/0/pointer"), pointer, "{body}");
    }
    let listed = server.get("/api/v1/secrets").await;
    assert_eq!(
        listed.json["data"],
        json!([
            {"name": "open", "hosts": [], "any_host": true},
            {"name": "shop", "hosts": ["shop.example", "*.shop.example:8443"], "any_host": false},
        ])
    );
    let records = server.get("/api/v1/audit").await.text();
    assert!(
        records.contains("*.shop.example:8443") && records.contains("\"any_host\":true"),
        "{records}"
    );
}
