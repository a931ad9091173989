//! Opens connections to targets: resolves once, asks the guard about every address, and dials what was asked about.
//!
//! Invariant: no socket is opened to an address that the guard did not allow, and a name with one refused address is
//! refused whole. Nothing is sent to an address that this process listens on, however it was named. Proxies of the
//! environment are not looked at.

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

use crate::guard::{Guard, TargetClass};
use crate::phases::{Phase, Phases};

pub(crate) use stream::Stream;
pub use tls::{TlsError, TlsRoots};

/// So many of a name's addresses are tried; a name with more is as good as one with so many.
const DIALLED_MAX: usize = 8;
/// So many names are resolved at once: the system's resolver takes a thread for each.
const RESOLVING_MAX: usize = 64;

/// Finds the addresses of a name.
#[async_trait]
pub trait Resolve: Send + Sync + fmt::Debug {
    /// All addresses of a host name.
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

/// Asks the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        let found = tokio::net::lookup_host((host, 0)).await?;
        Ok(found.map(|address| address.ip()).collect())
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// An address that was written out. Every refused one reads the same: what lies behind it is not theirs to find out.
    #[error("the target's address is not allowed")]
    Refused,
    /// A name that does not exist and one whose address is refused read the same and are retried alike: else whoever may
    /// enqueue could ask which names exist in the network of the server.
    #[error("the target's name was not found, or has an address that is not allowed")]
    NoAddress,
    #[error("connecting to the target failed: {0}")]
    Unreachable(String),
    #[error("the target's TLS was not accepted: {0}")]
    Tls(String),
    #[error("{what} took longer than {limit:?}")]
    TooSlow { what: &'static str, limit: Duration },
}

/// Opens connections. Clones share their counters.
#[derive(Clone)]
pub(crate) struct Connector(Arc<Inner>);

struct Inner {
    guard: Guard,
    own: Vec<SocketAddr>,
    resolver: Arc<dyn Resolve>,
    resolving: Arc<Semaphore>,
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
        Connector(Arc::new(Inner {
            guard,
            own,
            resolver,
            resolving: Arc::new(Semaphore::new(RESOLVING_MAX)),
            tls,
            timeout,
            opened: AtomicU64::new(0),
        }))
    }

    /// How many connections were begun so far.
    pub(crate) fn opened(&self) -> u64 {
        self.0.opened.load(Ordering::Relaxed)
    }

    async fn connect(self, uri: Uri, phases: Arc<Phases>) -> Result<Stream, DialError> {
        let secure = uri.scheme_str() == Some("https");
        let host = uri.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let addresses = self.addresses(host, port, &phases).await?;
        let dialled = self.dial(&addresses, &phases).await;
        let tcp = dialled.map_err(|error| match error {
            DialError::Refused if host.parse::<IpAddr>().is_err() => DialError::NoAddress,
            other => other,
        })?;
        let _ = tcp.set_nodelay(true); // slower without, not wrong
        if !secure {
            phases.connected();
            return Ok(Stream::Plain(TokioIo::new(tcp)));
        }
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| DialError::Tls(error.to_string()))?;
        phases.begin(Phase::Tls);
        let shaken = self.within("the TLS handshake", self.0.tls.connect(name, tcp));
        let stream = shaken
            .await?
            .map_err(|error| DialError::Tls(error.to_string()))?;
        phases.end(Phase::Tls);
        phases.connected();
        Ok(Stream::Tls(Box::new(TokioIo::new(stream))))
    }

    /// The addresses that may be dialled, all of them asked about.
    async fn addresses(
        &self,
        host: &str,
        port: u16,
        phases: &Phases,
    ) -> Result<Vec<SocketAddr>, DialError> {
        let (found, refused) = match host.parse::<IpAddr>() {
            Ok(literal) => (vec![literal], DialError::Refused),
            Err(_) => {
                phases.begin(Phase::Resolve);
                let found = self.resolve(host).await?;
                phases.end(Phase::Resolve);
                (found, DialError::NoAddress)
            }
        };
        let allowed = |ip: &IpAddr| {
            // The unspecified address is another name of this machine.
            let named = !ip.to_canonical().is_unspecified();
            named && self.0.guard.allows(*ip) && !self.is_own(*ip, port)
        };
        if found.is_empty() || !found.iter().all(allowed) {
            return Err(refused);
        }
        let of_port = found.into_iter().map(|ip| SocketAddr::new(ip, port));
        Ok(of_port.take(DIALLED_MAX).collect())
    }

    async fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, DialError> {
        let asked = async {
            let turn = Arc::clone(&self.0.resolving).acquire_owned().await;
            let (resolver, host) = (Arc::clone(&self.0.resolver), host.to_owned());
            // The system's resolver cannot be called off: whoever stops waiting for it leaves it its turn.
            let asked = tokio::spawn(async move {
                let _turn = turn;
                resolver.resolve(&host).await
            });
            asked
                .await
                .unwrap_or_else(|gone| Err(io::Error::other(gone)))
        };
        let found = self.within("resolving the target's name", asked).await?;
        found.map_err(|_| DialError::NoAddress)
    }

    /// Whether this process itself listens there.
    fn is_own(&self, ip: IpAddr, port: u16) -> bool {
        let ip = ip.to_canonical();
        self.0.own.iter().any(|own| {
            let here = own.ip().to_canonical();
            own.port() == port && (here == ip || (here.is_unspecified() && is_of_this_machine(ip)))
        })
    }

    /// Dials one address after the other until one answers. Each has its share of the time, the last one all that is left.
    async fn dial(
        &self,
        addresses: &[SocketAddr],
        phases: &Phases,
    ) -> Result<TcpStream, DialError> {
        phases.begin(Phase::Connect);
        let dialled = async {
            let Some((last, others)) = addresses.split_last() else {
                return Err(DialError::NoAddress);
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
            phases.reached(TargetClass::of(address.ip()));
        }
        let stream = self.within("connecting to the target", dialled).await??;
        let peer = stream.peer_addr();
        if !peer.is_ok_and(|peer| !self.is_own(peer.ip(), peer.port())) {
            return Err(DialError::Refused);
        }
        phases.end(Phase::Connect);
        Ok(stream)
    }

    async fn open(&self, address: SocketAddr) -> io::Result<TcpStream> {
        self.0.opened.fetch_add(1, Ordering::Relaxed);
        TcpStream::connect(address).await
    }

    async fn within<T>(
        &self,
        what: &'static str,
        work: impl Future<Output = T>,
    ) -> Result<T, DialError> {
        let limit = self.0.timeout;
        timeout(limit, work)
            .await
            .map_err(|_| DialError::TooSlow { what, limit })
    }
}

/// Only an address of this machine can be bound to; nothing is sent.
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
        // Called within the task of the request that needs the connection.
        let phases = Phases::of_this_task();
        Box::pin(self.clone().connect(uri, phases))
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
