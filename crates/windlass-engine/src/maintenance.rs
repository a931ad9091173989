//! The maintenance of a store without a worker: the sweeper, the scheduler, the janitor, the
//! statistics, the runner of bulk actions and the watcher of hooks.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::action::{ActionRunner, ActionRunnerConfig};
use crate::engine::Engine;
use crate::hook::{HookWatcher, HookWatcherConfig};
use crate::janitor::{Janitor, JanitorConfig};
use crate::scheduler::{Scheduler, SchedulerConfig};
use crate::statistics::StatisticsWriter;
use crate::sweeper::{Sweeper, SweeperConfig};
use crate::watchdog::{PATIENCE_DEFAULT, Pulse, keep_running};

/// How to maintain a store.
#[derive(Debug, Clone)]
pub struct MaintenanceConfig {
    /// The name of this node.
    pub node: String,
    /// What the heartbeat of this node says about it.
    pub about: Map<String, Value>,
    /// The length of leases. 30 s.
    pub lease: Duration,
    /// How often to look for expired leases. 500 ms.
    pub sweep_every: Duration,
    /// How long finished jobs and other data are kept.
    pub janitor: JanitorConfig,
    /// A loop whose current step takes longer than this is restarted. 60 s.
    pub patience: Duration,
}

impl MaintenanceConfig {
    /// The default configuration.
    pub fn new(node: String) -> Self {
        let sweeper = SweeperConfig::new(String::new());
        MaintenanceConfig {
            node,
            about: Map::new(),
            lease: sweeper.lease,
            sweep_every: sweeper.every,
            janitor: JanitorConfig::default(),
            patience: PATIENCE_DEFAULT,
        }
    }
}

/// Maintains a store until `stop`: ends attempts of dead workers, fires schedules, removes old data,
/// writes statistics and makes the reports of hooks.
pub async fn run_maintenance(
    engine: Arc<Engine>,
    config: MaintenanceConfig,
    stop: CancellationToken,
) {
    let sweeper = Arc::new(Sweeper::new(
        Arc::clone(&engine),
        SweeperConfig {
            about: config.about,
            lease: config.lease,
            every: config.sweep_every,
            ..SweeperConfig::new(config.node.clone())
        },
    ));
    let scheduler = Scheduler::new(Arc::clone(&engine), SchedulerConfig::default());
    let scheduler = Arc::new(scheduler);
    let janitor = Arc::new(Janitor::new(Arc::clone(&engine), config.janitor));
    let statistics = Arc::new(StatisticsWriter::new(Arc::clone(&engine)));
    let mut loops = JoinSet::new();
    let mut keep = |name: &str, run: Run| {
        let (engine, name) = (Arc::clone(&engine), format!("{} {name}", config.node));
        loops.spawn(keep_running(engine, name, config.patience, run));
    };
    let until = stop.clone();
    keep(
        "sweeper",
        Box::new(move |pulse| Box::pin(Arc::clone(&sweeper).run(until.clone(), pulse))),
    );
    let until = stop.clone();
    keep(
        "scheduler",
        Box::new(move |pulse| Box::pin(Arc::clone(&scheduler).run(until.clone(), pulse))),
    );
    let runner_config = ActionRunnerConfig::default();
    let runner = ActionRunner::new(Arc::clone(&engine), &config.node, runner_config);
    let runner = Arc::new(runner);
    let until = stop.clone();
    keep(
        "actions",
        Box::new(move |pulse| Box::pin(Arc::clone(&runner).run(until.clone(), pulse))),
    );
    let watcher = HookWatcher::new(Arc::clone(&engine), HookWatcherConfig::default());
    let (until, watcher) = (stop.clone(), Arc::new(watcher));
    keep(
        "hooks",
        Box::new(move |pulse| Box::pin(Arc::clone(&watcher).run(until.clone(), pulse))),
    );
    let until = stop.clone();
    keep(
        "janitor",
        Box::new(move |pulse| Box::pin(Arc::clone(&janitor).run(until.clone(), pulse))),
    );
    let (until, writer) = (stop.clone(), Arc::clone(&statistics));
    keep(
        "statistics",
        Box::new(move |pulse| Box::pin(Arc::clone(&writer).run(until.clone(), pulse))),
    );
    info!(node = config.node, "maintenance started");
    while loops.join_next().await.is_some() {}
    engine.job_log().finish(engine.now());
    statistics.finish().await;
    if let Err(error) = engine.store().remove_node(&config.node).await {
        warn!(%error, "removing the node failed; it stays listed until it expires");
    }
}

/// A function that starts a loop.
type Run =
    Box<dyn Fn(Arc<Pulse>) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

#[cfg(test)]
mod tests {
    use windlass_core::NewJob;
    use windlass_core::fairness::{Credit, Guards, Pool, Slots};
    use windlass_memory::MemoryStore;
    use windlass_store::{Claim, ClaimRetry, Enqueue, Kinds, WorkerLocation};

    use super::*;
    use crate::{Ids, SystemClock};

    #[tokio::test(start_paused = true)]
    async fn a_lost_job_is_found_without_any_worker_and_the_node_leaves_in_the_end() {
        let (store, clock) = (Arc::new(MemoryStore::new()), Arc::new(SystemClock::new()));
        let engine = Arc::new(Engine::new(store, clock, Ids::seeded(1)));
        let now = engine.now();
        let id = engine.ids().job(now);
        let job = NewJob::new("work".parse().unwrap()).into_stored_job(id, now);
        engine
            .store()
            .enqueue(Enqueue::all(vec![job]), now)
            .await
            .unwrap();
        let slots = Slots {
            free: 1,
            total: 1,
            retries_running: 0,
        };
        let claim = Claim {
            id: 1,
            queue: "default".parse().unwrap(),
            kinds: Kinds::ALL,
            jobs: None,
            except: std::collections::BTreeSet::new(),
            plan: Guards::default().plan(Pool::Main, slots, Credit::default()),
            worker: "gone".parse().unwrap(),
            worker_location: WorkerLocation::Local,
            lease: Duration::from_secs(30),
            retry: ClaimRetry::default(),
        };
        assert_eq!(
            engine.store().claim(&claim, now).await.unwrap().jobs.len(),
            1
        );
        let stop = CancellationToken::new();
        let config = MaintenanceConfig::new("server".to_owned());
        let kept = tokio::spawn(run_maintenance(Arc::clone(&engine), config, stop.clone()));
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let job = engine.store().get(&[id]).await.unwrap().remove(0).unwrap();
            if job.failures == 1 {
                break;
            }
        }
        assert_eq!(engine.health().len(), 6);
        stop.cancel();
        kept.await.unwrap();
        assert!(engine.store().nodes().await.unwrap().is_empty());
        assert!(engine.health().is_empty());
    }
}
