//! `windlass bench operators`: what operators do with many dead jobs.

mod bulk;
pub(super) mod fill;
mod reads;

use std::fmt;

use serde::Serialize;
use windlass::Client;
use windlass::admin::engine_of;

use super::run::{Percentiles, open_error};
use super::{OperatorsBench, runtime, store_url};
use crate::clock;
use crate::output::Output;
use bulk::BulkResult;
use reads::ReadResult;

/// The measurements.
#[derive(Debug, Serialize)]
struct OperatorsResults {
    jobs: u64,
    failure_groups: usize,
    fill_s: f64,
    reads: Vec<ReadResult>,
    /// How long fresh jobs take to reach their handler without a bulk action.
    calm_ms: Percentiles,
    actions: Vec<BulkResult>,
}

pub(super) fn run(bench: &OperatorsBench, output: &Output) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let url = store_url(bench.store.as_deref(), folder.path());
    let runtime = runtime()?;
    let results = runtime.block_on(measure(bench, &url))?;
    output.print(&results, &results)
}

async fn measure(bench: &OperatorsBench, url: &str) -> anyhow::Result<OperatorsResults> {
    let client = Client::open(url).await.map_err(open_error)?;
    let store = engine_of(&client).store();
    anyhow::ensure!(
        store.counts(clock::now()).await?.is_empty(),
        "the store already holds jobs; use an empty one"
    );
    let started = clock::start();
    let deep = fill::dead_jobs(store, bench.jobs, fill::GROUPS).await?;
    let fill_s = started.elapsed().as_secs_f64();
    let failure_groups = reads::failure_groups(store).await?.len();
    let reads = reads::measure(store, bench.reads, deep).await?;
    let calm_ms = bulk::calm(&client, bench.seconds).await?;
    let actions = bulk::measure(&client, bench).await?;
    Ok(OperatorsResults {
        jobs: bench.jobs,
        failure_groups,
        fill_s,
        reads,
        calm_ms,
        actions,
    })
}

impl fmt::Display for OperatorsResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} dead jobs in {} failure groups, stored in {:.0} s\n",
            self.jobs, self.failure_groups, self.fill_s
        )?;
        writeln!(
            f,
            "{:32} {:>5} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "read", "jobs", "examined", "p50 ms", "p99 ms", "CPU ms", "pages"
        )?;
        for read in &self.reads {
            let Percentiles { p50, p99 } = read.ms;
            writeln!(
                f,
                "{:32} {:>5} {:>9} {p50:>9.1} {p99:>9.1} {:>9.1} {:>9}",
                read.name, read.jobs, read.examined, read.cpu_ms, read.page
            )?;
        }
        writeln!(
            f,
            "\n{:32} {:>9} {:>9} {:>17} {:>17}",
            "bulk action", "jobs", "jobs/s", "pick-up p50 ms", "pick-up p99 ms"
        )?;
        let Percentiles { p50, p99 } = self.calm_ms;
        writeln!(
            f,
            "{:32} {:>9} {:>9} {p50:>17.1} {p99:>17.1}",
            "none", "", ""
        )?;
        for action in &self.actions {
            let (name, jobs, rate) = (action.name, action.jobs, action.jobs_per_s);
            write!(f, "{name:32} {jobs:>9} {rate:>9.0}")?;
            match action.pick_up_ms {
                Some(Percentiles { p50, p99 }) => writeln!(f, " {p50:>17.1} {p99:>17.1}")?,
                None => writeln!(f, " {:>17} {:>17}", "-", "-")?,
            }
        }
        Ok(())
    }
}
