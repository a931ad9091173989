//! A running server, over its REST interface.

use std::env::VarError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use windlass_core::Invalid;

/// So long connecting may take, the TLS handshake included.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// So long an answer may take.
const PATIENCE: Duration = Duration::from_secs(100);
/// The largest answer.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Which server, and with which key.
#[derive(Debug, Clone, Args)]
pub(crate) struct RemoteArgs {
    /// A running server, such as http://127.0.0.1:8080; its key comes from WINDLASS_KEY. Without it, the store is opened here,
    /// which an embedded one allows only while no server has it.
    #[arg(long, value_name = "URL", env = "WINDLASS_URL")]
    pub(crate) url: Option<String>,
}

impl RemoteArgs {
    /// A connection, if a server was named.
    pub(crate) async fn connect(&self) -> anyhow::Result<Option<Remote>> {
        let Some(url) = &self.url else {
            return Ok(None);
        };
        let key = match std::env::var("WINDLASS_KEY") {
            Ok(key) => Some(key),
            Err(VarError::NotPresent) => None,
            Err(VarError::NotUnicode(_)) => {
                return Err(Invalid::new("WINDLASS_KEY", "must be UTF-8").into());
            }
        };
        let connecting = Remote::connect(url, key);
        let connected = tokio::time::timeout(CONNECT_PATIENCE, connecting).await;
        let connected = connected.with_context(|| format!("no server answers at {url}"))?;
        Ok(Some(connected?))
    }
}

/// A connection to a server.
pub(crate) struct Remote {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    base: String,
    key: Option<String>,
}

/// What a server answered.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) status: StatusCode,
    pub(crate) body: Value,
}

impl Remote {
    pub(crate) async fn connect(url: &str, key: Option<String>) -> anyhow::Result<Self> {
        let uri: Uri = url.parse().with_context(|| format!("{url} is no URL"))?;
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => bail!("{url} must begin with http:// or https://"),
        };
        let host = uri.host().context("the URL names no host")?;
        let bare = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let unreachable = || format!("no server answers at {url}");
        let socket = TcpStream::connect((bare.as_str(), port))
            .await
            .with_context(unreachable)?;
        socket.set_nodelay(true)?;
        let sender = match secure {
            false => shake_hands(socket).await,
            true => {
                let name = ServerName::try_from(bare)?;
                shake_hands(
                    tls()?
                        .connect(name, socket)
                        .await
                        .with_context(unreachable)?,
                )
                .await
            }
        };
        Ok(Remote {
            sender: sender.with_context(unreachable)?,
            host: uri
                .authority()
                .map(|of| of.as_str().to_owned())
                .unwrap_or_default(),
            base: uri.path().trim_end_matches('/').to_owned(),
            key,
        })
    }

    /// Asks for something, whatever the answer.
    pub(crate) async fn ask(
        &mut self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Answered> {
        let bytes = body
            .map(serde_json::to_vec)
            .transpose()?
            .unwrap_or_default();
        self.send(method, path, bytes.into()).await
    }

    /// Asks with a body that was written out before.
    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<Answered> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("host", &self.host)
            .header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let request = request.body(Full::new(body))?;
        let asking = async {
            self.sender.ready().await?;
            let response = self.sender.send_request(request).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
                .collect()
                .await;
            let body = body.map_err(|error| anyhow::anyhow!("{error}"))?.to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            anyhow::Ok(Answered { status, body })
        };
        tokio::time::timeout(PATIENCE, asking)
            .await
            .context("the server does not answer")?
    }

    /// Asks for something that must succeed.
    pub(crate) async fn expect(
        &mut self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let answered = self.ask(method, path, body).await?;
        if answered.status.is_success() {
            return Ok(answered.body);
        }
        Err(Refusal::of(&answered).into())
    }
}

/// A server did not do what it was asked for.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    detail: String,
    field: Option<String>,
}

impl Refusal {
    fn of(answered: &Answered) -> Self {
        let detail = answered.body.get("detail").and_then(Value::as_str);
        let field = answered.body.pointer("/errors/0/pointer");
        Refusal {
            status: answered.status,
            detail: detail.unwrap_or("it does not say why").to_owned(),
            field: field.and_then(Value::as_str).map(str::to_owned),
        }
    }

    /// Whether what it was asked for breaks a rule.
    pub(crate) fn blames_input(&self) -> bool {
        matches!(self.status.as_u16(), 400 | 413 | 422)
    }

    /// The field that breaks it, where one is named.
    pub(crate) fn field(&self) -> Option<&str> {
        self.field.as_deref()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status.as_u16();
        write!(f, "the server refused ({status}): {}", self.detail)
    }
}

impl std::error::Error for Refusal {}

/// Everything but letters, digits and these four.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// A text as a part of a path or a value of a query.
pub(crate) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

async fn shake_hands<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection); // it ends with its sender
    Ok(sender)
}

fn tls() -> anyhow::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    for certificate in rustls_native_certs::load_native_certs().certs {
        roots.add(certificate)?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_plain_letter_is_escaped() {
        assert_eq!(escaped("5CkDn0-V9_t.Q~"), "5CkDn0-V9_t.Q~");
        assert_eq!(escaped("a/../b?c#d é%"), "a%2F..%2Fb%3Fc%23d%20%C3%A9%25");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_shakes_hands_is_given_up() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let remote = RemoteArgs {
            url: Some(format!("https://{}", silent.local_addr().unwrap())),
        };
        let day = Duration::from_secs(86_400);
        let given_up = tokio::time::timeout(day, remote.connect()).await;
        let told = given_up.expect("it ends").err().expect("a refusal");
        assert!(told.to_string().starts_with("no server answers at"));
    }
}
