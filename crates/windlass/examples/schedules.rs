//! Schedules declared in code: created at the start, changed by name, removed when they are gone from the code.
#![expect(clippy::print_stdout, reason = "examples print")]

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::schedule::{Missed, Overlap};
use windlass::testing::TestKit;
use windlass::{Context, Error, Failure, Job, Schedule, Worker};

#[derive(Serialize, Deserialize)]
struct Report {
    of: String,
}

impl Job for Report {
    const KIND: &'static str = "report";
}

async fn report(job: Report, ctx: Context) -> Result<(), Failure> {
    let occurrence = ctx.job().occurrence.map(|of| of.scheduled_for.to_string());
    println!("{} for {}", job.of, occurrence.unwrap_or_default());
    Ok(())
}

fn of(what: &str) -> Report {
    Report {
        of: what.to_owned(),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let kit = TestKit::new(); // its clock starts at midnight UTC, and six hours pass at once
    let worker = Worker::new(kit.client(), ()).handle(report).schedules(
        "reports",
        [
            Schedule::cron("nightly", "30 3 * * *", of("the night"))
                .timezone("Europe/Berlin")
                .missed(Missed::Once),
            Schedule::every("pulse", Duration::from_secs(2 * 3600), of("the pulse"))
                .overlap(Overlap::Skip),
        ],
    );
    let worker = kit.worker(worker).await?;
    let ran = worker.run_for(Duration::from_secs(6 * 3600)).await?;
    println!("{} reports", ran.attempts);
    Ok(())
}
