//! `windlass jobs wait`: waits until a job has finished.

use std::time::Duration;

use clap::Args;
use tokio::time::Instant;
use windlass_api::{Job, JobState};
use windlass_client::Client;
use windlass_core::{Invalid, JobId, format_duration, parse_duration};

use super::show::page;
use crate::backend::ApiArgs;
use crate::output::{FormatArgs, Output, word};

/// The longest wait of one request. Servers allow up to 60 s by default.
const REQUEST_WAIT_MAX: Duration = Duration::from_secs(20);

#[derive(Debug, Args)]
pub(crate) struct WaitForJob {
    /// The id of the job.
    id: JobId,

    /// How long to wait, such as `30s` [default: until the job has finished].
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

pub(super) async fn wait(
    args: &WaitForJob,
    client: &Client,
    output: &Output,
) -> anyhow::Result<()> {
    let format = output.format(&args.format)?;
    let timeout = args.timeout.as_deref().map(parse_duration).transpose();
    let timeout = timeout.map_err(|error| Invalid::new("--timeout", error.rule()))?;
    let job = until_finished(client, args.id, timeout).await?;
    output.print_one(format, &job, || page(&job, &[], format))?;
    match (job.state, timeout) {
        (JobState::Succeeded, _) => Ok(()),
        (state, Some(timeout)) if job.finished_at.is_none() => anyhow::bail!(
            "the job has not finished within {}; it is {}",
            format_duration(timeout),
            word(&state)
        ),
        (state, _) => anyhow::bail!("the job is {}", word(&state)),
    }
}

/// Asks again and again, because one request can only wait for a limited time.
async fn until_finished(
    client: &Client,
    id: JobId,
    timeout: Option<Duration>,
) -> anyhow::Result<Job> {
    let end = timeout.map(|timeout| Instant::now() + timeout);
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let wait = left.map_or(REQUEST_WAIT_MAX, |left| left.min(REQUEST_WAIT_MAX));
        // The API takes whole milliseconds.
        let wait = Duration::from_millis(u64::try_from(wait.as_millis())?.max(1));
        let job = client.wait_for_job(id, wait).await?;
        let is_over = end.is_some_and(|end| Instant::now() >= end);
        if job.finished_at.is_some() || is_over {
            return Ok(job);
        }
    }
}
