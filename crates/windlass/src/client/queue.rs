//! What a queue is held to, over all workers and nodes, and how it is paused.

use std::time::Duration;

use windlass_core::QueueName;
use windlass_core::fairness::Rate;
use windlass_store::{Pause, QueueLimits};

use super::Client;
use crate::error::Error;

/// The bounds of a queue over all nodes. What is not set is not bounded.
#[derive(Debug, Clone, Default)]
pub struct QueueSettings {
    /// At most so many jobs wait in it: a further enqueue is refused.
    pub max_depth: Option<u64>,
    /// At most so many of its jobs run at once.
    pub concurrency: Option<u32>,
    /// At most so many of its jobs start in each period.
    pub rate: Option<(u32, Duration)>,
}

impl Client {
    /// Sets the bounds of a queue; whether it is paused stays.
    pub async fn limit_queue(&self, name: &str, settings: &QueueSettings) -> Result<(), Error> {
        let queue = queue_name(name)?;
        let before = self.queue_limits(&queue).await?;
        let rate = settings.rate.map(|(count, period)| Rate { count, period });
        let limits = QueueLimits {
            paused: before.paused,
            max_depth: settings.max_depth,
            concurrency: settings.concurrency,
            rate,
        };
        Ok(self.engine.store().put_queue(&queue, &limits).await?)
    }

    /// Nothing more is claimed from a queue, by anybody, until it is resumed. Running jobs go on.
    pub async fn pause_queue(&self, name: &str, by: &str) -> Result<(), Error> {
        let queue = queue_name(name)?;
        let paused = Some(Pause {
            by: by.to_owned(),
            at: self.now(),
        });
        let limits = QueueLimits {
            paused,
            ..self.queue_limits(&queue).await?
        };
        Ok(self.engine.store().put_queue(&queue, &limits).await?)
    }

    /// Jobs of a queue are claimed again.
    pub async fn resume_queue(&self, name: &str) -> Result<(), Error> {
        let queue = queue_name(name)?;
        let limits = QueueLimits {
            paused: None,
            ..self.queue_limits(&queue).await?
        };
        Ok(self.engine.store().put_queue(&queue, &limits).await?)
    }

    async fn queue_limits(&self, queue: &QueueName) -> Result<QueueLimits, Error> {
        let mut queues = self.engine.store().queues().await?;
        Ok(queues.remove(queue).unwrap_or_default())
    }
}

fn queue_name(name: &str) -> Result<QueueName, Error> {
    Ok(QueueName::new(name).map_err(|error| error.within("queue"))?)
}
