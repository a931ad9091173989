//! Measures counts, lists and bulk changes of a PostgreSQL store with many dead jobs.
//!
//! `cargo run --release -p windlass-postgres --example pages -- URL [JOBS]`
//!
//! The database must be empty. It gets `JOBS` dead jobs (1,000,000 if not given) and as many waiting
//! ones.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "it prints what it measures"
)]

use std::time::{Duration, Instant, SystemTime};

use windlass_core::{AttemptError, Fingerprint, JobId, Kind, Revival, Timestamp};
use windlass_postgres::{Options, PostgresStore};
use windlass_store::{Change, Filter, GroupFilter, ListOrder, ListedState, Page, Store};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("usage: pages URL [JOBS]")?;
    let jobs: u64 = arguments
        .next()
        .map_or(Ok(1_000_000), |text| text.parse())?;
    let options = Options::parse(&url)?;
    PostgresStore::migrate(&options).await?;
    let (client, connection) = options.server.connect(tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute(&fill(jobs)).await?;
    let started = Instant::now();
    PostgresStore::migrate(&options).await?;
    println!("filled in causes in {:.1?}", started.elapsed());
    let store = PostgresStore::connect(options).await?;
    let kind = Kind::new("k")?;
    let cause = |text: &str| Some(Fingerprint::new(&kind, &AttemptError::new(text)));
    let dead = || Filter::state(ListedState::Dead);
    let finished = Page {
        order: ListOrder::Finished,
        ..Page::first(50)
    };
    for (what, filter, page) in [
        ("dead", dead(), Page::first(50)),
        ("dead, by time", dead(), finished),
        (
            "a rare cause",
            Filter {
                fingerprint: cause("rare"),
                ..dead()
            },
            Page::first(50),
        ),
        (
            "a rare cause, by time",
            Filter {
                fingerprint: cause("rare"),
                ..dead()
            },
            finished,
        ),
        (
            "no error has this text",
            Filter {
                error: Some("nowhere".to_owned()),
                ..dead()
            },
            Page::first(50),
        ),
    ] {
        let started = Instant::now();
        let listed = store.list(&filter, page, now()).await?;
        let (found, examined) = (listed.jobs.len(), listed.examined);
        println!("{what}: {found} of {examined} in {:.1?}", started.elapsed());
    }
    let started = Instant::now();
    let groups = store
        .failure_groups(&GroupFilter::default(), None, 100, now())
        .await?;
    println!("{} groups in {:.1?}", groups.len(), started.elapsed());
    let started = Instant::now();
    let counts = store.counts(now()).await?;
    println!(
        "counts of {} queues in {:.1?}",
        counts.len(),
        started.elapsed()
    );
    let mut page = finished;
    let (mut changed, mut spent) = (0, Duration::ZERO);
    for _ in 0..10 {
        page.limit = 1000;
        let listed = store.list(&dead(), page, now()).await?;
        let ids: Vec<JobId> = listed.jobs.iter().map(|job| job.id).collect();
        let started = Instant::now();
        let revive = Change::Revive(Revival::default());
        changed += store.change(&ids, &revive, None, now()).await?.len();
        spent += started.elapsed();
    }
    println!("revived {changed} jobs in {spent:.1?}");
    Ok(())
}

/// The SQL that stores the jobs.
fn fill(jobs: u64) -> String {
    let columns = "id, queue, kind, rank, run_at, created_at, payload, attempt, failures, last_error, failed_at";
    format!(
        "insert into windlass.dead ({columns}, snoozes, losses_in_a_row, state, reason, finished_at, outcome)
         select gen_random_uuid(), 'q' || n % 10, 'k', 0, now(), now(), '{{\"n\":1}}', 1, 1,
             case when n % 100000 = 7 then '{{\"message\":\"rare\"}}' else '{{\"message\":\"frequent\"}}' end,
             now() - n * interval '1 second', 0, 0, 'dead', 'exhausted', now() - n * interval '1 second', 'failed'
         from generate_series(1, {jobs}) as n;
         insert into windlass.jobs ({columns}, lane, due)
         select gen_random_uuid(), 'q' || n % 10, 'k', 0, now() - interval '1 minute', now(), '{{}}', 0, 0, null, null,
             0, true
         from generate_series(1, {jobs}) as n;
         insert into windlass.queue_changes (queue, active, dead)
         select 'q' || n, {jobs} / 10, {jobs} / 10 from generate_series(0, 9) as n;
         insert into windlass.cause_backfill values ('00000000-0000-0000-0000-000000000000', true);
         analyze windlass.dead; analyze windlass.jobs"
    )
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let micros = since.map_or(0, |since| since.as_micros());
    Timestamp::from_micros(i64::try_from(micros).unwrap_or(0)).unwrap_or(Timestamp::UNIX_EPOCH)
}
