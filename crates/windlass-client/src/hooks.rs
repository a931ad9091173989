//! Methods for hooks.

use windlass_api::{Hook, HookDetails, HookTest, Page, PutHook};
use windlass_core::{HookName, JobId};

use crate::client::{Call, Client, Method};
use crate::error::Error;

impl Client {
    /// Returns all hooks by name.
    pub async fn hooks(&self) -> Result<Vec<Hook>, Error> {
        let page: Page<Hook> = self.send_json(Call::new(Method::Get, &["hooks"])).await?;
        Ok(page.data)
    }

    /// Returns a hook with its last reports.
    pub async fn hook(&self, name: &HookName) -> Result<HookDetails, Error> {
        self.send_json(Call::new(Method::Get, &["hooks", name.as_str()]))
            .await
    }

    /// Creates a hook, or replaces the hook with this name.
    pub async fn put_hook(&self, name: &HookName, put: &PutHook) -> Result<Hook, Error> {
        let call = Call::new(Method::Put, &["hooks", name.as_str()]);
        self.send_json(call.body(put)?).await
    }

    /// Deletes a hook. Reports that are enqueued already are still sent.
    pub async fn delete_hook(&self, name: &HookName) -> Result<(), Error> {
        self.send_and_discard(Call::new(Method::Delete, &["hooks", name.as_str()]))
            .await
    }

    /// Reports the event `test` to the target of a hook. Returns the id of the job.
    ///
    /// The client repeats a failed request only with an
    /// [idempotency key](Client::idempotency_key).
    pub async fn test_hook(&self, name: &HookName) -> Result<JobId, Error> {
        let call = Call::new(Method::Post, &["hooks", name.as_str(), "test"]);
        let answer: HookTest = self.send_json(call.creates()).await?;
        Ok(answer.job_id)
    }
}
