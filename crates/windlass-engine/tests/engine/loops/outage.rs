//! The log during an outage of the store: every loop says that it fails, and none floods the log.

use tracing::Level;
use windlass_testkit::running::{Running, takes};
use windlass_testkit::world::{new_job, seconds, worker};

use crate::log::Lines;

#[tokio::test(start_paused = true)]
async fn in_an_outage_each_loop_logs_a_line_every_ten_seconds() {
    let (lines, _kept) = Lines::at(Level::WARN);
    let mut run = Running::new();
    run.start(worker(5).with("a", takes(20.0)));
    let id = run.enqueue(new_job("a")).await;
    run.until("started", id).await;
    run.store.away();
    tokio::time::sleep(seconds(200.0)).await;
    for message in [
        "claim failed",
        "settle failed",
        "renewing leases failed",
        "sweep failed",
        "firing schedules failed",
        "reading queue settings failed",
    ] {
        let logged = lines.with(message);
        let count = logged.len();
        assert!((1..=21).contains(&count), "{message}: {count} lines");
    }
    let all = lines.with("WARN").len();
    assert!(all <= 400, "{all} lines in 200 s");
    // About one claim a second fails, and the lines say how many of them they stand for.
    let claims = lines.with("claim failed");
    let last = claims.last().unwrap();
    let has_count = last.contains("suppressed=") && !last.contains("suppressed=0");
    assert!(has_count, "{last}");
}
