//! What a command works on: a running server, or a store that the command opens itself.
//!
//! `keys`, `secrets` and `audit` have code for both. The commands about jobs and queues only send
//! requests: for an opened store, to a REST API inside this process. If a running program owns an
//! embedded store, all commands send their requests to that program (`owner.rs`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use serde_json::Value;
use windlass::Client;
use windlass_engine::Audit;
use windlass_server::access::Caller;
use windlass_server::standalone::Loopback;
use windlass_server::standalone::config::Config;

use crate::config::ConfigArgs;
use crate::owner::client_of_owner;
use crate::server_url::{ServerUrlArgs, TrustArgs, url_variable};

/// The flags that select a running server or a store.
#[derive(Debug, Args)]
pub(crate) struct BackendArgs {
    #[command(flatten)]
    config: ConfigArgs,

    #[command(flatten)]
    server_url: ServerUrlArgs,
}

/// A running server or an opened store.
pub(crate) enum Backend {
    Server(windlass_client::Client),
    Store(Box<OpenedStore>),
}

/// A store that this command opened, and the configuration that it came from.
pub(crate) struct OpenedStore {
    pub(crate) config: Config,
    pub(crate) client: Client,
}

impl BackendArgs {
    /// Opens the backend. Fails if the store does not exist, so that a typo creates no empty store.
    pub(crate) async fn open(&self) -> anyhow::Result<Backend> {
        if let Some(server) = self.server_url.client()? {
            return Ok(Backend::Server(server));
        }
        self.or_owner(self.config.open_existing().await).await
    }

    /// Opens the backend, and creates the store if it does not exist.
    pub(crate) async fn open_or_create(&self) -> anyhow::Result<Backend> {
        if let Some(server) = self.server_url.client()? {
            return Ok(Backend::Server(server));
        }
        self.or_owner(self.config.open_or_create().await).await
    }

    /// Returns the opened store, or the running process that owns it.
    async fn or_owner(&self, opened: anyhow::Result<(Config, Client)>) -> anyhow::Result<Backend> {
        match opened {
            Ok((config, client)) => Ok(Backend::Store(Box::new(OpenedStore { config, client }))),
            Err(error) => {
                let config = self.config.load()?;
                Ok(Backend::Server(client_of_owner(&config, error).await?))
            }
        }
    }
}

impl OpenedStore {
    pub(crate) fn audit(&self) -> Audit {
        Audit::new(Arc::clone(windlass::admin::engine_of(&self.client)))
    }

    /// Records an action of this command in the audit log.
    pub(crate) async fn record(&self, action: &str, target: &str, detail: Value) {
        let audit = self.audit();
        let actor = Caller::store().actor();
        audit.record(&actor, action, target, detail).await;
    }
}

/// The flags of a command that sends requests: to a running server, or to a store that it opens.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server or store")]
pub(crate) struct ApiArgs {
    /// Send requests to the server at this URL, or at the URL in WINDLASS_URL, with the API key in
    /// WINDLASS_KEY [default: the address in the configuration, http://127.0.0.1:8080].
    #[arg(
        long,
        visible_alias = "server",
        value_name = "URL",
        conflicts_with_all = ["store", "data"]
    )]
    url: Option<String>,

    #[command(flatten)]
    trust: TrustArgs,

    /// Open this store instead: `sqlite:path` or `postgres://user@host/database`. If a running
    /// program owns the file, requests go to that program.
    #[arg(long, value_name = "URL")]
    store: Option<String>,

    /// Open the embedded store in this directory instead, or send requests to the server that owns
    /// it.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// The configuration file (TOML).
    #[arg(long, value_name = "FILE", env = "WINDLASS_CONFIG")]
    config: Option<PathBuf>,
}

/// A client of the REST API, and the API itself if this process serves it.
pub(crate) struct Api {
    client: windlass_client::Client,
    served: Option<Served>,
}

/// The REST API that this process serves to itself.
struct Served {
    loopback: Loopback,
    store: Client,
    is_embedded: bool,
}

/// Who carries on the bulk actions and replays that a command starts.
pub(crate) enum Runner<'a> {
    /// The server or program that the command sends requests to.
    Server,
    /// This process: no other process can have the store open.
    ThisProcess(&'a Client),
    /// Any worker or server of the store.
    OtherProcesses(&'a Client),
}

impl ApiArgs {
    /// Connects to the server. With `--store` or `--data`, opens the store, or connects to its owner.
    pub(crate) async fn connect(&self) -> anyhow::Result<Api> {
        let config = ConfigArgs {
            config: self.config.clone(),
            data: self.data.clone(),
            store: self.store.clone(),
        };
        if self.store.is_some() || self.data.is_some() {
            return open(&config).await;
        }
        let given = match &self.url {
            Some(url) => Some(url.clone()),
            None => url_variable()?,
        };
        let url = match given {
            Some(url) => url,
            None => url_of(&config.load()?),
        };
        let (client, served) = (self.trust.client_of(&url)?, None);
        Ok(Api { client, served })
    }
}

/// Opens a store and serves its REST API inside this process, or connects to the running process
/// that owns it.
async fn open(config: &ConfigArgs) -> anyhow::Result<Api> {
    let (config, store) = match config.open_existing().await {
        Ok(opened) => opened,
        Err(error) => {
            let client = client_of_owner(&config.load()?, error).await?;
            let served = None;
            return Ok(Api { client, served });
        }
    };
    let is_embedded = config.keeps_one_server();
    let loopback = Loopback::start(&config, store.clone()).await?;
    let client = windlass_client::Client::builder(loopback.url()).key(loopback.key());
    Ok(Api {
        client: client.build()?,
        served: Some(Served {
            loopback,
            store,
            is_embedded,
        }),
    })
}

impl Api {
    pub(crate) fn client(&self) -> &windlass_client::Client {
        &self.client
    }

    /// Returns who carries on bulk actions and replays.
    pub(crate) fn runner(&self) -> Runner<'_> {
        match &self.served {
            None => Runner::Server,
            Some(served) if served.is_embedded => Runner::ThisProcess(&served.store),
            Some(served) => Runner::OtherProcesses(&served.store),
        }
    }

    /// Closes the store, if this process opened it.
    pub(crate) async fn close(self) {
        if let Some(served) = self.served {
            served.loopback.stop().await;
        }
    }
}

/// Returns the URL of a server with this configuration on this machine.
fn url_of(config: &Config) -> String {
    let ip = match config.bind.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let scheme = if config.tls_files().is_some() {
        "https"
    } else {
        "http"
    };
    format!("{scheme}://{}", SocketAddr::new(ip, config.bind.port()))
}

/// Runs a command that only sends requests, and closes the store if it was opened for that.
pub(crate) fn run_on_api<T>(
    args: &ApiArgs,
    command: impl AsyncFnOnce(&Api) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    block_on(async {
        let api = args.connect().await?;
        let done = command(&api).await;
        api.close().await;
        done
    })
}

/// Runs a command that waits for requests or for a store.
pub(crate) fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(command)
}
