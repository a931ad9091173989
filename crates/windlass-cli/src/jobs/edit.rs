//! `windlass jobs edit`: changes a waiting job.

use clap::Args;
use serde_json::{Value, json};
use windlass_api::{Edit, Job};
use windlass_client::Client;
use windlass_core::{Invalid, JobId, QueueName, Timestamp};

use super::show::page;
use crate::backend::ApiArgs;
use crate::body::{body_of, flag_of_field, given};
use crate::job_args::PayloadArgs;
use crate::output::{Cell, FormatArgs, Output, table, word};

#[derive(Debug, Args)]
pub(crate) struct EditJob {
    /// The id of the job.
    id: JobId,

    #[command(flatten)]
    payload: PayloadArgs,

    /// The new priority, from -32768 to 32767.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i16>,

    /// The new earliest start, such as 2026-01-01T00:00:00Z.
    #[arg(long, value_name = "TIME", conflicts_with = "delay")]
    run_at: Option<Timestamp>,

    /// The new earliest start, counted from now, such as `10m`.
    #[arg(long, value_name = "DURATION")]
    delay: Option<String>,

    /// The queue to move the job to.
    #[arg(long, value_name = "QUEUE")]
    queue: Option<QueueName>,

    /// Show what would change, and change nothing.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

impl EditJob {
    fn edit(&self) -> anyhow::Result<Edit> {
        let fields = json!({
            "priority": self.priority,
            "run_at": self.run_at,
            "delay": self.delay,
            "queue": self.queue,
        });
        let is_empty = given(fields.clone()).is_empty() && !self.payload.is_given();
        let rule = "must be given, or another field to change";
        anyhow::ensure!(!is_empty, Invalid::new("--payload", rule));
        let edit: Edit = body_of(fields, flag_of_field)?;
        Ok(Edit {
            payload: self.payload.read()?,
            ..edit
        })
    }
}

pub(super) async fn edit(args: &EditJob, client: &Client, output: &Output) -> anyhow::Result<()> {
    let format = output.format(&args.format)?;
    let edit = args.edit()?;
    if args.dry_run {
        let job = client.job(args.id).await?;
        let is_waiting = job.run_at.is_some();
        anyhow::ensure!(
            is_waiting,
            "the job is {}; only waiting jobs can be changed",
            word(&job.state)
        );
        let (text, after) = (changes(&job, &edit), &edit);
        return output.print(&json!({"before": job, "change": after}), text);
    }
    let job = client.edit_job(args.id, &edit).await?;
    output.print_one(format, &job, || page(&job, &[], format))
}

/// Returns a table of the fields that an edit changes.
fn changes(job: &Job, edit: &Edit) -> String {
    let before = json!({
        "payload": job.payload, "priority": job.priority, "queue": job.queue,
        "run_at": job.run_at, "delay": null,
    });
    let row = |(name, value): (String, Value)| {
        let before = before.get(&name).filter(|value| !value.is_null());
        vec![
            Cell::new(&name),
            Cell::optional(before.map(word)),
            Cell::new(word(&value)),
        ]
    };
    let rows = given(json!(edit)).into_iter().map(row);
    table(&["field", "before", "after"], rows.collect())
}
