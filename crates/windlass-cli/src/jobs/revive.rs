//! `windlass jobs revive`: runs dead or cancelled jobs again.

use clap::Args;
use windlass_api::{BulkActionName, DurationText, JobFilter, NewBulkAction, Revival};
use windlass_core::{Invalid, QueueName, Timestamp, parse_duration};

use super::change::{bulk_reason, each, filter_instead, ids, print};
use crate::backend::{Api, ApiArgs};
use crate::bulk::change_all;
use crate::change::{ChangeArgs, Failures, RevivalArgs};
use crate::clock;
use crate::filter::FilterArgs;
use crate::output::{FormatArgs, Output};

#[derive(Debug, Args)]
pub(crate) struct ReviveJobs {
    /// The ids of the jobs, or `-` to read them from stdin. Without ids, the filters select jobs,
    /// and only dead ones unless `--state` is given.
    #[arg(value_name = "ID")]
    ids: Vec<String>,

    /// What happens to the failure count of each job: `reset` gives it all its attempts again, `keep`
    /// changes nothing.
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "reset",
        hide_possible_values = true
    )]
    failures: Failures,

    /// The earliest start, such as 2026-01-01T00:00:00Z [default: now].
    #[arg(long, value_name = "TIME", conflicts_with = "delay")]
    run_at: Option<Timestamp>,

    /// The earliest start, counted from now, such as `10m`.
    #[arg(long, value_name = "DURATION")]
    delay: Option<String>,

    /// Also revive at-most-once jobs that were lost and may have run.
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    changes: RevivalArgs,

    /// The queue to move each job to [default: each job stays in its queue].
    #[arg(long, value_name = "QUEUE")]
    to_queue: Option<QueueName>,

    /// New priority of each job, from -32768 to 32767.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i16>,

    /// With a filter: why, for the audit log and other operators [default: `windlass jobs revive`].
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    #[command(flatten)]
    change: ChangeArgs,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    filter: FilterArgs,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

impl ReviveJobs {
    fn revival(&self) -> Result<Revival, Invalid> {
        let delay = self.delay.as_deref().map(parse_duration).transpose();
        let delay = delay.map_err(|error| Invalid::new("--delay", error.rule()))?;
        Ok(Revival {
            failures: Some(self.failures.into()),
            run_at: self.run_at,
            delay: delay.map(DurationText),
            force: Some(self.force),
            max_attempts: self.changes.limit(),
            retry: self.changes.retry()?,
            queue: self.to_queue.clone(),
            priority: self.priority,
            ..Revival::default()
        })
    }

    /// Returns the bulk action that revives all jobs that match a filter.
    fn bulk_action(&self, filter: JobFilter, revival: Revival) -> Result<NewBulkAction, Invalid> {
        let delayed = revival
            .delay
            .map(|delay| clock::now().saturating_add(delay.0));
        Ok(NewBulkAction {
            action: Some(BulkActionName::Revive),
            filter: Some(filter),
            reason: Some(bulk_reason(self.reason.as_deref(), "windlass jobs revive")?),
            failures: revival.failures,
            run_at: revival.run_at.or(delayed),
            force: revival.force,
            max_attempts: revival.max_attempts,
            retry: revival.retry,
            queue: revival.queue,
            priority: revival.priority,
            ..NewBulkAction::default()
        })
    }
}

pub(super) async fn revive(revive: &ReviveJobs, api: &Api, output: &Output) -> anyhow::Result<()> {
    let format = output.format(&revive.format)?;
    let revival = revive.revival()?;
    if let Some(filter) = filter_instead(&revive.ids, revive.reason.as_deref(), &revive.filter)? {
        let new = revive.bulk_action(filter, revival)?;
        return change_all(api, &new, &revive.change, output, format).await;
    }
    let (client, ids) = (api.client(), ids(&revive.ids)?);
    if revive.change.dry_run {
        let forecast = async |id| {
            let why = client.why(id).await?;
            let error = match &why.revive {
                Some(forecast) if forecast.allowed => None,
                Some(forecast) => {
                    let texts: Vec<&str> = forecast
                        .refusals
                        .iter()
                        .map(|one| one.text.as_str())
                        .collect();
                    Some(texts.join("; "))
                }
                None => Some("only dead and cancelled jobs can be revived".to_owned()),
            };
            Ok((Some(why.state), error))
        };
        return print(output, format, each("checked", &ids, forecast).await?);
    }
    let jobs = format!("{} jobs", ids.len());
    revive.change.confirm("revive", ids.len(), &jobs)?;
    let revive = async |id| Ok((Some(client.revive_job(id, &revival).await?.state), None));
    print(output, format, each("revived", &ids, revive).await?)
}
