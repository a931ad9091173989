//! Queues.

use windlass_api::{CreateQueue, PassAnswer, PurgeQueue, Queue, QueueSettings};
use windlass_core::QueueName;

use crate::client::{Call, Client, Method};
use crate::error::Error;
use crate::pager::Pager;

impl Client {
    /// All queues by name, with their depth and rates.
    pub fn queues(&self) -> Pager<Queue> {
        Pager::new(self, Call::new(Method::Get, &["queues"]))
    }

    /// One queue.
    pub async fn queue(&self, queue: &QueueName) -> Result<Queue, Error> {
        self.json(Call::new(Method::Get, &["queues", queue.as_str()]))
            .await
    }

    /// The settings of a queue.
    pub async fn queue_settings(&self, queue: &QueueName) -> Result<QueueSettings, Error> {
        let path = ["queues", queue.as_str(), "settings"];
        self.json(Call::new(Method::Get, &path)).await
    }

    /// Replaces all settings of a queue.
    pub async fn put_queue_settings(
        &self,
        queue: &QueueName,
        settings: &QueueSettings,
        create: CreateQueue,
    ) -> Result<QueueSettings, Error> {
        let path = ["queues", queue.as_str(), "settings"];
        let call = Call::new(Method::Put, &path).query(&create);
        self.json(call.body(settings)?).await
    }

    /// Pauses a queue: no one claims its jobs.
    pub async fn pause_queue(
        &self,
        queue: &QueueName,
        create: CreateQueue,
    ) -> Result<Queue, Error> {
        let call = Call::new(Method::Post, &["queues", queue.as_str(), "pause"]);
        self.json(call.query(&create).repeatable()).await
    }

    /// Resumes a queue: its jobs are claimed again.
    pub async fn resume_queue(&self, queue: &QueueName) -> Result<Queue, Error> {
        let call = Call::new(Method::Post, &["queues", queue.as_str(), "resume"]);
        self.json(call.repeatable()).await
    }

    /// Removes finished jobs of one state, one pass of them.
    pub async fn purge_queue(
        &self,
        queue: &QueueName,
        purge: &PurgeQueue,
    ) -> Result<PassAnswer, Error> {
        let call = Call::new(Method::Post, &["queues", queue.as_str(), "purge"]);
        self.json(call.body(purge)?).await
    }
}
