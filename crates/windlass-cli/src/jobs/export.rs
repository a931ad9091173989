//! `windlass jobs export`: all matching jobs as JSON lines.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use windlass_api::JobFilter;
use windlass_client::Client;

use crate::backend::ApiArgs;
use crate::config::restrict_new_files;
use crate::filter::FilterArgs;
use crate::output::json_line;
use crate::progress::progress;

/// The number of jobs of each request.
const PAGE: usize = 1000;

#[derive(Debug, Args)]
pub(crate) struct ExportJobs {
    /// Write to this file instead of stdout. It must not exist.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    #[command(flatten)]
    filter: FilterArgs,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

pub(super) async fn export(export: &ExportJobs, client: &Client) -> anyhow::Result<()> {
    let filter = export.filter.to_filter()?;
    let Some(path) = &export.output else {
        let stdout = BufWriter::new(std::io::stdout());
        write_jobs(client, &filter, stdout).await?;
        return Ok(());
    };
    restrict_new_files(); // jobs can contain personal data
    let file = File::create_new(path);
    let file = file.with_context(|| format!("cannot create {}", path.display()))?;
    let written = write_jobs(client, &filter, BufWriter::new(&file)).await;
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
    mut writer: impl Write,
) -> anyhow::Result<u64> {
    let bar = progress("exported", None);
    let mut pages = client.jobs(filter).limit(PAGE);
    while let Some(page) = pages.next_page().await? {
        for job in &page.data {
            writeln!(writer, "{}", json_line(job)?)?;
            bar.inc(1);
        }
    }
    writer.flush()?;
    bar.finish_and_clear();
    Ok(bar.position())
}
