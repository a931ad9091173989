//! What runs a job.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use windlass_core::{Kind, Report};

use crate::attempt::RunningAttempt;

/// A handler that runs.
pub type Running = Pin<Box<dyn Future<Output = Report> + Send>>;

/// Runs the jobs of a kind.
pub trait Handler: Send + Sync {
    /// Runs one attempt. A panic is a failure of the attempt.
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

/// Is told of every attempt of a worker, in whatever way it ends.
pub trait Hooks: Send + Sync {
    /// An attempt is about to start.
    fn before(&self, attempt: &RunningAttempt);
    /// An attempt has ended in that way; once for each attempt.
    fn after(&self, attempt: &RunningAttempt, report: &Report);
}

/// The handlers of a worker, by kind.
#[derive(Clone, Default)]
pub struct Handlers(BTreeMap<Kind, Arc<dyn Handler>>);

impl Handlers {
    /// None yet.
    pub fn new() -> Self {
        Handlers::default()
    }

    /// Adds a handler; whether its kind had none before.
    pub fn add(&mut self, kind: Kind, handler: Arc<dyn Handler>) -> bool {
        self.0.insert(kind, handler).is_none()
    }

    /// The handler of a kind.
    pub fn get(&self, kind: &Kind) -> Option<&Arc<dyn Handler>> {
        self.0.get(kind)
    }

    /// The kinds that have one.
    pub fn kinds(&self) -> impl Iterator<Item = &Kind> {
        self.0.keys()
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
