//! The flags `--url` and `--ca`: which running server a command uses, and whom it trusts.

use std::env::VarError;
use std::path::PathBuf;

use clap::Args;
use windlass_client::{Client, Error};
use windlass_core::Invalid;

/// The running server that a command sends its requests to, if any.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerUrlArgs {
    /// Use the running server at this URL, such as http://127.0.0.1:8080, with the API key in
    /// WINDLASS_KEY. Without it, the command opens the store itself, or sends its requests to the
    /// running program that owns the file.
    #[arg(long, value_name = "URL", env = "WINDLASS_URL")]
    pub(crate) url: Option<String>,

    #[command(flatten)]
    trust: TrustArgs,
}

/// The certificate authority that a command trusts.
#[derive(Debug, Clone, Args)]
pub(crate) struct TrustArgs {
    /// Also trust servers whose certificate is signed by this private CA: a PEM file.
    #[arg(long, value_name = "FILE", env = "WINDLASS_CA")]
    ca: Option<PathBuf>,
}

impl ServerUrlArgs {
    /// Returns a client of the server if `--url` or `WINDLASS_URL` is set.
    pub(crate) fn client(&self) -> anyhow::Result<Option<Client>> {
        let url = self.url.as_deref();
        url.map(|url| self.trust.client_of(url)).transpose()
    }
}

impl TrustArgs {
    /// Returns a client of the server at this URL, with the API key in `WINDLASS_KEY`.
    pub(crate) fn client_of(&self, url: &str) -> anyhow::Result<Client> {
        let mut builder = Client::builder(url).retries(0);
        if let Some(key) = variable("WINDLASS_KEY")? {
            builder = builder.key(key);
        }
        let client = builder.clone().build()?;
        let Some(path) = &self.ca else {
            return Ok(client);
        };
        let refused = |rule: String| {
            let rule = format!("{rule} ({})", path.display());
            Invalid::new("--ca", rule)
        };
        let pem = std::fs::read(path).map_err(|error| {
            let rule = format!("must be a file that this command can read: {error}");
            refused(rule)
        })?;
        // The URL and the key are valid, so that only the certificates can be refused.
        let client = builder.root_certificates(pem).build();
        Ok(client.map_err(|error| match error {
            Error::Invalid { rule, .. } => refused(rule),
            other => refused(other.to_string()),
        })?)
    }
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
