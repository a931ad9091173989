//! Baselines: the bare disk, and bare SQLite.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use rusqlite::{Connection, params};

use crate::clock;

/// Appends `bytes_per_job` for each job to one file, with `syncs` syncs in total; returns jobs per
/// second.
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

/// Inserts the same rows into one table without an index, in `groups` transactions and with the
/// settings of the store; returns jobs per second.
pub(super) fn sqlite(folder: &Path, jobs: u64, payload: &str, groups: u64) -> anyhow::Result<f64> {
    std::fs::create_dir(folder)?;
    let connection = Connection::open(folder.join("bare.db"))?;
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
    let per_second = jobs as f64 / started.elapsed().as_secs_f64();
    drop(connection);
    std::fs::remove_dir_all(folder)?;
    Ok(per_second)
}

/// Returns the median time of a small write and its sync.
pub(super) fn sync_ms(path: &Path) -> anyhow::Result<f64> {
    const SAMPLES: usize = 51;
    let mut file = OpenOptions::new()
        .create_new(true)
        .append(true)
        .open(path)?;
    let mut times = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        let started = clock::start();
        file.write_all(&[b'x'; 4096])?;
        file.sync_data()?;
        times.push(started.elapsed().as_secs_f64() * 1000.0);
    }
    std::fs::remove_file(path)?;
    times.sort_by(f64::total_cmp);
    Ok(times.get(SAMPLES / 2).copied().unwrap_or(0.0))
}
