//! Running workers in paused time, on an in-memory store with injected faults. Time jumps to the
//! next timer.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass_core::{JobId, NewJob, Outcome, Report};
use windlass_engine::{
    CancellationToken, Engine, Ids, Received, Recorder, RunningAttempt, StopReason, Stopped,
    Subscription, SystemClock,
};
use windlass_memory::MemoryStore;
use windlass_store::{Store, StoreError};

use crate::Faulty;
use crate::world::{self, Build, failed, seconds, t0};

/// An engine with running workers in paused time.
pub struct Running {
    pub engine: Arc<Engine>,
    pub store: Arc<Faulty>,
    pub events: Subscription,
    pub stop: CancellationToken,
    pub stop_now: CancellationToken,
    pub workers: Vec<tokio::task::JoinHandle<Result<Stopped, StoreError>>>,
}

impl Running {
    pub fn new() -> Running {
        Running::with_clock(SystemClock::starting_at(t0()))
    }

    pub fn with_clock(clock: SystemClock) -> Running {
        let store = Faulty::new(Arc::new(MemoryStore::new()));
        let clock = Arc::new(clock);
        let shared = Arc::clone(&store) as Arc<dyn Store>;
        let engine = Arc::new(Engine::new(shared, clock, Ids::seeded(3)));
        let events = engine.subscribe();
        Running {
            engine,
            store,
            events,
            stop: CancellationToken::new(),
            stop_now: CancellationToken::new(),
            workers: Vec::new(),
        }
    }

    /// Attaches a recorder. Call it before anything starts.
    pub fn record(&mut self, recorder: Arc<dyn Recorder>) {
        let store = Arc::clone(&self.store) as Arc<dyn Store>;
        let clock = Arc::clone(self.engine.clock());
        let engine = Engine::with_recorder(store, clock, Ids::seeded(3), Some(recorder));
        self.engine = Arc::new(engine);
        self.events = self.engine.subscribe();
    }

    pub fn start(&mut self, build: Build) {
        let (worker, _) = build.on_engine(&self.engine);
        let (stop, now) = (self.stop.clone(), self.stop_now.clone());
        self.workers
            .push(tokio::spawn(async move { worker.run(stop, now).await }));
    }

    pub async fn enqueue(&self, job: NewJob) -> JobId {
        world::enqueue(&self.engine, job).await
    }

    /// Waits up to an hour of paused time for the next event with this name about a job.
    pub async fn until(&mut self, name: &str, id: JobId) {
        let found = async {
            loop {
                match self.events.next().await {
                    Some(Received::Event(event))
                        if event.name() == name && event.job() == Some(id) =>
                    {
                        return;
                    }
                    Some(_) => {}
                    None => panic!("no more events"),
                }
            }
        };
        let found = tokio::time::timeout(seconds(3600.0), found).await;
        assert!(found.is_ok(), "{name} did not happen within an hour");
    }

    /// Returns the names of the events since the last call.
    pub fn names(&mut self) -> Vec<&'static str> {
        let items = std::iter::from_fn(|| self.events.try_next());
        let name = |item| match item {
            Received::Event(event) => event.name(),
            Received::Missed(_) => panic!("too many events for the test"),
        };
        items.map(name).collect()
    }

    pub async fn stop(&mut self) -> Stopped {
        self.stop.cancel();
        let mut last = Stopped::default();
        for worker in self.workers.drain(..) {
            last = worker.await.unwrap().unwrap();
        }
        last
    }

    pub async fn outcomes(&self, id: JobId) -> Vec<(f64, Outcome)> {
        let mut rows = self.engine.store().attempts(id, 1000).await.unwrap();
        rows.reverse();
        rows.iter()
            .map(|row| (row.started_at.since(t0()).as_secs_f64(), row.outcome))
            .collect()
    }

    pub fn elapsed(&self) -> Duration {
        self.engine.now().since(t0())
    }
}

/// A handler that succeeds after this many seconds.
pub fn takes(time: f64) -> impl Fn(Arc<RunningAttempt>) -> Sleeping + Send + Sync + 'static {
    move |attempt| {
        let clock = Arc::clone(attempt.engine().clock());
        Box::pin(async move {
            let until = clock.now().saturating_add(seconds(time));
            clock.sleep_until(until).await;
            Report::Succeeded(None)
        })
    }
}

pub type Sleeping = std::pin::Pin<Box<dyn Future<Output = Report> + Send>>;

/// A handler that waits for its stop signal, and records the reason.
pub fn waits(
    reasons: Arc<Mutex<Vec<StopReason>>>,
) -> impl Fn(Arc<RunningAttempt>) -> Sleeping + Send + Sync + 'static {
    move |attempt| {
        let reasons = Arc::clone(&reasons);
        Box::pin(async move {
            let reason = attempt.stop().wait().await;
            reasons.lock().unwrap().push(reason);
            failed("asked to stop")
        })
    }
}

/// A handler that never returns.
pub fn stuck(_: Arc<RunningAttempt>) -> Sleeping {
    Box::pin(std::future::pending())
}
