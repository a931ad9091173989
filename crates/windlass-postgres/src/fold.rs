//! Adds appended changes to the rows that they change: counts of queues, failure groups, replays.
//!
//! Every node tries this about once a second. An advisory lock lets one node at a time do it. Each
//! step is one statement that deletes changes and adds their sums, so a reader sees each change
//! exactly once.

use std::time::{Duration, Instant};

use windlass_core::Timestamp;
use windlass_store::StoreError;

use crate::connect::{ConnectionClass, Connections};
use crate::error::DriverResult;
use crate::failure_group;
use crate::param::params;
use crate::session::Session;
use crate::tally_change;

/// The advisory lock of the node that adds changes.
const LOCK: i64 = 0x666F_6C64;

/// The most changes that one statement adds.
const STEP_MAX: i64 = 10_000;

const EVERY: Duration = Duration::from_secs(1);
/// The longest pause between two passes.
const EVERY_MAX: Duration = Duration::from_secs(60);
/// Of failures in a row, one of this number gets a log line.
const LINE_EVERY: u64 = 10;

const STEPS: [&str; 3] = [
    include_str!("../sql/fold_queues.sql"),
    include_str!("../sql/fold_groups.sql"),
    include_str!("../sql/fold_revivals.sql"),
];

/// Adds all changes once a second, as long as the store is open. Waits longer if that takes long,
/// which happens while another session keeps PostgreSQL from removing deleted rows.
pub(crate) async fn run(connections: &Connections) {
    let mut failures: u64 = 0;
    loop {
        #[expect(
            clippy::disallowed_methods,
            reason = "it only measures how long a pass takes"
        )]
        let started = Instant::now();
        match fold(connections).await {
            Ok(()) => failures = 0,
            Err(error) => {
                if failures.is_multiple_of(LINE_EVERY) {
                    tracing::warn!(%error, failures, "adding up changed counts failed; retrying in one second");
                }
                failures += 1;
            }
        }
        let rest = started.elapsed() * 20;
        tokio::time::sleep(rest.clamp(EVERY, EVERY_MAX)).await;
    }
}

async fn fold(connections: &Connections) -> Result<(), StoreError> {
    for step in STEPS {
        while connections
            .run(ConnectionClass::Other, |mut session| async move {
                let sql = "select pg_try_advisory_xact_lock($1)";
                let rows = session.query(sql, params![LOCK]).await?;
                if !rows.first().is_some_and(|row| row.get(0)) {
                    session.roll_back().await?;
                    return Ok(false); // another node does it
                }
                let rows = session.query_and_commit(step, params![STEP_MAX]).await?;
                is_full(&rows)
            })
            .await?
        {}
    }
    Ok(())
}

/// Whether a step added as many changes as it may, so that more may be left.
fn is_full(rows: &[tokio_postgres::Row]) -> DriverResult<bool> {
    let taken: Option<i64> = rows.first().map(|row| row.try_get(0)).transpose()?;
    Ok(taken == Some(STEP_MAX))
}

/// Removes old groups without jobs, and old tallies of replays.
pub(crate) async fn trim(
    session: &mut Session,
    groups_before: Timestamp,
    actions_before: Timestamp,
) -> DriverResult<()> {
    session.lock_first(LOCK);
    while is_full(
        &session
            .query(include_str!("../sql/fold_groups.sql"), params![STEP_MAX])
            .await?,
    )? {}
    failure_group::trim(session, groups_before).await?;
    tally_change::trim_actions(session, actions_before).await?;
    session.commit().await
}
