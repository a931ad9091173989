//! Stored secrets as signing keys of HTTP jobs.

use std::collections::HashMap;

use async_trait::async_trait;
use windlass_core::Invalid;
use windlass_http::{HttpRequest, KeyError, SecretHosts, SigningKey, SigningKeys, WebhookSecret};

use crate::secrets::{SecretError, Secrets};

/// The most different secrets that the jobs of one API request can name.
const SECRETS_PER_REQUEST_MAX: usize = 100;

/// A webhook secret contains its valid keys, the newest first, separated by spaces.
#[async_trait]
impl SigningKeys for Secrets {
    async fn secret(&self, name: &str) -> Result<WebhookSecret, KeyError> {
        let unreadable = |why: String| KeyError::Unavailable(why);
        let found = self.get(name).await;
        let found = found.map_err(|error| unreadable(error.to_string()))?;
        let secret = found.ok_or_else(|| KeyError::Unknown(name.to_owned()))?;
        let text = std::str::from_utf8(&secret.value);
        let text = text.map_err(|error| unreadable(error.to_string()))?;
        let keys = SigningKey::parse_all(text);
        let keys = keys.map_err(|refusal| unreadable(refusal.to_string()))?;
        let hosts = secret.hosts;
        Ok(WebhookSecret { keys, hosts })
    }
}

/// Checks before a job is stored whether its secrets may sign its request. Looks up each secret
/// once.
#[derive(Debug)]
pub(crate) struct Signers<'a> {
    secrets: Option<&'a Secrets>,
    hosts_by_secret: HashMap<String, Option<SecretHosts>>,
}

impl<'a> Signers<'a> {
    /// Creates the checks for the jobs of one API request.
    pub(crate) fn new(secrets: Option<&'a Secrets>) -> Self {
        let hosts_by_secret = HashMap::new();
        Signers {
            secrets,
            hosts_by_secret,
        }
    }

    /// Returns why a secret must not sign the request, or `None` if all may.
    pub(crate) async fn refusal(
        &mut self,
        request: &HttpRequest,
    ) -> Result<Option<Invalid>, SecretError> {
        for name in &request.sign {
            let Some(secrets) = self.secrets else {
                let rule = "must not be given: this server stores no secrets";
                return Ok(Some(Invalid::new("sign", rule)));
            };
            if !self.hosts_by_secret.contains_key(name) {
                if self.hosts_by_secret.len() >= SECRETS_PER_REQUEST_MAX {
                    let rule = format!(
                        "must not name more than {SECRETS_PER_REQUEST_MAX} different secrets in one API request"
                    );
                    return Ok(Some(Invalid::new("sign", rule)));
                }
                let hosts = secrets.hosts(name).await?;
                self.hosts_by_secret.insert(name.clone(), hosts);
            }
            let rule = match self.hosts_by_secret.get(name).and_then(Option::as_ref) {
                None => format!(
                    "names the secret {name:?}, which does not exist; create it with `windlass secrets put`"
                ),
                Some(hosts) if !hosts.allow(&request.url) => format!(
                    "names the secret {name:?}, which must not sign requests to this host; \
                     an admin can allow the host with `windlass secrets put --host`"
                ),
                Some(_) => continue,
            };
            return Ok(Some(Invalid::new("sign", rule)));
        }
        Ok(None)
    }
}
