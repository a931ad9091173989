//! The timeline of one request: how long each phase took, and how far the request got.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::guard::TargetClass;
use crate::lock;

/// A phase of a request, timed on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestPhase {
    /// Resolving the host name.
    Resolve,
    /// Opening the TCP connection.
    Connect,
    /// The TLS handshake.
    Tls,
    /// From the start, connecting included, to the head of the response.
    FirstByte,
}

impl RequestPhase {
    const ALL: [RequestPhase; 4] = [
        RequestPhase::Resolve,
        RequestPhase::Connect,
        RequestPhase::Tls,
        RequestPhase::FirstByte,
    ];

    const fn name(self) -> &'static str {
        match self {
            RequestPhase::Resolve => "resolve",
            RequestPhase::Connect => "connect",
            RequestPhase::Tls => "tls",
            RequestPhase::FirstByte => "first_byte",
        }
    }
}

tokio::task_local! {
    static CURRENT: Arc<RequestTimeline>;
}

/// The timeline of one request. The connector finds it through the task that runs the request.
#[derive(Debug)]
pub(crate) struct RequestTimeline {
    started: Instant,
    state: Mutex<TimelineState>,
}

#[derive(Debug, Default)]
struct TimelineState {
    started: Vec<(RequestPhase, Instant)>,
    finished: Vec<(RequestPhase, Duration)>,
    connected: bool,
    target: Option<TargetClass>,
    /// The stored part of the response head.
    head: Option<Map<String, Value>>,
}

impl RequestTimeline {
    /// Starts a timeline.
    #[expect(
        clippy::disallowed_methods,
        reason = "a stopwatch for real sockets, not a clock: no rule depends on it"
    )]
    pub(crate) fn start() -> Arc<Self> {
        Arc::new(RequestTimeline {
            started: Instant::now(),
            state: Mutex::default(),
        })
    }

    /// Runs a request whose connections record to this timeline.
    pub(crate) async fn record<T>(self: &Arc<Self>, request: impl Future<Output = T>) -> T {
        CURRENT.scope(Arc::clone(self), request).await
    }

    /// Returns the timeline of the request that this task runs.
    pub(crate) fn current() -> Arc<Self> {
        CURRENT
            .try_with(Arc::clone)
            .unwrap_or_else(|_| RequestTimeline::start())
    }

    pub(crate) fn begin(&self, phase: RequestPhase) {
        let now = self.started + self.started.elapsed();
        self.lock().started.push((phase, now));
    }

    pub(crate) fn end(&self, phase: RequestPhase) {
        let mut state = self.lock();
        let started = state.started.iter().rfind(|(one, _)| *one == phase);
        if let Some((_, started)) = started {
            let took = started.elapsed();
            state.finished.push((phase, took));
        }
    }

    /// Records that there is a connection: from now on bytes may have been sent.
    pub(crate) fn connected(&self) {
        self.lock().connected = true;
    }

    /// Whether a connection was opened for this request.
    pub(crate) fn is_connected(&self) -> bool {
        self.lock().connected
    }

    /// Records the class of the address that was dialled, or that responded.
    pub(crate) fn set_target(&self, target: TargetClass) {
        self.lock().target = Some(target);
    }

    /// Returns the class of the target, if one was dialled.
    pub(crate) fn target(&self) -> Option<TargetClass> {
        self.lock().target
    }

    /// Records the stored part of the response head.
    pub(crate) fn set_head(&self, head: Map<String, Value>) {
        self.lock().head = Some(head);
    }

    /// Returns what is stored of a request without a complete response: the head, if it arrived,
    /// and the timings.
    pub(crate) fn partial_json(&self) -> Map<String, Value> {
        let mut stored = self.lock().head.clone().unwrap_or_default();
        stored.insert("timings_ms".to_owned(), self.timings_json());
        stored
    }

    /// Returns the duration of each finished phase in milliseconds, and the `total` until now.
    pub(crate) fn timings_json(&self) -> Value {
        let state = self.lock();
        let mut timings = Map::new();
        for phase in RequestPhase::ALL {
            let finished = state.finished.iter().filter(|(one, _)| *one == phase);
            let sum: Duration = finished.clone().map(|(_, took)| *took).sum();
            if finished.count() > 0 {
                timings.insert(phase.name().to_owned(), millis(sum));
            }
        }
        timings.insert("total".to_owned(), millis(self.started.elapsed()));
        Value::Object(timings)
    }

    fn lock(&self) -> MutexGuard<'_, TimelineState> {
        lock(&self.state)
    }
}

fn millis(duration: Duration) -> Value {
    let micros = u32::try_from(duration.as_micros()).unwrap_or(u32::MAX);
    json!(f64::from(micros) / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_finds_its_timeline_and_only_finished_phases_are_shown() {
        let timeline = RequestTimeline::start();
        timeline
            .record(async {
                let current = RequestTimeline::current();
                current.begin(RequestPhase::Connect);
                current.end(RequestPhase::Connect);
                current.begin(RequestPhase::Tls);
                current.connected();
            })
            .await;
        assert!(timeline.is_connected());
        let timings = timeline.timings_json();
        assert!(timings["connect"].is_number() && timings["total"].is_number());
        assert!(timings.get("tls").is_none() && timings.get("resolve").is_none());
        assert!(!RequestTimeline::current().is_connected());
    }
}
