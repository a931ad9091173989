//! `windlass jobs clone`: creates a new job like an existing one.

use clap::Args;
use serde_json::{Map, Value, json};
use windlass_api::Job;
use windlass_client::Client;
use windlass_core::{JobId, Kind};

use crate::backend::ApiArgs;
use crate::body::given;
use crate::enqueue::print_receipt;
use crate::job_args::{JobFlags, PayloadArgs, new_job};
use crate::output::{FormatArgs, Output};

#[derive(Debug, Args)]
#[command(
    after_help = "The new job has the kind, payload, queue, priority, delivery, limits, tags and metadata of the old
one, and no failures. It is due now and has no unique key and no deadline, unless you give them."
)]
pub(crate) struct CloneJob {
    /// The id of the job.
    id: JobId,

    /// Another kind.
    #[arg(long, value_name = "KIND")]
    kind: Option<Kind>,

    #[command(flatten)]
    payload: PayloadArgs,

    /// Show the job that would be created, and create nothing.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    job: JobFlags,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

pub(super) async fn clone(args: &CloneJob, client: &Client, output: &Output) -> anyhow::Result<()> {
    let format = output.format(&args.format)?;
    let given_payload = args.payload.read()?;
    let job = client.job(args.id).await?;
    let mut fields = fields_of(&job);
    fields.extend(args.job.fields()?);
    if let Some(kind) = &args.kind {
        fields.insert("kind".to_owned(), kind.as_str().into());
    }
    let payload = match given_payload {
        Some(payload) => Some(payload),
        None if args.job.is_http() => {
            fields.remove("kind"); // `--http-url` sets it, and replaces the payload
            None
        }
        None => {
            anyhow::ensure!(
                !job.payload_withheld,
                "the API key lacks the scope `read-payload`, so it cannot copy the payload; give another one with `--payload`"
            );
            job.payload
        }
    };
    let new = new_job(fields, payload)?;
    if args.dry_run {
        let text = format!("would create {}\n", serde_json::to_string(&new)?);
        return output.print(&new, text);
    }
    print_receipt(&client.create_job(&new).await?, output, format)
}

/// Returns the fields that a new job takes from an existing one.
fn fields_of(job: &Job) -> Map<String, Value> {
    // Windlass writes metadata of its own, which a client cannot set.
    let meta = job
        .meta
        .iter()
        .filter(|(name, _)| !name.starts_with("windlass."));
    let meta: Map<String, Value> = meta
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    given(json!({
        "kind": job.kind,
        "queue": job.queue,
        "priority": job.priority,
        "delivery": job.delivery,
        "max_attempts": job.max_attempts,
        "retry": job.retry,
        "timeout": job.timeout,
        "concurrency_key": job.concurrency_key,
        "limit": job.limit,
        "tags": job.tags,
        "meta": meta,
    }))
}
