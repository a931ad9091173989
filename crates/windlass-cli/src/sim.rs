//! `windlass sim`: simulates the engine from many seeds, and checks what it promises.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::thread;

use anyhow::ensure;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use windlass_sim::{Bug, Campaign, Driver, Failure, Ingredient, Report, Shape};

use crate::clock;
use crate::output::Output;

#[derive(Debug, Args)]
#[command(
    after_help = "Each seed is a simulation of several nodes in virtual time, with random jobs and faults. The same seed and
flags always give the same history. If an invariant does not hold, the command prints the events that show
it and the command that repeats it, shrunk to the smallest such run, and exits with code 1."
)]
pub(crate) struct SimCommand {
    /// How many seeds to simulate.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,

    /// The first seed.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    from: u64,

    /// The store under the nodes.
    #[arg(long, value_enum, default_value = "memory")]
    driver: SimDriver,

    /// How many jobs clients submit in each simulation.
    #[arg(long, value_name = "N", default_value_t = Shape::default().jobs, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    jobs: u32,

    /// The most nodes. The seed may choose fewer.
    #[arg(long, value_name = "N", default_value_t = Shape::default().nodes, value_parser = clap::value_parser!(u32).range(1..=4))]
    nodes: u32,

    /// Leave out these faults and features, such as `kill,clock-jump`.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    without: Vec<Ingredient>,

    /// Plant a bug in the store, such as `fire-twice`, to see that it is found.
    #[arg(long, value_name = "BUG")]
    plant: Option<Bug>,

    /// Simulate every seed twice, and compare the histories.
    #[arg(long)]
    twice: bool,

    /// How many seeds to simulate at once. Defaults to the number of cores.
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SimDriver {
    /// In memory.
    Memory,
    /// An embedded SQLite file in a temporary directory.
    Sqlite,
}

/// What a campaign found and how fast it was.
#[derive(Debug, Serialize)]
struct SimResults {
    driver: &'static str,
    from: u64,
    seeds: u64,
    jobs: usize,
    succeeded: usize,
    events: usize,
    /// Equal for equal commands, on every machine.
    digest: String,
    failures: Vec<FailedSeed>,
    threads: usize,
    seconds: f64,
    /// Of processor time, so that other programs on the machine do not count.
    seeds_per_minute_and_core: f64,
}

#[derive(Debug, Serialize)]
struct FailedSeed {
    seed: u64,
    invariant: Option<&'static str>,
    repeat: String,
    text: String,
}

pub(crate) fn run(command: &SimCommand, output: &Output) -> anyhow::Result<()> {
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let campaign = Campaign {
        from: command.from,
        seeds: command.seeds,
        shape: command.shape(),
        threads: command.threads.map_or(cores, NonZeroUsize::get),
        twice: command.twice,
    };
    let bar = progress(command.seeds);
    let (started, used) = (clock::start(), clock::cpu_seconds());
    let report = campaign.run(|| bar.inc(1))?;
    let (seconds, used) = (started.elapsed().as_secs_f64(), clock::cpu_seconds() - used);
    bar.finish_and_clear();
    let results = SimResults::new(&campaign, &report, seconds, used);
    output.print(&results, &results)?;
    let failed = results.failures.len();
    ensure!(failed == 0, "{failed} of {} seeds failed", results.seeds);
    Ok(())
}

impl SimCommand {
    fn shape(&self) -> Shape {
        Shape {
            driver: match self.driver {
                SimDriver::Memory => Driver::Memory,
                SimDriver::Sqlite => Driver::Sqlite,
            },
            jobs: self.jobs,
            nodes: self.nodes,
            without: BTreeSet::from_iter(self.without.iter().copied()),
            planted: self.plant,
        }
    }
}

impl SimResults {
    fn new(campaign: &Campaign, report: &Report, seconds: f64, used: f64) -> Self {
        SimResults {
            driver: campaign.shape.driver.name(),
            from: campaign.from,
            seeds: report.seeds,
            jobs: report.jobs,
            succeeded: report.succeeded,
            events: report.events,
            digest: format!("{:016x}", report.digest),
            failures: report.failures.iter().map(FailedSeed::new).collect(),
            threads: campaign.threads,
            seconds,
            seeds_per_minute_and_core: report.seeds as f64 / used.max(0.01) * 60.0,
        }
    }
}

impl FailedSeed {
    fn new(failure: &Failure) -> Self {
        let flags = failure.shape.flags();
        let repeat = format!("windlass sim --seeds 1 --from {} {flags}", failure.seed);
        FailedSeed {
            seed: failure.seed,
            invariant: failure.invariant.map(|invariant| invariant.name()),
            repeat: repeat.trim_end().to_owned(),
            text: failure.text.clone(),
        }
    }
}

impl fmt::Display for SimResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for failure in &self.failures {
            writeln!(f, "seed {} failed; repeat it with:", failure.seed)?;
            writeln!(f, "  {}\n{}", failure.repeat, failure.text)?;
        }
        let (seeds, last) = (self.seeds, self.from.saturating_add(self.seeds) - 1);
        writeln!(
            f,
            "{seeds} seeds ({} to {last}) on {}, {} failed",
            self.from,
            self.driver,
            self.failures.len()
        )?;
        let (jobs, succeeded, events) = (self.jobs, self.succeeded, self.events);
        writeln!(f, "{jobs} jobs, {succeeded} succeeded, {events} events")?;
        writeln!(f, "digest of all histories {}", self.digest)?;
        let (seconds, per_core) = (self.seconds, self.seeds_per_minute_and_core);
        writeln!(
            f,
            "{seconds:.1} s with {} threads, {per_core:.0} seeds per minute and core",
            self.threads
        )
    }
}

fn progress(seeds: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {human_pos}/{human_len} {per_sec:>14}");
    let bar = ProgressBar::new(seeds);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
