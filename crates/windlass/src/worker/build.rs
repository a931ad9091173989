//! From the settings of a worker to the worker of the engine, with all problems at once.

use std::sync::Arc;

use windlass_core::{Invalid, Kind, Report, WorkerName};
use windlass_engine::{Hooks, RunningAttempt, Worker as EngineWorker, WorkerConfig};

use super::{AfterHook, BeforeHook, DAY, Worker};
use crate::error::Error;
use crate::handler::HandlerEnvironment;
use crate::queue::Queue;

/// The concurrency of the queue `default` in a worker that names no queue.
const CONCURRENCY_DEFAULT: u32 = 10;

impl<S: Send + Sync + 'static> Worker<S> {
    /// Declares the schedules and builds the worker of the engine. An error lists all problems.
    pub(crate) async fn build(self) -> Result<EngineWorker, Error> {
        let client = self.client.clone();
        let mut problems = self.problems.clone();
        let now = client.now();
        let declared = self.schedules.iter().flat_map(|(_, schedules)| schedules);
        let active = declared.filter(|schedule| !schedule.has_ended(now));
        problems.extend(active.filter_map(|schedule| schedule.checked(now).err()));
        let schedules = self.schedules.clone();
        let config = self.config(&mut problems);
        if let Err(problem) = config.check() {
            problems.push(problem);
        }
        if !problems.is_empty() {
            return Err(Error::Worker(problems));
        }
        client.declare(&schedules).await?;
        Ok(EngineWorker::new(Arc::clone(&client.engine), config)?)
    }

    fn config(mut self, problems: &mut Vec<Invalid>) -> WorkerConfig {
        let mut config = self.config;
        let name = self.name.unwrap_or_else(|| {
            let random = self.client.engine.ids().bits() >> 32;
            format!("worker-{}-{random:08x}", std::process::id())
        });
        match WorkerName::new(&name) {
            Ok(name) => config.name = name,
            Err(error) => problems.push(error.within("name")),
        }
        for queues in &self.discovered {
            match queues.config() {
                Ok(discovered) => config.discovered.push(discovered),
                Err(error) => problems.push(error),
            }
        }
        if self.queues.is_empty() && self.discovered.is_empty() {
            self.queues.push(Queue::new("default", CONCURRENCY_DEFAULT));
        }
        for queue in &self.queues {
            match queue.config() {
                Ok(queue_config) => {
                    if let Some(days) = queue.own_retention_days() {
                        let name = queue_config.name.clone();
                        config.janitor.queues.insert(name, days * DAY);
                    }
                    config.queues.push(queue_config);
                }
                Err(error) => problems.push(error),
            }
        }
        let environment = Arc::new(HandlerEnvironment {
            state: self.state,
            classifiers: self.classifiers,
            retry_rule: self.retry_rule,
        });
        for (kinds, factory) in &self.handlers {
            let handler = factory(&environment);
            for kind in kinds {
                match Kind::new(kind) {
                    Err(error) => problems.push(error.within("kind")),
                    Ok(kind) => {
                        if !config.handlers.add(kind.clone(), Arc::clone(&handler)) {
                            let rule =
                                format!("must have one handler, but {kind} has two; remove one");
                            problems.push(Invalid::new("kind", rule));
                        }
                    }
                }
            }
        }
        for (kind, policy) in self.kind_retry {
            if let Ok(kind) = Kind::new(&kind) {
                config.kind_retry.insert(kind, policy);
            }
        }
        if !self.before.is_empty() || !self.after.is_empty() {
            config.hooks = Some(Arc::new(AttemptHooks {
                before: self.before,
                after: self.after,
            }));
        }
        config
    }
}

/// The hooks of a worker, called in the order in which they were added.
struct AttemptHooks {
    before: Vec<BeforeHook>,
    after: Vec<AfterHook>,
}

impl Hooks for AttemptHooks {
    fn before(&self, attempt: &RunningAttempt) {
        self.before.iter().for_each(|hook| hook(attempt));
    }

    fn after(&self, attempt: &RunningAttempt, report: &Report) {
        self.after.iter().for_each(|hook| hook(attempt, report));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::TestKit;
    use windlass_core::fairness::Guards;
    use windlass_core::retry::{Cap, Preset};

    fn config(build: impl FnOnce(Worker) -> Worker) -> (WorkerConfig, Vec<Invalid>) {
        let client = TestKit::new().client().clone();
        let mut problems = Vec::new();
        let config = build(Worker::new(&client, ())).config(&mut problems);
        (config, problems)
    }

    #[test]
    fn a_worker_without_queues_serves_the_default_queue() {
        let (config, problems) = config(|worker| worker);
        assert!(problems.is_empty(), "{problems:?}");
        let [queue] = &config.queues[..] else {
            panic!("{:?}", config.queues);
        };
        assert_eq!((queue.name.as_str(), queue.concurrency), ("default", 10));
        assert_eq!(queue.guards, Guards::default());
        assert!(config.name.as_str().starts_with("worker-"));
    }

    #[test]
    fn every_setting_of_a_worker_is_kept() {
        let time = Duration::from_secs;
        let (config, problems) = config(|worker| {
            worker
                .name("w")
                .queue_with(Queue::new("a", 3).retention_days(2))
                .concurrency(5)
                .retry(Preset::Patient)
                .attempt_cap(7)
                .lease(time(11))
                .poll(time(12))
                .shutdown_grace(time(13))
                .cancel_grace(time(14))
                .outcome_retry_max(time(17))
                .retention_days(15)
                .dead_retention_days(16)
                .before(|_| {})
        });
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(config.name.as_str(), "w");
        assert_eq!(config.concurrency, Some(5));
        let policy = config.retry.policy.as_ref().unwrap();
        assert_eq!(policy.preset(), Some(Preset::Patient));
        assert!(matches!(config.retry.cap, Cap::AtMost(limit) if limit.get() == 7));
        assert_eq!((config.lease, config.poll), (time(11), time(12)));
        assert_eq!(
            (config.shutdown_grace, config.cancel_grace),
            (time(13), time(14))
        );
        assert_eq!(config.outcome_retry_max, time(17));
        assert_eq!(config.janitor.retention, 15 * DAY);
        assert_eq!(config.janitor.queues[&config.queues[0].name], 2 * DAY);
        assert_eq!(config.janitor.dead_retention, Some(16 * DAY));
        assert!(config.hooks.is_some());
        let (config, _) = super::tests::config(|worker| worker.no_retry().no_attempt_cap());
        assert_eq!(config.retry.policy, None);
        assert_eq!(config.retry.cap, Cap::Unlimited);
    }
}
