//! Cases of reading.

use std::collections::BTreeMap;

use windlass_core::retry::AttemptLimit;
use windlass_core::{
    AttemptError, DeadReason, Failure, Job, JobId, Occurrence, Report, ScheduleId, Tag,
};

use super::build::*;
use crate::{
    Change, Counts, Filter, Listed, ListedState, PAGE_BYTES_MAX, PAGE_MAX, Page, SCAN_MAX,
    job_bytes,
};

pub async fn get_answers_in_order(store: &Opened) {
    put(store, jobs(1..3)).await;
    let found = store.get(&[id(2), id(9), id(1), id(2)]).await.unwrap();
    assert_eq!(found, [Some(job(2)), None, Some(job(1)), Some(job(2))]);
}

async fn listed(store: &Opened, filter: &Filter, now: u64) -> Vec<JobId> {
    let page = store.list(filter, Page::first(100), at(now)).await.unwrap();
    page.jobs.iter().map(|job| job.id).collect()
}

pub async fn list_is_newest_first_in_pages(store: &Opened) {
    put(store, jobs(0..25)).await;
    let (mut seen, mut after) = (Vec::new(), None);
    while seen.len() <= 25 {
        let page = store
            .list(
                &Filter::default(),
                Page {
                    after,
                    ..Page::first(10)
                },
                at(0),
            )
            .await
            .unwrap();
        assert!(page.jobs.len() <= 10);
        seen.extend(page.jobs.iter().map(|job| job.id));
        let Some(next) = page.next else { break };
        after = Some(next);
    }
    let expected: Vec<JobId> = (0..25).rev().map(id).collect();
    assert_eq!(seen, expected);
    let none = store
        .list(&Filter::default(), Page::first(0), at(0))
        .await
        .unwrap();
    assert_eq!(none, Listed::default());
    let most = store
        .list(&Filter::default(), Page::first(usize::MAX), at(0))
        .await
        .unwrap();
    assert!(most.jobs.len() <= PAGE_MAX);
}

pub async fn list_examines_a_bounded_number(store: &Opened) {
    let rare = Job {
        tags: vec![Tag::new("rare").unwrap()],
        ..job(1)
    };
    let many = u64::try_from(SCAN_MAX).unwrap();
    put(store, vec![rare]).await;
    put(store, jobs(2..many / 2)).await;
    put(store, jobs(many / 2..many + 2)).await;
    for state in [None, Some(ListedState::Ready)] {
        let filter = Filter {
            state,
            tag: Some(Tag::new("rare").unwrap()),
            ..Filter::default()
        };
        let (mut found, mut after, mut pages) = (Vec::new(), None, 0);
        loop {
            let page = Page {
                after,
                ..Page::first(10)
            };
            let page = store.list(&filter, page, at(0)).await.unwrap();
            pages += 1;
            assert!(pages <= many, "the pages never end");
            found.extend(page.jobs.iter().map(|job| job.id));
            let Some(next) = page.next else { break };
            after = Some(next);
        }
        assert_eq!(found, [id(1)], "{state:?}");
        assert!(pages > 1, "{state:?}: no step examines more than {many}");
    }
}

pub async fn list_ends_a_page_of_large_jobs_early(store: &Opened) {
    let large = payload(&format!("\"{}\"", "x".repeat(999_000)));
    for number in 0..20 {
        let large = Job {
            payload: large.clone(),
            ..job(number)
        };
        put(store, vec![large]).await;
    }
    for filter in [Filter::default(), Filter::state(ListedState::Ready)] {
        let first = store.list(&filter, Page::first(1000), at(1)).await.unwrap();
        let bytes: usize = first.jobs.iter().map(job_bytes).sum();
        let most = PAGE_BYTES_MAX + 1_000_000;
        assert!((PAGE_BYTES_MAX..most).contains(&bytes), "{bytes}");
        let last = first.jobs.last().unwrap().id;
        assert_eq!(first.next, Some(last.into()));
        let rest = Page::after(Some(last), 1000);
        let rest = store.list(&filter, rest, at(1)).await.unwrap();
        assert_eq!((first.jobs.len() + rest.jobs.len(), rest.next), (20, None));
    }
}

pub async fn list_filters(store: &Opened) {
    let schedule = ScheduleId::from_u128(9);
    let occurrence = Some(Occurrence {
        schedule_id: schedule,
        scheduled_for: at(0),
    });
    put(
        store,
        vec![
            Job {
                max_attempts: Some(AttemptLimit::ONE),
                priority: 9,
                ..job(1)
            },
            Job {
                priority: 8,
                ..job(2)
            },
            Job {
                priority: 7,
                ..job(3)
            },
            Job {
                run_at: at(100),
                tags: vec![Tag::new("x").unwrap()],
                ..job(4)
            },
            Job {
                queue: queue("other"),
                unique: unique("k"),
                created_at: at(50),
                ..job(5)
            },
            Job {
                kind: kind("b"),
                occurrence,
                ..job(6)
            },
            job(7),
        ],
    )
    .await;
    let dead = take_one(store, at(0)).await;
    settle_one(store, &dead, failed(), at(0)).await;
    let done = take_one(store, at(0)).await;
    settle_one(store, &done, Report::Succeeded(None), at(10)).await;
    take_one(store, at(0)).await;
    store
        .change(&[id(7)], &Change::Cancel, None, at(1))
        .await
        .unwrap();
    let only = |number: u64| vec![id(number)];
    for (state, expected) in [
        (ListedState::Dead, only(1)),
        (ListedState::Succeeded, only(2)),
        (ListedState::Running, only(3)),
        (ListedState::Scheduled, only(4)),
        (ListedState::Ready, vec![id(6), id(5)]),
        (ListedState::Cancelled, only(7)),
    ] {
        assert_eq!(
            listed(store, &Filter::state(state), 20).await,
            expected,
            "{state:?}"
        );
    }
    assert_eq!(
        listed(store, &Filter::state(ListedState::Ready), 100).await,
        [id(6), id(5), id(4)]
    );
    let all = Filter::default();
    for (filter, expected) in [
        (
            Filter {
                queue: Some(queue("other")),
                ..all.clone()
            },
            only(5),
        ),
        (
            Filter {
                kind: Some(kind("b")),
                ..all.clone()
            },
            only(6),
        ),
        (
            Filter {
                tag: Some(Tag::new("x").unwrap()),
                ..all.clone()
            },
            only(4),
        ),
        (
            Filter {
                unique_key: Some(key("k")),
                ..all.clone()
            },
            only(5),
        ),
        (
            Filter {
                schedule: Some(schedule),
                ..all.clone()
            },
            only(6),
        ),
        (
            Filter {
                reason: Some(DeadReason::Exhausted),
                ..all.clone()
            },
            only(1),
        ),
        (
            Filter {
                reason: Some(DeadReason::Poison),
                ..all.clone()
            },
            vec![],
        ),
        (
            Filter {
                created_from: Some(at(50)),
                ..all.clone()
            },
            only(5),
        ),
        (
            Filter {
                created_before: Some(at(0)),
                ..all.clone()
            },
            vec![],
        ),
        (
            Filter {
                finished_before: Some(at(10)),
                ..all.clone()
            },
            vec![id(7), id(1)],
        ),
        (
            Filter {
                queue: Some(queue("other")),
                ..Filter::state(ListedState::Dead)
            },
            vec![],
        ),
    ] {
        assert_eq!(listed(store, &filter, 20).await, expected, "{filter:?}");
    }
}

pub async fn attempts_are_newest_first(store: &Opened) {
    put(store, jobs(1..3)).await;
    for now in [0, 10, 20] {
        for running in take(store, 2, at(now)).await {
            settle_one(store, &running, failed(), at(now)).await;
        }
    }
    let numbers =
        |rows: Vec<crate::Attempt>| rows.iter().map(|row| row.attempt).collect::<Vec<_>>();
    assert_eq!(numbers(store.attempts(id(1), 10).await.unwrap()), [3, 2, 1]);
    assert_eq!(numbers(store.attempts(id(2), 2).await.unwrap()), [3, 2]);
    assert_eq!(store.attempts(id(9), 10).await.unwrap(), []);
}

pub async fn counts_cover_every_state(store: &Opened) {
    assert_eq!(store.counts(at(0)).await.unwrap(), BTreeMap::new());
    put(store, jobs(1..9)).await;
    put(
        store,
        vec![
            Job {
                run_at: at(500),
                ..job(20)
            },
            Job {
                queue: queue("other"),
                run_at: at(2),
                ..job(21)
            },
        ],
    )
    .await;
    let running = take(store, 4, at(0)).await;
    settle_one(store, &running[0], Report::Succeeded(None), at(0)).await;
    settle_one(store, &running[1], failed(), at(0)).await;
    store
        .change(&[id(8)], &Change::Cancel, None, at(0))
        .await
        .unwrap();
    let counts = store.counts(at(5)).await.unwrap();
    let expected = Counts {
        scheduled: 1,
        ready: 4,
        retrying: 1,
        running: 2,
        succeeded: 1,
        dead: 0,
        cancelled: 1,
        oldest_ready: Some(at(0)),
        rate_until: None,
    };
    assert_eq!(counts[&queue("default")], expected);
    let other = Counts {
        ready: 1,
        oldest_ready: Some(at(2)),
        ..Counts::default()
    };
    assert_eq!(counts[&queue("other")], other);
}

pub async fn forget_keeps_younger_dead_and_active_jobs(store: &Opened) {
    put(store, jobs(1..6)).await;
    let running = take(store, 4, at(0)).await;
    settle_one(store, &running[0], Report::Succeeded(None), at(10)).await;
    let end = Report::Failed(Failure::unrecoverable(AttemptError::new("no such user")));
    settle_one(store, &running[1], end, at(10)).await;
    settle_one(store, &running[2], failed(), at(10)).await;
    store.drop_history(at(5)).await.unwrap();
    let history = store.attempts(id(1), 10).await.unwrap();
    assert_eq!(history.len(), 1, "it ended later");
    // An hour later all of them finished before that time. Only the succeeded job may be removed,
    // together with its history.
    store.drop_history(at(3600)).await.unwrap();
    let left = store
        .get(&[id(1), id(2), id(3), id(4), id(5)])
        .await
        .unwrap();
    assert!(left[1..].iter().all(Option::is_some), "{left:?}");
    for kept in [id(2), id(3)] {
        assert_eq!(store.attempts(kept, 10).await.unwrap().len(), 1);
    }
    let history = store.attempts(id(1), 10).await.unwrap().len();
    assert_eq!(history, usize::from(left[0].is_some()));
}
