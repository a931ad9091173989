//! No trick reaches an address that is not public: no connection is even opened.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;
use windlass_core::{DeadReason, State};
use windlass_http::{HttpConfig, HttpRequest};
use windlass_testkit::child;

use crate::support::{Names, Reply, Target, World, error_of, http_of, local};

/// The error for a URL with an address that is not allowed.
fn refusal(url: &str) -> String {
    format!(
        "sending to `{}` is not allowed: HTTP jobs reach only public addresses and those opened \
         with --allow-target, and never the server itself",
        target_of(url)
    )
}

/// The error for a URL with a host name. It does not show whether the name exists.
fn name_refusal(url: &str) -> String {
    format!(
        "could not resolve the host of `{}` to an allowed address: check the name, or open its \
         address with --allow-target",
        target_of(url)
    )
}

/// Scheme, host and port of a URL, normalized.
fn target_of(url: &str) -> String {
    let payload = json!({ "url": url }).to_string();
    let url = HttpRequest::from_json(&payload).expect(url).url;
    url.to_string().trim_end_matches('/').to_owned()
}

/// Addresses that are not the public internet, one or more of each range.
const CLOSED_V4: [[u8; 4]; 44] = [
    [0, 0, 0, 0],
    [0, 0, 0, 1],
    [0, 255, 255, 255],
    [10, 0, 0, 1],
    [10, 255, 255, 255],
    [100, 64, 0, 1],
    [100, 100, 100, 200],
    [100, 127, 255, 255],
    [127, 0, 0, 1],
    [127, 0, 0, 2],
    [127, 1, 1, 1],
    [127, 255, 255, 255],
    [168, 63, 129, 16],
    [169, 254, 0, 1],
    [169, 254, 169, 253],
    [169, 254, 169, 254],
    [169, 254, 170, 2],
    [169, 254, 255, 255],
    [172, 16, 0, 1],
    [172, 17, 0, 1],
    [172, 31, 255, 255],
    [192, 0, 0, 1],
    [192, 0, 0, 8],
    [192, 0, 0, 170],
    [192, 0, 0, 192],
    [192, 0, 2, 1],
    [192, 88, 99, 1],
    [192, 168, 0, 1],
    [192, 168, 1, 1],
    [192, 168, 255, 255],
    [198, 18, 0, 1],
    [198, 19, 255, 255],
    [198, 51, 100, 1],
    [203, 0, 113, 1],
    [224, 0, 0, 1],
    [224, 0, 0, 251],
    [239, 255, 255, 250],
    [239, 255, 255, 255],
    [240, 0, 0, 1],
    [250, 1, 2, 3],
    [254, 255, 255, 255],
    [255, 255, 255, 0],
    [255, 255, 255, 254],
    [255, 255, 255, 255],
];

/// The same in IPv6, where no IPv4 address is inside.
const CLOSED_V6: [&str; 30] = [
    "::",
    "::1",
    "::2",
    "100::1",
    "64:ff9b:1::1",
    "64:ff9b:1:fffe::a9fe:a9fe",
    "2001::1",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "2001:db8:ffff::1",
    "3ffe::1",
    "3fff::1",
    "3fff:fff::1",
    "4000::1",
    "5f00::1",
    "8000::1",
    "fc00::1",
    "fd00::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "fdff:ffff::1",
    "fe80::1",
    "fe80::a9fe:a9fe",
    "febf::1",
    "fec0::1",
    "feff::1",
    "ff02::1",
    "ff05::1:3",
];

/// Every way to write an IPv4 address that some client accepts.
fn spellings(octets: [u8; 4]) -> Vec<String> {
    let [a, b, c, d] = octets;
    let number = u32::from(Ipv4Addr::from(octets));
    let (high, low) = (number >> 16, number & 0xffff);
    vec![
        format!("{a}.{b}.{c}.{d}"),
        format!("{a}.{b}.{c}.{d}."),
        format!("{number}"),
        format!("0x{number:x}"),
        format!("0{number:o}"),
        format!("0x{a:x}.0x{b:x}.0x{c:x}.0x{d:x}"),
        format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
        format!("{a}.{b}.{}", u32::from(c) << 8 | u32::from(d)),
        format!("{a}.{}", number & 0x00ff_ffff),
        format!("{a}%2e{b}%2e{c}%2e{d}"),
        format!("{a}。{b}。{c}。{d}"),
        format!("[::ffff:{a}.{b}.{c}.{d}]"),
        format!("[::ffff:{high:x}:{low:x}]"),
        format!("[::{high:x}:{low:x}]"),
        format!("[64:ff9b::{high:x}:{low:x}]"),
        format!("[2002:{high:x}:{low:x}::1]"),
        format!(
            "[2001:0:4136:e378:8000:63bf:{:x}:{:x}]",
            !high & 0xffff,
            !low & 0xffff
        ),
        format!("[2a00:1450::5efe:{high:x}:{low:x}]"),
    ]
}

fn corpus() -> Vec<String> {
    let of_v4 = CLOSED_V4.iter().flat_map(|octets| spellings(*octets));
    let of_v6 = CLOSED_V6.iter().map(|text| format!("[{text}]"));
    of_v4.chain(of_v6).collect()
}

#[tokio::test]
async fn no_spelling_of_a_closed_address_is_dialled() {
    let corpus = corpus();
    assert!(corpus.len() >= 300, "{}", corpus.len());
    let world = World::with(HttpConfig::default());
    let mut ids = Vec::new();
    for host in &corpus {
        let url = format!("http://{host}:8080/");
        let id = world.enqueue(json!({"url": url})).await;
        ids.push((host, url, id));
    }
    world.worker.drain(&world.clock).await.unwrap();
    for (host, url, id) in ids {
        let state = world.state(id).await;
        assert_eq!(state, State::Dead(DeadReason::Unrecoverable), "{host}");
        let history = world.history(id).await;
        assert_eq!(history.len(), 1, "{host} is not retried");
        assert_eq!(error_of(&history[0]), refusal(&url), "{host}");
        assert_eq!(http_of(&history[0]), json!({}), "{host}");
    }
    assert_eq!(world.http.connections_opened(), 0);
}

/// Host names that resolve to such addresses get the same check.
#[tokio::test]
async fn no_name_of_a_closed_address_is_dialled() {
    let mut names = Names::new();
    let mut hosts = Vec::new();
    for (number, octets) in CLOSED_V4.iter().enumerate() {
        let (host, address) = (
            format!("h{number}.example"),
            Ipv4Addr::from(*octets).to_string(),
        );
        names = names.answer(&host, &[&address]);
        hosts.push(host);
    }
    for (number, address) in CLOSED_V6.iter().enumerate() {
        let host = format!("s{number}.example");
        names = names.answer(&host, &[address]);
        hosts.push(host);
    }
    let world = World::resolving(HttpConfig::default(), Arc::new(names));
    for host in &hosts {
        let url = format!("https://{host}/");
        let (job, history) = world.deliver(json!({"url": url})).await;
        assert_eq!(job.state(), State::Dead(DeadReason::Exhausted), "{host}");
        assert_eq!(error_of(&history[0]), name_refusal(&url));
    }
    assert_eq!(world.http.connections_opened(), 0);
}

#[tokio::test]
async fn localhost_is_refused() {
    let world = World::with(HttpConfig::default());
    let (job, _) = world
        .deliver(json!({"url": "http://localhost:8080/"}))
        .await;
    assert_eq!(job.state(), State::Dead(DeadReason::Exhausted));
    assert_eq!(world.http.connections_opened(), 0);
}

#[tokio::test]
async fn a_name_with_one_closed_address_is_refused() {
    let names = Names::new()
        .answer("mixed.example", &["93.184.216.34", "127.0.0.1"])
        .answer("six.example", &["2606:2800::1", "::ffff:10.0.0.1"]);
    let world = World::resolving(HttpConfig::default(), Arc::new(names));
    for host in ["mixed.example", "six.example"] {
        let url = format!("http://{host}/");
        let (job, history) = world.deliver(json!({"url": url})).await;
        assert_eq!(job.state(), State::Dead(DeadReason::Exhausted));
        assert_eq!(error_of(&history[0]), name_refusal(&url));
    }
    assert_eq!(world.http.connections_opened(), 0);
}

#[tokio::test]
async fn a_name_is_resolved_only_once() {
    let target = Target::replying(&[Reply::Status(200)]).await;
    // The first lookup returns the target, every later one a closed address.
    let names = Names::new()
        .answer("flips.example", &["127.0.0.1"])
        .answer("flips.example", &["169.254.169.254"]);
    let world = World::resolving(local(), Arc::new(names));
    let url = format!("http://flips.example:{}/", target.address.port());
    let (job, _) = world.deliver(json!({"url": url})).await;
    assert_eq!(job.state(), State::Succeeded);
    assert_eq!(world.http.connections_opened(), 1);
    assert_eq!(
        target.seen()[0].headers["host"],
        url[7..].trim_end_matches('/')
    );
}

#[tokio::test]
async fn a_name_that_turns_closed_between_two_attempts_is_refused_then() {
    let target = Target::replying(&[Reply::Raw(
        b"HTTP/1.1 503 X\r\nconnection: close\r\n\r\n".to_vec(),
    )])
    .await;
    let names = Names::new()
        .answer("flips.example", &["127.0.0.1"])
        .answer("flips.example", &["169.254.169.254"]);
    let world = World::resolving(local(), Arc::new(names));
    let url = format!("http://flips.example:{}/", target.address.port());
    let (job, history) = world.deliver(json!({"url": url})).await;
    assert_eq!(job.state(), State::Dead(DeadReason::Exhausted));
    assert_eq!(history.len(), 4);
    assert_eq!(error_of(&history[1]), name_refusal(&url));
    assert_eq!(target.seen().len(), 1);
}

#[tokio::test]
async fn a_name_that_is_not_found_is_resolved_again_at_the_next_attempt() {
    let target = Target::replying(&[Reply::Status(200)]).await;
    let names = Names::new()
        .answer("late.example", &[])
        .answer("late.example", &["127.0.0.1"]);
    let world = World::resolving(local(), Arc::new(names));
    let url = format!("http://late.example:{}/", target.address.port());
    let (job, history) = world.deliver(json!({"url": url})).await;
    assert_eq!((job.state(), history.len()), (State::Succeeded, 2));
    assert_eq!(error_of(&history[0]), name_refusal(&url));
    let url = "http://never.example/";
    let (job, history) = world.deliver(json!({"url": url})).await;
    assert_eq!(job.state(), State::Dead(DeadReason::Exhausted));
    assert_eq!(error_of(&history[0]), name_refusal(url));
}

#[tokio::test]
async fn a_closed_name_looks_like_one_that_does_not_exist() {
    let names = Names::new().answer("intranet.example", &["10.0.0.1"]);
    let world = World::resolving(HttpConfig::default(), Arc::new(names));
    let mut results = Vec::new();
    for host in ["intranet.example", "nothing.example"] {
        let url = format!("https://{host}/");
        let (job, history) = world.deliver(json!({"url": url})).await;
        let rows = history.iter().map(|row| {
            let error = error_of(row).replace(host, "HOST");
            (error, row.outcome, row.detail.clone())
        });
        results.push((job.state(), job.failures, rows.collect::<Vec<_>>()));
    }
    assert_eq!(results[0], results[1]);
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let inner = Target::replying(&[Reply::Status(200)]).await;
    let location = inner.url("/secret");
    let script = move |_: &crate::support::Seen| Reply::header(302, "location", &location);
    let outer = Target::start(script).await;
    let world = World::new();
    let (job, _) = world.deliver(json!({"url": outer.url("/")})).await;
    assert_eq!(job.state(), State::Dead(DeadReason::Exhausted));
    assert_eq!(inner.connections(), 0);
}

#[tokio::test]
async fn our_own_address_is_refused_even_if_its_range_is_open() {
    let target = Target::replying(&[Reply::Status(200)]).await;
    let port = target.address.port();
    for own in [target.address, ([0, 0, 0, 0], port).into()] {
        let world = World::with(HttpConfig {
            own: vec![own],
            ..local()
        });
        for host in ["127.0.0.1", "[::ffff:127.0.0.1]"] {
            let url = format!("http://{host}:{port}/");
            let (job, history) = world.deliver(json!({"url": url})).await;
            assert_eq!(
                job.state(),
                State::Dead(DeadReason::Unrecoverable),
                "{own} {host}"
            );
            assert_eq!(error_of(&history[0]), refusal(&url));
        }
        let other = Target::replying(&[Reply::Status(200)]).await;
        let (job, _) = world.deliver(json!({"url": other.url("/")})).await;
        assert_eq!(
            job.state(),
            State::Succeeded,
            "another port of this machine"
        );
    }
    assert_eq!(target.connections(), 0);
}

// The unspecified address reaches this machine, even if every range is open.
#[tokio::test]
async fn no_other_name_of_this_machine_reaches_our_own_address() {
    let target = Target::replying(&[Reply::Status(200)]).await;
    let port = target.address.port();
    let ranges = ["0.0.0.0/0", "::/0", "0.0.0.0/32"];
    let world = World::with(HttpConfig {
        allow: ranges.map(|range| range.parse().unwrap()).to_vec(),
        own: vec![target.address],
        ..HttpConfig::default()
    });
    for host in ["0.0.0.0", "0", "[::]", "[::ffff:0.0.0.0]"] {
        let url = format!("http://{host}:{port}/");
        let (job, history) = world.deliver(json!({"url": url})).await;
        let dead = State::Dead(DeadReason::Unrecoverable);
        assert_eq!(
            (job.state(), error_of(&history[0])),
            (dead, refusal(&url)),
            "{host}"
        );
    }
    assert_eq!(target.connections(), 0);
}

#[tokio::test]
async fn proxies_of_the_environment_are_not_used() {
    let proxy = Target::replying(&[Reply::Status(200)]).await;
    let url = format!("http://{}", proxy.address);
    let test = "addresses::a_name_is_resolved_only_once";
    let mut child = child::this_program(test);
    for name in [
        "HTTP_PROXY",
        "http_proxy",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "all_proxy",
    ] {
        child.env(name, &url);
    }
    let run = tokio::task::spawn_blocking(move || child.output());
    let ended = run.await.unwrap().unwrap();
    assert!(
        ended.status.success(),
        "{}",
        String::from_utf8_lossy(&ended.stdout)
    );
    assert!(String::from_utf8_lossy(&ended.stdout).contains("1 passed"));
    assert_eq!(proxy.connections(), 0);
}

#[tokio::test]
async fn the_next_address_of_a_name_is_tried_when_the_first_does_not_answer() {
    let target = Target::replying(&[Reply::Status(200)]).await;
    let names = Names::new().answer("two.example", &["127.0.0.2", "127.0.0.1"]);
    let world = World::resolving(local(), Arc::new(names));
    let url = format!("http://two.example:{}/", target.address.port());
    let (job, history) = world.deliver(json!({"url": url})).await;
    assert_eq!((job.state(), history.len()), (State::Succeeded, 1));
    assert_eq!(world.http.connections_opened(), 2);
}

/// A resolver that never answers.
#[derive(Debug)]
struct Silent;

#[async_trait::async_trait]
impl windlass_http::Resolve for Silent {
    async fn resolve(&self, _: &str) -> std::io::Result<Vec<std::net::IpAddr>> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_lookup_has_a_timeout() {
    let config = HttpConfig {
        connect_timeout: Duration::from_millis(20),
        ..local()
    };
    let world = World::resolving(config, Arc::new(Silent));
    let (job, history) = world.deliver(json!({"url": "http://slow.example/"})).await;
    assert_eq!(job.state(), State::Dead(DeadReason::Exhausted));
    let expected = "could not connect to `http://slow.example`: resolving the host name timed out \
                    after 20ms";
    assert_eq!(error_of(&history[0]), expected);
}

/// A listener that accepts no connection and whose queue is full: a new connection attempt hangs.
async fn full_listener(address: SocketAddr) -> Option<(TcpListener, Vec<TcpStream>)> {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(address).expect("a free address");
    let listener = socket.listen(1).expect("it listens");
    let mut waiting = Vec::new();
    for _ in 0..8 {
        let dialled = timeout(Duration::from_millis(200), TcpStream::connect(address));
        match dialled.await {
            Ok(stream) => waiting.push(stream.expect("a place in the queue")),
            Err(_) => return Some((listener, waiting)),
        }
    }
    None
}

#[tokio::test]
async fn an_address_that_hangs_leaves_time_for_the_next_one() {
    let target = Target::replying(&[Reply::Status(200)]).await;
    let port = target.address.port();
    let full = full_listener(([127, 0, 0, 2], port).into()).await;
    assert!(full.is_some(), "its queue fills");
    let names = Names::new().answer("two.example", &["127.0.0.2", "127.0.0.1"]);
    let world = World::resolving(local(), Arc::new(names));
    let url = format!("http://two.example:{port}/");
    let (job, history) = world.deliver(json!({"url": url})).await;
    assert_eq!(
        (job.state(), history.len()),
        (State::Succeeded, 1),
        "{:?}",
        history[0].error
    );
}
