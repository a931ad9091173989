//! Schedules declared in code: the worker creates, changes and removes them when it starts.
#![expect(clippy::print_stdout, reason = "examples print")]

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::schedule::{Missed, Overlap};
use windlass::testing::TestKit;
use windlass::{Context, Error, Failure, Job, Schedule, Worker};

#[derive(Serialize, Deserialize)]
struct Report {
    name: String,
}

impl Job for Report {
    const KIND: &'static str = "report";
}

async fn report(job: Report, ctx: Context) -> Result<(), Failure> {
    let occurrence = ctx.job().occurrence;
    let scheduled_for = occurrence.map(|occurrence| occurrence.scheduled_for.to_string());
    println!("{} for {}", job.name, scheduled_for.unwrap_or_default());
    Ok(())
}

fn named(name: &str) -> Report {
    Report {
        name: name.to_owned(),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let kit = TestKit::new(); // its virtual clock starts at midnight UTC
    let worker = Worker::new(kit.client(), ()).handle(report).schedules(
        "reports",
        [
            Schedule::cron("nightly", "30 3 * * *", named("the night"))
                .timezone("Europe/Berlin")
                .missed(Missed::Once),
            Schedule::every("pulse", Duration::from_secs(2 * 3600), named("the pulse"))
                .overlap(Overlap::Skip),
        ],
    );
    let worker = kit.worker(worker).await?;
    let ran = worker.run_for(Duration::from_secs(6 * 3600)).await?;
    println!("{} reports", ran.attempts);
    Ok(())
}
