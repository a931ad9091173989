//! Methods for queues.

use windlass_api::{CreateQueue, PauseQueue, Queue, QueueSettings};
use windlass_core::QueueName;

use crate::client::{Call, Client, Method};
use crate::error::Error;
use crate::pager::Pager;

impl Client {
    /// Lists all queues by name, with the number of jobs in each state.
    pub fn queues(&self) -> Pager<Queue> {
        Pager::new(self, Call::new(Method::Get, &["queues"]))
    }

    /// Returns a queue.
    ///
    /// # Errors
    ///
    /// Refused with `not_found` if the queue does not exist. A queue exists while it has jobs or
    /// settings, is paused, or a live worker serves it.
    pub async fn queue(&self, queue: &QueueName) -> Result<Queue, Error> {
        self.send_json(Call::new(Method::Get, &["queues", queue.as_str()]))
            .await
    }

    /// Returns the settings of a queue.
    pub async fn queue_settings(&self, queue: &QueueName) -> Result<QueueSettings, Error> {
        let path = ["queues", queue.as_str(), "settings"];
        self.send_json(Call::new(Method::Get, &path)).await
    }

    /// Replaces all settings of a queue. A setting that is not given returns to its default.
    ///
    /// With `create`, this sets up a queue that does not exist yet. Without it, such a queue is refused
    /// with `not_found`.
    pub async fn put_queue_settings(
        &self,
        queue: &QueueName,
        settings: &QueueSettings,
        create: CreateQueue,
    ) -> Result<QueueSettings, Error> {
        let path = ["queues", queue.as_str(), "settings"];
        let call = Call::new(Method::Put, &path).query(&create);
        self.send_json(call.body(settings)?).await
    }

    /// Pauses a queue: no worker gets its jobs until it is resumed. Running jobs continue.
    ///
    /// `pause` can say why. If the queue is paused already, only the reason changes. With `create`,
    /// this also pauses a queue that does not exist yet.
    pub async fn pause_queue(
        &self,
        queue: &QueueName,
        pause: &PauseQueue,
        create: CreateQueue,
    ) -> Result<Queue, Error> {
        let call = Call::new(Method::Post, &["queues", queue.as_str(), "pause"]);
        let call = call.query(&create).body(pause)?;
        self.send_json(call.repeatable()).await
    }

    /// Resumes a paused queue.
    pub async fn resume_queue(&self, queue: &QueueName) -> Result<Queue, Error> {
        let call = Call::new(Method::Post, &["queues", queue.as_str(), "resume"]);
        self.send_json(call.repeatable()).await
    }
}
