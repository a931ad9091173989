//! The command line: commands, global flags and completions.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use serde_json::json;

use crate::audit::AuditCommand;
use crate::backup::{BackupCommand, RestoreCommand};
#[cfg(feature = "bench")]
use crate::bench::BenchCommand;
use crate::bulk::BulkCommand;
use crate::config::ConfigCommand;
#[cfg(feature = "crashtest")]
use crate::crashtest::{CrashTestCommand, CrashTestWorker};
use crate::doctor::DoctorCommand;
use crate::enqueue::EnqueueCommand;
use crate::failures::FailuresCommand;
use crate::hooks::HooksCommand;
use crate::jobs::JobsCommand;
use crate::keys::KeysCommand;
use crate::migrate::MigrateCommand;
use crate::open::OpenCommand;
use crate::output::Output;
use crate::policy::PolicyCommand;
use crate::queues::QueuesCommand;
use crate::replay::ReplayCommand;
use crate::schedules::SchedulesCommand;
use crate::secrets::SecretsCommand;
use crate::serve::ServeCommand;
#[cfg(feature = "sim")]
use crate::sim::SimCommand;
use crate::stats::StatsCommand;
use crate::tail::TailCommand;
use crate::top::TopCommand;
use crate::worker::WorkerCommand;
use crate::workers::{ListWorkers, WorkersCommand};

/// A durable job queue and scheduler with predictable retries.
#[derive(Debug, Parser)]
#[command(
    name = "windlass",
    version,
    disable_help_subcommand = true,
    after_help = "Exit codes: 0 success, 1 failure, 2 invalid usage or an invalid value. Errors go to stderr."
)]
pub(crate) struct Cli {
    /// Print results and errors as JSON.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the server: REST API, schedules and HTTP jobs.
    Serve(ServeCommand),

    /// Check or print the configuration of the server.
    #[command(subcommand)]
    Config(ConfigCommand),

    /// Check the machine, the configuration, the store and the secrets, or a running server.
    Doctor(DoctorCommand),

    /// Create a job, or many jobs from a file.
    Enqueue(Box<EnqueueCommand>),

    /// List, explain, export and change jobs.
    #[command(subcommand)]
    Jobs(JobsCommand),

    /// List, pause, resume, limit and purge queues.
    #[command(subcommand)]
    Queues(QueuesCommand),

    /// List, create, change and preview schedules.
    #[command(subcommand, alias = "schedule")]
    Schedules(Box<SchedulesCommand>),

    /// List the causes of failures.
    #[command(subcommand)]
    Failures(FailuresCommand),

    /// Revive dead jobs step by step, and stop if they fail again.
    #[command(subcommand)]
    Replay(ReplayCommand),

    /// Make one change to all jobs that match a filter.
    #[command(subcommand)]
    Bulk(BulkCommand),

    /// List workers, and ask them to pause or stop.
    #[command(subcommand)]
    Workers(WorkersCommand),

    /// List the servers of the store and their configuration differences.
    Nodes(ListWorkers),

    /// Show what happened in the queues: counts, waiting and run times.
    Stats(StatsCommand),

    /// Print events as they happen.
    Tail(TailCommand),

    /// Show queues, failures, workers and replays, live in the terminal.
    Top(TopCommand),

    /// Run a worker with a simple handler, to try things.
    #[command(subcommand)]
    Worker(WorkerCommand),

    /// Report events to URLs: dead jobs, new causes, stopped replays, stalled queues.
    #[command(subcommand)]
    Hooks(HooksCommand),

    /// Print a single-use link to log in to the dashboard of a running server.
    Open(OpenCommand),

    /// Create, list and revoke API keys.
    #[command(subcommand)]
    Keys(KeysCommand),

    /// Manage the encrypted secrets that sign webhooks.
    #[command(subcommand)]
    Secrets(SecretsCommand),

    /// List and verify the audit log.
    #[command(subcommand)]
    Audit(AuditCommand),

    /// List and explain retry policies.
    #[command(subcommand)]
    Policy(PolicyCommand),

    /// Measure throughput and latency, compared with a baseline from the same run.
    #[cfg(feature = "bench")]
    #[command(subcommand)]
    Bench(BenchCommand),

    /// Kill servers, workers and the database at random, and check that no acknowledged job is lost.
    #[cfg(feature = "crashtest")]
    #[command(name = "crashtest")]
    CrashTest(CrashTestCommand),

    /// Run one worker of a crash test.
    #[cfg(feature = "crashtest")]
    #[command(name = "crashtest-worker", hide = true)]
    CrashTestWorker(CrashTestWorker),
    /// Simulate nodes, jobs and faults from many seeds, and check every promise.
    #[cfg(feature = "sim")]
    Sim(SimCommand),

    /// Create, update or inspect the schema of a PostgreSQL database.
    #[command(subcommand)]
    Migrate(MigrateCommand),

    /// Copy an embedded store to a new file, also while it is in use.
    Backup(BackupCommand),

    /// Restore an embedded store from a backup.
    Restore(RestoreCommand),

    /// Print a completion script for a shell.
    Completions {
        /// The shell that runs the script.
        shell: Shell,
    },

    /// Write man pages: one for `windlass` and one for each command.
    Man {
        /// The directory to write to, such as `/usr/local/share/man/man1`. It must exist.
        dir: PathBuf,
    },

    /// Print a generated page of the documentation.
    #[command(hide = true)]
    Reference {
        /// The page to print.
        page: Page,
    },
}

/// A page of `docs/` that is generated from the code.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Page {
    /// `docs/retry-policies.md`
    RetryPolicies,
    /// `docs/configuration.md`
    Configuration,
    /// `docs/metrics.md`
    Metrics,
    /// `docs/cli.md`
    Cli,
}

pub(crate) fn print_completions(shell: Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "windlass", &mut script);
    Ok(std::io::stdout().write_all(&script)?)
}

pub(crate) fn write_man_pages(dir: &Path, output: &Output) -> anyhow::Result<()> {
    clap_mangen::generate_to(Cli::command(), dir)
        .with_context(|| format!("cannot write man pages to {}", dir.display()))?;
    let text = format!("wrote man pages to {}\n", dir.display());
    output.print(&json!({"dir": dir}), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
