//! The interface to handlers: the functions that run jobs.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use windlass_core::{Kind, Report};

use crate::attempt::RunningAttempt;

/// The future of a running handler.
pub type Running = Pin<Box<dyn Future<Output = Report> + Send>>;

/// Runs the jobs of one kind.
pub trait Handler: Send + Sync {
    /// Runs one attempt. A panic counts as a failure of the attempt.
    fn run(&self, attempt: Arc<RunningAttempt>) -> Running;
}

impl<F, R> Handler for F
where
    F: Fn(Arc<RunningAttempt>) -> R + Send + Sync,
    R: Future<Output = Report> + Send + 'static,
{
    fn run(&self, attempt: Arc<RunningAttempt>) -> Running {
        Box::pin(self(attempt))
    }
}

/// Callbacks around every attempt of a worker.
pub trait Hooks: Send + Sync {
    /// Called before the handler of an attempt starts.
    fn before(&self, attempt: &RunningAttempt);
    /// Called once for each attempt, when its outcome is known.
    fn after(&self, attempt: &RunningAttempt, report: &Report);
}

/// The handlers of a worker, by kind.
#[derive(Clone, Default)]
pub struct Handlers(BTreeMap<Kind, Arc<dyn Handler>>);

impl Handlers {
    /// An empty set.
    pub fn new() -> Self {
        Handlers::default()
    }

    /// Adds a handler. Returns false if it replaced another one of the same kind.
    pub fn add(&mut self, kind: Kind, handler: Arc<dyn Handler>) -> bool {
        self.0.insert(kind, handler).is_none()
    }

    /// Returns the handler of a kind.
    pub fn get(&self, kind: &Kind) -> Option<&Arc<dyn Handler>> {
        self.0.get(kind)
    }

    /// The kinds that have a handler.
    pub fn kinds(&self) -> impl Iterator<Item = &Kind> {
        self.0.keys()
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
