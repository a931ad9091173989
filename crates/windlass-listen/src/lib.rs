//! Accepts HTTP connections safely and serves an axum router on them.
//!
//! [`Listener`] binds an address and serves a [`Site`]: a router plus the responses to requests
//! that never reach it. What the listener guarantees, whatever a client sends:
//!
//! - **Every wait has a timeout**: for a request head, for a body, for the client to read a
//!   response, and between two requests (see [`Limits`]).
//! - **Every count has a limit**: bytes and fields of a head, bytes of a body, connections in total
//!   and from one address, streams of an HTTP/2 connection. When all connections are in use, health
//!   checks still get a response.
//! - **A request has one meaning.** The listener refuses a request that a proxy in front of it
//!   could read differently, so no one can smuggle a second request past the proxy.
//! - **A shutdown lets requests finish**, for up to `Limits::drain_time`.
//! - **TLS certificates reload** when their files change; no restart is needed.
//!
//! This crate knows HTTP and nothing about jobs.
//!
//! ```
//! use axum::{Router, routing::get};
//! use tokio_util::sync::CancellationToken;
//! use windlass_listen::{Limits, Listener, Site};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let router = Router::new()
//!     .route("/", get(async || "hello"))
//!     .route("/livez", get(async || "alive"));
//! let site = Site::new(router).health(&["/livez"]);
//!
//! let listener = Listener::bind("127.0.0.1:0".parse()?, None, Limits::default()).await?;
//! println!("listening on {}", listener.url());
//!
//! // Cancel `stop` to shut down gracefully, `stop_now` to close all connections at once.
//! let (stop, stop_now) = (CancellationToken::new(), CancellationToken::new());
//! # stop.cancel();
//! let closed_early = listener.serve(site, stop, stop_now).await;
//! assert_eq!(closed_early, 0, "all requests finished");
//! # Ok(())
//! # }
//! ```

mod body;
mod deadlines;
mod framing;
mod permits;
mod site;
mod stream;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderValue, Request, Response, Version, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use tracing::{debug, warn};

pub use body::BodyError;
pub use permits::{RESERVE, network};
pub use site::{Refusal, Site};
pub use tls::{Certificate, TlsError, TlsFiles};

use body::{BodyLimits, RequestBody, ResponseBody, reclaimable};
use deadlines::{ConnectionDeadlines, MinWriteRate, PhaseTimeouts};
use framing::{Framing, HeadLimits, REFUSED, TOO_LARGE};
use permits::{ConnectionPermit, ConnectionPermits, PermitLimits};
use stream::GuardedStream;

/// The limits of a listener and of each of its connections.
///
/// A client that breaks a limit gets an error response where that is possible; otherwise the
/// listener closes its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Clients must send a whole request head within this time. Default: 10 s.
    pub header_time: Duration,
    /// The largest request head, in bytes. Default: 32 KiB.
    pub header_bytes: usize,
    /// The most header fields of a request. Default: 100.
    pub header_fields: usize,
    /// Clients must send a whole request body within this time, plus one second for every
    /// `body_bytes_per_second` received. Default: 30 s.
    pub body_time: Duration,
    /// The slowest rate at which clients may send a long body. Default: 16 KiB.
    pub body_bytes_per_second: u64,
    /// The largest request body on any route. Default: 16 MiB.
    pub body_bytes_max: u64,
    /// Clients must read at least `write_bytes` of a response in every window of this length, or
    /// they are disconnected. Default: 30 s.
    pub write_time: Duration,
    /// The least that clients must read of a response within `write_time`. Default: 64 KiB.
    pub write_bytes: usize,
    /// The listener closes a connection that has no request for this long. Default: 60 s.
    pub idle_time: Duration,
    /// The most open connections. [`RESERVE`] more answer health checks. Default: 10,000.
    pub connections: usize,
    /// The most open connections from one address (from one /64 network in IPv6). Default: 256.
    pub connections_per_address: usize,
    /// The most concurrent requests on one HTTP/2 connection. Default: 100.
    pub streams: u32,
    /// How long running requests may take to finish after a shutdown began. Default: 30 s.
    pub drain_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            header_time: Duration::from_secs(10),
            header_bytes: 32 * 1024,
            header_fields: 100,
            body_time: Duration::from_secs(30),
            body_bytes_per_second: 16 * 1024,
            body_bytes_max: 16 * 1024 * 1024,
            write_time: Duration::from_secs(30),
            write_bytes: 64 * 1024,
            idle_time: Duration::from_secs(60),
            connections: 10_000,
            connections_per_address: 256,
            streams: 100,
            drain_time: Duration::from_secs(30),
        }
    }
}

/// Why a listener could not start.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address is in use, is not an address of this machine, or needs more privileges.
    #[error(
        "cannot listen on {address}; check that the address is free and belongs to this machine"
    )]
    Bind {
        /// The address that was asked for.
        address: SocketAddr,
        /// The error that the operating system returned.
        #[source]
        cause: io::Error,
    },
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The time for a request head on a reserve connection.
const RESERVE_HEADER_TIME: Duration = Duration::from_secs(1);
/// The time that a connection past its deadline gets to close gracefully.
const CLOSE_TIME: Duration = Duration::from_secs(1);
/// How long the accept loop pauses after an error.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound socket, ready to serve a [`Site`].
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    tls: Option<(Certificate, TlsAcceptor)>,
    limits: Arc<Limits>,
}

impl Listener {
    /// Binds an address; port 0 picks any free port. With `tls`, the listener serves only HTTPS.
    ///
    /// # Errors
    ///
    /// [`ListenError::Bind`] if the address cannot be bound, [`ListenError::Tls`] if the
    /// certificate files cannot be used.
    pub async fn bind(
        address: SocketAddr,
        tls: Option<&TlsFiles>,
        limits: Limits,
    ) -> Result<Self, ListenError> {
        let tls = match tls {
            Some(files) => {
                let certificate = Certificate::load(files)?;
                let acceptor = certificate.acceptor()?;
                Some((certificate, acceptor))
            }
            None => None,
        };
        let bound = TcpListener::bind(address).await;
        let bound = bound.and_then(|socket| Ok((socket.local_addr()?, socket)));
        let (address, socket) = bound.map_err(|cause| ListenError::Bind { address, cause })?;
        Ok(Listener {
            socket,
            address,
            tls,
            limits: Arc::new(limits),
        })
    }

    /// Returns the address that it listens on, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL that it listens on, to show to people.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Returns the certificate that it presents, if it serves HTTPS.
    pub fn certificate(&self) -> Option<Certificate> {
        self.tls
            .as_ref()
            .map(|(certificate, _)| certificate.clone())
    }

    /// Serves `site` until `stop` is cancelled, then lets running requests finish for at most
    /// `Limits::drain_time`, or until `stop_now` is cancelled.
    ///
    /// Returns the number of connections that it closed before their requests finished.
    pub async fn serve(
        self,
        site: Site,
        stop: CancellationToken,
        stop_now: CancellationToken,
    ) -> usize {
        let permits = ConnectionPermits::new(PermitLimits {
            total: self.limits.connections,
            per_address: self.limits.connections_per_address,
        });
        let (certificate, tls) = self.tls.unzip();
        // Dropping the set at the end of this function stops the task.
        let mut reloading = JoinSet::new();
        if let Some(certificate) = certificate {
            reloading.spawn(certificate.reload_on_change());
        }
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = self.socket.accept() => accepted,
                Some(_) = connections.join_next() => continue,
                () = stop.cancelled() => break,
                () = stop_now.cancelled() => break,
            };
            let (socket, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Either the client reset the connection early, or the process has too many
                    // open files, and a pause lets it close some.
                    debug!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE.min(self.limits.idle_time)).await;
                    continue;
                }
            };
            let Some(permit) = permits.acquire(peer.ip()) else {
                debug!(%peer, "too many connections; closed a new one");
                continue;
            };
            let permit = Arc::new(permit);
            let connection = Connection {
                site: site.clone(),
                limits: Arc::clone(&self.limits),
                peer,
                permit: Arc::clone(&permit),
                stop: stop.clone(),
            };
            let served = connection.accept(socket, tls.clone());
            connections.spawn(async move {
                tokio::select! {
                    () = served => {}
                    () = permit.revoked() => debug!(%peer, "closed a silent reserve connection"),
                }
            });
        }
        drop(self.socket); // the system refuses new connections from now on
        drain(connections, self.limits.drain_time, stop_now).await
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Listener({})", self.url())
    }
}

async fn drain(
    mut connections: JoinSet<()>,
    drain_time: Duration,
    stop_now: CancellationToken,
) -> usize {
    let all_closed = async { while connections.join_next().await.is_some() {} };
    tokio::select! {
        () = all_closed => {}
        () = tokio::time::sleep(drain_time) => {}
        () = stop_now.cancelled() => {}
    }
    let unfinished = connections.len();
    if unfinished > 0 {
        warn!(
            connections = unfinished,
            "closed connections whose requests did not finish before the drain ended"
        );
    }
    connections.shutdown().await;
    unfinished
}

/// One connection and what its requests need.
#[derive(Clone)]
struct Connection {
    site: Site,
    limits: Arc<Limits>,
    peer: SocketAddr,
    permit: Arc<ConnectionPermit>,
    stop: CancellationToken,
}

impl Connection {
    async fn accept(self, socket: TcpStream, tls: Option<TlsAcceptor>) {
        // Responses are small and clients wait for them. On an error they are only slower.
        let _ = socket.set_nodelay(true);
        let Some(tls) = tls else {
            return self.serve(socket).await;
        };
        let handshake = tokio::time::timeout(self.header_time(), tls.accept(socket));
        match handshake.await {
            Ok(Ok(stream)) => self.serve(stream).await,
            Ok(Err(error)) => debug!(peer = %self.peer, %error, "TLS handshake failed"),
            Err(_) => debug!(peer = %self.peer, "TLS handshake timed out"),
        }
    }

    fn header_time(&self) -> Duration {
        if self.permit.is_reserve() {
            self.limits.header_time.min(RESERVE_HEADER_TIME)
        } else {
            self.limits.header_time
        }
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let limits = Arc::clone(&self.limits);
        let write_rate = MinWriteRate {
            window: limits.write_time,
            bytes: limits.write_bytes,
        };
        let deadlines = Arc::new(ConnectionDeadlines::new(PhaseTimeouts {
            header: self.header_time(),
            idle: limits.idle_time,
            write: write_rate,
        }));
        let framing = Framing::new(HeadLimits {
            bytes: limits.header_bytes,
            fields: limits.header_fields,
        });
        let stream = GuardedStream::new(stream, framing, Arc::clone(&deadlines), write_rate);
        let (peer, stop) = (self.peer, self.stop.clone());
        let service = {
            let deadlines = Arc::clone(&deadlines);
            service_fn(move |request| self.clone().respond(request, Arc::clone(&deadlines)))
        };
        let builder = builder(&limits);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = deadlines.exceeded() => {
                connection.as_mut().graceful_shutdown();
                let closed = tokio::time::timeout(CLOSE_TIME, connection.as_mut()).await;
                closed.unwrap_or(Ok(()))
            }
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection.as_mut() => ended,
                    () = deadlines.exceeded() => Ok(()),
                }
            }
        };
        if let Err(error) = ended {
            debug!(%peer, %error, "connection failed");
        }
    }

    async fn respond(
        self,
        request: Request<Incoming>,
        deadlines: Arc<ConnectionDeadlines>,
    ) -> Result<Response<ResponseBody<Body>>, std::convert::Infallible> {
        let mut in_flight = deadlines.begin_request();
        self.permit.mark_used();
        let body_limits = BodyLimits {
            base_time: self.limits.body_time,
            bytes_per_second: self.limits.body_bytes_per_second,
            bytes_max: self.limits.body_bytes_max,
        };
        let (parts, body) = request.into_parts();
        let is_http2 = parts.version == Version::HTTP_2;
        let (body, unread) = reclaimable(RequestBody::new(body, body_limits));
        let mut request = Request::from_parts(parts, Body::new(body));
        let mut response = match self.refusal(&request) {
            Some(refusal) => self.site.refuse(&refusal, request.headers()),
            None => {
                request.extensions_mut().insert(ConnectInfo(self.peer));
                let Ok(response) = self.site.router.oneshot(request).await;
                response
            }
        };
        if is_http2 {
            // A response before the end of the body resets the stream, and some clients report
            // that as an error instead of reading the response.
            unread.discard().await;
        }
        in_flight.response_ready();
        if self.permit.is_reserve() || self.stop.is_cancelled() {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        Ok(response.map(|body| ResponseBody::new(body, in_flight)))
    }

    /// Returns why the request must not reach the router, if it must not.
    fn refusal(&self, request: &Request<Body>) -> Option<Refusal> {
        let path = request.uri().path();
        if request.method().as_str() == REFUSED {
            return Some(match path {
                TOO_LARGE => Refusal::HeadTooLarge,
                _ => Refusal::Malformed,
            });
        }
        if self.permit.is_reserve() && !self.site.health.contains(&path) {
            return Some(Refusal::Busy);
        }
        let length = request.headers().get(header::CONTENT_LENGTH);
        let length: Option<u64> = length.and_then(|length| length.to_str().ok()?.parse().ok());
        let most = self.limits.body_bytes_max;
        let too_large = length.is_some_and(|length| length > most);
        too_large.then_some(Refusal::BodyTooLarge { most })
    }
}

/// Configures the HTTP library with the limits.
fn builder(limits: &Limits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    let header_list = u32::try_from(limits.header_bytes).unwrap_or(u32::MAX);
    // `deadlines` and `framing` enforce the time and the size of request heads.
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_headers(limits.header_fields)
        .max_buf_size(limits.header_bytes.max(MIN_BUFFER) + MIN_BUFFER);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_pending_accept_reset_streams(20)
        .max_local_error_reset_streams(100)
        .max_header_list_size(header_list)
        .max_send_buf_size(128 * 1024)
        .keep_alive_interval(limits.idle_time)
        .keep_alive_timeout(limits.header_time);
    builder
}

/// The smallest buffer that the HTTP library accepts.
const MIN_BUFFER: usize = 8192;

/// Locks a mutex even if a thread panicked while it held the lock: all values behind our locks are
/// valid at every step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
