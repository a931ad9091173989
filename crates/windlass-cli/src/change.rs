//! What all commands that change jobs share: `--dry-run`, `--reason`, and the question before a
//! change of several jobs.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use clap::{Args, ValueEnum};
use windlass_api::{BoundedInt, FailureCount, Reason, Retry};
use windlass_core::{DeadReason, Invalid};

/// The flags of a command that can change several jobs.
#[derive(Debug, Clone, Args)]
pub(crate) struct ChangeArgs {
    /// Show what would change, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Change more than one job without asking.
    #[arg(long, short = 'y')]
    pub(crate) yes: bool,
}

impl ChangeArgs {
    /// Asks before a change of more than one job, such as `revive` of `12 jobs`.
    pub(crate) fn confirm(&self, verb: &str, count: usize, jobs: &str) -> anyhow::Result<()> {
        if self.yes || count <= 1 {
            return Ok(());
        }
        let answer = ask(&format!("{verb} {jobs}"), &format!("{verb} {jobs}? [y/N] "))?;
        let is_yes = matches!(answer.as_str(), "y" | "Y" | "yes");
        anyhow::ensure!(is_yes, "not confirmed; nothing was changed");
        Ok(())
    }

    /// Asks for the name of what is changed, before a change that cannot be undone.
    pub(crate) fn confirm_name(&self, verb: &str, name: &str) -> anyhow::Result<()> {
        if self.yes {
            return Ok(());
        }
        let question = format!("This cannot be undone. To {verb}, type {name}: ");
        let answer = ask(verb, &question)?;
        anyhow::ensure!(answer == name, "not confirmed; nothing was changed");
        Ok(())
    }
}

/// Asks a question on the terminal.
///
/// # Errors
///
/// Without a terminal no one can answer, so `--yes` is required.
fn ask(verb: &str, question: &str) -> anyhow::Result<String> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        let rule = format!("is required to {verb} without a terminal to ask on");
        return Err(Invalid::new("--yes", rule).into());
    }
    write!(std::io::stderr(), "{question}")?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(answer.trim().to_owned())
}

/// Returns the value of `--reason`: why an operator acts.
///
/// # Errors
///
/// Refuses the reasons that jobs die for. Who gives one means the filter, and the action would
/// change more jobs than that.
pub(crate) fn reason(text: &str) -> Result<Reason, Invalid> {
    if text.parse::<DeadReason>().is_ok() {
        let rule = format!(
            "says why you act; to select jobs that are dead for a reason, use `--dead-reason {text}`"
        );
        return Err(Invalid::new("--reason", rule));
    }
    Reason::new(text.to_owned()).map_err(|rule| Invalid::new("--reason", rule))
}

/// The fields of jobs that a revival changes.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct RevivalArgs {
    /// New limit of attempts of each job that may fail in all. With `--failures keep`, those that
    /// failed before count.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) max_attempts: Option<u32>,

    /// New retry policy of each job: the name of a preset, or a policy as JSON.
    #[arg(long, value_name = "POLICY")]
    pub(crate) retry: Option<String>,
}

impl RevivalArgs {
    /// The limit as the API takes it.
    pub(crate) fn limit(&self) -> Option<BoundedInt<1, 1000>> {
        BoundedInt::new(self.max_attempts?.into())
    }

    /// The policy as the API takes it.
    pub(crate) fn retry(&self) -> Result<Option<Retry>, Invalid> {
        let Some(text) = &self.retry else {
            return Ok(None);
        };
        let value = match text.trim_start().starts_with('{') {
            true => serde_json::from_str(text),
            false => serde_json::from_value(text.clone().into()),
        };
        let rule = "must be the name of a preset (see `windlass policy list`) or a policy as JSON";
        let invalid = |error| Invalid::new("--retry", format!("{rule}: {error}"));
        value.map(Some).map_err(invalid)
    }
}

/// What a revival does to the failure count.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Failures {
    Reset,
    Keep,
}

impl From<Failures> for FailureCount {
    fn from(failures: Failures) -> Self {
        match failures {
            Failures::Reset => FailureCount::Reset,
            Failures::Keep => FailureCount::Keep,
        }
    }
}
