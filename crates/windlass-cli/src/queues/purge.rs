//! `windlass queues purge`: deletes the finished jobs of a queue.

use clap::{Args, ValueEnum};
use serde_json::json;
use windlass_api::{JobFilter, JobState, NewBulkAction};
use windlass_core::QueueName;

use crate::action::{action_body, jobs};
use crate::backend::{Api, ApiArgs};
use crate::body::flag_of_field;
use crate::bulk::change_all;
use crate::change::{ChangeArgs, reason};
use crate::output::{FormatArgs, Output};

#[derive(Debug, Args)]
#[command(
    after_help = "Deletes jobs that have finished, with a bulk action that the audit log keeps. To empty a queue, first cancel its waiting jobs: `windlass jobs cancel --queue QUEUE`."
)]
pub(crate) struct PurgeQueue {
    /// The name of the queue.
    queue: QueueName,

    /// Delete jobs in this state: succeeded, dead or cancelled.
    #[arg(long, value_name = "STATE", hide_possible_values = true)]
    state: FinishedState,

    /// Why, for the audit log and other operators [default: `windlass queues purge`].
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "windlass queues purge",
        hide_default_value = true
    )]
    reason: String,

    #[command(flatten)]
    change: ChangeArgs,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    pub(super) api: ApiArgs,
}

/// A state in which a job can be deleted.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum FinishedState {
    Succeeded,
    Dead,
    Cancelled,
}

impl From<FinishedState> for JobState {
    fn from(state: FinishedState) -> Self {
        match state {
            FinishedState::Succeeded => JobState::Succeeded,
            FinishedState::Dead => JobState::Dead,
            FinishedState::Cancelled => JobState::Cancelled,
        }
    }
}

pub(super) async fn purge(args: &PurgeQueue, api: &Api, output: &Output) -> anyhow::Result<()> {
    let format = output.format(&args.format)?;
    let client = api.client();
    client.queue(&args.queue).await?; // fails if it does not exist
    let new = args.action()?;
    if !args.change.dry_run && !args.change.yes {
        let matched = client.preview_bulk_action(&new).await?;
        let verb = format!("delete {} of queue {}", jobs(&matched), args.queue);
        args.change.confirm_name(&verb, args.queue.as_str())?;
    }
    // The name was typed, so that no second question is needed.
    let change = ChangeArgs {
        yes: true,
        ..args.change.clone()
    };
    change_all(api, &new, &change, output, format).await
}

impl PurgeQueue {
    fn action(&self) -> anyhow::Result<NewBulkAction> {
        let filter: JobFilter = serde_json::from_value(json!({
            "queue": self.queue, "state": JobState::from(self.state),
        }))?;
        let fields = json!({"action": "delete", "reason": reason(&self.reason)?});
        action_body(fields, &filter, flag_of_field)
    }
}
