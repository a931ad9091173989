//! Opens connections to targets: resolves the host name once, checks every address with the guard,
//! and dials the checked addresses.
//!
//! Invariant: the connector opens no socket to an address that the guard does not allow, and refuses
//! a host name if one of its addresses is not allowed. It sends nothing to an address that this
//! process listens on, however the address is written. It ignores proxy settings of the environment.

mod stream;
mod tls;

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use windlass_core::format_duration;

use crate::guard::{Guard, TargetClass};
use crate::timeline::{RequestPhase, RequestTimeline};

pub(crate) use stream::Stream;
pub use tls::{TlsError, TlsRoots};

/// The most addresses of one host name that are dialled.
const DIALLED_MAX: usize = 8;
/// The most concurrent lookups: the resolver of the operating system takes a thread for each.
const RESOLVING_MAX: usize = 64;

/// Resolves host names.
#[async_trait]
pub trait Resolve: Send + Sync + fmt::Debug {
    /// Returns all addresses of a host name.
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

/// The resolver of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        let addresses = tokio::net::lookup_host((host, 0)).await?;
        Ok(addresses.map(|address| address.ip()).collect())
    }
}

/// Why there is no connection. `response::judge` adds the target to the texts.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// The address in the URL. The error is the same for every address, so that it does not show
    /// what is behind one.
    #[error("the address is not allowed")]
    AddressNotAllowed,
    /// A host name that does not exist, or one with an address that is not allowed. They share one
    /// error and are both retried. Otherwise a caller who may enqueue could find out which names
    /// exist in the network of the server.
    #[error("the name was not found, or has an address that is not allowed")]
    NoAllowedAddress,
    #[error("{0}")]
    Unreachable(String),
    #[error("the TLS handshake failed: {0}")]
    Tls(String),
    #[error("{step} timed out after {}", format_duration(*limit))]
    TimedOut { step: &'static str, limit: Duration },
}

/// Opens connections. Clones share everything.
#[derive(Clone)]
pub(crate) struct Connector(Arc<ConnectorShared>);

struct ConnectorShared {
    guard: Guard,
    own: Vec<SocketAddr>,
    resolver: Arc<dyn Resolve>,
    lookup_permits: Arc<Semaphore>,
    tls: TlsConnector,
    timeout: Duration,
    opened: AtomicU64,
}

impl Connector {
    pub(crate) fn new(
        guard: Guard,
        own: Vec<SocketAddr>,
        resolver: Arc<dyn Resolve>,
        tls: TlsConnector,
        timeout: Duration,
    ) -> Self {
        Connector(Arc::new(ConnectorShared {
            guard,
            own,
            resolver,
            lookup_permits: Arc::new(Semaphore::new(RESOLVING_MAX)),
            tls,
            timeout,
            opened: AtomicU64::new(0),
        }))
    }

    /// Returns how many connections it has tried to open so far.
    pub(crate) fn opened(&self) -> u64 {
        self.0.opened.load(Ordering::Relaxed)
    }

    async fn connect(self, uri: Uri, timeline: Arc<RequestTimeline>) -> Result<Stream, DialError> {
        let is_https = uri.scheme_str() == Some("https");
        let host = uri.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = uri.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        let addresses = self.addresses(host, port, &timeline).await?;
        let dialled = self.dial(&addresses, &timeline).await;
        let tcp = dialled.map_err(|error| match error {
            DialError::AddressNotAllowed if host.parse::<IpAddr>().is_err() => {
                DialError::NoAllowedAddress
            }
            other => other,
        })?;
        let _ = tcp.set_nodelay(true); // on an error the request is only slower
        if !is_https {
            timeline.connected();
            return Ok(Stream::Plain(TokioIo::new(tcp)));
        }
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| DialError::Tls(error.to_string()))?;
        timeline.begin(RequestPhase::Tls);
        let handshake = self.within("the TLS handshake", self.0.tls.connect(name, tcp));
        let stream = handshake
            .await?
            .map_err(|error| DialError::Tls(handshake_error(&error)))?;
        timeline.end(RequestPhase::Tls);
        timeline.connected();
        Ok(Stream::Tls(Box::new(TokioIo::new(stream))))
    }

    /// Returns the addresses to dial, after the guard allowed all addresses of the host.
    async fn addresses(
        &self,
        host: &str,
        port: u16,
        timeline: &RequestTimeline,
    ) -> Result<Vec<SocketAddr>, DialError> {
        let (ips, refusal) = match host.parse::<IpAddr>() {
            Ok(literal) => (vec![literal], DialError::AddressNotAllowed),
            Err(_) => {
                timeline.begin(RequestPhase::Resolve);
                let ips = self.resolve(host).await?;
                timeline.end(RequestPhase::Resolve);
                (ips, DialError::NoAllowedAddress)
            }
        };
        let is_allowed = |ip: &IpAddr| {
            // Connecting to the unspecified address reaches this machine.
            let is_specified = !ip.to_canonical().is_unspecified();
            is_specified && self.0.guard.allows(*ip) && !self.is_own(*ip, port)
        };
        if ips.is_empty() || !ips.iter().all(is_allowed) {
            return Err(refusal);
        }
        let addresses = ips.into_iter().map(|ip| SocketAddr::new(ip, port));
        Ok(addresses.take(DIALLED_MAX).collect())
    }

    async fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, DialError> {
        let lookup = async {
            let permit = Arc::clone(&self.0.lookup_permits).acquire_owned().await;
            let (resolver, host) = (Arc::clone(&self.0.resolver), host.to_owned());
            // A lookup of the operating system cannot be cancelled. Its task keeps the permit until
            // it ends, even if the request has timed out by then.
            let lookup = tokio::spawn(async move {
                let _permit = permit;
                resolver.resolve(&host).await
            });
            lookup
                .await
                .unwrap_or_else(|panicked| Err(io::Error::other(panicked)))
        };
        let addresses = self.within("resolving the host name", lookup).await?;
        addresses.map_err(|_| DialError::NoAllowedAddress)
    }

    /// Whether this process listens on the address.
    fn is_own(&self, ip: IpAddr, port: u16) -> bool {
        let ip = ip.to_canonical();
        self.0.own.iter().any(|own| {
            let own_ip = own.ip().to_canonical();
            let is_same = own_ip == ip || (own_ip.is_unspecified() && is_of_this_machine(ip));
            own.port() == port && is_same
        })
    }

    /// Dials one address after the other until one accepts the connection. Each address gets an
    /// equal share of the connect timeout, the last one all the time that is left.
    async fn dial(
        &self,
        addresses: &[SocketAddr],
        timeline: &RequestTimeline,
    ) -> Result<TcpStream, DialError> {
        timeline.begin(RequestPhase::Connect);
        let dialling = async {
            let Some((last, others)) = addresses.split_last() else {
                return Err(DialError::NoAllowedAddress);
            };
            let share = self.0.timeout / u32::try_from(addresses.len()).unwrap_or(u32::MAX);
            for address in others {
                if let Ok(Ok(stream)) = timeout(share, self.open(*address)).await {
                    return Ok(stream);
                }
            }
            let opened = self.open(*last).await;
            opened.map_err(|error| DialError::Unreachable(error.to_string()))
        };
        if let Some(address) = addresses.first() {
            timeline.set_target(TargetClass::of(address.ip()));
        }
        let stream = self.within("connecting", dialling).await??;
        let peer = stream.peer_addr();
        if !peer.is_ok_and(|peer| !self.is_own(peer.ip(), peer.port())) {
            return Err(DialError::AddressNotAllowed);
        }
        timeline.end(RequestPhase::Connect);
        Ok(stream)
    }

    async fn open(&self, address: SocketAddr) -> io::Result<TcpStream> {
        self.0.opened.fetch_add(1, Ordering::Relaxed);
        TcpStream::connect(address).await
    }

    async fn within<T>(
        &self,
        step: &'static str,
        work: impl Future<Output = T>,
    ) -> Result<T, DialError> {
        let limit = self.0.timeout;
        timeout(limit, work)
            .await
            .map_err(|_| DialError::TimedOut { step, limit })
    }
}

/// Returns the text of a failed handshake, with a hint if the certificate authority is not trusted.
fn handshake_error(error: &io::Error) -> String {
    let unknown_issuer = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
    let tls_error = error.get_ref().and_then(|cause| cause.downcast_ref());
    if tls_error == Some(&unknown_issuer) {
        return format!("{error}; if the target uses a private CA, add it with http_jobs.ca_file");
    }
    error.to_string()
}

/// Whether an address belongs to this machine: only then can a socket bind it. Sends nothing.
fn is_of_this_machine(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

impl tower_service::Service<Uri> for Connector {
    type Response = Stream;
    type Error = DialError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, DialError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        // The HTTP library calls this in the task of the request that needs the connection.
        let timeline = RequestTimeline::current();
        Box::pin(self.clone().connect(uri, timeline))
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("guard", &self.0.guard)
            .field("own", &self.0.own)
            .field("opened", &self.opened())
            .finish_non_exhaustive()
    }
}
