//! All workers of a store: nodes (Rust programs and servers) and remote workers.

use std::collections::BTreeMap;

use windlass_core::{Timestamp, WorkerName};
use windlass_store::{Node, StoreError};

use super::{Remote, RemoteError, Signal, roster};
use crate::worker_description::WorkerDescription;
use crate::worker_state::WorkerState;

/// The result of a signal to a worker.
#[derive(Debug)]
pub enum Signalled {
    /// The signal is stored, and the worker obeys it soon.
    Sent(Node),
    /// The node obeys no signals: it is a server, or a worker of an older version.
    ObeysNone,
    /// No worker has this name.
    Unknown,
}

impl WorkerState {
    /// What a worker does, according to its heartbeat and the signal to it. A remote worker gets
    /// no jobs from the moment of the signal. `None` for a node that obeys no signals.
    pub fn of(node: &Node, signal: Option<Signal>) -> Option<WorkerState> {
        if roster::is_remote(&node.about) {
            return Some(WorkerState::Running.after(signal));
        }
        WorkerState::reported(&node.about)
    }
}

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

    /// Sends a signal to a worker, or withdraws it.
    pub async fn signal(
        &self,
        name: &WorkerName,
        signal: Option<Signal>,
    ) -> Result<Signalled, StoreError> {
        let Some(worker) = self.worker(name).await? else {
            return Ok(Signalled::Unknown);
        };
        if WorkerState::of(&worker, signal).is_none() {
            return Ok(Signalled::ObeysNone);
        }
        self.signals.put(name, signal).await?;
        Ok(Signalled::Sent(worker))
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
