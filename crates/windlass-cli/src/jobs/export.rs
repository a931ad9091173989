//! `windlass jobs export`: all matching jobs, as JSON lines or as a table.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use windlass_api::{ExportFormat, JobFilter};
use windlass_client::Client;

use crate::backend::ApiArgs;
use crate::config::restrict_new_files;
use crate::filter::FilterArgs;
use crate::progress::progress;

#[derive(Debug, Args)]
pub(crate) struct ExportJobs {
    /// Write to this file instead of stdout. It must not exist.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Write JSON, one job on each line, or a table for spreadsheets.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "ndjson")]
    format: Format,

    #[command(flatten)]
    filter: FilterArgs,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Ndjson,
    Csv,
}

impl From<Format> for ExportFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Ndjson => ExportFormat::Ndjson,
            Format::Csv => ExportFormat::Csv,
        }
    }
}

pub(super) async fn export(export: &ExportJobs, client: &Client) -> anyhow::Result<()> {
    let filter = export.filter.to_filter()?;
    let format = export.format.into();
    let Some(path) = &export.output else {
        let stdout = BufWriter::new(std::io::stdout());
        write_jobs(client, &filter, format, stdout).await?;
        return Ok(());
    };
    restrict_new_files(); // jobs can contain personal data
    let file = File::create_new(path);
    let file = file.with_context(|| format!("cannot create {}", path.display()))?;
    let written = write_jobs(client, &filter, format, BufWriter::new(&file)).await;
    let written = written.map_err(|error| remove_part(path, error))?;
    file.sync_all()?;
    writeln!(
        std::io::stderr(),
        "exported {written} jobs to {}",
        path.display()
    )?;
    Ok(())
}

/// Removes a file that has only some of the jobs, so that no one takes it for all of them.
fn remove_part(path: &Path, error: anyhow::Error) -> anyhow::Error {
    match std::fs::remove_file(path) {
        Ok(()) => error,
        Err(_) => error.context(format!("{} is incomplete", path.display())),
    }
}

/// Writes all matching jobs, newest first. Returns their number.
async fn write_jobs(
    client: &Client,
    filter: &JobFilter,
    format: ExportFormat,
    mut writer: impl Write,
) -> anyhow::Result<u64> {
    let bar = progress("exported", None);
    let mut rows = Rows::default();
    let mut export = client.export_jobs(filter, format).await?;
    while let Some(part) = export.next().await? {
        writer.write_all(&part)?;
        match format {
            ExportFormat::Ndjson => bar.inc(1),
            ExportFormat::Csv => bar.set_position(rows.count(&part).saturating_sub(1)),
        }
    }
    writer.flush()?;
    bar.finish_and_clear();
    Ok(bar.position())
}

/// Counts the rows of a table, whose cells can contain line ends.
#[derive(Default)]
struct Rows {
    count: u64,
    is_quoted: bool,
}

impl Rows {
    /// Counts the rows that end in a piece of the table. Returns the number of all rows.
    fn count(&mut self, piece: &[u8]) -> u64 {
        for byte in piece {
            match byte {
                b'"' => self.is_quoted = !self.is_quoted,
                b'\n' if !self.is_quoted => self.count += 1,
                _ => {}
            }
        }
        self.count
    }
}
