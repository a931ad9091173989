//! What operators' tools do: search jobs, explain them, look after queues. On every store.

use crate::support::{every_store, seconds};
use serde_json::json;
use windlass::admin::{
    ClaimRules, ClaimSettings, EnqueueMode, Kind, Page, PayloadMatch, QueueName, QueueSettings,
    Reason, RevivalRefusal,
};
use windlass::retry::Preset;
use windlass::testing::TestKit;
use windlass::{
    Client, Context, Error, Failure, Filter, Job, JobId, ListedState, Schedule, State, Worker,
};

#[derive(serde::Serialize, serde::Deserialize)]
struct Charge {
    customer: u32,
}

impl Job for Charge {
    const KIND: &'static str = "charge";
}

async fn refuse(job: Charge, _: Context) -> Result<(), Failure> {
    Err(Failure::unrecoverable(anyhow::anyhow!(
        "customer {} is unknown",
        job.customer
    )))
}

fn queue(name: &str) -> QueueName {
    name.parse().unwrap()
}

async fn codes(client: &Client, id: JobId) -> Vec<&'static str> {
    let why = client.why(id).await.unwrap();
    why.reasons.iter().map(Reason::code).collect()
}

every_store! {
    async fn jobs_are_searched_by_payload_and_error(kit: TestKit) {
        let client = kit.client();
        let charges: Vec<Charge> = (0..300).map(|customer| Charge { customer }).collect();
        let receipts = client.enqueue_many(&charges).await.unwrap();
        let customer = |value: &str| Filter {
            payload: Some(PayloadMatch { path: "/customer".into(), value: value.into() }),
            ..Filter::default()
        };
        let page = client.search(&customer("7"), Page::first(10)).await.unwrap();
        assert_eq!(page.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [receipts[7].id]);
        assert_eq!((page.scanned, page.next), (300, None));

        let all = Filter::state(ListedState::Ready);
        let first = client.search(&all, Page::first(200)).await.unwrap();
        assert_eq!(first.jobs.len(), 200);
        let rest = client.search(&all, Page { after: first.next, ..Page::first(200) }).await.unwrap();
        assert_eq!((rest.jobs.len(), rest.next), (100, None));

        let worker = kit.worker(Worker::new(client, ()).handle(refuse)).await.unwrap();
        worker.run_one(receipts[7].id).await.unwrap();
        let error = Filter {
            error: Some("IS UNKNOWN".into()),
            ..Filter::state(ListedState::Dead)
        };
        let page = client.search(&error, Page::first(10)).await.unwrap();
        assert_eq!((page.jobs.len(), page.next), (1, None));
    }

    async fn a_job_that_waits_is_explained(kit: TestKit) {
        let client = kit.client();
        let first = client.enqueue(Charge { customer: 1 }).await.unwrap().id;
        let second = client.enqueue(Charge { customer: 2 }).await.unwrap().id;
        let later = client.enqueue(Charge { customer: 3 }).delay(seconds(60.0)).await.unwrap().id;
        assert_eq!(codes(client, first).await, ["no_worker"]);
        assert_eq!(codes(client, second).await, ["no_worker", "behind"]);
        client.pause_queue("default", "ann", None).await.unwrap();
        assert_eq!(codes(client, later).await, ["not_due", "queue_paused", "no_worker"]);
        let missing = client.why(JobId::from_u128(1)).await;
        assert!(matches!(missing, Err(Error::NotFound(_))), "{missing:?}");
    }

    async fn a_dead_job_is_explained_with_what_reviving_it_would_do(kit: TestKit) {
        let client = kit.client();
        let id = client.enqueue(Charge { customer: 1 }).unique_key("one").await.unwrap().id;
        let worker = kit.worker(Worker::new(client, ()).handle(refuse)).await.unwrap();
        worker.run_one(id).await.unwrap();
        let other = client.enqueue(Charge { customer: 1 }).unique_key("one").await.unwrap().id;
        let why = client.why(id).await.unwrap();
        assert_eq!(why.reasons[0].code(), "dead");
        let finished = why.finished.unwrap();
        assert!(finished.death.unwrap().contains("no retry can help"));
        assert_eq!(finished.policy.unwrap().preset(), Some(Preset::Standard));
        assert_eq!(finished.revival.unwrap().refusals, [RevivalRefusal::KeyHeld { by: other }]);
        let patient = std::sync::Arc::new(Preset::Patient.policy());
        let rules = ClaimRules { kinds: [(Kind::new("charge").unwrap(), patient)].into(), ..ClaimRules::default() };
        let finished = client.why_under(id, &rules).await.unwrap().finished.unwrap();
        assert_eq!(finished.policy.unwrap().preset(), Some(Preset::Patient));
    }

    async fn settings_of_a_queue_are_replaced_and_created(kit: TestKit) {
        let client = kit.client();
        let settings = QueueSettings {
            max_depth: Some(9),
            claims: ClaimSettings { weight: Some(3), ..ClaimSettings::default() },
            ..QueueSettings::default()
        };
        assert!(client.create_queue("mail", &settings).await.unwrap());
        assert!(!client.create_queue("mail", &QueueSettings::default()).await.unwrap());
        client.pause_queue("mail", "ann", None).await.unwrap();
        let mail = client.queue(&queue("mail")).await.unwrap();
        assert_eq!((mail.settings, mail.paused.unwrap().by.as_str()), (settings, "ann"));
        client.set_queue("mail", &QueueSettings::default()).await.unwrap();
        client.enqueue(Charge { customer: 1 }).queue("sums").await.unwrap();
        let queues = client.queues().await.unwrap();
        assert_eq!(queues.keys().map(QueueName::as_str).collect::<Vec<_>>(), ["mail", "sums"]);
        assert_eq!(queues[&queue("mail")].settings, QueueSettings::default());
        assert!(queues[&queue("mail")].paused.is_some(), "the pause stays");
        assert_eq!(queues[&queue("sums")].counts.ready, 1);
    }

    async fn a_pause_keeps_a_reason_of_at_most_500_characters(kit: TestKit) {
        let client = kit.client();
        client.pause_queue("mail", "ann", Some("deploy")).await.unwrap();
        client.pause_queue("mail", "bob", None).await.unwrap();
        let pause = client.queue(&queue("mail")).await.unwrap().paused.unwrap();
        assert_eq!((pause.by.as_str(), pause.reason.as_deref()), ("ann", Some("deploy")));
        for reason in ["", "a\0b", &"x".repeat(501)] {
            let refused = client.pause_queue("mail", "ann", Some(reason)).await;
            assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        }
    }

    async fn settings_that_two_set_at_once_are_not_mixed(kit: TestKit) {
        let client = kit.client();
        let settings = |number: u32| QueueSettings {
            max_depth: Some(number.into()),
            claims: ClaimSettings { weight: Some(number), ..ClaimSettings::default() },
            ..QueueSettings::default()
        };
        for round in 1..20 {
            let (low, high) = (settings(round), settings(100 + round));
            let (first, second) = tokio::join!(client.set_queue("mail", &low), client.set_queue("mail", &high));
            first.unwrap();
            second.unwrap();
            let stored = client.queue(&queue("mail")).await.unwrap().settings;
            assert!(stored == low || stored == high, "{stored:?}");
        }
    }

    async fn a_queue_exists_while_something_is_known_about_it(kit: TestKit) {
        let client = kit.client();
        client.check_queue(&QueueName::default()).await.unwrap();
        client.enqueue(Charge { customer: 1 }).queue("mail").await.unwrap();
        client.check_queue(&queue("mail")).await.unwrap();
        let missing = client.check_queue(&queue("mial")).await.unwrap_err();
        assert!(matches!(&missing, Error::QueueNotFound { nearest: Some(near), .. } if near == "mail"), "{missing:?}");
        client.set_queue("mial", &QueueSettings::default()).await.unwrap();
        client.check_queue(&queue("mial")).await.unwrap();
    }

    async fn jobs_with_their_own_ids_are_stored_once(kit: TestKit) {
        let client = kit.client();
        let id = client.enqueue(Charge { customer: 1 }).await.unwrap().id;
        let mut job = client.get(id).await.unwrap().unwrap();
        job.id = JobId::new(job.created_at, 77);
        for _ in 0..2 {
            let stored = client.enqueue_jobs(vec![job.clone()], EnqueueMode::AllOrNone).await.unwrap();
            let receipt = stored.into_iter().next().unwrap().unwrap();
            assert_eq!((receipt.id, receipt.duplicate), (job.id, false), "a repeat gets the first answer");
            assert_eq!(client.count(&Filter::default()).await.unwrap(), 2);
        }
    }

    async fn a_schedule_is_removed_together_with_its_jobs(kit: TestKit) {
        let client = kit.client();
        let schedule = Schedule::every("nightly", seconds(3600.0), Charge { customer: 1 });
        client.put_schedule(&schedule).await.unwrap();
        let id = client.run_schedule_now("nightly").await.unwrap();
        assert!(client.remove_schedule_and_jobs("nightly").await.unwrap());
        assert_eq!(client.state(id).await.unwrap(), Some(State::Cancelled));
        assert!(!client.remove_schedule_and_jobs("nightly").await.unwrap());
    }
}

#[tokio::test]
async fn workers_of_a_server_are_listed_with_the_nodes() {
    let kit = TestKit::new();
    let (client, engine) = (kit.client(), windlass::admin::engine_of(kit.client()));
    let remote = windlass_engine::remote::Remote::new(engine, Default::default());
    let about = windlass_engine::WorkerDescription {
        queues: Some(vec![QueueName::default()]),
        ..Default::default()
    };
    remote
        .register(&"w".parse().unwrap(), &about)
        .await
        .unwrap();
    let id = client.enqueue_json("any", &json!(null)).await.unwrap().id;
    assert_eq!(client.workers().await.unwrap()[0].name, "w");
    assert_eq!(codes(client, id).await, ["next"]);
}
