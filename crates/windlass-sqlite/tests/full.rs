//! A really full disk: acknowledged jobs stay, purging and pausing work, and the store resumes
//! automatically.
//!
//! The disk is a small tmpfs that this program mounts in its own mount namespace. Users other than
//! root need a user namespace too.
#![expect(
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test without a harness prints its own result, and what a test may, its helpers may"
)]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use windlass_core::{Job, JobId, Report};
use windlass_sqlite::SqliteStore;
use windlass_store::conformance::build::*;
use windlass_store::{Change, Changed, Pause, QueueLimits, StoreError};

const DISK_MIB: usize = 192;

fn main() {
    if let Some(folder) = std::env::args().nth(1).filter(|word| word.starts_with('/')) {
        return on_small_disk(Path::new(&folder));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().to_str().expect("a path that is text");
    let program = std::env::current_exe().expect("this program");
    let mounts = |flags: &str, run: &str| {
        let mount = format!("mount -t tmpfs -o size={DISK_MIB}m windlass {folder} && {run}");
        let mut shell = Command::new("unshare");
        shell.args([flags, "sh", "-c", &mount, "sh"]).arg(&program);
        shell.arg(folder);
        shell
    };
    let flags = ["-m", "-Urm"];
    let allowed = flags.into_iter().find(|flags| {
        mounts(flags, "true")
            .output()
            .is_ok_and(|done| done.status.success())
    });
    let flags = allowed.expect("a user that may mount in a namespace of its own: see `unshare`");
    let ran = mounts(flags, "exec \"$@\"").status();
    assert!(ran.expect("it starts").success());
    println!("1 passed, 0 failed");
}

fn on_small_disk(folder: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let path = folder.join("jobs.db");
        let open = || Arc::new(SqliteStore::open(&path, at(0), 0).expect("it opens")) as Opened;
        let store = open();
        let done = finish_jobs(&store, 0..400).await;
        let filler = folder.join("filler");
        fill(&filler);
        let acknowledged = enqueue_until_full(&store, 1000).await;
        check_full(&store).await;
        // An operator can pause a queue and purge jobs, and the audit log records both.
        let paused = QueueLimits {
            paused: Some(Pause {
                by: "ann".to_owned(),
                at: at(1),
                reason: None,
            }),
            ..QueueLimits::default()
        };
        let limits = store.put_queue(&queue("default"), &paused, None).await;
        assert!(limits.expect("a full disk lets a queue be paused"));
        let note = serde_json::json!({"paused": "default"});
        store
            .append("audit", &[note], at(1))
            .await
            .expect("it is recorded");
        check_full(&store).await;
        for ids in done.chunks(20) {
            let purged = store
                .change(ids, &Change::Purge, None, at(4))
                .await
                .expect("a full disk lets jobs be purged");
            assert!(purged.iter().all(|changed| *changed == Changed::Removed));
        }
        // The disk is still full, but the file has free pages inside, and the store uses them.
        assert!(beats(&store).await.is_ok(), "there is room inside the file");
        let more = enqueue_until_full(&store, 5000).await;
        assert!(more.len() > 50, "only {} jobs fit", more.len());
        check_full(&store).await;
        std::fs::remove_file(&filler).expect("a filler");
        assert!(beats(&store).await.is_ok(), "there is space again");
        put(&store, jobs(9000..9100)).await;
        drop(store);
        let store = open();
        for id in acknowledged.iter().chain(&more) {
            let found = store.get(&[*id]).await.expect("it answers");
            assert!(
                found[0].is_some(),
                "job {id} was acknowledged but is missing"
            );
        }
        let queues = store.queues().await.expect("it answers");
        assert!(queues[&queue("default")].paused.is_some());
        // A process that starts on a full disk can use the reserve of the previous process.
        drop(store);
        let mut file = std::fs::File::create(&filler).expect("a file");
        while std::io::Write::write_all(&mut file, &[1; 4096]).is_ok() {}
        let store = open();
        let waiting = &acknowledged[..3];
        let cancelled = store
            .change(waiting, &Change::Cancel, None, at(3))
            .await
            .expect("it is cancelled");
        assert!(
            cancelled
                .iter()
                .all(|changed| matches!(changed, Changed::Now(_)))
        );
        let purged = store
            .change(waiting, &Change::Purge, None, at(4))
            .await
            .expect("it can be cleaned up");
        assert!(purged.iter().all(|changed| *changed == Changed::Removed));
    });
}

fn large(number: u64) -> Job {
    Job {
        payload: payload(&format!("\"{}\"", "x".repeat(100_000))),
        ..job(number)
    }
}

/// Jobs that succeeded, 100 KB each.
async fn finish_jobs(store: &Opened, numbers: std::ops::Range<u64>) -> Vec<JobId> {
    let ids = numbers.clone().map(id).collect();
    for number in numbers {
        put(store, vec![large(number)]).await;
        let running = take_one(store, at(0)).await;
        settle_one(store, &running, Report::Succeeded(None), at(1)).await;
    }
    ids
}

/// Fills the disk except for a little space.
fn fill(path: &Path) {
    use std::io::Write as _;
    let mut file = std::fs::File::create(path).expect("a file");
    while file.write_all(&[1; 64 * 1024]).is_ok() {}
    let bytes = file.metadata().expect("its length").len();
    file.set_len(bytes - 4 * 1024 * 1024)
        .expect("a shorter one");
}

async fn enqueue_until_full(store: &Opened, first: u64) -> Vec<JobId> {
    let mut stored = Vec::new();
    for number in first..first + 4000 {
        match enqueue_one(store, large(number), at(0)).await {
            Ok(_) => stored.push(id(number)),
            Err(StoreError::StorageFull(_)) => return stored,
            Err(error) => panic!("{error:?}"),
        }
    }
    panic!("the disk is never full")
}

async fn beats(store: &Opened) -> Result<(), StoreError> {
    store.beat("node", &serde_json::json!({}), at(2)).await
}

/// Checks that heartbeats and enqueues, even of small jobs, fail because the disk is full.
async fn check_full(store: &Opened) {
    for _ in 0..3 {
        let beat = beats(store).await;
        assert!(matches!(beat, Err(StoreError::StorageFull(_))), "{beat:?}");
        let small = enqueue_one(store, job(8000), at(0)).await;
        assert!(
            matches!(small, Err(StoreError::StorageFull(_))),
            "{small:?}"
        );
    }
    assert!(store.counts(at(0)).await.is_ok(), "it can be looked at");
}
