//! Accepts connections, and serves a router on them within limits.
//!
//! [`Listener`] binds an address and serves a [`Site`]. The accept loop is our own because every
//! wait needs a limit: for a head, for a body, for the client to read, and for nothing at all.
//! Requests are framed strictly (see `framing`), connections are bounded in all and by address (see
//! `places`), and at the end running requests may finish.
//!
//! This crate knows HTTP and nothing of jobs: what it refuses, the site answers.

mod activity;
mod body;
mod framing;
mod places;
mod site;
mod stream;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
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
pub use places::{RESERVE, network};
pub use site::{Refusal, Site};
pub use tls::{Certificate, TlsError, TlsFiles};

use activity::{Activity, Times, WritePace};
use body::{Answer, BodyPace, Paced, lend};
use framing::{Framing, HeadLimits, REFUSED, TOO_LARGE};
use places::{Place, PlaceLimits, Places};
use stream::Guarded;

/// What a connection may cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The head of a request comes within this time. 10 s.
    pub header_time: Duration,
    /// The head of a request has at most so many bytes. 32 KiB.
    pub header_bytes: usize,
    /// The head of a request has at most so many fields. 100.
    pub header_fields: usize,
    /// A body comes within this time, and a second more for each `body_bytes_per_second`. 30 s.
    pub body_time: Duration,
    /// A long body comes at least so fast. 16 KiB.
    pub body_bytes_per_second: u64,
    /// No body is larger, whatever the route. 16 MiB.
    pub body_bytes_max: u64,
    /// In each stretch of so long the other side takes at least `write_bytes` of an answer. 30 s.
    pub write_time: Duration,
    /// See `write_time`. 64 KiB.
    pub write_bytes: usize,
    /// A connection without a request is closed after this time. 60 s.
    pub idle_time: Duration,
    /// So many connections at most. 10,000.
    pub connections: usize,
    /// So many of them from one address (from one /64 in IPv6). 256.
    pub connections_per_address: usize,
    /// So many requests at once on one HTTP/2 connection. 100.
    pub streams: u32,
    /// At the end, running requests have so long to finish. 30 s.
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
    /// The address is taken, not ours, or not allowed.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        cause: io::Error,
    },
    /// TLS cannot be offered.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// In the reserve, a head comes within this time.
const RESERVE_HEADER_TIME: Duration = Duration::from_secs(1);
/// After its time, a connection has so long to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);
/// While the system gives no more connections, so long is waited.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A socket that listens.
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    tls: Option<(Certificate, TlsAcceptor)>,
    limits: Arc<Limits>,
}

impl Listener {
    /// Binds to an address; port 0 takes any that is free.
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

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens, for people.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// The certificate that it offers, if it offers TLS.
    pub fn certificate(&self) -> Option<Certificate> {
        self.tls
            .as_ref()
            .map(|(certificate, _)| certificate.clone())
    }

    /// Serves a site until `stop`; then running requests may finish within `drain_time`, or until
    /// `stop_now`. Returns how many connections were cut off.
    pub async fn serve(
        self,
        site: Site,
        stop: CancellationToken,
        stop_now: CancellationToken,
    ) -> usize {
        let places = Places::new(PlaceLimits {
            all: self.limits.connections,
            per_address: self.limits.connections_per_address,
        });
        let (certificate, tls) = self.tls.unzip();
        // Dropped with the listener, and stopped by that.
        let mut following = JoinSet::new();
        if let Some(certificate) = certificate {
            following.spawn(certificate.follow());
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
                    // Most are the other side's (reset before it was accepted); the rest is a full table of files.
                    debug!(%error, "a connection was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE.min(self.limits.idle_time)).await;
                    continue;
                }
            };
            let Some(place) = places.take(peer.ip()) else {
                debug!(%peer, "all places are taken");
                continue; // dropped: the other side sees it closed
            };
            let place = Arc::new(place);
            let connection = Connection {
                site: site.clone(),
                limits: Arc::clone(&self.limits),
                peer,
                place: Arc::clone(&place),
                stop: stop.clone(),
            };
            let served = connection.accept(socket, tls.clone());
            connections.spawn(async move {
                tokio::select! {
                    () = served => {}
                    () = place.lost() => debug!(%peer, "its place was given to another one"),
                }
            });
        }
        drop(self.socket); // new ones are refused from now on
        drain(connections, self.limits.drain_time, stop_now).await
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Listener({})", self.url())
    }
}

async fn drain(mut connections: JoinSet<()>, most: Duration, now: CancellationToken) -> usize {
    let all = async { while connections.join_next().await.is_some() {} };
    tokio::select! {
        () = all => {}
        () = tokio::time::sleep(most) => {}
        () = now.cancelled() => {}
    }
    let left = connections.len();
    if left > 0 {
        warn!(connections = left, "cut off what did not finish in time");
    }
    connections.shutdown().await;
    left
}

/// One connection and all it needs.
#[derive(Clone)]
struct Connection {
    site: Site,
    limits: Arc<Limits>,
    peer: SocketAddr,
    place: Arc<Place>,
    stop: CancellationToken,
}

impl Connection {
    async fn accept(self, socket: TcpStream, tls: Option<TlsAcceptor>) {
        // Answers are small, and are waited for.
        let _ = socket.set_nodelay(true);
        let Some(tls) = tls else {
            return self.serve(socket).await;
        };
        let handshake = tokio::time::timeout(self.header_time(), tls.accept(socket));
        match handshake.await {
            Ok(Ok(stream)) => self.serve(stream).await,
            Ok(Err(error)) => debug!(peer = %self.peer, %error, "no TLS"),
            Err(_) => debug!(peer = %self.peer, "no TLS in time"),
        }
    }

    fn header_time(&self) -> Duration {
        match self.place.is_reserve() {
            true => self.limits.header_time.min(RESERVE_HEADER_TIME),
            false => self.limits.header_time,
        }
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let limits = Arc::clone(&self.limits);
        let pace = WritePace {
            stretch: limits.write_time,
            bytes: limits.write_bytes,
        };
        let activity = Arc::new(Activity::new(Times {
            header: self.header_time(),
            idle: limits.idle_time,
            write: pace,
        }));
        let framing = Framing::new(HeadLimits {
            bytes: limits.header_bytes,
            fields: limits.header_fields,
        });
        let stream = Guarded::new(stream, framing, Arc::clone(&activity), pace);
        let (peer, stop) = (self.peer, self.stop.clone());
        let service = {
            let activity = Arc::clone(&activity);
            service_fn(move |request| self.clone().answer(request, Arc::clone(&activity)))
        };
        let builder = builder(&limits);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = activity.overdue() => {
                connection.as_mut().graceful_shutdown();
                let goodbye = tokio::time::timeout(GOODBYE, connection.as_mut()).await;
                goodbye.unwrap_or(Ok(()))
            }
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection.as_mut() => ended,
                    () = activity.overdue() => Ok(()),
                }
            }
        };
        if let Err(error) = ended {
            debug!(%peer, %error, "a connection broke");
        }
    }

    async fn answer(
        self,
        request: Request<Incoming>,
        activity: Arc<Activity>,
    ) -> Result<Response<Answer<Body>>, std::convert::Infallible> {
        let mut in_flight = activity.request_began();
        self.place.speaks();
        let pace = BodyPace {
            time: self.limits.body_time,
            bytes_per_second: self.limits.body_bytes_per_second,
            bytes_max: self.limits.body_bytes_max,
        };
        let (parts, body) = request.into_parts();
        let is_http2 = parts.version == Version::HTTP_2;
        let (body, rest) = lend(Paced::new(body, pace));
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
            // An answer before the end of the body resets the stream, which some clients take for an error.
            rest.read().await;
        }
        in_flight.answered();
        if self.place.is_reserve() || self.stop.is_cancelled() {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        Ok(response.map(|body| Answer::new(body, in_flight)))
    }

    /// Why a request is not given to the router.
    fn refusal(&self, request: &Request<Body>) -> Option<Refusal> {
        let path = request.uri().path();
        if request.method().as_str() == REFUSED {
            return Some(match path {
                TOO_LARGE => Refusal::HeadTooLarge,
                _ => Refusal::Malformed,
            });
        }
        if self.place.is_reserve() && !self.site.health.contains(&path) {
            return Some(Refusal::Busy);
        }
        let length = request.headers().get(header::CONTENT_LENGTH);
        let length: Option<u64> = length.and_then(|length| length.to_str().ok()?.parse().ok());
        let most = self.limits.body_bytes_max;
        let too_large = length.is_some_and(|length| length > most);
        too_large.then_some(Refusal::BodyTooLarge { most })
    }
}

/// The HTTP library, held to the limits.
fn builder(limits: &Limits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    let header_list = u32::try_from(limits.header_bytes).unwrap_or(u32::MAX);
    // Heads have their time and size from `activity` and `framing`.
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

/// The least that the HTTP library takes as a buffer.
const MIN_BUFFER: usize = 8192;
