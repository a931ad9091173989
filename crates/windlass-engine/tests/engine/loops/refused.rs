//! A database that does not accept the outcome of one job.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use windlass_core::{JobId, QueueName, State, Timestamp};
use windlass_engine::{CancellationToken, Engine, Event, Ids, Received, Recorder, SystemClock};
use windlass_sqlite::SqliteStore;
use windlass_store::{Counts, Store};

use windlass_testkit::world::{enqueue, job, new_job, t0, worker};

/// Notifies when an outcome is dropped.
#[derive(Debug, Default)]
struct Dropped(Notify);

impl Recorder for Dropped {
    fn event(&self, _: &Event) {}

    fn store_op(&self, _: &'static str, _: Duration) {}

    fn counts(&self, _: &BTreeMap<QueueName, Counts>, _: Timestamp) {}

    fn outcome_refused(&self, _: &QueueName) {
        self.0.notify_one();
    }
}

#[tokio::test]
async fn an_outcome_that_the_database_keeps_refusing_is_dropped_and_other_writes_succeed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path, t0(), 1).unwrap());
    let clock = Arc::new(SystemClock::starting_at(t0()));
    let dropped = Arc::new(Dropped::default());
    let recorder = Arc::clone(&dropped) as Arc<dyn Recorder>;
    let engine = Engine::with_recorder(store, clock, Ids::seeded(3), Some(recorder));
    let engine = Arc::new(engine);
    let mut events = engine.subscribe();
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(enqueue(&engine, new_job("a")).await);
    }
    refuse_to_end(&path, ids[2]);
    let build = worker(5).succeeds("a");
    let build = build.set(|config| config.outcome_retry_max = Duration::from_secs(1));
    let (worker, _) = build.on_engine(&engine);
    let stop = CancellationToken::new();
    let (until, now) = (stop.clone(), CancellationToken::new());
    let run = tokio::spawn(async move { worker.run(until, now).await });
    let ended = async {
        let mut good = 0;
        while good < 4 {
            if let Some(Received::Event(event)) = events.next().await {
                good += usize::from(event.name() == "succeeded");
            }
        }
        dropped.0.notified().await;
    };
    let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
    assert!(ended.is_ok(), "four are written, one is dropped");
    assert_eq!(job(&engine, ids[2]).await.state(), State::Running);
    assert_eq!(engine.writes().problem(), None);
    stop.cancel();
    run.await.unwrap().unwrap();
}

/// Installs a trigger that refuses every outcome of a job.
fn refuse_to_end(path: &std::path::Path, id: JobId) {
    let file = rusqlite::Connection::open(path).unwrap();
    let id = format!("x'{:032x}'", id.as_u128());
    for verb in ["insert", "update"] {
        let sql = format!(
            "create trigger refuse_{verb} before {verb} on states when new.id = {id} and new.state <> 1
             begin select raise(abort, 'no'); end"
        );
        file.execute_batch(&sql).unwrap();
    }
}
