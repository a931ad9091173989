//! A target that speaks HTTP/2.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::KeyPair;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use windlass_core::{Delivery, NewJob, State};
use windlass_http::{HttpConfig, TlsRoots};

use crate::support::{Names, World, http_job, http_of, local};

/// Serves HTTP/2 only; how many connections it took.
async fn start(certificate: rcgen::Certificate, key: &KeyPair) -> (SocketAddr, Arc<AtomicUsize>) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("a certificate with its key");
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let answer = service_fn(|_| async {
                    Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from("fine"))))
                });
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = server.serve_connection(TokioIo::new(stream), answer).await;
            });
        }
    });
    (address, connections)
}

#[tokio::test]
async fn requests_share_a_connection_but_those_at_most_once_have_their_own() {
    let name = "target.example".to_owned();
    let own = rcgen::generate_simple_self_signed([name]).unwrap();
    let pem = own.cert.pem().into_bytes();
    let (address, connections) = start(own.cert, &own.signing_key).await;
    let config = HttpConfig {
        roots: TlsRoots {
            extra_pem: Some(pem),
        },
        ..local()
    };
    let names = Names::new().answer("target.example", &["127.0.0.1"]);
    let world = World::resolving(config, Arc::new(names));
    let url = format!("https://target.example:{}/", address.port());
    for _ in 0..5 {
        let (job, history) = world.deliver(json!({"url": url, "body": "x"})).await;
        assert_eq!(job.state(), State::Succeeded);
        assert_eq!(http_of(&history[0])["version"], "HTTP/2.0");
        assert_eq!(http_of(&history[0])["body"], "fine");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
    for _ in 0..3 {
        let job = NewJob {
            delivery: Delivery::AtMostOnce,
            ..http_job(json!({"url": url}))
        };
        assert_eq!(world.deliver_job(job).await.0.state(), State::Succeeded);
    }
    assert_eq!(connections.load(Ordering::SeqCst), 4);
}
