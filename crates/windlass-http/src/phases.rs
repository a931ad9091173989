//! How long each part of a request took, and how far it came.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::guard::TargetClass;

/// A part of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Finding the addresses of the name.
    Resolve,
    /// Until the target took the connection.
    Connect,
    /// Until both sides had keys.
    Tls,
    /// From the sending to the head of the answer.
    FirstByte,
}

impl Phase {
    const ALL: [Phase; 4] = [Phase::Resolve, Phase::Connect, Phase::Tls, Phase::FirstByte];

    const fn name(self) -> &'static str {
        match self {
            Phase::Resolve => "resolve",
            Phase::Connect => "connect",
            Phase::Tls => "tls",
            Phase::FirstByte => "first_byte",
        }
    }
}

tokio::task_local! {
    static OF_TASK: Arc<Phases>;
}

/// The watch of one request. The connector finds it by its task.
#[derive(Debug)]
pub(crate) struct Phases {
    begun: Instant,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    begun: Vec<(Phase, Instant)>,
    took: Vec<(Phase, Duration)>,
    connected: bool,
    target: Option<TargetClass>,
    head: Option<Map<String, Value>>,
}

impl Phases {
    /// Starts the watch.
    #[expect(
        clippy::disallowed_methods,
        reason = "a stopwatch, not a clock: how long real sockets took, which no rule looks at"
    )]
    pub(crate) fn start() -> Arc<Self> {
        Arc::new(Phases {
            begun: Instant::now(),
            inner: Mutex::default(),
        })
    }

    /// Runs a request under this watch.
    pub(crate) async fn around<T>(self: &Arc<Self>, request: impl Future<Output = T>) -> T {
        OF_TASK.scope(Arc::clone(self), request).await
    }

    /// The watch of the request that this task makes.
    pub(crate) fn of_this_task() -> Arc<Self> {
        OF_TASK
            .try_with(Arc::clone)
            .unwrap_or_else(|_| Phases::start())
    }

    pub(crate) fn begin(&self, phase: Phase) {
        let since = self.begun + self.begun.elapsed();
        self.inner().begun.push((phase, since));
    }

    pub(crate) fn end(&self, phase: Phase) {
        let mut inner = self.inner();
        let since = inner.begun.iter().rfind(|(of, _)| *of == phase);
        if let Some((_, since)) = since {
            let took = since.elapsed();
            inner.took.push((phase, took));
        }
    }

    /// There is a connection: from now on something may have been sent.
    pub(crate) fn connected(&self) {
        self.inner().connected = true;
    }

    /// Whether a connection was made for this request.
    pub(crate) fn is_connected(&self) -> bool {
        self.inner().connected
    }

    /// The class of the address that was dialled, or that answered.
    pub(crate) fn reached(&self, target: TargetClass) {
        self.inner().target = Some(target);
    }

    /// The class of the target, where one was dialled.
    pub(crate) fn target(&self) -> Option<TargetClass> {
        self.inner().target
    }

    /// The head of the answer came, of which this is kept.
    pub(crate) fn answered(&self, head: Map<String, Value>) {
        self.inner().head = Some(head);
    }

    /// What is kept where the whole answer did not come: its head, if that did, and the times.
    pub(crate) fn so_far(&self) -> Map<String, Value> {
        let mut kept = self.inner().head.clone().unwrap_or_default();
        kept.insert("timings_ms".to_owned(), self.to_json());
        kept
    }

    /// The times so far, in milliseconds; `total` runs until now.
    pub(crate) fn to_json(&self) -> Value {
        let inner = self.inner();
        let mut times = Map::new();
        for phase in Phase::ALL {
            let took = inner.took.iter().filter(|(of, _)| *of == phase);
            let sum: Duration = took.clone().map(|(_, took)| *took).sum();
            if took.count() > 0 {
                times.insert(phase.name().to_owned(), millis(sum));
            }
        }
        times.insert("total".to_owned(), millis(self.begun.elapsed()));
        Value::Object(times)
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn millis(span: Duration) -> Value {
    let micros = u32::try_from(span.as_micros()).unwrap_or(u32::MAX);
    json!(f64::from(micros) / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_watch_of_a_task_is_found_and_only_what_happened_is_told() {
        let phases = Phases::start();
        phases
            .around(async {
                let found = Phases::of_this_task();
                found.begin(Phase::Connect);
                found.end(Phase::Connect);
                found.begin(Phase::Tls);
                found.connected();
            })
            .await;
        assert!(phases.is_connected());
        let told = phases.to_json();
        assert!(told["connect"].is_number() && told["total"].is_number());
        assert!(told.get("tls").is_none() && told.get("resolve").is_none());
        assert!(!Phases::of_this_task().is_connected());
    }
}
