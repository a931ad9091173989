//! Limits and pauses of queues, which apply to all workers and nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use windlass_core::QueueName;
use windlass_core::fairness::Rate;
use windlass_store::{Pause, QueueLimits, compare_and_set};

use super::Client;
use crate::error::Error;

/// The limits of a queue over all nodes, for [`Client::limit_queue`]. `None` means no limit.
#[derive(Debug, Clone, Default)]
pub struct QueueSettings {
    /// The most jobs that may wait in the queue. A further enqueue fails with
    /// [`StoreError::QueueFull`](crate::StoreError::QueueFull).
    pub max_depth: Option<u64>,
    /// The most jobs of the queue that run at the same time.
    pub concurrency: Option<u32>,
    /// The most jobs of the queue that start per period.
    pub rate: Option<(u32, Duration)>,
}

impl Client {
    /// Sets the limits of a queue over all nodes. A pause of the queue stays.
    ///
    /// All limits are replaced, including stored limits that this version cannot read.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the name is not valid; [`Error::QueueChanged`] if other writers keep
    /// changing the queue.
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

    /// Pauses a queue on all nodes: no worker claims its jobs until it is resumed.
    ///
    /// Jobs that are running continue, and new jobs can be enqueued. `by` says who paused it, for
    /// other operators.
    ///
    /// # Errors
    ///
    /// As [`Client::limit_queue`].
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

    /// Resumes a paused queue.
    ///
    /// # Errors
    ///
    /// As [`Client::limit_queue`].
    pub async fn resume_queue(&self, name: &str) -> Result<(), Error> {
        self.change_queue(name, |before| QueueLimits {
            paused: None,
            unreadable: false,
            ..before
        })
        .await
    }

    /// Returns the limits and pauses of all queues that have any.
    pub async fn queues(&self) -> Result<BTreeMap<QueueName, QueueLimits>, Error> {
        Ok(self.engine.store().queues().await?)
    }

    /// Changes the limits of a queue with compare-and-set, so that no concurrent change is lost.
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
