//! Cases of rows that the database refuses: no verb fails for the other rows.
//!
//! For drivers of databases with triggers.

use windlass_core::{Report, State};

use super::build::{Opened, at, attempt_of, claim, failed, id, job, jobs, put, report, state_of};
use crate::{Renewed, Settled};

/// The error text of the trigger.
pub const TEXT: &str = "not on my watch";

/// The jobs that the trigger protects: it refuses to end an attempt of the first, and to renew or
/// end an attempt of the second.
pub fn refused() -> (windlass_core::JobId, windlass_core::JobId) {
    (id(3), id(12))
}

/// Runs the cases. `refuse` installs the trigger, `accept` removes it.
pub async fn check(store: &Opened, refuse: impl AsyncFnOnce(), accept: impl AsyncFnOnce()) {
    put(store, jobs(1..16)).await;
    let running = store.claim(&claim(15), at(0)).await.unwrap().jobs;
    assert_eq!(running.len(), 15);
    refuse().await;
    settles(store, &running).await;
    renews(store, &running).await;
    sweeps(store).await;
    accept().await;
    let swept = store.sweep(100, at(9_000), 0).await.unwrap();
    let mut late: Vec<_> = swept.lost.iter().map(|(attempt, _)| attempt.job).collect();
    late.sort_unstable();
    assert_eq!(late, [id(3), id(12)], "they are tried again");
}

async fn settles(store: &Opened, running: &[windlass_core::Job]) {
    let ends = |number: u64| match number {
        4 => failed(),
        _ => Report::Succeeded(None),
    };
    let reports = (1..=5)
        .map(|number| report(&running[number - 1], ends(number as u64)))
        .collect();
    let answers = store.settle(reports, at(1)).await.unwrap();
    for (number, answer) in (1..=5).zip(&answers) {
        match answer {
            Settled::Done(_) => assert_ne!(number, 3),
            Settled::Refused { reason } => {
                assert_eq!(number, 3);
                assert!(reason.contains(TEXT), "{reason}");
            }
            other => panic!("{number}: {other:?}"),
        }
    }
    assert_eq!(state_of(store, id(2)).await, State::Succeeded);
    assert_eq!(state_of(store, id(3)).await, State::Running);
}

async fn renews(store: &Opened, running: &[windlass_core::Job]) {
    let attempts: Vec<_> = running[9..15].iter().map(attempt_of).collect();
    let lease = std::time::Duration::from_secs(60);
    let renewed = store.renew(&attempts, lease, at(2)).await.unwrap();
    for (number, answer) in (10..=15).zip(&renewed) {
        assert_eq!(*answer == Renewed::LeaseLost, number == 12, "{number}");
    }
}

async fn sweeps(store: &Opened) {
    let late = windlass_core::Job {
        deadline: Some(at(1_001)),
        run_at: at(1_000),
        ..job(21)
    };
    put(store, vec![late]).await;
    let swept = store.sweep(100, at(5_000), 0).await.unwrap();
    assert_eq!(
        swept.lost.len(),
        9,
        "all running jobs except the refused ones"
    );
    assert_eq!(swept.expired.len(), 1);
    assert_eq!(swept.expired[0].job, id(21));
    assert_eq!(store.sweep(100, at(5_001), 0).await.unwrap().lost, []);
    assert_eq!(state_of(store, id(3)).await, State::Running);
}
