//! Where keys, secrets and the audit log are: behind a running server, or in a store that is opened here.

use std::sync::Arc;

use clap::Args;
use serde_json::Value;
use windlass::Client;
use windlass_engine::Audit;
use windlass_server::access::Caller;
use windlass_server::standalone::config::Config;

use crate::remote::RemoteArgs;
use crate::settings::SettingsArgs;

#[derive(Debug, Args)]
pub(crate) struct Place {
    #[command(flatten)]
    settings: SettingsArgs,

    #[command(flatten)]
    remote: RemoteArgs,
}

/// Either a server or the store itself.
pub(crate) enum Reached {
    Server(windlass_client::Client),
    Store(Box<Opened>),
}

/// A store that this command opened, with the configuration that names it.
pub(crate) struct Opened {
    pub(crate) config: Config,
    pub(crate) client: Client,
}

impl Place {
    /// For a command that looks at what is there: a store that is not there is refused, not made.
    pub(crate) async fn find(&self) -> anyhow::Result<Reached> {
        if let Some(server) = self.remote.client()? {
            return Ok(Reached::Server(server));
        }
        let (config, client) = self.settings.open_existing().await?;
        Ok(Reached::Store(Box::new(Opened { config, client })))
    }

    /// For a command that puts something in: a store that is not there is made.
    pub(crate) async fn find_or_make(&self) -> anyhow::Result<Reached> {
        if let Some(server) = self.remote.client()? {
            return Ok(Reached::Server(server));
        }
        let (config, client) = self.settings.open().await?;
        Ok(Reached::Store(Box::new(Opened { config, client })))
    }
}

impl Opened {
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
