//! The client against a server that is unreachable, slow, behind TLS, or sends odd responses.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use windlass_client::{Client, Error, Method};
use windlass_listen::TlsFiles;

use crate::support::{Script, Server, Step};

const EMPTY: &str = "200 OK\n\n{\"data\":[],\"next_cursor\":null}";
const BUSY: &str = "503 Service Unavailable\nretry-after: 0\n\n{}";

#[tokio::test]
async fn a_failed_connection_is_a_temporary_error() {
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let client = Client::builder(&url).retries(0).build().unwrap();
    let error = client.keys().await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
    assert_eq!(
        error.to_string(),
        format!("cannot connect to {url}; check the URL and whether the server runs")
    );
    assert!(error.is_temporary() && error.problem().is_none());
}

#[tokio::test(start_paused = true)]
async fn the_connect_timeout_covers_the_tls_handshake() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", silent.local_addr().unwrap());
    let timeout = Duration::from_secs(7);
    let client = Client::builder(&url).retries(0).connect_timeout(timeout);
    let started = Instant::now();
    let error = client.build().unwrap().keys().await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
    assert_eq!(started.elapsed().as_secs(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_response_times_out() {
    let script = Script::start(&[Step::Hang]).await;
    let timeout = Duration::from_secs(9);
    let client = Client::builder(&script.url)
        .timeout(timeout)
        .build()
        .unwrap();
    let error = client.keys().await.unwrap_err();
    assert!(
        matches!(error, Error::TimedOut { after, .. } if after == timeout),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_response_that_is_too_large_is_an_error() {
    let script = Script::start(&[Step::Answer(EMPTY)]).await;
    let client = Client::builder(&script.url);
    let small = client.clone().answer_bytes_max(10).build().unwrap();
    let error = small.keys().await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { max: 10 }), "{error:?}");
    assert!(
        client
            .answer_bytes_max(1000)
            .build()
            .unwrap()
            .keys()
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn a_response_of_another_shape_is_unreadable() {
    let script = Script::start(&[Step::Answer("200 OK\n\n{\"rows\":[]}")]).await;
    let error = Client::new(&script.url).unwrap().keys().await.unwrap_err();
    assert!(matches!(error, Error::Unreadable { .. }), "{error:?}");
    let proxy = Script::start(&[Step::Answer("502 Bad Gateway\n\n<html>")]).await;
    let error = Client::new(&proxy.url).unwrap().keys().await.unwrap_err();
    assert_eq!(error.code(), Some("unknown"));
    assert!(error.is_temporary());
}

#[tokio::test]
async fn a_broken_connection_repeats_a_read_but_not_a_change() {
    for (retries, requests) in [(0, 1), (2, 3)] {
        let script = Script::start(&[Step::Close]).await;
        let client = Client::builder(&script.url)
            .retries(retries)
            .build()
            .unwrap();
        let error = client.keys().await.unwrap_err();
        assert!(matches!(error, Error::Broken { .. }), "{error:?}");
        assert_eq!(script.requests().len(), requests);
    }
    let script = Script::start(&[Step::Close, Step::Answer("200 OK\n\n{}")]).await;
    let client = Client::new(&script.url).unwrap();
    let changed = client
        .call::<Value>(Method::Post, "/api/v1/x", Some(&json!({})))
        .await;
    assert!(matches!(changed, Err(Error::Broken { .. })), "{changed:?}");
    assert_eq!(script.requests().len(), 1);
}

#[tokio::test]
async fn a_503_response_is_repeated_after_retry_after() {
    let script = Script::start(&[Step::Answer(BUSY), Step::Answer(EMPTY)]).await;
    assert!(Client::new(&script.url).unwrap().keys().await.is_ok());
    assert_eq!(script.requests().len(), 2);
}

#[tokio::test]
async fn idle_connections_are_reused_up_to_the_limit() {
    for (idle_max, connections) in [(0, 3), (1, 1)] {
        let script = Script::start(&[Step::Answer(EMPTY)]).await;
        let client = Client::builder(&script.url).idle_connections_max(idle_max);
        let client = client.build().unwrap();
        for _ in 0..3 {
            client.keys().await.unwrap();
        }
        assert_eq!(script.connections(), connections);
    }
}

#[tokio::test]
async fn a_connection_that_the_server_closed_is_replaced() {
    let script = Script::start(&[Step::AnswerAndClose(EMPTY)]).await;
    let client = Client::new(&script.url).unwrap();
    for _ in 0..3 {
        client.keys().await.unwrap();
    }
    assert_eq!(script.requests().len(), 3);
}

#[tokio::test]
async fn every_request_has_the_host_the_key_and_the_base_path() {
    let script = Script::start(&[Step::Answer(EMPTY)]).await;
    let client = Client::builder(&format!("{}/jobs/", script.url)).key("wl_a");
    client.build().unwrap().keys().await.unwrap();
    let [request] = &script.requests()[..] else {
        panic!("one request");
    };
    let host = script.url.strip_prefix("http://").unwrap();
    assert!(
        request.starts_with("GET /jobs/api/v1/keys HTTP/1.1\r\n"),
        "{request}"
    );
    assert!(request.contains(&format!("host: {host}\r\n")), "{request}");
    assert!(
        request.contains("authorization: Bearer wl_a\r\n"),
        "{request}"
    );
    let debugged = format!("{:?}", Client::builder("http://a").key("wl_a"));
    assert!(!debugged.contains("wl_a"), "{debugged}");
}

#[tokio::test]
async fn a_server_is_trusted_by_its_root_certificate_only() {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let files = TlsFiles {
        certificate: folder.path().join("certificate.pem"),
        key: folder.path().join("key.pem"),
    };
    std::fs::write(&files.certificate, own.cert.pem()).unwrap();
    std::fs::write(&files.key, own.signing_key.serialize_pem()).unwrap();
    let server = Server::start_with("", Some(&files)).await;
    let trusting = server.builder().root_certificates(own.cert.pem()).build();
    assert!(trusting.unwrap().keys().await.is_ok());
    let strange = server.builder().retries(0).build().unwrap();
    let error = strange.keys().await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
}
