//! The accept loop, raw over TCP: what a proxy, an attacker or a slow network may send.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use windlass_listen::{Limits, Listener, Refusal, Site};

/// A test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    stop_now: CancellationToken,
    seen: Arc<AtomicUsize>,
    hold: Arc<Notify>,
    entered: Arc<Notify>,
    served: JoinHandle<usize>,
}

async fn start(limits: Limits) -> Server {
    let listener = Listener::bind("127.0.0.1:0".parse().expect("an address"), None, limits).await;
    let listener = listener.expect("a free port");
    let (stop, stop_now) = (CancellationToken::new(), CancellationToken::new());
    let seen = Arc::new(AtomicUsize::new(0));
    let (hold, entered) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (count, held, inside) = (Arc::clone(&seen), Arc::clone(&hold), Arc::clone(&entered));
    let router = Router::new()
        .route("/livez", get(async || "alive"))
        .route(
            "/echo",
            post(async move |body: Bytes| {
                count.fetch_add(1, Ordering::SeqCst);
                body
            }),
        )
        .route("/large", get(async || vec![b'x'; 10_000_000]))
        .route(
            "/hold",
            get(async move || {
                inside.notify_one();
                held.notified().await;
                "held"
            }),
        );
    let address = listener.address();
    let site = Site::new(router).health(&["/livez"]);
    let served = tokio::spawn(listener.serve(site, stop.clone(), stop_now.clone()));
    Server {
        address,
        stop,
        stop_now,
        seen,
        hold,
        entered,
        served,
    }
}

impl Server {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address)
            .await
            .expect("a connection")
    }

    /// Sends bytes and reads until the server closes.
    async fn send(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        stream.write_all(bytes).await.expect("it listens");
        read_to_end(&mut stream).await
    }
}

/// Reads until the server closes the connection, gracefully or not.
async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut all)).await;
    let _ = read.expect("the server closes the connection");
    String::from_utf8_lossy(&all).into_owned()
}

/// Reads one response with a body of known length.
async fn read_answer(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&all).to_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.and_then(|length| length.parse().ok()).unwrap_or(0);
            if body.len() >= length {
                return text;
            }
        }
        let mut part = [0; 4096];
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut part)).await;
        match read.expect("an answer").unwrap_or(0) {
            0 => return text,
            bytes => all.extend_from_slice(part.get(..bytes).expect("what was read")),
        }
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_and_a_smuggled_one_never_reaches_the_router() {
    // `framing.rs` has all kinds of bad heads.
    let server = start(Limits::default()).await;
    let plain = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
    let fields = "Content-Length: 5\r\nTransfer-Encoding: chunked";
    let two_ways = format!("POST /echo HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n0\r\n\r\n");
    let answer = server.send(format!("{two_ways}{plain}").as_bytes()).await;
    assert_eq!(answer.matches("HTTP/1.1 400").count(), 1, "{answer}");
    assert_eq!(server.seen.load(Ordering::SeqCst), 0);
    let request = format!("{plain}{plain}{two_ways}{plain}");
    let answer = server.send(request.as_bytes()).await;
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 2, "{answer}");
    assert_eq!(answer.matches("HTTP/1.1 400").count(), 1, "{answer}");
    assert_eq!(server.seen.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_head_that_is_too_large_is_answered_with_431() {
    let limits = Limits {
        header_bytes: 9000,
        header_fields: 20,
        ..Limits::default()
    };
    let server = start(limits).await;
    let long = format!(
        "GET /livez HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
        "x".repeat(9000)
    );
    let many = format!(
        "GET /livez HTTP/1.1\r\nHost: a\r\n{}\r\n",
        "X: y\r\n".repeat(20)
    );
    for head in [long, many] {
        let answer = server.send(head.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
        let refused = answer.ends_with(&Refusal::HeadTooLarge.to_string());
        assert!(refused, "{answer}");
    }
    let fits = format!("GET /livez HTTP/1.0\r\nX: {}\r\n\r\n", "x".repeat(8800));
    assert!(server.send(fits.as_bytes()).await.contains("200 OK"));
}

#[tokio::test]
async fn a_client_that_sends_slowly_or_nothing_is_disconnected() {
    // The limits are short, and the test only waits for the end of each connection.
    let limits = Limits {
        header_time: Duration::from_millis(100),
        idle_time: Duration::from_millis(100),
        body_time: Duration::from_millis(100),
        ..Limits::default()
    };
    let server = start(limits).await;
    assert_eq!(server.send(b"").await, "", "nothing at all");
    assert_eq!(
        server.send(b"GET /livez HTTP/1.1\r\nHost").await,
        "",
        "half a head"
    );
    let idle = server.send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!(idle.matches("200 OK").count(), 1, "{idle}");
    let half = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc";
    let answer = server.send(half).await;
    assert!(!answer.contains("200 OK"), "{answer}");
    // A byte now and then does not help.
    let mut stream = server.connect().await;
    let drip = async {
        loop {
            if stream.write_all(b"X").await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, drip)
        .await
        .expect("the server closes");
    assert_eq!(server.seen.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_client_that_does_not_read_the_response_is_disconnected() {
    let limits = Limits {
        write_time: Duration::from_millis(100),
        ..Limits::default()
    };
    let server = start(limits).await;
    let mut stream = server.connect().await;
    stream
        .write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .unwrap();
    // The client reads nothing until the server disconnects, which makes a write fail.
    let given_up = async {
        while stream.write_all(b"\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, given_up)
        .await
        .expect("the server closes");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(rest.len() < 10_000_000, "{}", rest.len());
}

#[tokio::test]
async fn a_client_that_reads_fast_enough_gets_all_of_a_large_response() {
    let limits = Limits {
        idle_time: Duration::from_millis(1100),
        ..Limits::default()
    };
    let server = start(limits).await;
    let mut slow = server.connect().await;
    let head = b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    slow.write_all(head).await.unwrap();
    let mut first = [0; 12];
    slow.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    // Two other connections stay idle until the server closes them; meanwhile the first client reads nothing.
    for _ in 0..2 {
        let idle = server.send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(idle.contains("alive"), "{idle}");
    }
    let rest = read_to_end(&mut slow).await;
    assert_eq!(rest.matches('x').count(), 10_000_000);
}

#[tokio::test]
async fn a_client_that_does_not_read_the_response_over_http2_is_disconnected() {
    // The window of the stream is shut, so nothing of the answer can even be sent.
    let limits = Limits {
        write_time: Duration::from_millis(100),
        ..Limits::default()
    };
    let server = start(limits).await;
    let mut stream = server.connect().await;
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]));
    bytes.extend(frame(1, 0b101, 1, &get_over_http2("/large")));
    stream.write_all(&bytes).await.unwrap();
    assert!(read_to_end(&mut stream).await.len() < 1000);
}

#[tokio::test]
async fn bodies_that_are_too_large_are_refused_early() {
    // Nothing of a gigabyte is read, and an endless one is cut off.
    let limits = Limits {
        body_bytes_max: 100_000,
        ..Limits::default()
    };
    let server = start(limits).await;
    let head = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1073741824\r\n\r\n";
    let answer = server.send(head).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    let most = 100_000;
    let refused = answer.ends_with(&Refusal::BodyTooLarge { most }.to_string());
    assert!(refused, "{answer}");
    let mut endless =
        b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..20 {
        endless.extend_from_slice(b"2000\r\n");
        endless.extend_from_slice(&[b'a'; 0x2000]);
        endless.extend_from_slice(b"\r\n");
    }
    let (mut read, mut write) = server.connect().await.into_split();
    let sent = tokio::spawn(async move {
        let _ = write.write_all(&endless).await; // it may be closed before all is sent
        write
    });
    let mut answer = [0; 12];
    let answered = tokio::time::timeout(PATIENCE, read.read_exact(&mut answer)).await;
    answered.expect("an answer").unwrap();
    assert_eq!(
        &answer, b"HTTP/1.1 400",
        "as this router answers a broken body"
    );
    sent.await.unwrap();
    assert_eq!(server.seen.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn connections_are_bounded_and_health_still_answers() {
    let limits = Limits {
        connections: 20,
        connections_per_address: 10,
        ..Limits::default()
    };
    let server = start(limits).await;
    let mut idle = Vec::new();
    for _ in 0..10 {
        let mut stream = server.connect().await;
        stream
            .write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
            .await
            .unwrap();
        assert!(read_answer(&mut stream).await.contains("alive"));
        idle.push(stream);
    }
    let health = server.send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(health.contains("alive"), "{health}");
    let work = server
        .send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        .await;
    assert!(work.starts_with("HTTP/1.1 503"), "{work}");
    assert!(work.ends_with(&Refusal::Busy.to_string()), "{work}");
    // Clients that keep reconnecting use only the reserve.
    let mut more = Vec::new();
    for _ in 0..50 {
        more.push(server.connect().await);
    }
    // They send nothing, so a client that sends a request gets their permit.
    let health = server.send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(health.contains("alive"), "{health}");
    drop(more);
    idle.pop();
    let again = async {
        loop {
            let answer = server
                .send(b"POST /echo HTTP/1.0\r\nContent-Length: 0\r\n\r\n")
                .await;
            if answer.contains("200 OK") {
                return;
            }
            tokio::task::yield_now().await; // the server has not seen the end of the others yet
        }
    };
    tokio::time::timeout(PATIENCE, again)
        .await
        .expect("a permit that became free");
}

#[tokio::test]
async fn a_shutdown_lets_running_requests_finish_and_starts_no_new_ones() {
    let server = start(Limits::default()).await;
    let mut running = server.connect().await;
    running
        .write_all(b"GET /hold HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .unwrap();
    server.entered.notified().await;
    let mut idle = server.connect().await;
    idle.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .unwrap();
    read_answer(&mut idle).await;
    server.stop.cancel();
    assert_eq!(
        read_to_end(&mut idle).await,
        "",
        "idle connections are closed"
    );
    let refused = async { while TcpStream::connect(server.address).await.is_ok() {} };
    tokio::time::timeout(PATIENCE, refused)
        .await
        .expect("it no longer listens");
    server.hold.notify_one();
    let answer = read_to_end(&mut running).await;
    assert!(
        answer.contains("held") && answer.contains("connection: close"),
        "{answer}"
    );
    assert_eq!(server.served.await.unwrap(), 0);
}

#[tokio::test]
async fn a_shutdown_closes_what_does_not_finish_in_time_or_before_a_second_signal() {
    for second_signal in [false, true] {
        let drain_time = if second_signal {
            PATIENCE * 10
        } else {
            Duration::from_millis(50)
        };
        let server = start(Limits {
            drain_time,
            ..Limits::default()
        })
        .await;
        let mut running = server.connect().await;
        running
            .write_all(b"GET /hold HTTP/1.1\r\nHost: a\r\n\r\n")
            .await
            .unwrap();
        server.entered.notified().await;
        server.stop.cancel();
        if second_signal {
            server.stop_now.cancel();
        }
        assert_eq!(server.served.await.unwrap(), 1);
        assert_eq!(read_to_end(&mut running).await, "");
    }
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len())
        .expect("a small frame")
        .to_be_bytes();
    let mut bytes = length.get(1..).expect("three bytes").to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A `GET` as the static table of HPACK has it, with a literal path and authority.
fn get_over_http2(path: &str) -> Vec<u8> {
    let length = u8::try_from(path.len()).expect("a short path");
    let mut block = vec![0x82, 0x86, 0x04, length];
    block.extend_from_slice(path.as_bytes());
    block.extend_from_slice(&[0x01, 1, b'a']);
    block
}

/// Reads frames until one of this kind comes on this stream; all of them as (kind, stream).
async fn frames_until(stream: &mut TcpStream, seen: &mut Vec<(u8, u32)>, wanted: (u8, u32)) {
    let reading = async {
        while !seen.contains(&wanted) {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.expect("a frame");
            let [a, b, c, kind, _, id @ ..] = head;
            let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).expect("a length");
            let mut payload = vec![0; length];
            stream.read_exact(&mut payload).await.expect("its payload");
            seen.push((kind, u32::from_be_bytes(id)));
        }
    };
    let read = tokio::time::timeout(PATIENCE, reading).await;
    read.expect("the frame comes");
}

#[tokio::test]
async fn a_small_body_is_read_to_its_end_before_it_is_refused_over_http2() {
    const HEADERS: u8 = 1;
    const RESET: u8 = 3;
    const PING: u8 = 6;
    let server = start(Limits::default()).await;
    let mut stream = server.connect().await;
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    // A route that is not there is answered without a look at the body, which is still to come.
    bytes.extend(frame(HEADERS, 0b100, 1, &get_over_http2("/nowhere")));
    bytes.extend(frame(HEADERS, 0b101, 3, &get_over_http2("/livez")));
    stream.write_all(&bytes).await.expect("it listens");
    let mut seen = Vec::new();
    frames_until(&mut stream, &mut seen, (HEADERS, 3)).await;
    let end = frame(0, 1, 1, b"the body");
    stream.write_all(&end).await.expect("it listens");
    frames_until(&mut stream, &mut seen, (HEADERS, 1)).await;
    // Whatever belongs to the stream has come when the ping is answered.
    stream
        .write_all(&frame(PING, 0, 0, &[0; 8]))
        .await
        .expect("it listens");
    frames_until(&mut stream, &mut seen, (PING, 0)).await;
    assert!(
        !seen.contains(&(RESET, 1)),
        "the stream is not reset: {seen:?}"
    );
}

#[tokio::test]
async fn floods_of_http2_frames_end_the_connection() {
    let server = start(Limits {
        header_bytes: 9000,
        ..Limits::default()
    })
    .await;
    let rapid_reset: Vec<u8> = (0..20_000)
        .flat_map(|number| {
            let stream = number * 2 + 1;
            let mut both = frame(1, 0b101, stream, &get_over_http2("/hold"));
            both.extend(frame(3, 0, stream, &[0, 0, 0, 8]));
            both
        })
        .collect();
    let mut continuation = frame(1, 1, 1, &get_over_http2("/hold"));
    for _ in 0..10_000 {
        let mut block = vec![0x40, 1, b'x', 100];
        block.extend([b'y'; 100]);
        continuation.extend(frame(9, 0, 1, &block));
    }
    for flood in [rapid_reset, continuation] {
        let mut stream = server.connect().await;
        stream.write_all(PREFACE).await.unwrap();
        let (mut read, mut write) = stream.into_split();
        let answers = tokio::spawn(async move {
            let mut all = Vec::new();
            let _ = read.read_to_end(&mut all).await;
        });
        let _ = write.write_all(&flood).await; // it may be closed before all is sent
        tokio::time::timeout(PATIENCE, answers)
            .await
            .expect("the server closes")
            .unwrap();
    }
    assert!(
        server
            .send(b"GET /livez HTTP/1.0\r\n\r\n")
            .await
            .contains("alive")
    );
}

#[tokio::test]
async fn more_streams_than_allowed_are_refused_not_served() {
    let server = start(Limits {
        streams: 5,
        ..Limits::default()
    })
    .await;
    let mut stream = server.connect().await;
    stream.write_all(PREFACE).await.unwrap();
    let all: Vec<u8> = (0..50)
        .flat_map(|number| frame(1, 0b101, number * 2 + 1, &get_over_http2("/hold")))
        .collect();
    stream.write_all(&all).await.unwrap();
    // 45 of them are reset (frame type 3) while five are held.
    let mut seen = Vec::new();
    let resets = loop {
        let mut part = [0; 4096];
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut part)).await;
        let bytes = read.expect("resets").unwrap();
        seen.extend_from_slice(&part[..bytes]);
        let (mut at, mut resets) = (0, 0);
        while let Some(head) = seen.get(at..at + 9) {
            resets += usize::from(head[3] == 3);
            at += 9 + usize::from(head[1]) * 256 + usize::from(head[2]);
        }
        if resets >= 45 || bytes == 0 {
            break resets;
        }
    };
    assert_eq!(resets, 45);
}
