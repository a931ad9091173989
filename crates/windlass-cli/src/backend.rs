//! Where keys, secrets and the audit log are: behind a running server, or in a store that is opened here.

use std::sync::Arc;

use clap::Args;
use serde_json::Value;
use windlass::Client;
use windlass_engine::Audit;
use windlass_server::access::Caller;
use windlass_server::standalone::config::Config;

use crate::config::ConfigArgs;
use crate::server_url::ServerUrlArgs;

#[derive(Debug, Args)]
pub(crate) struct BackendArgs {
    #[command(flatten)]
    config: ConfigArgs,

    #[command(flatten)]
    server_url: ServerUrlArgs,
}

/// Either a server or the store itself.
pub(crate) enum Backend {
    Server(windlass_client::Client),
    Store(Box<OpenedStore>),
}

/// A store that this command opened, with the configuration that names it.
pub(crate) struct OpenedStore {
    pub(crate) config: Config,
    pub(crate) client: Client,
}

impl BackendArgs {
    /// For a command that looks at what is there: a store that is not there is refused, not made.
    pub(crate) async fn open(&self) -> anyhow::Result<Backend> {
        if let Some(server) = self.server_url.client()? {
            return Ok(Backend::Server(server));
        }
        let (config, client) = self.config.open_existing().await?;
        Ok(Backend::Store(Box::new(OpenedStore { config, client })))
    }

    /// For a command that puts something in: a store that is not there is made.
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

    /// Writes what was done here into the audit log.
    pub(crate) async fn record(&self, action: &str, target: &str, detail: Value) {
        let audit = self.audit();
        let actor = Caller::local().actor();
        audit.record(&actor, action, target, detail).await;
    }
}
