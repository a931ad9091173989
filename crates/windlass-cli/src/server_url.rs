//! The flag `--url`: which running server a command uses.

use std::env::VarError;

use clap::Args;
use windlass_client::Client;
use windlass_core::Invalid;

/// The running server that a command sends its requests to, if any.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerUrlArgs {
    /// Use the running server at this URL, such as http://127.0.0.1:8080, with the API key in
    /// WINDLASS_KEY. Without it, the command opens the store itself, or sends its requests to the
    /// running program that owns the file.
    #[arg(long, value_name = "URL", env = "WINDLASS_URL")]
    pub(crate) url: Option<String>,
}

impl ServerUrlArgs {
    /// Returns a client of the server if `--url` or `WINDLASS_URL` is set.
    pub(crate) fn client(&self) -> anyhow::Result<Option<Client>> {
        self.url.as_deref().map(client_of).transpose()
    }
}

/// Returns a client of the server at this URL, with the API key in `WINDLASS_KEY`.
pub(crate) fn client_of(url: &str) -> anyhow::Result<Client> {
    let mut client = Client::builder(url).retries(0);
    if let Some(key) = variable("WINDLASS_KEY")? {
        client = client.key(key);
    }
    Ok(client.build()?)
}

/// Returns the URL in `WINDLASS_URL`, for commands where a flag can overrule it.
pub(crate) fn url_variable() -> Result<Option<String>, Invalid> {
    variable("WINDLASS_URL")
}

fn variable(name: &str) -> Result<Option<String>, Invalid> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(Invalid::new(name, "must be UTF-8")),
    }
}
