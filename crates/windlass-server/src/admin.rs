//! The admin listener: the REST API and the dashboard of a program's own store, next to its worker.
//!
//! A program that opened a SQLite file owns it, so no command can open the file meanwhile. With an
//! admin listener, commands send their requests to the program instead. They find its address and a
//! token in the lock file of the store, which only the user of the program can read.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt as _;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{error, info};
use windlass::Client;
use windlass::admin::{PublishedAddress, publish_address};
use windlass::prometheus::PrometheusRecorder;
use windlass_core::Invalid;
use windlass_dashboard::About;
use windlass_listen::{Limits, ListenError, Listener, Site, TlsFiles};
use windlass_store::StoreError;

use crate::access::{Access, ApiKey, WithoutKeys, audit_throttled};
use crate::app::{App, Settings};
use crate::dashboard::{DashboardSettings, with_dashboard};
use crate::refusals::site;

/// The most connections of an admin listener. The rest of the program needs open files too.
const CONNECTIONS_MAX: usize = 256;

/// Builds the admin listener of a program: the REST API of the program's own store.
///
/// ```no_run
/// use windlass::{Client, Context, Failure, Job, Worker};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct SendEmail { to: String }
/// # impl Job for SendEmail { const KIND: &'static str = "email:send"; }
/// # async fn send_email(_: SendEmail, _: Context) -> Result<(), Failure> { Ok(()) }
///
/// #[tokio::main]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let client = Client::open("sqlite:jobs.db").await?;
///     let admin = windlass_server::admin(&client).bind("127.0.0.1:0").await?;
///     Worker::new(&client, ()).handle(send_email).run_until(tokio::signal::ctrl_c()).await?;
///     admin.stop().await?;
///     Ok(())
/// }
/// ```
///
/// Now `windlass jobs list --store sqlite:jobs.db` works while the program runs.
///
/// It accepts the API keys of the store, and one random token for each start. The token is in the
/// lock file of a SQLite store, which only the program's user can read. Only clients on this machine
/// can use it. It is never possible to do anything without a key or the token. Other stores have no
/// lock file: use API keys, or pass [`AdminListener::token`] on yourself.
#[must_use = "an admin listener does nothing until it is bound"]
pub fn admin(client: &Client) -> Admin {
    Admin {
        client: client.clone(),
        settings: Settings::default(),
        metrics: None,
        tls: None,
        behind_proxy: false,
    }
}

/// An admin listener before it is bound. See [`admin`].
#[derive(Debug)]
#[must_use = "an admin listener does nothing until it is bound"]
pub struct Admin {
    client: Client,
    settings: Settings,
    metrics: Option<Arc<PrometheusRecorder>>,
    tls: Option<TlsFiles>,
    behind_proxy: bool,
}

/// Why an admin listener could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The address is not an IP address with a port.
    #[error(transparent)]
    Address(#[from] Invalid),
    /// Other machines could read the requests.
    #[error(
        "{address} is reachable from other machines without TLS: bind to 127.0.0.1, or call `tls`, or call `behind_proxy` if a proxy terminates TLS"
    )]
    Public {
        /// The address.
        address: SocketAddr,
    },
    /// Other machines can reach the listener, and the store has no API key.
    #[error(
        "{address} is for clients on other machines, but the store has no API key: create one with `windlass keys create --name admin --scope admin` and `--store`"
    )]
    NoKeys {
        /// The address.
        address: SocketAddr,
    },
    /// The store did not return its API keys.
    #[error("cannot read the API keys from the store")]
    Keys(#[source] StoreError),
    /// The operating system returned no random bytes.
    #[error("cannot create a token: the operating system returns no random bytes")]
    Random,
    /// The address is in use, or the certificate is unusable.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The token cannot be written to the lock file.
    #[error("cannot publish the address of the admin listener")]
    LockFile(#[source] windlass::Error),
    /// The task of the listener panicked. The log has the reason.
    #[error("the admin listener ended unexpectedly; report a bug with the log lines before this")]
    Ended,
}

impl Admin {
    /// Sets limits and defaults of the REST API.
    pub fn settings(self, settings: Settings) -> Self {
        Admin { settings, ..self }
    }

    /// Serves the metrics of a recorder at `/metrics`. Use the recorder that the client was opened
    /// with.
    pub fn metrics(self, recorder: Arc<PrometheusRecorder>) -> Self {
        Admin {
            metrics: Some(recorder),
            ..self
        }
    }

    /// Serves HTTPS with this certificate chain and key (PEM files). There is no token then:
    /// clients use the name in the certificate and an API key.
    pub fn tls(self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        let tls = TlsFiles {
            certificate: certificate.into(),
            key: key.into(),
        };
        Admin {
            tls: Some(tls),
            ..self
        }
    }

    /// Says that a proxy in front of the listener terminates TLS. The store must have an API key.
    pub fn behind_proxy(self) -> Self {
        Admin {
            behind_proxy: true,
            ..self
        }
    }

    /// Binds an address and serves requests in the background, until the returned listener is
    /// stopped or dropped. Port 0 picks a free port.
    ///
    /// # Errors
    ///
    /// An address that other machines can reach needs TLS or a proxy, and an API key in the store.
    /// A SQLite store refuses a token in a lock file that other users can read, and a second
    /// listener.
    pub async fn bind(self, address: &str) -> Result<AdminListener, AdminError> {
        let address = parse(address)?;
        let is_public = !address.ip().to_canonical().is_loopback();
        if is_public && self.tls.is_none() && !self.behind_proxy {
            return Err(AdminError::Public { address });
        }
        let engine = windlass::admin::engine_of(&self.client);
        let access = Access::by_keys(Arc::clone(engine), WithoutKeys::Closed)
            .on_throttle(audit_throttled(engine));
        if (is_public || self.behind_proxy) && !has_keys(&access).await? {
            return Err(AdminError::NoKeys { address });
        }
        let limits = Limits {
            connections: CONNECTIONS_MAX,
            body_bytes_max: u64::try_from(self.settings.bulk_bytes_max).unwrap_or(u64::MAX),
            ..Limits::default()
        };
        let listener = Listener::bind(address, self.tls.as_ref(), limits).await?;
        let token = match self.tls {
            None => Some(ApiKey::generate().map_err(|_| AdminError::Random)?),
            Some(_) => None,
        };
        let access = match &token {
            Some(token) => access.with_token(token, listener.address().ip()),
            None => access,
        };
        let pages = DashboardSettings {
            about: About {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                store: "this program".to_owned(),
                store_path: "the store of this program".to_owned(),
                url: listener.url(),
                ..About::default()
            },
            secure: self.tls.is_some() || self.behind_proxy,
            proxies: None,
        };
        let stop = CancellationToken::new();
        let mut app = App::new(self.client.clone(), access)
            .settings(self.settings)
            .stopping(stop.clone());
        if let Some(recorder) = self.metrics {
            app = app.metrics(recorder);
        }
        let token = token.map(|token| token.reveal());
        let published = publish_address(&self.client, &local_url(&listener), token.as_deref());
        let published = published.map_err(AdminError::LockFile)?;
        let site = site(with_dashboard(app.clone(), pages));
        Ok(AdminListener::start(
            listener,
            (app, site),
            token,
            published,
            stop,
        ))
    }
}

/// A running admin listener. Dropping it closes its connections at once; [`AdminListener::stop`]
/// lets running requests finish.
pub struct AdminListener {
    url: String,
    token: Option<String>,
    published: Option<PublishedAddress>,
    stop: CancellationToken,
    _stop_on_drop: DropGuard,
    serving: JoinHandle<Result<(), AdminError>>,
}

impl AdminListener {
    fn start(
        listener: Listener,
        app: (App, Site),
        token: Option<String>,
        published: Option<PublishedAddress>,
        stop: CancellationToken,
    ) -> Self {
        let stop_now = CancellationToken::new();
        let url = listener.url();
        info!(url, "the admin listener started");
        let serving = serve(listener, app, stop.clone(), stop_now.clone());
        let serving = AssertUnwindSafe(serving).catch_unwind().map(|served| {
            served.map_err(|_| {
                error!("the admin listener ended unexpectedly; the rest of the program goes on");
                AdminError::Ended
            })
        });
        AdminListener {
            url,
            token,
            published,
            stop,
            _stop_on_drop: stop_now.drop_guard(),
            serving: tokio::spawn(serving),
        }
    }

    /// Returns its URL: `http://127.0.0.1:40123`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the token of this start, which gives access to everything. `None` with TLS.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Waits for running requests, up to 30 s, and ends.
    ///
    /// # Errors
    ///
    /// [`AdminError::Ended`] if it ended before because of a bug. The log has the reason.
    pub async fn stop(mut self) -> Result<(), AdminError> {
        drop(self.published.take());
        self.stop.cancel();
        let served = (&mut self.serving).await;
        served.unwrap_or(Err(AdminError::Ended))
    }
}

impl fmt::Debug for AdminListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AdminListener({})", self.url)
    }
}

async fn serve(
    listener: Listener,
    (app, site): (App, Site),
    stop: CancellationToken,
    stop_now: CancellationToken,
) {
    listener.serve(site, stop, stop_now.clone()).await;
    // A request that changes something continues after its client has disconnected.
    tokio::select! {
        () = app.all_changed() => {}
        () = stop_now.cancelled() => {}
    }
}

fn parse(address: &str) -> Result<SocketAddr, Invalid> {
    let rule = || {
        let rule =
            format!("must be an IP address and a port, such as 127.0.0.1:0, got {address:?}");
        Invalid::new("address", rule)
    };
    address.parse().map_err(|_| rule())
}

async fn has_keys(access: &Access) -> Result<bool, AdminError> {
    match access.keys() {
        Some(keys) => Ok(!keys.list().await.map_err(AdminError::Keys)?.is_empty()),
        None => Ok(false),
    }
}

/// Returns the URL of a listener for clients on this machine.
pub(crate) fn local_url(listener: &Listener) -> String {
    let mut address = listener.address();
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    let is_tls = listener.certificate().is_some();
    let scheme = if is_tls { "https" } else { "http" };
    format!("{scheme}://{address}")
}
