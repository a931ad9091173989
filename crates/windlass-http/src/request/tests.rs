//! Tests of reading HTTP jobs.

use super::*;
use proptest::prelude::*;
use serde_json::json;
use windlass_core::NewJob;

fn read(value: Value) -> Result<HttpRequest, Invalid> {
    HttpRequest::from_json(&value.to_string())
}

fn url(text: &str) -> Result<Uri, Invalid> {
    read(json!({"url": text})).map(|request| request.url)
}

#[test]
fn the_smallest_request_is_an_empty_post() {
    let request = read(json!({"url": "https://example.org/hook?a=b"})).unwrap();
    assert_eq!(request.url, "https://example.org/hook?a=b");
    assert_eq!((request.method, request.body), (Method::POST, Bytes::new()));
    assert!(request.headers.is_empty());
    assert_eq!((request.complete_within, request.sign), (None, Vec::new()));
    assert!(!request.permanent_statuses.contains(404));
}

#[test]
fn every_field_is_read() {
    let text = r#"{"url": "http://example.org", "method": "PUT", "headers": {"X-A": "1"},
        "body": {"b": 1.0,  "a": [2]}, "permanent_statuses": [404, "5xx"], "async": true,
        "complete_within": "2h", "sign": ["one", "two"], "idempotency_key": "order-7.1"}"#;
    let request = HttpRequest::from_json(text).unwrap();
    assert_eq!(request.method, Method::PUT);
    assert_eq!(
        request.body, r#"{"b": 1.0,  "a": [2]}"#,
        "byte for byte as it was written"
    );
    assert_eq!(request.headers["x-a"], "1");
    assert_eq!(request.headers["content-type"], "application/json");
    assert_eq!(request.complete_within, Some(Duration::from_secs(7200)));
    assert_eq!(request.sign, ["one", "two"]);
    assert_eq!(request.idempotency_key.unwrap().as_str(), "order-7.1");
    for (status, permanent) in [(404, true), (403, false), (500, true), (599, true)] {
        assert_eq!(request.permanent_statuses.contains(status), permanent);
    }
    assert_eq!(
        read(json!({"url": "http://a.example", "sign": "one"}))
            .unwrap()
            .sign,
        ["one"]
    );
    let later = read(json!({"url": "http://a.example", "async": true})).unwrap();
    assert_eq!(later.complete_within, Some(COMPLETE_WITHIN_DEFAULT));
}

#[test]
fn a_string_is_sent_as_plain_text_and_the_jobs_content_type_stays() {
    let request = read(json!({"url": "http://a.example", "body": "a\nb"})).unwrap();
    assert_eq!(request.body, "a\nb");
    assert_eq!(request.headers["content-type"], "text/plain; charset=utf-8");
    let own =
        json!({"url": "http://a.example", "body": "<a/>", "headers": {"Content-Type": "text/xml"}});
    assert_eq!(read(own).unwrap().headers["content-type"], "text/xml");
    let null = read(json!({"url": "http://a.example", "body": null})).unwrap();
    assert!(null.body.is_empty() && null.headers.is_empty());
}

#[test]
fn bad_fields_are_refused_by_name() {
    let with = |name: &str, value: Value| {
        let mut payload = json!({"url": "http://a.example"});
        payload[name] = value;
        payload
    };
    for (field, payload) in [
        ("url", json!({})),
        ("url", json!({"url": 5})),
        ("method", with("method", json!("CONNECT"))),
        ("method", with("method", json!("TRACE"))),
        ("method", with("method", json!("post"))),
        ("headers", with("headers", json!([]))),
        ("headers.x", with("headers", json!({"x": 5}))),
        (
            "body",
            json!({"url": "http://a.example", "method": "GET", "body": "x"}),
        ),
        (
            "permanent_statuses[1]",
            with("permanent_statuses", json!([404, 204])),
        ),
        (
            "permanent_statuses[0]",
            with("permanent_statuses", json!(["2xx"])),
        ),
        (
            "permanent_statuses",
            with("permanent_statuses", json!("404")),
        ),
        ("async", with("async", json!("yes"))),
        ("complete_within", with("complete_within", json!("1h"))),
        (
            "complete_within",
            json!({"url": "http://a.example", "async": true, "complete_within": "0s"}),
        ),
        ("sign", with("sign", json!(5))),
        ("sign", with("sign", json!([""]))),
        ("sign", with("sign", json!(vec!["a"; 9]))),
        ("idempotency_key", with("idempotency_key", json!("a\nb"))),
        ("idempotency_key", with("idempotency_key", json!("ä"))),
        ("metod", with("metod", json!("PUT"))),
    ] {
        let refusal = read(payload.clone()).expect_err(&payload.to_string());
        assert_eq!(refusal.field(), field, "{payload}: {refusal}");
    }
    assert!(HttpRequest::from_json("[]").is_err());
    assert!(HttpRequest::from_json("null").is_err());
}

#[test]
fn secrets_of_a_request_are_not_shown() {
    let request = read(json!({
        "url": "https://a.example/hook?key=hush", "headers": {"Authorization": "hush"}, "body": "hush",
    }));
    let shown = format!("{:?}", request.unwrap());
    assert!(
        shown.contains("a.example") && !shown.contains("hush"),
        "{shown}"
    );
}

#[test]
fn headers_that_a_job_may_not_set_are_refused() {
    for name in [
        "Host",
        "content-length",
        "Transfer-Encoding",
        "Connection",
        "Keep-Alive",
        "TE",
        "Upgrade",
        "Expect",
        "Proxy-Authorization",
        "webhook-id",
        "Webhook-Signature",
        "webhook-anything",
        "Idempotency-Key",
        "windlass-attempt",
        "traceparent",
        "a b",
        "a:b",
        "a\r\nb",
        "",
        "ä",
    ] {
        let payload = json!({"url": "http://a.example", "headers": {name: "x"}});
        let refusal = read(payload).expect_err(name);
        assert!(refusal.field().starts_with("headers"), "{name}: {refusal}");
    }
    for value in ["a\r\nx: y", "a\nb", "a\rb", "a\u{7f}", "ä", "a\u{1b}[0m"] {
        let payload = json!({"url": "http://a.example", "headers": {"x-a": value}});
        assert_eq!(read(payload).expect_err(value).field(), "headers.x-a");
    }
    let twice = json!({"url": "http://a.example", "headers": {"X-A": "1", "x-a": "2"}});
    assert!(
        read(twice)
            .unwrap_err()
            .to_string()
            .contains("is given twice")
    );
    let many: serde_json::Map<_, _> = (0..65).map(|n| (format!("x-{n}"), json!("v"))).collect();
    assert_eq!(
        read(json!({"url": "http://a.example", "headers": many}))
            .unwrap_err()
            .field(),
        "headers"
    );
    let long = json!({"url": "http://a.example", "headers": {"x-a": "v".repeat(17_000)}});
    assert_eq!(read(long).unwrap_err().field(), "headers");
}

#[test]
fn only_unambiguous_urls_are_accepted() {
    for text in [
        "",
        "example.org",
        "//example.org",
        "file:///etc/passwd",
        "ftp://example.org/",
        "gopher://example.org/",
        "unix:/run/docker.sock",
        "http+unix://x/",
        "javascript:alert(1)",
        "http:example.org",
        "http:/example.org",
        "http:///example.org/",
        "http://",
        "http://:80/",
        "http://user@example.org/",
        "http://user:pass@example.org/",
        "http://@example.org/",
        "http://a.example\\@b.example/",
        "http://a.example#@b.example/",
        "http://a.example/#part",
        "http://a.example\t/",
        "http://a.exa\nmple/",
        " http://a.example/",
        "http://a.example/ b",
        "http://a example/",
        "http://[a.example]/",
        "http://[::1%25eth0]/",
        "http://[::1/",
        "http://a.example:99999/",
        "http://a.example:22/",
        "http://a.example:25/",
        "http://a.example:0/",
        "http://a.example:6379/",
        "http://a.example:5432/",
        "http://a.example:444/",
        "http://a%00.example/",
        "http://a<b>.example/",
        "http://300.300.300.300/",
        "http://1.2.3.4.5/",
    ] {
        let refusal = url(text).expect_err(text);
        assert_eq!(refusal.field(), "url", "{text}");
    }
    assert_eq!(
        url(&format!("http://a.example/{}", "x".repeat(9000)))
            .unwrap_err()
            .field(),
        "url"
    );
    for (text, dialled) in [
        ("https://a.example", "https://a.example/"),
        ("HTTPS://A.Example:443/x", "https://a.example/x"),
        ("http://a.example:8080/", "http://a.example:8080/"),
        ("http://a.example:1024/", "http://a.example:1024/"),
        ("http://0x7f.1/", "http://127.0.0.1/"),
        ("http://2130706433/", "http://127.0.0.1/"),
        ("http://017700000001/", "http://127.0.0.1/"),
        ("http://①②⑦.0.0.1/", "http://127.0.0.1/"),
        ("http://[::ffff:7f00:1]/", "http://[::ffff:7f00:1]/"),
        ("http://bücher.example/", "http://xn--bcher-kva.example/"),
        ("http://a.example/a@b?c=@d", "http://a.example/a@b?c=@d"),
    ] {
        assert_eq!(url(text).expect(text), dialled, "{text}");
    }
}

#[test]
fn an_async_job_must_be_at_least_once() {
    let job = |delivery| NewJob {
        payload: Payload::parse(r#"{"url": "http://a.example", "async": true}"#, 1000).unwrap(),
        delivery,
        ..NewJob::new(crate::http_kind())
    };
    let check = |job: &NewJob| HttpRequest::check_payload(&job.payload, job.delivery);
    assert!(check(&job(Delivery::AtLeastOnce)).is_ok());
    let refusal = check(&job(Delivery::AtMostOnce)).unwrap_err();
    assert_eq!(refusal.field(), "payload.async");
    let empty = check(&NewJob::new(crate::http_kind())).unwrap_err();
    assert_eq!(empty.field(), "payload");
}

proptest! {
    #[test]
    fn no_text_panics(text in any::<String>(), tail in "[ -~]{0,40}") {
        let _ = HttpRequest::from_json(&text);
        let _ = url(&text);
        let _ = url(&format!("http://{tail}"));
    }

    #[test]
    fn a_normalized_url_parses_to_itself(tail in "[a-z0-9.:/?@%#-]{1,40}") {
        if let Ok(first) = url(&format!("http://{tail}")) {
            prop_assert_eq!(&url(&first.to_string()).unwrap(), &first);
        }
    }
}
