//! Stores with many failed jobs, and their files as schema version 1 would have written them.

use std::path::Path;

use rusqlite::Connection;
use windlass_core::{AttemptError, Failure, Outcome, Report};
use windlass_sqlite::PAGE_BYTES;
use windlass_store::conformance::build::*;

/// Enqueues and claims jobs. A third dies, a third waits for a retry, a sixth succeeds at once and
/// a sixth is lost.
pub(crate) async fn fill(store: &Opened, count: u64) {
    put(store, jobs(0..count)).await;
    let causes = ["refused", "timed out", "no such table", "out of memory"];
    let count = u32::try_from(count).expect("a small number");
    let running = take(store, count, at(1)).await;
    let causes = causes.into_iter().cycle();
    let reports = running.iter().zip(0..).zip(causes);
    let reports = reports.filter_map(|((job, position), cause)| {
        let error = || AttemptError::new(cause);
        let end = match position % 6 {
            0 | 1 => Report::Failed(Failure::unrecoverable(error())),
            2 | 3 => Report::Failed(Failure::retryable(error())),
            4 => Report::Succeeded(None),
            _ => return None,
        };
        Some(report(job, end))
    });
    let settled = store.settle(reports.collect(), at(2)).await;
    settled.expect("it settles");
    let swept = store.sweep(10_000, at(60), 0).await.expect("it sweeps");
    let lost = |outcome| outcome == Outcome::Lost;
    assert!(swept.lost.iter().any(|(_, end)| lost(end.outcome)));
}

/// Copies a store to a new file with schema version 1.
pub(crate) fn downgrade(from: &Path, to: &Path) {
    let file = Connection::open(to).expect("a new file");
    let from = from.to_str().expect("a path that is text");
    file.pragma_update(None, "page_size", PAGE_BYTES)
        .expect("it is new");
    file.execute("attach ?1 as newer", [from])
        .expect("the store");
    let script = include_str!("../../migrations/0001_jobs.sql");
    file.execute_batch(script).expect("the script runs");
    for table in names(
        &file,
        "select name from sqlite_schema where type = 'table' and name not like 'sqlite%'",
    ) {
        let columns = names(
            &file,
            &format!("select name from pragma_table_info('{table}')"),
        );
        let columns = columns.join(", ");
        let copy =
            format!("insert into main.{table} ({columns}) select {columns} from newer.{table}");
        file.execute_batch(&copy).expect("the rows");
    }
    let id: i64 = file
        .query_row("pragma newer.application_id", [], |row| row.get(0))
        .expect("the id");
    file.pragma_update(None, "application_id", id)
        .expect("the id");
    file.pragma_update(None, "user_version", 1)
        .expect("the version");
}

fn names(file: &Connection, sql: &str) -> Vec<String> {
    let mut statement = file.prepare(sql).expect("a query");
    let names = statement.query_map([], |row| row.get(0)).expect("rows");
    names.collect::<Result<_, _>>().expect("texts")
}
