//! `windlass enqueue`: create one job, or many from a file.

mod many;

use std::path::PathBuf;

use clap::Args;
use windlass_api::{NewJob, Receipt};
use windlass_client::Client;
use windlass_core::Kind;

use crate::backend::{ApiArgs, run_on_api};
use crate::job_args::{JobFlags, flag_of_job_field, new_job, none_with, read_payload};
use crate::output::{Cell, Column, Format, FormatArgs, Listed, Output, Tone};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass enqueue email:send '{\"to\": \"a@example.com\"}' --queue mail --delay 10m
  windlass enqueue --http-url https://example.com/hook --http-body '{\"id\": 17}'
  windlass jobs export --state dead | jq -c '{kind, payload, queue}' | windlass enqueue --from -")]
pub(crate) struct EnqueueCommand {
    /// The kind of the job, which selects the handler.
    #[arg(required_unless_present_any = ["from", "http_url"], conflicts_with = "from")]
    kind: Option<Kind>,

    /// The payload as JSON, or `-` to read it from stdin [default: null].
    #[arg(allow_negative_numbers = true, conflicts_with_all = ["from", "http_url"])]
    payload: Option<String>,

    /// A file with the payload.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["payload", "from", "http_url"])]
    payload_file: Option<PathBuf>,

    /// Create many jobs: a file with one job on each line, as JSON like that of `POST /api/v1/jobs`;
    /// `-` is stdin.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,

    /// With `--from`: create no job at all if one of them is refused. Up to 10000 jobs.
    #[arg(long, requires = "from")]
    all_or_none: bool,

    /// Create nothing twice if the same command runs again with this key within 24 hours.
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,

    /// Check the jobs, and create none.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    job: JobFlags,

    #[command(flatten)]
    api: ApiArgs,
}

impl EnqueueCommand {
    fn new_job(&self) -> anyhow::Result<NewJob> {
        let payload = self.payload.as_deref();
        let payload = read_payload(("PAYLOAD", payload), self.payload_file.as_deref())?;
        let mut fields = self.job.fields()?;
        if let Some(kind) = &self.kind {
            fields.insert("kind".to_owned(), kind.as_str().into());
        }
        new_job(fields, payload)
    }
}

pub(crate) fn run(command: &EnqueueCommand, output: &Output) -> anyhow::Result<()> {
    let format = output.format(&command.format)?;
    if let Some(path) = &command.from {
        none_with("--from", &command.job.fields()?, flag_of_job_field)?;
        return many::enqueue(command, path, output, format);
    }
    let job = command.new_job()?;
    if command.dry_run {
        let text = format!("would create {}\n", serde_json::to_string(&job)?);
        return output.print(&job, text);
    }
    run_on_api(&command.api, async |api| {
        let client = with_key(api.client(), command.idempotency_key.as_deref());
        print_receipt(&client.create_job(&job).await?, output, format)
    })
}

/// Prints the result of creating a job.
pub(crate) fn print_receipt(
    receipt: &Receipt,
    output: &Output,
    format: Format,
) -> anyhow::Result<()> {
    output.print_one(format, receipt, || {
        let id = receipt.id;
        match result(receipt) {
            CREATED => format!("created job {id}\n"),
            other => format!("created no job: job {id} holds the unique key ({other})\n"),
        }
    })
}

fn with_key(client: &Client, key: Option<&str>) -> Client {
    match key {
        Some(key) => client.idempotency_key(key),
        None => client.clone(),
    }
}

const CREATED: &str = "created";

/// Returns the result of creating a job.
fn result(receipt: &Receipt) -> &'static str {
    match (receipt.duplicate, receipt.replaced, receipt.payload_differs) {
        (false, ..) => CREATED,
        (true, true, _) => "it got the new payload and time",
        (true, false, Some(true)) => "its payload differs",
        (true, false, _) => "it is unchanged",
    }
}

impl Listed for Receipt {
    const NOUN: &'static str = "jobs";

    fn columns() -> Vec<Column<Receipt>> {
        vec![
            Column::new("id", |receipt, _| Cell::new(receipt.id)),
            Column::new("result", |receipt, _| {
                let tone = if receipt.duplicate {
                    Tone::Waiting
                } else {
                    Tone::Plain
                };
                Cell::new(result(receipt)).tone(tone)
            }),
        ]
    }

    fn id(&self) -> String {
        self.id.to_string()
    }
}
