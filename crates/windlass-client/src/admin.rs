//! Methods for keys, secrets, the audit log, policies, statistics, health and metrics.

use windlass_api::{
    AuditParams, AuditRecord, CreatedKey, ExplainParams, ExplainRequest, Key, LoginLink,
    NamedPolicy, NewKey, NewSecret, Page, PolicyExplanation, Rotated, Secret, ServerSetting,
    ServerStatus, Statistics, StatisticsParams, VerifiedAudit, VerifyParams,
};
use windlass_core::retry::Preset;

use crate::client::{Call, Client, Method};
use crate::error::Error;
use crate::pager::Pager;

impl Client {
    /// Creates an API key. Only this response contains the key.
    ///
    /// # Errors
    ///
    /// The client does not repeat this request. If it fails without a response, list the keys and
    /// revoke a key that you did not receive.
    pub async fn create_key(&self, new: &NewKey) -> Result<CreatedKey, Error> {
        let call = Call::new(Method::Post, &["keys"]);
        self.send_json(call.body(new)?).await
    }

    /// Creates a login link with the scopes of this client's key. It works once, within 60 s.
    pub async fn create_login_link(&self) -> Result<LoginLink, Error> {
        self.send_json(Call::new(Method::Post, &["login-links"]))
            .await
    }

    /// Returns all keys, oldest first, including revoked ones.
    pub async fn keys(&self) -> Result<Vec<Key>, Error> {
        let page: Page<Key> = self.send_json(Call::new(Method::Get, &["keys"])).await?;
        Ok(page.data)
    }

    /// Revokes a key permanently, by its id. All servers refuse it within 1 s.
    pub async fn revoke_key(&self, id: &str) -> Result<Key, Error> {
        self.send_json(Call::new(Method::Delete, &["keys", id]))
            .await
    }

    /// Returns the configuration of the server in effect, in the order of the configuration file.
    pub async fn settings(&self) -> Result<Vec<ServerSetting>, Error> {
        let call = Call::new(Method::Get, &["settings"]);
        let page: Page<ServerSetting> = self.send_json(call).await?;
        Ok(page.data)
    }

    /// Returns the names and hosts of all secrets. No route returns a value.
    pub async fn secrets(&self) -> Result<Vec<Secret>, Error> {
        let page: Page<Secret> = self.send_json(Call::new(Method::Get, &["secrets"])).await?;
        Ok(page.data)
    }

    /// Stores a secret under a name, and replaces an existing one.
    ///
    /// # Errors
    ///
    /// Refused with `master_key` if the server has no master key.
    pub async fn put_secret(&self, name: &str, new: &NewSecret) -> Result<(), Error> {
        let call = Call::new(Method::Put, &["secrets", name]);
        self.send_and_discard(call.body(new)?).await
    }

    /// Deletes a secret.
    pub async fn remove_secret(&self, name: &str) -> Result<(), Error> {
        self.send_and_discard(Call::new(Method::Delete, &["secrets", name]))
            .await
    }

    /// Re-encrypts secrets that use an old master key with the current one. Returns their number.
    pub async fn rotate_secrets(&self) -> Result<u64, Error> {
        let call = Call::new(Method::Post, &["secrets", "rotate"]).repeatable();
        let rotated: Rotated = self.send_json(call).await?;
        Ok(rotated.rotated)
    }

    /// Lists the audit log: actions of operators and removals of dead jobs, newest first.
    pub fn audit(&self, params: &AuditParams) -> Pager<AuditRecord> {
        let call = Call::new(Method::Get, &["audit"]);
        Pager::new(self, call.query(params))
    }

    /// Verifies that no record of the audit log was changed, removed or inserted.
    ///
    /// `known` is the hash of an earlier verification; its record must still exist. If the log is
    /// damaged, the result says so in `broken`; that is not an error.
    pub async fn verify_audit(&self, known: Option<&str>) -> Result<VerifiedAudit, Error> {
        let known = known.map(str::to_owned);
        let call = Call::new(Method::Get, &["audit", "verify"]);
        self.send_json(call.query(&VerifyParams { known })).await
    }

    /// Returns the presets of retry policies.
    pub async fn policies(&self) -> Result<Vec<NamedPolicy>, Error> {
        let page: Page<NamedPolicy> = self
            .send_json(Call::new(Method::Get, &["policies"]))
            .await?;
        Ok(page.data)
    }

    /// Explains a preset: when each attempt starts, and the load when many jobs fail together.
    pub async fn explain_preset(
        &self,
        preset: Preset,
        params: ExplainParams,
    ) -> Result<PolicyExplanation, Error> {
        let call = Call::new(Method::Get, &["policies", preset.name(), "explain"]);
        self.send_json(call.query(&params)).await
    }

    /// Explains a policy: when each attempt starts, and the load when many jobs fail together.
    pub async fn explain_policy(
        &self,
        request: &ExplainRequest,
    ) -> Result<PolicyExplanation, Error> {
        let call = Call::new(Method::Post, &["policies", "explain"]).repeatable();
        self.send_json(call.body(request)?).await
    }

    /// Returns what happened in a range of time, in steps: of one queue, or of all.
    pub async fn statistics(&self, params: &StatisticsParams) -> Result<Statistics, Error> {
        let call = Call::new(Method::Get, &["stats"]);
        self.send_json(call.query(params)).await
    }

    /// Returns whether the server is ready, and its problems if not. A server that is not ready is not
    /// an error.
    pub async fn ready(&self) -> Result<ServerStatus, Error> {
        let call = Call::raw(Method::Get, "/readyz".to_owned());
        let answer = self.send_with_retries(call).await?;
        self.read(&answer)
    }

    /// Returns the metrics of the server in Prometheus text format.
    pub async fn metrics(&self) -> Result<String, Error> {
        let answer = self
            .send_checked(Call::raw(Method::Get, "/metrics".to_owned()))
            .await?;
        Ok(String::from_utf8_lossy(&answer.body).into_owned())
    }
}
