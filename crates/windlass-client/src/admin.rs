//! Keys, secrets, the audit log, policies, and how the server is.

use windlass_api::{
    AuditParams, AuditRecord, CreatedKey, ExplainParams, ExplainRequest, Key, NamedPolicy, NewKey,
    NewSecret, Page, PolicyExplanation, Rotated, Secret, ServerStatus, VerifiedAudit, VerifyParams,
};
use windlass_core::retry::Preset;

use crate::client::{Call, Client, Method};
use crate::error::Error;
use crate::pager::Pager;

impl Client {
    /// Creates a key, which is in this answer only.
    pub async fn create_key(&self, new: &NewKey) -> Result<CreatedKey, Error> {
        let call = Call::new(Method::Post, &["keys"]);
        self.json(call.body(new)?).await
    }

    /// All keys, the oldest first, revoked ones too.
    pub async fn keys(&self) -> Result<Vec<Key>, Error> {
        let page: Page<Key> = self.json(Call::new(Method::Get, &["keys"])).await?;
        Ok(page.data)
    }

    /// Revokes a key for good, by its id.
    pub async fn revoke_key(&self, id: &str) -> Result<Key, Error> {
        self.json(Call::new(Method::Delete, &["keys", id])).await
    }

    /// All secrets, without their values.
    pub async fn secrets(&self) -> Result<Vec<Secret>, Error> {
        let page: Page<Secret> = self.json(Call::new(Method::Get, &["secrets"])).await?;
        Ok(page.data)
    }

    /// Keeps a secret under a name; one that was there is replaced.
    pub async fn put_secret(&self, name: &str, new: &NewSecret) -> Result<(), Error> {
        let call = Call::new(Method::Put, &["secrets", name]);
        self.done(call.body(new)?).await
    }

    /// Removes a secret.
    pub async fn remove_secret(&self, name: &str) -> Result<(), Error> {
        self.done(Call::new(Method::Delete, &["secrets", name]))
            .await
    }

    /// Encrypts with the current master key what an old one encrypted; how many secrets that were.
    pub async fn rotate_secrets(&self) -> Result<u64, Error> {
        let call = Call::new(Method::Post, &["secrets", "rotate"]).repeatable();
        let rotated: Rotated = self.json(call).await?;
        Ok(rotated.rotated)
    }

    /// What operators did and which dead jobs were removed, newest first.
    pub fn audit(&self, params: &AuditParams) -> Pager<AuditRecord> {
        let call = Call::new(Method::Get, &["audit"]);
        Pager::new(self, call.query(params))
    }

    /// Checks the audit log. `known` is the hash of a record that must still be there.
    pub async fn verify_audit(&self, known: Option<&str>) -> Result<VerifiedAudit, Error> {
        let known = known.map(str::to_owned);
        let call = Call::new(Method::Get, &["audit", "verify"]);
        self.json(call.query(&VerifyParams { known })).await
    }

    /// The retry policies that have a name.
    pub async fn policies(&self) -> Result<Vec<NamedPolicy>, Error> {
        let page: Page<NamedPolicy> = self.json(Call::new(Method::Get, &["policies"])).await?;
        Ok(page.data)
    }

    /// What a preset will do.
    pub async fn explain_preset(
        &self,
        preset: Preset,
        params: ExplainParams,
    ) -> Result<PolicyExplanation, Error> {
        let call = Call::new(Method::Get, &["policies", preset.name(), "explain"]);
        self.json(call.query(&params)).await
    }

    /// What a policy will do.
    pub async fn explain_policy(
        &self,
        request: &ExplainRequest,
    ) -> Result<PolicyExplanation, Error> {
        let call = Call::new(Method::Post, &["policies", "explain"]).repeatable();
        self.json(call.body(request)?).await
    }

    /// Whether the store answers and the loops run, and what is wrong if not.
    pub async fn ready(&self) -> Result<ServerStatus, Error> {
        let call = Call::raw(Method::Get, "/readyz".to_owned());
        let answer = self.answered(call).await?;
        self.read(&answer)
    }

    /// The metrics of the server, in the text format of Prometheus.
    pub async fn metrics(&self) -> Result<String, Error> {
        let answer = self
            .good(Call::raw(Method::Get, "/metrics".to_owned()))
            .await?;
        Ok(String::from_utf8_lossy(&answer.body).into_owned())
    }
}
