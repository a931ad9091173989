//! `windlass bench`: figures, each beside something measured in the same run.

mod baseline;
mod load;
mod postgres;
mod store;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::output::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Durable enqueues, claims and settles from concurrent clients, beside the bare disk, bare SQLite or bare PostgreSQL.
    Store(StoreBench),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct StoreBench {
    /// Which driver.
    #[arg(long, value_enum, default_value = "sqlite")]
    pub(crate) driver: Driver,

    /// The file to use, which must not be there yet; a temporary one if not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) path: Option<PathBuf>,

    /// The PostgreSQL database to use, which must not hold any jobs yet.
    #[arg(long, value_name = "URL", required_if_eq("driver", "postgres"))]
    pub(crate) url: Option<String>,

    /// How many jobs are measured in each part.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) jobs: u64,

    /// How many ready jobs wait beside them.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=20_000_000))]
    pub(crate) backlog: u64,

    /// How many jobs wait beside them whose time has not come.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=20_000_000))]
    pub(crate) future: u64,

    /// How many jobs a client handles in one step.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) batch: u32,

    /// How many clients at once.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) clients: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Driver {
    /// In memory: nothing is durable.
    Memory,
    /// An embedded SQLite file.
    Sqlite,
    /// A PostgreSQL database.
    Postgres,
}

pub(crate) fn run(command: &BenchCommand, output: &Output) -> anyhow::Result<()> {
    match command {
        BenchCommand::Store(bench) => store::run(bench, output),
    }
}
