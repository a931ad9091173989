//! Connections to one server, opened when needed and kept for later requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::error::{Cause, Error};

pub(crate) type Connection = SendRequest<Full<Bytes>>;

/// The address of a server, and its idle connections.
pub(crate) struct Origin {
    /// The URL as the caller gave it.
    pub(crate) url: String,
    /// The `Host` header of each request.
    pub(crate) authority: String,
    /// The path of the URL, which comes before each path of the API.
    pub(crate) base: String,
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
    connect_timeout: Duration,
    idle: Mutex<Vec<Connection>>,
    idle_max: usize,
}

/// Why a request got no response.
pub(crate) enum SendError {
    /// The connection was closed before any byte of the request was sent.
    Unsent(Box<Request<Full<Bytes>>>),
    /// The connection broke after that. The server may have processed the request.
    Broken(Cause),
}

impl Origin {
    pub(crate) fn new(
        url: &str,
        roots: &[Vec<u8>],
        connect_timeout: Duration,
        idle_max: usize,
    ) -> Result<Self, Error> {
        let invalid = |rule: &str| Error::Invalid {
            what: url.to_owned(),
            rule: rule.to_owned(),
        };
        let uri: Uri = url.parse().map_err(|_| invalid("is not a URL"))?;
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(invalid("must begin with http:// or https://")),
        };
        let authority = uri.authority().ok_or_else(|| invalid("must name a host"))?;
        let roots = root_certificates(roots)?; // checked for http:// too, to find a bad file early
        let host = authority.host().trim_matches(['[', ']']);
        Ok(Origin {
            url: url.to_owned(),
            authority: authority.as_str().to_owned(),
            base: uri.path().trim_end_matches('/').to_owned(),
            host: host.to_owned(),
            port: authority
                .port_u16()
                .unwrap_or(if secure { 443 } else { 80 }),
            tls: secure.then(|| tls(roots)).transpose()?,
            connect_timeout,
            idle: Mutex::default(),
            idle_max,
        })
    }

    /// Takes an idle connection that is still open.
    pub(crate) fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.lock_idle();
        idle.retain(|connection| !connection.is_closed());
        idle.pop()
    }

    /// Keeps a connection for a later request.
    pub(crate) fn put_idle(&self, connection: Connection) {
        let mut idle = self.lock_idle();
        if idle.len() < self.idle_max && !connection.is_closed() {
            idle.push(connection);
        }
    }

    fn lock_idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a new connection.
    pub(crate) async fn connect(&self) -> Result<Connection, Error> {
        let connected = tokio::time::timeout(self.connect_timeout, self.handshake()).await;
        let cause: Cause = match connected {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(cause)) => cause,
            Err(elapsed) => elapsed.into(),
        };
        let url = self.url.clone();
        Err(Error::Connect { url, cause })
    }

    async fn handshake(&self) -> Result<Connection, Cause> {
        let socket = TcpStream::connect((self.host.as_str(), self.port)).await?;
        socket.set_nodelay(true)?;
        match &self.tls {
            None => start_http(socket).await,
            Some(tls) => {
                let name = ServerName::try_from(self.host.clone())?;
                start_http(tls.connect(name, socket).await?).await
            }
        }
    }
}

/// Sends a request on a connection.
pub(crate) async fn send_on(
    connection: &mut Connection,
    request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, SendError> {
    if connection.ready().await.is_err() {
        return Err(SendError::Unsent(Box::new(request)));
    }
    let sent = connection.try_send_request(request).await;
    sent.map_err(|mut error| match error.take_message() {
        Some(request) => SendError::Unsent(Box::new(request)),
        None => SendError::Broken(error.into_error().into()),
    })
}

async fn start_http<S>(stream: S) -> Result<Connection, Cause>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection); // ends when the sender is dropped
    Ok(sender)
}

/// Reads root certificates from PEM texts. Each must contain at least one.
fn root_certificates(texts: &[Vec<u8>]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for pem in texts {
        let before = roots.len();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| invalid_root(&error))?;
            let added = roots.add(certificate);
            added.map_err(|error| invalid_root(&error))?;
        }
        if roots.len() == before {
            return Err(invalid_root(&"it contains none"));
        }
    }
    Ok(roots)
}

fn invalid_root(cause: &dyn std::fmt::Display) -> Error {
    Error::Invalid {
        what: "the root certificate".to_owned(),
        rule: format!("must be a PEM file with certificates: {cause}"),
    }
}

/// Returns a TLS client that trusts these root certificates and those of the operating system.
fn tls(mut roots: RootCertStore) -> Result<TlsConnector, Error> {
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid_root(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
