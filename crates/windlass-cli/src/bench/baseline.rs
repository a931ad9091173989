//! What the machine can do at best: the bare disk, and bare SQLite.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use rusqlite::{Connection, params};

use crate::clock;

/// Appends so many bytes for each job to one file, with so many syncs; jobs per second.
pub(super) fn disk(path: &Path, jobs: u64, bytes_per_job: u64, syncs: u64) -> anyhow::Result<f64> {
    let mut file = OpenOptions::new()
        .create_new(true)
        .append(true)
        .open(path)?;
    let groups = syncs.clamp(1, jobs);
    let bytes = vec![b'x'; usize::try_from((jobs * bytes_per_job / groups).max(1))?];
    let started = clock::start();
    for _ in 0..groups {
        file.write_all(&bytes)?;
        file.sync_data()?;
    }
    let per_second = jobs as f64 / started.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok(per_second)
}

/// Inserts the same rows into one table without any index, in as many groups, with the same settings; jobs per second. It is
/// over so soon that one look would say little: the middle one of several counts.
pub(super) fn sqlite(folder: &Path, jobs: u64, payload: &str, groups: u64) -> anyhow::Result<f64> {
    const LOOKS: usize = 5;
    let mut rates = Vec::with_capacity(LOOKS);
    for look in 0..LOOKS {
        let folder = folder.join(format!("bare-{look}"));
        std::fs::create_dir(&folder)?;
        rates.push(insert_rows(&folder.join("bare.db"), jobs, payload, groups)?);
        std::fs::remove_dir_all(&folder)?;
    }
    rates.sort_by(f64::total_cmp);
    rates
        .get(LOOKS / 2)
        .copied()
        .ok_or_else(|| anyhow::anyhow!("nothing was measured"))
}

fn insert_rows(path: &Path, jobs: u64, payload: &str, groups: u64) -> anyhow::Result<f64> {
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "page_size", windlass_sqlite::PAGE_BYTES)?;
    connection.query_row("pragma journal_mode = wal", [], |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "cache_size", -32 * 1024)?;
    connection.execute_batch(
        "create table rows (id blob, queue, kind, priority, run_at, created_at, checksum, payload)",
    )?;
    let per_group = jobs.div_ceil(groups.clamp(1, jobs));
    let started = clock::start();
    let mut inserted = 0;
    while inserted < jobs {
        connection.execute_batch("begin immediate")?;
        let mut insert = connection
            .prepare_cached("insert into rows values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?;
        for number in inserted..(inserted + per_group).min(jobs) {
            let id = u128::from(number).to_be_bytes();
            let number = i64::try_from(number)?;
            insert.execute(params![id, 1, 2, 0, number, number, number, payload])?;
        }
        drop(insert);
        connection.execute_batch("commit")?;
        inserted += per_group;
    }
    Ok(jobs as f64 / started.elapsed().as_secs_f64())
}
