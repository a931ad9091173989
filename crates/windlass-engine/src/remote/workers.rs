//! All workers of a store: nodes (Rust programs and servers) and remote workers.

use std::collections::BTreeMap;

use windlass_core::{Timestamp, WorkerName};
use windlass_store::{Node, StoreError};

use super::{Remote, RemoteError, Signal};
use crate::worker_description::WorkerDescription;

impl Remote {
    /// Registers a remote worker, and removes a signal to an earlier worker of the same name.
    pub async fn register(
        &self,
        name: &WorkerName,
        about: &WorkerDescription,
    ) -> Result<Node, RemoteError> {
        let node = self.roster.register(name, about, self.engine.now()).await?;
        self.signals.put(name, None).await?;
        Ok(node)
    }

    /// Returns up to `limit` workers with names after `after`, sorted by name: remote workers and
    /// `nodes`.
    pub async fn workers(
        &self,
        nodes: Vec<Node>,
        after: &str,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<Node>, StoreError> {
        let remote = self.roster.page(after, limit, now).await?;
        let nodes = nodes.into_iter().filter(|node| node.name.as_str() > after);
        let named = |node: Node| (node.name.clone(), node);
        let all: BTreeMap<String, Node> = remote.into_iter().chain(nodes).map(named).collect();
        Ok(all.into_values().take(limit).collect())
    }

    /// Returns one worker, remote or not.
    pub async fn worker(&self, name: &WorkerName) -> Result<Option<Node>, StoreError> {
        if let Some(remote) = self.roster.get(name, self.engine.now()).await? {
            return Ok(Some(remote));
        }
        let nodes = self.engine.store().nodes().await?;
        Ok(nodes.into_iter().find(|node| node.name == name.as_str()))
    }

    /// Sends a signal to a worker, or withdraws it. Returns the worker, or `None` if it does not
    /// exist.
    pub async fn signal(
        &self,
        name: &WorkerName,
        signal: Option<Signal>,
    ) -> Result<Option<Node>, StoreError> {
        let worker = self.worker(name).await?;
        if worker.is_some() {
            self.signals.put(name, signal).await?;
        }
        Ok(worker)
    }

    /// Removes a worker and its signal. Returns the worker, or `None` if it does not exist.
    pub async fn forget_worker(&self, name: &WorkerName) -> Result<Option<Node>, StoreError> {
        let worker = self.worker(name).await?;
        if worker.is_some() {
            self.roster.remove(name).await?;
            self.engine.store().remove_node(name.as_str()).await?;
            self.signals.put(name, None).await?;
        }
        Ok(worker)
    }
}
