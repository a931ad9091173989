//! `windlass schedules put` and `edit`.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value, json};
use windlass_api::{NewJob, NewSchedule, SchedulePatch, ScheduleView, read_body, read_body_with};
use windlass_client::Client;
use windlass_core::{Invalid, Kind, ScheduleName};

use super::fields::{OccurrenceArgs, RuleArgs, flag};
use super::view::print;
use crate::backend::ApiArgs;
use crate::body::{first_flag, given, read_input};
use crate::clock;
use crate::job_args::{JobFlags, PayloadArgs, flag_of_job_field, new_job, none_with};
use crate::output::{FormatArgs, Output};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  windlass schedules put nightly --cron '0 2 * * *' --tz Europe/Berlin --kind report --queue reports
  windlass schedules put ping --every 90s --http-url https://example.com/ping
  windlass schedules put nightly --file nightly.json")]
pub(crate) struct PutSchedule {
    /// The name of the schedule.
    name: ScheduleName,

    /// A file with the schedule as JSON, like the body of `PUT /api/v1/schedules/NAME`; `-` is stdin.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kind", "paused", "payload", "payload_file"])]
    file: Option<PathBuf>,

    /// The kind of the jobs.
    #[arg(long, value_name = "KIND", required_unless_present_any = ["file", "http_url"])]
    kind: Option<Kind>,

    #[command(flatten)]
    payload: PayloadArgs,

    /// Create the schedule paused: it does not fire until it is resumed.
    #[arg(long)]
    paused: bool,

    /// Refuse to replace a schedule that exists.
    #[arg(long)]
    new: bool,

    /// Check the schedule, and change nothing.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    rule: RuleArgs,

    #[command(flatten)]
    occurrences: OccurrenceArgs,

    #[command(flatten)]
    job: JobFlags,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The value `default` resets a field of the schedule. A new rule (--cron, --every or --at) replaces the old
one. Flags of the job change only the fields that are given."
)]
pub(crate) struct EditSchedule {
    /// The name or the id of the schedule.
    name: String,

    /// The kind of the jobs.
    #[arg(long, value_name = "KIND")]
    kind: Option<Kind>,

    #[command(flatten)]
    payload: PayloadArgs,

    /// Show the change, and change nothing.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    rule: RuleArgs,

    #[command(flatten)]
    occurrences: OccurrenceArgs,

    #[command(flatten)]
    job: JobFlags,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

impl PutSchedule {
    /// Returns the schedule. Checks it as the server does, to name the flag that breaks a rule.
    fn new_schedule(&self) -> anyhow::Result<NewSchedule> {
        let mut fields = self.rule.fields();
        fields.extend(self.occurrences.fields());
        let mut job = self.job.fields()?;
        if let Some(path) = &self.file {
            none_with("--file", &fields, flag)?;
            none_with("--file", &job, flag_of_job_field)?;
            let text = read_input("--file", path)?;
            return self.read_file(&text);
        }
        job.extend(
            self.kind
                .as_ref()
                .map(|kind| ("kind".to_owned(), json!(kind))),
        );
        fields.extend(given(json!({
            "name": self.name, "paused": self.paused.then_some(true), "job": job,
        })));
        fields.retain(|_, value| !value.is_null());
        let text = Value::Object(fields).to_string();
        let checked = read_body::<NewSchedule>(&text, clock::now());
        checked.map_err(|refused| first_flag(refused, flag))?;
        let mut new: NewSchedule = serde_json::from_str(&text)?;
        if let (Some(payload), Some(job)) = (self.payload.read()?, &mut new.job) {
            job.payload = Some(payload);
        }
        Ok(new)
    }

    /// Reads a schedule from a file. The name comes from the command line.
    fn read_file(&self, text: &str) -> anyhow::Result<NewSchedule> {
        let refused = |rule: String| Invalid::new("--file", rule);
        let mut new: NewSchedule = serde_json::from_str(text)
            .map_err(|error| refused(format!("must be a schedule as JSON: {error}")))?;
        let other_name = new.name.replace(self.name.clone());
        anyhow::ensure!(
            other_name.is_none_or(|name| name == self.name),
            refused("must have the same `name` as the command line, or none".to_owned())
        );
        let text = serde_json::to_string(&new)?;
        let checked = read_body::<NewSchedule>(&text, clock::now());
        checked.map_err(|found| {
            let first = first_flag(found, str::to_owned);
            refused(format!("`{}` {}", first.field(), first.rule()))
        })?;
        Ok(new)
    }
}

pub(super) async fn put(
    args: &PutSchedule,
    client: &Client,
    output: &Output,
) -> anyhow::Result<()> {
    output.format(&args.format)?;
    let new = args.new_schedule()?;
    if args.dry_run {
        let text = format!("would store {}\n", serde_json::to_string(&new)?);
        return output.print(&new, text);
    }
    let schedule = if args.new {
        client.create_schedule(&new).await?
    } else {
        let put = serde_json::from_str(&serde_json::to_string(&new)?)?; // has the same fields
        client.put_schedule(&args.name, &put).await?
    };
    print(
        &ScheduleView::Readable(Box::new(schedule)),
        &args.format,
        output,
    )
}

impl EditSchedule {
    /// Returns the changes. Reads the schedule if a flag changes its job, because a patch replaces
    /// the whole job.
    async fn patch(&self, client: &Client) -> anyhow::Result<SchedulePatch> {
        let mut fields = self.rule.fields();
        fields.extend(self.occurrences.fields());
        let job_fields = self.job.fields()?;
        let changes_job = !job_fields.is_empty() || self.kind.is_some() || self.payload.is_given();
        let rule = "must be given, or another field to change";
        let is_empty = fields.is_empty() && !changes_job;
        anyhow::ensure!(!is_empty, Invalid::new("--cron", rule));
        let text = Value::Object(fields).to_string();
        let patch = read_body_with(&text, clock::now(), |patch, _| Some(patch));
        let mut patch: SchedulePatch = patch.map_err(|refused| first_flag(refused, flag))?;
        if changes_job {
            patch.job = Some(Some(self.job(client, job_fields).await?));
        }
        Ok(patch)
    }

    /// Returns the job of the schedule with the fields that are given.
    async fn job(&self, client: &Client, fields: Map<String, Value>) -> anyhow::Result<NewJob> {
        let stored = match client.schedule(&self.name).await? {
            ScheduleView::Readable(schedule) => schedule,
            ScheduleView::Unreadable(schedule) => anyhow::bail!(
                "the server cannot read the schedule ({}); replace it with `windlass schedules put`",
                schedule.error
            ),
        };
        let given_payload = self.payload.read()?;
        let keeps_payload = given_payload.is_none() && !self.job.is_http();
        anyhow::ensure!(
            !(stored.payload_withheld && keeps_payload),
            "the API key lacks the scope `read-payload`, so it cannot keep the payload of the job; give it with `--payload`"
        );
        let payload = given_payload.or(stored.job.payload.clone().filter(|_| keeps_payload));
        let mut job = given(json!(NewJob {
            payload: None,
            ..stored.job
        }));
        // Fields that exclude each other: the given one replaces the stored one.
        for (name, other) in [
            ("deadline", "expires_in"),
            ("expires_in", "deadline"),
            ("delay", "run_at"),
            ("run_at", "delay"),
            ("http", "kind"),
        ] {
            if fields.contains_key(name) {
                job.remove(other);
            }
        }
        job.extend(fields);
        job.extend(
            self.kind
                .as_ref()
                .map(|kind| ("kind".to_owned(), json!(kind))),
        );
        new_job(job, payload)
    }
}

pub(super) async fn edit(
    args: &EditSchedule,
    client: &Client,
    output: &Output,
) -> anyhow::Result<()> {
    output.format(&args.format)?;
    let patch = args.patch(client).await?;
    if args.dry_run {
        let text = format!("would change {}\n", serde_json::to_string(&patch)?);
        return output.print(&patch, text);
    }
    let schedule = client.edit_schedule(&args.name, &patch).await?;
    print(
        &ScheduleView::Readable(Box::new(schedule)),
        &args.format,
        output,
    )
}
