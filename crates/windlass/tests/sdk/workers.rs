//! What the settings of a worker do, and what a kit finds on a store that has been used before.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{every_store, seconds};
use serde::{Deserialize, Serialize};
use serde_json::json;
use windlass::admin::Revival;
use windlass::events::{Event, Received, StopReason, Subscription};
use windlass::retry::Preset;
use windlass::testing::TestKit;
use windlass::{Client, Context, Failure, Job, Queue, State, StoreError, Worker};
use windlass_store::{Store, Wrapper};

#[derive(Serialize, Deserialize)]
struct Work;

impl Job for Work {
    const KIND: &'static str = "work";
}

async fn fails(_: Work, _: Context) -> Result<(), Failure> {
    Err("no".into())
}

async fn never_ends(_: Work, _: Context) -> Result<(), Failure> {
    std::future::pending().await
}

/// Ends when an event of that name comes.
async fn heard(events: &mut Subscription, name: &str) {
    loop {
        match events.next().await {
            Some(Received::Event(event)) if event.name() == name => return,
            Some(_) => {}
            None => panic!("no more events"),
        }
    }
}

fn names(events: &mut Subscription) -> Vec<&'static str> {
    let heard = std::iter::from_fn(|| events.try_next());
    let name = |heard| match heard {
        Received::Event(event) => Event::name(&event),
        Received::Missed(_) => panic!("too many events for the test"),
    };
    heard.map(name).collect()
}

every_store! {
    async fn a_worker_serves_queues_that_it_discovers(kit: TestKit) {
        let client = kit.client();
        let mut ids = Vec::new();
        for queue in ["tenant-1", "tenant-2", "other", "billing"] {
            ids.push(client.enqueue(Work).queue(queue).await.unwrap().id);
        }
        async fn works(_: Work, _: Context) -> Result<(), Failure> {
            Ok(())
        }
        let matching = Worker::new(client, ()).handle(works).queues_matching("tenant-*", 2);
        kit.worker(matching.queue("billing", 1)).await.unwrap().drain().await.unwrap();
        let states = async |ids: &[windlass::JobId]| {
            let mut states = Vec::new();
            for id in ids {
                states.push(client.get(*id).await.unwrap().unwrap().state());
            }
            states
        };
        let done = State::Succeeded;
        assert_eq!(states(&ids).await, [done, done, State::Waiting, done]);
        let all = Worker::new(client, ()).handle(works).all_queues(1);
        kit.worker(all).await.unwrap().drain().await.unwrap();
        assert_eq!(states(&ids).await, [done; 4]);
    }

    async fn the_policy_of_a_queue_times_its_retries(kit: TestKit) {
        let client = kit.client();
        let id = client.enqueue(Work).queue("slow").await.unwrap().id;
        let queue = Queue::new("slow", 1).retry(Preset::Patient);
        let worker = Worker::new(client, ()).queue_with(queue).no_attempt_cap().handle(fails);
        kit.worker(worker).await.unwrap().drain().await.unwrap();
        let attempts = kit.timeline(id).await.unwrap();
        let started = attempts.attempts().iter().map(|row| row.started_at);
        let started: Vec<_> = started.collect();
        let waits: Vec<_> = started.windows(2).map(|two| two[1].since(two[0])).collect();
        assert_eq!(waits, [seconds(1.0), seconds(4.0), seconds(16.0)]);
    }

    async fn an_idempotency_key_that_is_given_is_the_same_in_every_attempt(kit: TestKit) {
        let client = kit.client();
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        async fn notes(_: Work, ctx: Context<Arc<Mutex<Vec<String>>>>) -> Result<(), Failure> {
            ctx.state.lock().unwrap().push(ctx.idempotency_key());
            if ctx.attempt() == 1 { Err("again".into()) } else { Ok(()) }
        }
        let given = client.enqueue(Work).meta("idempotency_key", json!("order 7"));
        given.await.unwrap();
        let worker = Worker::new(client, Arc::clone(&seen)).handle(notes);
        let worker = kit.worker(worker).await.unwrap();
        worker.drain().await.unwrap();
        let own = client.enqueue(Work).await.unwrap().id;
        worker.drain().await.unwrap();
        let own = own.to_string();
        assert_eq!(*seen.lock().unwrap(), ["order 7", "order 7", &own, &own]);
    }

    async fn a_job_that_is_revived_is_told(kit: TestKit) {
        let client = kit.client();
        let id = client.enqueue(Work).max_attempts(1).await.unwrap().id;
        let worker = Worker::new(client, ()).handle(fails);
        let worker = kit.worker(worker).await.unwrap();
        worker.drain().await.unwrap();
        let mut events = client.events();
        client.revive(id, &Revival::default()).await.unwrap();
        worker.drain().await.unwrap();
        let told = names(&mut events);
        assert_eq!(told, ["revived", "claimed", "started", "failed", "dead"]);
    }
}

#[tokio::test]
async fn a_kit_on_a_used_store_goes_on_after_what_happened_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("jobs.db").display());
    let mut ids = Vec::new();
    let mut last = None;
    for _ in 0..3 {
        let kit = TestKit::open(&url).await.unwrap();
        assert!(Some(kit.now()) > last, "time goes on");
        let receipt = kit.client().enqueue(Work).await.unwrap();
        assert!(!receipt.duplicate);
        let stored = kit.client().get(receipt.id).await.unwrap().unwrap();
        assert_eq!(stored.created_at, kit.now());
        ids.push(receipt.id);
        let worker = kit.worker(Worker::new(kit.client(), ()).handle(fails));
        worker.await.unwrap().run_for(seconds(5.0)).await.unwrap();
        let attempts = kit.timeline(receipt.id).await.unwrap();
        last = attempts.attempts().last().map(|row| row.finished_at);
    }
    ids.dedup();
    assert_eq!(ids.len(), 3, "each made a job of its own");
}

#[tokio::test(start_paused = true)]
async fn a_second_signal_ends_the_grace() {
    let client = Client::open("memory:").await.unwrap();
    let id = client.enqueue(Work).await.unwrap().id;
    let (mut events, began) = (client.events(), client.now());
    let first = async move { heard(&mut events, "started").await };
    let worker = Worker::new(&client, ())
        .handle(never_ends)
        .shutdown_grace(seconds(3600.0))
        .stop_immediately_on(tokio::time::sleep(seconds(20.0)));
    let stopped = worker.run_until(first).await.unwrap();
    assert_eq!(stopped.released, 1);
    assert_eq!(client.state(id).await.unwrap(), Some(State::Waiting));
    let took = client.now().since(began);
    assert!(took < seconds(30.0), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_is_told_to_stop_has_the_cancel_grace_to_return() {
    async fn tidies_up(_: Work, ctx: Context<Arc<Mutex<Vec<u64>>>>) -> Result<(), Failure> {
        assert_eq!(ctx.stopped().await, StopReason::Shutdown);
        for second in 1..=60 {
            tokio::time::sleep(seconds(1.0)).await;
            ctx.state.lock().unwrap().push(second);
        }
        Ok(())
    }
    for (grace, expected) in [(2.5, 2), (9.5, 9)] {
        let client = Client::open("memory:").await.unwrap();
        client.enqueue(Work).await.unwrap();
        let mut events = client.events();
        let seen: Arc<Mutex<Vec<u64>>> = Arc::default();
        let worker = Worker::new(&client, Arc::clone(&seen))
            .handle(tidies_up)
            .shutdown_grace(Duration::ZERO)
            .cancel_grace(seconds(grace));
        let first = async move { heard(&mut events, "started").await };
        worker.run_until(first).await.unwrap();
        assert_eq!(seen.lock().unwrap().len(), expected);
    }
}

/// A store that stops for good when it is told to.
#[derive(Debug)]
struct Stoppable {
    store: windlass_memory::MemoryStore,
    stopped: std::sync::atomic::AtomicBool,
}

impl Wrapper for Stoppable {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn around<T: Send>(
        &self,
        _: &'static str,
        step: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        match self.stopped.load(std::sync::atomic::Ordering::SeqCst) {
            true => Err(StoreError::Stopped("a sync failed".into())),
            false => step.await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_returns_the_error_of_a_store_that_stopped() {
    let store = Arc::new(Stoppable {
        store: windlass_memory::MemoryStore::new(),
        stopped: false.into(),
    });
    let clock = Arc::new(windlass_engine::SystemClock::new());
    let ids = windlass_engine::Ids::seeded(1);
    let engine = windlass_engine::Engine::new(Arc::clone(&store) as _, clock, ids);
    let client = windlass::admin::client_of(Arc::new(engine));
    let mut events = client.events();
    client.enqueue(Work).await.unwrap();
    let worker = Worker::new(&client, ()).handle(never_ends);
    let running = tokio::spawn(worker.run_until(std::future::pending::<()>()));
    heard(&mut events, "started").await;
    store
        .stopped
        .store(true, std::sync::atomic::Ordering::SeqCst);
    let ended = running.await.unwrap();
    let stopped = matches!(ended, Err(windlass::Error::Store(StoreError::Stopped(_))));
    assert!(stopped, "{ended:?}");
}
