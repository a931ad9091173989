//! The stored secrets as HTTP jobs use them: what signs a request, and what must not.

use std::collections::HashMap;

use async_trait::async_trait;
use windlass_core::Invalid;
use windlass_http::{HttpRequest, KeyError, SecretHosts, SigningKey, SigningKeys, WebhookSecret};

use crate::secrets::{SecretError, Secrets};

/// The jobs of one API request name at most this many different secrets.
const SECRETS_PER_REQUEST_MAX: usize = 100;

/// Webhook secrets as they are stored: the valid keys of one name with spaces between, the newest first.
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

/// Says before a job is stored whether its request may be signed as it asks. Looks up each secret once.
#[derive(Debug)]
pub(crate) struct Signers<'a> {
    secrets: Option<&'a Secrets>,
    known: HashMap<String, Option<SecretHosts>>,
}

impl<'a> Signers<'a> {
    /// For the jobs of one API request.
    pub(crate) fn new(secrets: Option<&'a Secrets>) -> Self {
        let known = HashMap::new();
        Signers { secrets, known }
    }

    /// Why a request must not be signed as it asks, if so.
    pub(crate) async fn refusal(
        &mut self,
        request: &HttpRequest,
    ) -> Result<Option<Invalid>, SecretError> {
        for name in &request.sign {
            let Some(secrets) = self.secrets else {
                let rule = "must not be given: this server stores no secrets";
                return Ok(Some(Invalid::new("sign", rule)));
            };
            if !self.known.contains_key(name) {
                if self.known.len() >= SECRETS_PER_REQUEST_MAX {
                    let rule = format!(
                        "must not name more than {SECRETS_PER_REQUEST_MAX} different secrets in one API request"
                    );
                    return Ok(Some(Invalid::new("sign", rule)));
                }
                let hosts = secrets.hosts(name).await?;
                self.known.insert(name.clone(), hosts);
            }
            let rule = match self.known.get(name).and_then(Option::as_ref) {
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
