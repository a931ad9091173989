//! `windlass backup`: a copy of an embedded store.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::output::Output;

/// Copies a store to a new file, whole as of one moment, also while another process uses it.
#[derive(Debug, Args)]
pub(crate) struct BackupCommand {
    /// The store's file.
    from: PathBuf,

    /// The copy, which must not be there yet. To restore it, put it where the store was while nothing uses it.
    to: PathBuf,
}

pub(crate) fn run(command: &BackupCommand, output: &Output) -> anyhow::Result<()> {
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
    let bytes = std::fs::metadata(&command.to)?.len();
    let to = command.to.display().to_string();
    let text = format!("{to}: {bytes} bytes\n");
    output.print(&json!({"path": to, "bytes": bytes}), text)
}
