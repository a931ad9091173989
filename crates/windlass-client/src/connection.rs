//! Connections to one server: dialled when they are needed, and kept for the next request.

use std::sync::{Arc, Mutex, PoisonError};
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
    /// As it was given.
    pub(crate) url: String,
    /// `Host` of each request.
    pub(crate) authority: String,
    /// What stands before each path.
    pub(crate) base: String,
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
    connect_timeout: Duration,
    idle: Mutex<Vec<Connection>>,
    idle_max: usize,
}

/// Why a request got no answer.
pub(crate) enum NotSent {
    /// The connection was closed before anything of the request left.
    Unsent(Box<Request<Full<Bytes>>>),
    /// The connection broke on the way.
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
        let uri: Uri = url.parse().map_err(|_| invalid("is no URL"))?;
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(invalid("must begin with http:// or https://")),
        };
        let authority = uri.authority().ok_or_else(|| invalid("names no host"))?;
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

    /// An idle connection, if there is one that is still open.
    pub(crate) fn idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|connection| !connection.is_closed());
        idle.pop()
    }

    /// Keeps a connection for the next request.
    pub(crate) fn keep(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < self.idle_max && !connection.is_closed() {
            idle.push(connection);
        }
    }

    /// A new connection.
    pub(crate) async fn dial(&self) -> Result<Connection, Error> {
        let dialled = tokio::time::timeout(self.connect_timeout, self.shake_hands()).await;
        let cause: Cause = match dialled {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(cause)) => cause,
            Err(late) => late.into(),
        };
        let url = self.url.clone();
        Err(Error::Connect { url, cause })
    }

    async fn shake_hands(&self) -> Result<Connection, Cause> {
        let socket = TcpStream::connect((self.host.as_str(), self.port)).await?;
        socket.set_nodelay(true)?;
        match &self.tls {
            None => speak(socket).await,
            Some(tls) => {
                let name = ServerName::try_from(self.host.clone())?;
                speak(tls.connect(name, socket).await?).await
            }
        }
    }
}

/// Sends a request on a connection.
pub(crate) async fn send(
    connection: &mut Connection,
    request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, NotSent> {
    if connection.ready().await.is_err() {
        return Err(NotSent::Unsent(Box::new(request)));
    }
    let sent = connection.try_send_request(request).await;
    sent.map_err(|mut error| match error.take_message() {
        Some(request) => NotSent::Unsent(Box::new(request)),
        None => NotSent::Broken(error.into_error().into()),
    })
}

async fn speak<S>(stream: S) -> Result<Connection, Cause>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection); // it ends with its sender
    Ok(sender)
}

/// Trusts the roots of the operating system, and those that were given as PEM.
fn tls(given: &[Vec<u8>]) -> Result<TlsConnector, Error> {
    let invalid = |cause: &dyn std::fmt::Display| Error::Invalid {
        what: "the root certificate".to_owned(),
        rule: format!("must be PEM with certificates: {cause}"),
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for pem in given {
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| invalid(&error))?;
            roots.add(certificate).map_err(|error| invalid(&error))?;
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
