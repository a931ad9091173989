//! A running server, over its REST API.

use std::env::VarError;

use clap::Args;
use windlass_client::Client;
use windlass_core::Invalid;

/// Which server, and with which key.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerUrlArgs {
    /// A running server, such as http://127.0.0.1:8080; its key comes from WINDLASS_KEY. Without it, the store is opened here,
    /// which an embedded one allows only while no server has it.
    #[arg(long, value_name = "URL", env = "WINDLASS_URL")]
    pub(crate) url: Option<String>,
}

impl ServerUrlArgs {
    /// A client, if a server was named.
    pub(crate) fn client(&self) -> anyhow::Result<Option<Client>> {
        let Some(url) = &self.url else {
            return Ok(None);
        };
        let mut client = Client::builder(url).retries(0);
        match std::env::var("WINDLASS_KEY") {
            Ok(key) => client = client.key(key),
            Err(VarError::NotPresent) => {}
            Err(VarError::NotUnicode(_)) => {
                return Err(Invalid::new("WINDLASS_KEY", "must be UTF-8").into());
            }
        }
        Ok(Some(client.build()?))
    }
}
