//! `windlass backup` and `windlass restore`: copy an embedded store and put the copy back.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use windlass_sqlite::Existing;

use crate::config::restrict_new_files;
use crate::output::Output;

#[derive(Debug, Args)]
#[command(
    after_help = "The copy is a consistent snapshot, also while another process writes to the store."
)]
pub(crate) struct BackupCommand {
    /// The file of the store.
    from: PathBuf,

    /// The file to create. It must not exist yet.
    to: PathBuf,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The command first verifies the backup. It fails while a process has the store open: stop the
server first."
)]
pub(crate) struct RestoreCommand {
    /// The backup, a file that `windlass backup` created.
    from: PathBuf,

    /// The file of the store to create or replace.
    to: PathBuf,

    /// Replace an existing store. All its jobs are lost.
    #[arg(long)]
    replace: bool,
}

pub(crate) fn run(command: &BackupCommand, output: &Output) -> anyhow::Result<()> {
    refuse_url(&command.from, "pg_dump")?;
    anyhow::ensure!(
        command.from.exists(),
        "no store exists at {}",
        command.from.display()
    );
    anyhow::ensure!(
        !command.to.exists(),
        "{} already exists; name a new file",
        command.to.display()
    );
    windlass_sqlite::backup(&command.from, &command.to)?;
    print_file(&command.to, output)
}

pub(crate) fn restore(command: &RestoreCommand, output: &Output) -> anyhow::Result<()> {
    for path in [&command.from, &command.to] {
        refuse_url(path, "pg_restore")?;
    }
    restrict_new_files();
    let existing = if command.replace {
        Existing::Replace
    } else {
        Existing::Keep
    };
    let restored = windlass_sqlite::restore(&command.from, &command.to, existing);
    if let Err(windlass_store::StoreError::Exists { path }) = &restored {
        anyhow::bail!("a store already exists at {path}; add `--replace` to replace it");
    }
    restored?;
    print_file(&command.to, output)
}

/// Refuses the URL of a PostgreSQL database, which has its own tools.
fn refuse_url(path: &Path, tool: &str) -> anyhow::Result<()> {
    let text = path.to_string_lossy();
    let is_database = text.starts_with("postgres://") || text.starts_with("postgresql://");
    anyhow::ensure!(
        !is_database,
        "this command works on SQLite files; for PostgreSQL, use `{tool}`"
    );
    Ok(())
}

fn print_file(path: &Path, output: &Output) -> anyhow::Result<()> {
    let bytes = std::fs::metadata(path)?.len();
    let path = path.display().to_string();
    let text = format!("{path}: {bytes} bytes\n");
    output.print(&json!({"path": path, "bytes": bytes}), text)
}
