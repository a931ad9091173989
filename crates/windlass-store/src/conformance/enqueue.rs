//! Cases of enqueuing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::retry::{AttemptLimit, Preset};
use windlass_core::{
    Concurrency, Delivery, Job, Occurrence, OnDuplicate, Report, ScheduleId, Tag, Timeout, Unique,
};

use super::build::*;
use crate::{
    Change, Changed, ENQUEUE_MAX, Enqueue, EnqueueMode, Enqueued, QueueLimits, StoreError,
};

pub async fn stores_every_field_as_it_was_given(store: &Opened) {
    let full = Job {
        payload: payload(r#"{"b":1.0,  "a":[1e2,"\u00e9"], "b":12345678901234567890}"#),
        queue: queue("mail"),
        priority: -7,
        run_at: at_micros(123_457),
        delivery: Delivery::AtMostOnce,
        max_attempts: AttemptLimit::from_max_attempts(5).unwrap(),
        retry: Some(Arc::new(Preset::Webhook.policy())),
        timeout: Timeout::None,
        deadline: Some(at(1000)),
        unique: Some(Unique {
            key: key("u – ü"),
            unique_for: Some(Duration::from_secs(60)),
            on_duplicate: OnDuplicate::Replace,
        }),
        concurrency: Some(Concurrency {
            key: key("c"),
            limit: 3,
        }),
        tags: vec![Tag::new("x").unwrap(), Tag::new("y").unwrap()],
        meta: BTreeMap::from([("traceparent".to_owned(), "00-ab".into())]),
        occurrence: Some(Occurrence {
            schedule_id: ScheduleId::from_u128(9),
            scheduled_for: at(5),
        }),
        ..job(1)
    };
    put(store, vec![full.clone(), job(2)]).await;
    assert_eq!(find(store, full.id).await, full);
    assert_eq!(find(store, id(2)).await, job(2));
}

pub async fn answers_in_the_order_of_the_batch(store: &Opened) {
    let mut batch = jobs(0..50);
    batch.reverse();
    put(store, batch).await;
}

pub async fn a_held_unique_key_names_the_first_job(store: &Opened) {
    put(
        store,
        vec![Job {
            unique: unique("k"),
            ..job(1)
        }],
    )
    .await;
    let same = Job {
        unique: unique("k"),
        payload: job(1).payload,
        ..job(2)
    };
    let answer = enqueue_one(store, same, at(1)).await.unwrap();
    assert_eq!(
        answer,
        Enqueued::Duplicate {
            id: id(1),
            payload_differs: false
        }
    );
    let other = Job {
        unique: unique("k"),
        ..job(3)
    };
    let answer = enqueue_one(store, other, at(1)).await.unwrap();
    assert_eq!(
        answer,
        Enqueued::Duplicate {
            id: id(1),
            payload_differs: true
        }
    );
    take_one(store, at(1)).await;
    let running = Job {
        unique: unique("k"),
        ..job(4)
    };
    let answer = enqueue_one(store, running, at(2)).await.unwrap();
    assert_eq!(
        answer,
        Enqueued::Duplicate {
            id: id(1),
            payload_differs: true
        }
    );
    let found = store.get(&[id(2), id(3), id(4)]).await.unwrap();
    assert_eq!(found, [None, None, None]);
}

pub async fn a_duplicate_within_one_batch_is_found(store: &Opened) {
    let batch = (1..=3)
        .map(|n| Job {
            unique: unique("k"),
            ..job(n)
        })
        .collect();
    let answers = store.enqueue(Enqueue::all(batch), at(0)).await.unwrap();
    let duplicate = Enqueued::Duplicate {
        id: id(1),
        payload_differs: true,
    };
    assert_eq!(
        answers,
        [Enqueued::Created(id(1)), duplicate.clone(), duplicate]
    );
}

fn replacing(number: u64) -> Job {
    let unique = Unique {
        key: key("k"),
        unique_for: None,
        on_duplicate: OnDuplicate::Replace,
    };
    Job {
        unique: Some(unique),
        ..job(number)
    }
}

pub async fn a_waiting_duplicate_can_be_replaced(store: &Opened) {
    put(store, vec![replacing(1)]).await;
    let later = Job {
        run_at: at(100),
        ..replacing(2)
    };
    let answer = enqueue_one(store, later.clone(), at(1)).await.unwrap();
    assert_eq!(answer, Enqueued::Replaced(id(1)));
    let first = find(store, id(1)).await;
    assert_eq!((first.payload, first.run_at), (later.payload, at(100)));
    assert!(
        take(store, 1, at(99)).await.is_empty(),
        "it waits for the new time"
    );
    assert_eq!(take_one(store, at(100)).await.id, id(1));
}

pub async fn a_running_duplicate_is_not_replaced(store: &Opened) {
    put(store, vec![replacing(1)]).await;
    take_one(store, at(0)).await;
    let answer = enqueue_one(store, replacing(2), at(1)).await.unwrap();
    assert_eq!(
        answer,
        Enqueued::Duplicate {
            id: id(1),
            payload_differs: true
        }
    );
    assert_eq!(find(store, id(1)).await.payload, job(1).payload);
}

pub async fn unique_keys_are_per_queue(store: &Opened) {
    let other = Job {
        unique: unique("k"),
        queue: queue("other"),
        ..job(2)
    };
    put(
        store,
        vec![
            Job {
                unique: unique("k"),
                ..job(1)
            },
            other,
        ],
    )
    .await;
}

pub async fn a_dead_job_frees_its_key(store: &Opened) {
    let held = Unique {
        unique_for: Some(Duration::from_secs(1000)),
        ..unique("k").unwrap()
    };
    put(
        store,
        vec![Job {
            unique: Some(held),
            max_attempts: Some(AttemptLimit::ONE),
            ..job(1)
        }],
    )
    .await;
    let running = take_one(store, at(0)).await;
    settle_one(store, &running, failed(), at(1)).await;
    let second = Job {
        unique: unique("k"),
        ..job(2)
    };
    assert_eq!(
        enqueue_one(store, second, at(2)).await.unwrap(),
        Enqueued::Created(id(2))
    );
}

pub async fn a_succeeded_job_frees_its_key(store: &Opened) {
    put(
        store,
        vec![Job {
            unique: unique("k"),
            ..job(1)
        }],
    )
    .await;
    let running = take_one(store, at(0)).await;
    settle_one(store, &running, Report::Succeeded(None), at(1)).await;
    let second = Job {
        unique: unique("k"),
        ..job(2)
    };
    assert_eq!(
        enqueue_one(store, second, at(1)).await.unwrap(),
        Enqueued::Created(id(2))
    );
}

pub async fn a_unique_key_is_held_for_its_unique_for(store: &Opened) {
    let held = Unique {
        unique_for: Some(Duration::from_secs(10)),
        ..unique("k").unwrap()
    };
    put(
        store,
        vec![Job {
            unique: Some(held),
            ..job(1)
        }],
    )
    .await;
    let running = take_one(store, at(0)).await;
    settle_one(store, &running, Report::Succeeded(None), at(1)).await;
    let second = Job {
        unique: unique("k"),
        payload: job(1).payload,
        ..job(2)
    };
    let answer = enqueue_one(store, second.clone(), at(9)).await.unwrap();
    assert_eq!(
        answer,
        Enqueued::Duplicate {
            id: id(1),
            payload_differs: false
        }
    );
    assert_eq!(
        enqueue_one(store, second, at(10)).await.unwrap(),
        Enqueued::Created(id(2))
    );
}

pub async fn a_unique_key_is_held_after_its_job_is_removed(store: &Opened) {
    let held = Unique {
        unique_for: Some(Duration::from_secs(100)),
        ..unique("k").unwrap()
    };
    let first = Job {
        unique: Some(held),
        ..job(1)
    };
    put(store, vec![first]).await;
    let running = take_one(store, at(0)).await;
    settle_one(store, &running, Report::Succeeded(None), at(1)).await;
    let removed = store
        .change(&[id(1)], &Change::Purge, None, at(0))
        .await
        .unwrap();
    assert_eq!(removed, [Changed::Removed]);
    let second = Job {
        unique: unique("k"),
        ..job(2)
    };
    for second_at in [1, 99] {
        store.sweep(10, at(second_at), 0).await.unwrap();
        let answer = enqueue_one(store, second.clone(), at(second_at)).await;
        let first = Enqueued::Duplicate {
            id: id(1),
            payload_differs: false,
        };
        assert_eq!(answer.unwrap(), first, "after {second_at} s");
    }
    store.sweep(10, at(100), 0).await.unwrap();
    let answer = enqueue_one(store, second, at(100)).await.unwrap();
    assert_eq!(answer, Enqueued::Created(id(2)));
}

pub async fn a_job_does_not_conflict_with_itself_on_retry(store: &Opened) {
    put(
        store,
        vec![Job {
            unique: unique("k"),
            ..job(1)
        }],
    )
    .await;
    for now in [0, 1, 5] {
        let running = take_one(store, at(now)).await;
        assert_eq!(running.id, id(1));
        settle_one(store, &running, failed(), at(now)).await;
    }
    let second = Job {
        unique: unique("k"),
        ..job(2)
    };
    let answer = enqueue_one(store, second, at(6)).await.unwrap();
    assert_eq!(
        answer,
        Enqueued::Duplicate {
            id: id(1),
            payload_differs: true
        }
    );
}

pub async fn a_hundred_concurrent_enqueues_of_one_key_make_one_job(store: &Opened) {
    let enqueues = (1..=100).map(|number| {
        let store = Arc::clone(store);
        let job = Job {
            unique: unique("k"),
            payload: payload("1"),
            ..job(number)
        };
        tokio::spawn(async move { enqueue_one(&store, job, at(0)).await.unwrap() })
    });
    let enqueues: Vec<_> = enqueues.collect();
    let (mut created, mut named) = (Vec::new(), Vec::new());
    for enqueue in enqueues {
        match enqueue.await.unwrap() {
            Enqueued::Created(id) => created.push(id),
            Enqueued::Duplicate {
                id,
                payload_differs: false,
            } => named.push(id),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(created.len(), 1);
    assert!(named.len() == 99 && named.iter().all(|id| *id == created[0]));
}

pub async fn the_same_id_again_is_a_duplicate(store: &Opened) {
    put(store, vec![job(1)]).await;
    let answer = enqueue_one(store, job(1), at(1)).await.unwrap();
    assert_eq!(
        answer,
        Enqueued::Duplicate {
            id: id(1),
            payload_differs: false
        }
    );
    let running = take_one(store, at(1)).await;
    settle_one(store, &running, Report::Succeeded(None), at(2)).await;
    let other = Job {
        payload: payload("0"),
        ..job(1)
    };
    let answer = enqueue_one(store, other, at(3)).await.unwrap();
    assert_eq!(
        answer,
        Enqueued::Duplicate {
            id: id(1),
            payload_differs: true
        }
    );
}

async fn bound_to(store: &Opened, max_depth: u64) {
    let limits = QueueLimits {
        max_depth: Some(max_depth),
        ..QueueLimits::default()
    };
    store
        .put_queue(&queue("default"), &limits, None)
        .await
        .unwrap();
}

pub async fn a_full_queue_takes_all_or_none(store: &Opened) {
    bound_to(store, 3).await;
    put(store, jobs(1..3)).await;
    let full = store
        .enqueue(Enqueue::all(jobs(3..5)), at(0))
        .await
        .unwrap_err();
    assert!(
        matches!(full, StoreError::QueueFull { max_depth: 3, .. }),
        "{full:?}"
    );
    assert_eq!(store.get(&[id(3), id(4)]).await.unwrap(), [None, None]);
    put(store, jobs(3..4)).await;
    take_one(store, at(0)).await;
    put(store, jobs(4..5)).await;
}

pub async fn a_full_queue_takes_what_fits_if_asked(store: &Opened) {
    bound_to(store, 2).await;
    let enqueue = Enqueue {
        jobs: jobs(1..4),
        mode: EnqueueMode::Independent,
    };
    let answers = store.enqueue(enqueue, at(0)).await.unwrap();
    let full = Enqueued::QueueFull {
        queue: queue("default"),
        max_depth: 2,
    };
    assert_eq!(
        answers,
        [Enqueued::Created(id(1)), Enqueued::Created(id(2)), full]
    );
}

pub async fn a_batch_is_bounded(store: &Opened) {
    let batch = vec![job(1); ENQUEUE_MAX + 1];
    let refused = store.enqueue(Enqueue::all(batch), at(0)).await.unwrap_err();
    assert!(
        matches!(
            refused,
            StoreError::TooMany {
                max: ENQUEUE_MAX,
                ..
            }
        ),
        "{refused:?}"
    );
    assert_eq!(store.get(&[id(1)]).await.unwrap(), [None]);
}

pub async fn an_empty_batch_is_fine(store: &Opened) {
    assert_eq!(
        store.enqueue(Enqueue::all(vec![]), at(0)).await.unwrap(),
        []
    );
}

pub async fn new_jobs_are_announced(store: &Opened) {
    let mut changes = store.changes();
    changes.mark_unchanged();
    put(store, jobs(1..2)).await;
    changes.changed().await.expect("the store is open");
}
