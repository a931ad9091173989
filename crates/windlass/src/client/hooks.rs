//! Hooks: which events Windlass reports to a URL.

use std::sync::Arc;

use windlass_engine::StoredHooks;

use super::Client;

impl Client {
    /// Reads, changes and tests the hooks of the store: which events Windlass reports to a URL.
    ///
    /// Any worker or server of the store makes the reports. They are HTTP jobs in the queue
    /// `windlass.hooks`: a server sends them, or a worker with HTTP jobs on this queue.
    ///
    /// ```
    /// use windlass::Client;
    /// use windlass::admin::{Expected, HookDefinition, HookEvent, HookName};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), windlass::Error> {
    /// let client = Client::open("memory:").await?;
    /// let name = HookName::new("ops")?;
    /// let url = "https://ops.example.com/windlass";
    /// let hook = HookDefinition::new(url, "ops-key", [HookEvent::Dead]);
    /// client.hooks().put(&name, &hook, Expected::Any).await?;
    ///
    /// let job = client.hooks().test(&name).await?;
    /// assert_eq!(job.queue.as_str(), "windlass.hooks");
    /// # Ok(())
    /// # }
    /// ```
    pub fn hooks(&self) -> StoredHooks {
        StoredHooks::new(Arc::clone(&self.engine))
    }
}
