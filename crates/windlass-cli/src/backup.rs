//! `windlass backup` and `windlass restore`: copies of an embedded store.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use windlass_sqlite::Existing;

use crate::config::restrict_new_files;
use crate::output::Output;

/// Copies a store to a new file, whole as of one moment, also while another process uses it.
#[derive(Debug, Args)]
pub(crate) struct BackupCommand {
    /// The store's file.
    from: PathBuf,

    /// The copy, which must not be there yet. `windlass restore` puts it back.
    to: PathBuf,
}

/// Puts a backup in place of a store. Checks that the backup is whole, removes the log of the store
/// that was there, and refuses while a server has the store open.
#[derive(Debug, Args)]
pub(crate) struct RestoreCommand {
    /// The backup, as `windlass backup` made it.
    from: PathBuf,

    /// The store's file.
    to: PathBuf,

    /// Replace the store that is there.
    #[arg(long)]
    replace: bool,
}

pub(crate) fn run(command: &BackupCommand, output: &Output) -> anyhow::Result<()> {
    refuse_url(&command.from, "pg_dump")?;
    anyhow::ensure!(
        command.from.exists(),
        "there is no store at {}",
        command.from.display()
    );
    anyhow::ensure!(
        !command.to.exists(),
        "{} is there already: name a new file",
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
    let existing = match command.replace {
        true => Existing::Replace,
        false => Existing::Keep,
    };
    let restored = windlass_sqlite::restore(&command.from, &command.to, existing);
    if let Err(windlass_store::StoreError::Exists { path }) = &restored {
        anyhow::bail!("there is a store at {path} already: add `--replace` to replace it");
    }
    restored?;
    print_file(&command.to, output)
}

/// These commands are for files; a database has tools of its own.
fn refuse_url(path: &Path, tool: &str) -> anyhow::Result<()> {
    let text = path.to_string_lossy();
    let is_database = text.starts_with("postgres://") || text.starts_with("postgresql://");
    anyhow::ensure!(
        !is_database,
        "this command is for SQLite files: use `{tool}` for PostgreSQL"
    );
    Ok(())
}

fn print_file(path: &Path, output: &Output) -> anyhow::Result<()> {
    let bytes = std::fs::metadata(path)?.len();
    let path = path.display().to_string();
    let text = format!("{path}: {bytes} bytes\n");
    output.print(&json!({"path": path, "bytes": bytes}), text)
}
