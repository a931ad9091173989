//! Sends bad framing to the HTTP library alone and to a listener. The tables pin what the library
//! does, so a new version that refuses more shows which checks `framing` no longer needs.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Request, Response, StatusCode};
use axum::routing::any;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use windlass_listen::{Limits, Listener, Refusal, Site};

/// A test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Follows each case on its connection. It gets a response if the server reads on.
const NEXT: &str = "GET /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

/// What the HTTP library alone does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Library {
    Refuses,
    /// Responds and closes the connection.
    AnswersAndCloses,
    /// Responds and reads the next request.
    ReadsOn,
}
use Library::{AnswersAndCloses, ReadsOn, Refuses};

/// Header fields after `POST / HTTP/1.1` and `Host`, the body, and what the library does.
const FIELDS: &[(&str, &str, Library)] = &[
    (
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "0\r\n\r\n",
        AnswersAndCloses,
    ),
    (
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "0\r\n\r\n",
        AnswersAndCloses,
    ),
    ("Content-Length: 2\r\nContent-Length: 2", "hi", ReadsOn),
    ("Content-Length: 2\r\nContent-Length: 40", "hi", Refuses),
    ("Content-Length: 2, 2", "hi", Refuses),
    ("Content-Length: +2", "hi", Refuses),
    ("Content-Length: -1", "", Refuses),
    ("Content-Length: 0x2", "hi", Refuses),
    ("Content-Length: ", "", Refuses),
    ("Content-Length: 99999999999999999999", "", Refuses),
    ("Content-Length : 2", "hi", Refuses),
    (
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "0\r\n\r\n",
        ReadsOn,
    ),
    ("Transfer-Encoding: gzip, chunked", "0\r\n\r\n", ReadsOn),
    ("Transfer-Encoding: chunked, identity", "", Refuses),
    ("Transfer-Encoding: xchunked", "", Refuses),
    ("X: a\nContent-Length: 2", "hi", ReadsOn),
    ("X: a\n\nGET /smuggled HTTP/1.1\r\nHost: a", "", ReadsOn),
    ("X: a\r\n folded", "", Refuses),
    ("X: a\rb", "", Refuses),
    ("X: a\0b", "", Refuses),
    ("X: a\u{1}b", "", Refuses),
    ("X: a\u{7f}b", "", Refuses),
    ("X\0: a", "", Refuses),
    ("X(: a", "", Refuses),
    ("no colon", "", Refuses),
    (": no name", "", Refuses),
    ("Host: b", "", ReadsOn),
];

/// Request lines, and what the library does.
const LINES: &[(&str, Library)] = &[
    ("GET", Refuses),
    ("GET /", Refuses),
    ("GET  / HTTP/1.1", Refuses),
    ("GET / HTTP/1.1 ", Refuses),
    (" GET / HTTP/1.1", Refuses),
    ("GET / HTTP/1.2", Refuses),
    ("GET / HTTP/2.0", Refuses),
    ("GET / http/1.1", Refuses),
    ("GET /a b HTTP/1.1", Refuses),
    ("GET /\u{7f} HTTP/1.1", Refuses),
    ("GET /\u{1} HTTP/1.1", Refuses),
    ("GET http:// HTTP/1.1", Refuses),
    ("G(T / HTTP/1.1", Refuses),
    ("\u{16}\u{3}\u{1} / HTTP/1.1", Refuses),
    ("GET / HTTP/1.1\nX: a", ReadsOn),
    ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked", Refuses),
];

/// Chunked bodies, and what the library does.
const CHUNKS: &[(&str, Library)] = &[
    ("FFFFFFFFFFFFFFFFF\r\n", Refuses),
    ("00000000000000000\r\n\r\n", ReadsOn),
    ("g\r\n", Refuses),
    ("-1\r\n", Refuses),
    ("+1\r\n", Refuses),
    (" 1\r\n", Refuses),
    ("1 1\r\n", Refuses),
    ("\r\n", Refuses),
    ("2\nhi\r\n0\r\n\r\n", Refuses),
    ("1\r\nhi\r\n0\r\n\r\n", Refuses),
    ("2;a\nb\r\nhi\r\n0\r\n\r\n", Refuses),
    ("2;a\rb\r\nhi\r\n0\r\n\r\n", Refuses),
    ("0\r\nno colon\r\n\r\n", Refuses),
    ("0\r\nX: a\rb\r\n\r\n", Refuses),
    ("0\r\nX: a\nY: b\r\n\r\n", Refuses),
    // A reader that takes a line feed alone as the end of a line sees the trailers end early, and a
    // second request.
    (
        "0\r\nX: a\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
        ReadsOn,
    ),
];

/// The HTTP library with its defaults. It responds to every request that it can read.
async fn library() -> SocketAddr {
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = socket.local_addr().expect("its address");
    let answer = async |request: Request<Incoming>| {
        let mut response = Response::new(Full::<Bytes>::default());
        if request.into_body().collect().await.is_err() {
            *response.status_mut() = StatusCode::BAD_REQUEST;
        }
        Ok::<_, Infallible>(response)
    };
    tokio::spawn(async move {
        while let Ok((stream, _)) = socket.accept().await {
            tokio::spawn(async move {
                let builder = Builder::new(TokioExecutor::new());
                let served = builder.serve_connection(TokioIo::new(stream), service_fn(answer));
                let _ = served.await; // the response shows what went wrong
            });
        }
    });
    address
}

/// A listener whose router does the same.
async fn listener() -> SocketAddr {
    let address = "127.0.0.1:0".parse().expect("an address");
    let listener = Listener::bind(address, None, Limits::default()).await;
    let listener = listener.expect("a free port");
    let address = listener.address();
    let answer = async |request: Request<Body>| match request.into_body().collect().await {
        Ok(_) => StatusCode::OK,
        Err(_) => StatusCode::BAD_REQUEST,
    };
    let site = Site::new(Router::new().fallback(any(answer)));
    let never = CancellationToken::new();
    tokio::spawn(listener.serve(site, never.clone(), never));
    address
}

/// Sends bytes and reads until the server closes.
async fn send(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(bytes).await.expect("it reads");
    let mut all = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut all)).await;
    let _ = read.expect("the server closes the connection"); // with a reset if it did not read everything
    String::from_utf8_lossy(&all).into_owned()
}

async fn by_library(address: SocketAddr, request: &str) -> Library {
    let answer = send(address, request.as_bytes()).await;
    match answer.matches("HTTP/1.1 200").count() {
        0 => Refuses,
        1 => AnswersAndCloses,
        _ => ReadsOn,
    }
}

#[tokio::test]
async fn the_listener_refuses_every_bad_head() {
    let (library, listener) = (library().await, listener().await);
    let fields = FIELDS.iter().map(|(fields, body, expected)| {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n{body}");
        (head, *expected)
    });
    let lines = LINES.iter().map(|(line, expected)| {
        let head = format!("{line}\r\nHost: a\r\n\r\n");
        (head, *expected)
    });
    let no_host = ("GET / HTTP/1.1\r\nX: a\r\n\r\n".to_owned(), ReadsOn);
    for (head, expected) in fields.chain(lines).chain([no_host]) {
        let request = format!("{head}{NEXT}");
        assert_eq!(by_library(library, &request).await, expected, "{head:?}");
        let answer = send(listener, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{head:?}: {answer}");
        let refused = Refusal::Malformed.to_string();
        assert!(answer.ends_with(&refused), "{head:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{head:?}: {answer}");
    }
}

#[tokio::test]
async fn the_listener_refuses_every_bad_chunk() {
    let (library, listener) = (library().await, listener().await);
    for (body, expected) in CHUNKS {
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let request = format!("{head}{body}{NEXT}");
        assert_eq!(by_library(library, &request).await, *expected, "{body:?}");
        let answer = send(listener, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{body:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{body:?}: {answer}");
    }
}

#[tokio::test]
async fn a_head_past_a_limit_is_refused_as_too_large() {
    let (library, listener) = (library().await, listener().await);
    let long_target = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(65_534));
    let many = format!(
        "GET / HTTP/1.1\r\nHost: a\r\n{}\r\n",
        "X: y\r\n".repeat(100)
    );
    // Up to 400 KiB, which also bounds what it buffers of a body.
    let long = format!(
        "GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
        "x".repeat(33_000)
    );
    for (head, expected) in [(long_target, Refuses), (many, Refuses), (long, ReadsOn)] {
        let request = format!("{head}{NEXT}");
        let shown: String = head.chars().take(60).collect();
        assert_eq!(by_library(library, &request).await, expected, "{shown}");
        let answer = send(listener, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 431"), "{shown}: {answer}");
        let refused = Refusal::HeadTooLarge.to_string();
        assert!(answer.ends_with(&refused), "{shown}: {answer}");
    }
}

#[tokio::test]
async fn an_unambiguous_request_is_answered_by_both() {
    let (library, listener) = (library().await, listener().await);
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for request in [
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2 \r\n\r\nhi".to_owned(),
        "POST / HTTP/1.1\r\nhost:a\r\ncontent-length:\t0\r\n\r\n".to_owned(),
        "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        "GET http://a/b?c=%20 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        format!("{chunked}2;q=1\r\nhi\r\n0\r\nX: y\r\n\r\n"),
        // White space that may come before an extension.
        format!("{chunked}2 \r\nhi\r\n0\r\n\r\n"),
    ] {
        let request = format!("{request}{NEXT}");
        assert_eq!(by_library(library, &request).await, ReadsOn, "{request:?}");
        let answer = send(listener, request.as_bytes()).await;
        assert_eq!(
            answer.matches("HTTP/1.1 200").count(),
            2,
            "{request:?}: {answer}"
        );
    }
}
