//! Where `keys`, `secrets` and `audit` read and write: a running server, or a store that the command
//! opens itself.

use std::sync::Arc;

use clap::Args;
use serde_json::Value;
use windlass::Client;
use windlass_engine::Audit;
use windlass_server::access::Caller;
use windlass_server::standalone::config::Config;

use crate::config::ConfigArgs;
use crate::server_url::ServerUrlArgs;

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
        let (config, client) = self.config.open_existing().await?;
        Ok(Backend::Store(Box::new(OpenedStore { config, client })))
    }

    /// Opens the backend, and creates the store if it does not exist.
    pub(crate) async fn open_or_create(&self) -> anyhow::Result<Backend> {
        if let Some(server) = self.server_url.client()? {
            return Ok(Backend::Server(server));
        }
        let (config, client) = self.config.open_or_create().await?;
        Ok(Backend::Store(Box::new(OpenedStore { config, client })))
    }
}

impl OpenedStore {
    pub(crate) fn audit(&self) -> Audit {
        Audit::new(Arc::clone(windlass::admin::engine_of(&self.client)))
    }

    /// Records an action of this command in the audit log.
    pub(crate) async fn record(&self, action: &str, target: &str, detail: Value) {
        let audit = self.audit();
        let actor = Caller::local().actor();
        audit.record(&actor, action, target, detail).await;
    }
}
