//! The flag `--url`: which running server a command uses.

use std::env::VarError;

use clap::Args;
use windlass_client::Client;
use windlass_core::Invalid;

/// The running server that a command sends its requests to, if any.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerUrlArgs {
    /// Use the running server at this URL, such as http://127.0.0.1:8080, with the API key in
    /// WINDLASS_KEY. Without it, the command opens the store itself; if a server uses an embedded
    /// store, stop the server first.
    #[arg(long, value_name = "URL", env = "WINDLASS_URL")]
    pub(crate) url: Option<String>,
}

impl ServerUrlArgs {
    /// Returns a client of the server if `--url` or `WINDLASS_URL` is set.
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
