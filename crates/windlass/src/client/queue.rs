//! What a queue is held to, over all workers and nodes, and how it is paused.

use std::collections::BTreeMap;
use std::time::Duration;

use windlass_core::QueueName;
use windlass_core::fairness::Rate;
use windlass_store::{Pause, QueueLimits, compare_and_set};

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
    /// Sets the bounds of a queue; whether it is paused stays. Bounds that this version cannot
    /// read, which stop a queue, are replaced.
    pub async fn limit_queue(&self, name: &str, settings: &QueueSettings) -> Result<(), Error> {
        let rate = settings.rate.map(|(count, period)| Rate { count, period });
        self.change_queue(name, |before| QueueLimits {
            paused: before.own_pause(),
            max_depth: settings.max_depth,
            concurrency: settings.concurrency,
            rate,
            unreadable: false,
        })
        .await
    }

    /// Nothing more is claimed from a queue, by anybody, until it is resumed. Running jobs go on.
    pub async fn pause_queue(&self, name: &str, by: &str) -> Result<(), Error> {
        let pause = Pause {
            by: by.to_owned(),
            at: self.now(),
        };
        self.change_queue(name, |before| QueueLimits {
            paused: Some(pause.clone()),
            unreadable: false,
            ..before
        })
        .await
    }

    /// Jobs of a queue are claimed again.
    pub async fn resume_queue(&self, name: &str) -> Result<(), Error> {
        self.change_queue(name, |before| QueueLimits {
            paused: None,
            unreadable: false,
            ..before
        })
        .await
    }

    /// The limits and pauses of the queues that have any.
    pub async fn queues(&self) -> Result<BTreeMap<QueueName, QueueLimits>, Error> {
        Ok(self.engine.store().queues().await?)
    }

    /// Changes what a queue is held to; what others change meanwhile is not lost.
    async fn change_queue(
        &self,
        name: &str,
        change: impl Fn(QueueLimits) -> QueueLimits,
    ) -> Result<(), Error> {
        let queue = QueueName::new(name).map_err(|error| error.within("queue"))?;
        let store = self.engine.store();
        let contended = || Error::QueueChanged(queue.clone());
        compare_and_set(contended, || async {
            let before = store.queues().await?.remove(&queue).unwrap_or_default();
            let limits = change(before.clone());
            let written = store.put_queue(&queue, &limits, Some(&before)).await?;
            Ok(written.then_some(()))
        })
        .await
    }
}
