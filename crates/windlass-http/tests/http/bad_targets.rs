//! Targets that hang, flood, disconnect early, break the protocol or have a bad certificate.

use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use windlass_core::{DeadReason, Delivery, Job, NewJob, Outcome, State, Timeout};
use windlass_engine::Clock as _;
use windlass_http::{HttpConfig, TlsRoots};
use windlass_store::{Attempt, Change};

use crate::support::{
    Names, Reply, Target, World, error_of, http_job, http_of, local, t0, timeline,
};

fn once(url: String, delivery: Delivery) -> NewJob {
    NewJob {
        delivery,
        max_attempts: windlass_core::retry::AttemptLimit::from_max_attempts(1).expect("a limit"),
        ..http_job(json!({"url": url}))
    }
}

async fn deliver_once(target: &Target, delivery: Delivery) -> (Job, Attempt) {
    let world = World::new();
    let (job, mut history) = world.deliver_job(once(target.url("/"), delivery)).await;
    (job, history.pop().expect("an attempt"))
}

#[tokio::test]
async fn only_the_beginning_of_an_endless_response_is_read() {
    let head = b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    let chunk = [b"1000\r\n".to_vec(), vec![b'x'; 0x1000], b"\r\n".to_vec()].concat();
    let endless = Target::replying(&[Reply::Endless(head, chunk)]).await;
    let huge = b"HTTP/1.1 200 X\r\ncontent-length: 10737418240\r\n\r\n".to_vec();
    let huge = Target::replying(&[Reply::Endless(huge, vec![b'x'; 0x1000])]).await;
    for target in [endless, huge] {
        let (job, row) = deliver_once(&target, Delivery::AtLeastOnce).await;
        assert_eq!(job.state(), State::Succeeded);
        let kept = http_of(&row);
        assert_eq!(
            (&kept["body_bytes"], &kept["body_cut"]),
            (&json!(65536), &json!(true))
        );
        assert_eq!(kept["body"].as_str().unwrap().len(), 4096);
    }
}

#[tokio::test]
async fn compressed_bodies_are_not_decompressed() {
    let bytes = [
        b"HTTP/1.1 200 X\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\n".to_vec(),
        vec![0x1f, 0x8b, 8, 0],
    ]
    .concat();
    let target = Target::replying(&[Reply::Raw(bytes)]).await;
    let (job, row) = deliver_once(&target, Delivery::AtLeastOnce).await;
    assert_eq!(job.state(), State::Succeeded);
    assert_eq!(http_of(&row)["body_bytes"], 4);
}

#[tokio::test]
async fn an_incomplete_response_is_a_failure_with_an_unknown_outcome() {
    let big = format!("HTTP/1.1 200 X\r\nx: {}\r\n\r\n", "v".repeat(1_000_000));
    let interim = b"HTTP/1.1 100 Continue\r\n\r\n".to_vec();
    for (name, reply) in [
        ("closed without an answer", Reply::Raw(Vec::new())),
        ("reset", Reply::Reset),
        (
            "closed in the head",
            Reply::Raw(b"HTTP/1.1 200 OK\r\nconten".to_vec()),
        ),
        (
            "closed in the body",
            Reply::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc".to_vec()),
        ),
        ("not HTTP", Reply::Raw(b"SSH-2.0-OpenSSH_9\r\n".to_vec())),
        ("a huge head", Reply::Raw(big.into_bytes())),
        (
            "interim answers for ever",
            Reply::Endless(Vec::new(), interim),
        ),
    ] {
        let target = Target::replying(&[reply]).await;
        let (job, row) = deliver_once(&target, Delivery::AtLeastOnce).await;
        assert_eq!(job.state(), State::Dead(DeadReason::Exhausted), "{name}");
        assert_eq!(row.outcome, Outcome::Failed, "{name}: {}", error_of(&row));
        if name == "closed in the body" {
            assert_eq!(http_of(&row)["status"], 200, "the head came");
        }
        let (job, row) = deliver_once(&target, Delivery::AtMostOnce).await;
        assert_eq!(
            job.state(),
            State::Dead(DeadReason::Lost),
            "{name}: {}",
            error_of(&row)
        );
        assert_eq!(
            target.seen().len(),
            2,
            "{name}: once each, never sent again"
        );
    }
}

#[tokio::test]
async fn a_few_interim_responses_are_accepted() {
    let bytes = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 204 X\r\n\r\n".to_vec();
    let target = Target::replying(&[Reply::Raw(bytes)]).await;
    let (job, _) = deliver_once(&target, Delivery::AtLeastOnce).await;
    assert_eq!(job.state(), State::Succeeded);
}

#[tokio::test]
async fn a_refused_connection_is_known_to_have_sent_nothing() {
    let gone = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    for delivery in [Delivery::AtLeastOnce, Delivery::AtMostOnce] {
        let world = World::new();
        let (job, history) = world
            .deliver_job(once(format!("http://{gone}/"), delivery))
            .await;
        assert_eq!(job.state(), State::Dead(DeadReason::Exhausted));
        assert!(error_of(&history[0]).starts_with("could not connect to `http://127.0.0.1:"));
    }
}

/// Delivers a job to a target that hangs, and advances the time by `seconds` once it got a request.
async fn deliver_to_hanging(target: &Target, job: NewJob, seconds: u64) -> (Job, Vec<Attempt>) {
    let world = World::new();
    let id = world.enqueue_job(job).await;
    let sleeping = {
        let clock = world.clock.clone();
        let until = t0().saturating_add(Duration::from_secs(seconds));
        async move {
            target.wait_for(1).await;
            clock.sleep_until(until).await;
        }
    };
    tokio::select! {
        done = world.worker.drain(&world.clock) => drop(done.expect("a store")),
        () = async { sleeping.await; std::future::pending().await } => {}
    }
    (world.job(id).await, world.history(id).await)
}

#[tokio::test]
async fn a_target_that_hangs_or_trickles_is_timed_out_after_thirty_seconds() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc".to_vec();
    for (hang, status) in [
        (Reply::Hang(Vec::new()), json!(null)),
        (Reply::Hang(head), json!(200)),
    ] {
        let target = Target::replying(&[hang.clone(), Reply::Status(200)]).await;
        let (job, history) =
            deliver_to_hanging(&target, http_job(json!({"url": target.url("/")})), 30).await;
        let expected = [(0.0, 0, Outcome::TimedOut), (31.0, 1, Outcome::Succeeded)];
        assert_eq!(timeline(&history), expected, "at T+30, and again at T+31");
        assert_eq!(history[0].finished_at.since(t0()), Duration::from_secs(30));
        assert_eq!(job.state(), State::Succeeded);
        assert_eq!(http_of(&history[0])["status"], status, "as far as it came");
        let timings = &http_of(&history[0])["timings_ms"];
        assert!(
            timings["connect"].is_number() && timings["total"].is_number(),
            "how far it came"
        );
        let target = Target::replying(&[hang]).await;
        let (job, history) =
            deliver_to_hanging(&target, once(target.url("/"), Delivery::AtMostOnce), 30).await;
        assert_eq!(job.state(), State::Dead(DeadReason::Lost));
        assert_eq!((history.len(), target.seen().len()), (1, 1));
    }
}

#[tokio::test]
async fn the_jobs_own_timeout_counts() {
    let target = Target::replying(&[Reply::Hang(Vec::new()), Reply::Status(200)]).await;
    let job = NewJob {
        timeout: Some(Timeout::After(Duration::from_secs(10))),
        ..http_job(json!({"url": target.url("/")}))
    };
    let (_, history) = deliver_to_hanging(&target, job, 10).await;
    assert_eq!(timeline(&history)[1].0, 11.0);
    assert_eq!(target.seen()[0].headers["windlass-time-left-ms"], "10000");
}

#[tokio::test]
async fn a_request_in_flight_can_be_cancelled() {
    for (delivery, state) in [
        (Delivery::AtLeastOnce, State::Cancelled),
        (Delivery::AtMostOnce, State::Dead(DeadReason::Lost)),
    ] {
        let target = Target::replying(&[Reply::Hang(Vec::new())]).await;
        let world = World::new();
        let id = world.enqueue_job(once(target.url("/"), delivery)).await;
        let cancel = async {
            target.wait_for(1).await;
            world.engine.change(&[id], &Change::Cancel).await.unwrap();
        };
        let (drained, ()) = tokio::join!(world.worker.drain(&world.clock), cancel);
        drained.unwrap();
        assert_eq!(world.state(id).await, state, "{delivery}");
    }
}

#[tokio::test]
async fn requests_over_the_limit_of_a_host_wait() {
    for (per_host, at_once) in [(Some(2), 2), (None, 5)] {
        let target = Target::replying(&[Reply::Hang(Vec::new())]).await;
        let world = World::with(HttpConfig {
            per_host,
            ..local()
        });
        for _ in 0..5 {
            let job = once(target.url("/"), Delivery::AtLeastOnce);
            world.enqueue_job(job).await;
        }
        let clock = world.clock.clone();
        let hanging = async {
            target.wait_for(at_once).await;
            clock
                .sleep_until(t0().saturating_add(Duration::from_secs(30)))
                .await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            done = world.worker.drain(&world.clock) => drop(done.unwrap()),
            () = hanging => {}
        }
        // All five requests had thirty seconds; the target saw only as many as the limit allows.
        assert_eq!(target.seen().len(), at_once, "{per_host:?}");
    }
}

/// An authority of the test, and what it signs.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Authority(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    fn config(&self) -> HttpConfig {
        let pem = self.0.pem().into_bytes();
        HttpConfig {
            roots: TlsRoots {
                extra_pem: Some(pem),
            },
            ..local()
        }
    }

    fn acceptor(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> TlsAcceptor {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.0).expect("a certificate");
        acceptor(signed.der().clone(), &key)
    }
}

fn acceptor(certificate: CertificateDer<'static>, key: &KeyPair) -> TlsAcceptor {
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a certificate with its key");
    TlsAcceptor::from(Arc::new(config))
}

fn named() -> Arc<Names> {
    Arc::new(Names::new().answer("target.example", &["127.0.0.1"]))
}

async fn deliver_secure(config: HttpConfig, acceptor: TlsAcceptor) -> (Job, Attempt, Target) {
    let target = Target::secure(acceptor, |_| Reply::Status(200)).await;
    let world = World::resolving(config, named());
    let url = format!("https://target.example:{}/", target.address.port());
    let (job, mut history) = world.deliver_job(once(url, Delivery::AtLeastOnce)).await;
    (job, history.pop().expect("an attempt"), target)
}

#[tokio::test]
async fn a_target_with_a_valid_certificate_gets_its_request() {
    let authority = Authority::new();
    let acceptor = authority.acceptor("target.example", |_| {});
    let (job, row, target) = deliver_secure(authority.config(), acceptor).await;
    assert_eq!(job.state(), State::Succeeded, "{}", error_of(&row));
    assert_eq!(target.seen().len(), 1);
    assert!(http_of(&row)["timings_ms"]["tls"].is_number());
    assert!(http_of(&row)["timings_ms"]["resolve"].is_number());
}

#[tokio::test]
async fn a_target_with_an_invalid_certificate_gets_nothing() {
    let authority = Authority::new();
    let own_key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(vec!["target.example".to_owned()]).unwrap();
    let own = own.self_signed(&own_key).unwrap();
    for (name, config, acceptor) in [
        (
            "another host",
            authority.config(),
            authority.acceptor("other.example", |_| {}),
        ),
        (
            "expired",
            authority.config(),
            authority.acceptor("target.example", |params| {
                params.not_before = rcgen::date_time_ymd(2020, 1, 1);
                params.not_after = rcgen::date_time_ymd(2021, 1, 1);
            }),
        ),
        (
            "self-signed",
            authority.config(),
            acceptor(own.der().clone(), &own_key),
        ),
        (
            "an authority nobody named",
            local(),
            authority.acceptor("target.example", |_| {}),
        ),
    ] {
        let (job, row, target) = deliver_secure(config, acceptor).await;
        assert_eq!(job.state(), State::Dead(DeadReason::Exhausted), "{name}");
        assert!(
            error_of(&row).contains("the TLS handshake failed: invalid peer certificate"),
            "{name}: {}",
            error_of(&row)
        );
        assert_eq!(target.seen().len(), 0, "{name}");
    }
}

#[tokio::test]
async fn half_a_handshake_ends_with_the_connect_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = HttpConfig {
        connect_timeout: Duration::from_millis(50),
        ..local()
    };
    let world = World::resolving(config, named());
    let url = format!("https://target.example:{port}/");
    let (job, history) = world.deliver_job(once(url, Delivery::AtMostOnce)).await;
    drop(listener);
    assert_eq!(
        job.state(),
        State::Dead(DeadReason::Exhausted),
        "nothing was sent"
    );
    assert!(error_of(&history[0]).ends_with("the TLS handshake timed out after 50ms"));
}

#[tokio::test]
async fn a_target_that_speaks_only_old_tls_gets_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    // Its answer to a version that it does not know: an alert, in the format of TLS 1.0.
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            use tokio::io::AsyncWriteExt as _;
            let _ = stream.write_all(&[0x15, 3, 1, 0, 2, 2, 70]).await;
        }
    });
    let world = World::resolving(local(), named());
    let url = format!("https://target.example:{port}/");
    let (job, history) = world.deliver_job(once(url, Delivery::AtMostOnce)).await;
    assert_eq!(
        job.state(),
        State::Dead(DeadReason::Exhausted),
        "nothing was sent"
    );
    let error = error_of(&history[0]);
    assert!(error.contains("the TLS handshake failed"), "{error}");
}
