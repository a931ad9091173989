//! What can be said on the command line.

use std::io::Write as _;

use clap::{CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::audit::AuditCommand;
use crate::backup::{BackupCommand, RestoreCommand};
#[cfg(feature = "bench")]
use crate::bench::BenchCommand;
use crate::config::ConfigCommand;
use crate::doctor::DoctorCommand;
use crate::keys::KeysCommand;
use crate::migrate::MigrateCommand;
use crate::policy::PolicyCommand;
use crate::schedule::ScheduleCommand;
use crate::secrets::SecretsCommand;
use crate::serve::ServeCommand;

/// A durable job queue and scheduler whose heart is retrying right.
#[derive(Debug, Parser)]
#[command(
    name = "windlass",
    version,
    disable_help_subcommand = true,
    after_help = "Exit codes: 0 done, 1 failed, 2 refused: the input breaks a rule, which is named on stderr."
)]
pub(crate) struct Cli {
    /// Print JSON, for programs.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(ServeCommand),

    /// Look at the configuration of the server.
    #[command(subcommand)]
    Config(ConfigCommand),

    Doctor(DoctorCommand),

    /// Make, list and revoke API keys.
    #[command(subcommand)]
    Keys(KeysCommand),

    /// Keep secrets, encrypted.
    #[command(subcommand)]
    Secrets(SecretsCommand),

    /// See what operators did, and whether the log is whole.
    #[command(subcommand)]
    Audit(AuditCommand),

    /// See what a retry policy will do before it does.
    #[command(subcommand)]
    Policy(PolicyCommand),

    /// See when a schedule will fire.
    #[command(subcommand)]
    Schedule(ScheduleCommand),

    /// Measure, beside something measured in the same run.
    #[cfg(feature = "bench")]
    #[command(subcommand)]
    Bench(BenchCommand),

    /// Bring the schema of a PostgreSQL database up to date.
    #[command(subcommand)]
    Migrate(MigrateCommand),

    /// Copy an embedded store while it is in use.
    Backup(BackupCommand),

    /// Put a backup in place of an embedded store.
    Restore(RestoreCommand),

    /// Print completions for a shell.
    Completions {
        /// The shell to complete in.
        shell: Shell,
    },

    /// Print a generated page of the documentation.
    #[command(hide = true)]
    Reference {
        /// Which page.
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
}

pub(crate) fn print_completions(shell: Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "windlass", &mut script);
    Ok(std::io::stdout().write_all(&script)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_holds_together() {
        Cli::command().debug_assert();
    }
}
