//! What bulk actions and replays have in common: start one, follow it, and say how it ended.

mod follow;
mod preview;

use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use windlass_api::{ActionPreview, Body, BulkActionName, JobFilter};
use windlass_client::{Client, Error};
use windlass_core::{ActionCommand, ActionId, ActionState, QueueName, WaitingFor};

use crate::backend::{Api, ApiArgs};
use crate::body::body_of;
use crate::change::ChangeArgs;
use crate::filter::flag_of;
use crate::list::ListArgs;
use crate::output::{Cell, Format, FormatArgs, Listed, Output, Tone};

pub(crate) use preview::jobs;

/// A bulk action or a replay, as the REST API returns it.
pub(crate) trait Action: Listed {
    /// The body that creates one.
    type New;
    /// What one of them is called.
    const NAME: &'static str;
    /// The noun on the command line.
    const COMMAND: &'static str;

    fn action_id(&self) -> ActionId;
    fn state(&self) -> ActionState;
    fn matched(&self) -> u64;
    fn to_do(&self) -> u64;
    /// Why it stopped itself.
    fn stopped_because(&self) -> Option<String>;
    /// The page for people.
    fn page(&self, format: Format) -> String;

    async fn preview(client: &Client, new: &Self::New) -> Result<ActionPreview, Error>;
    async fn create(client: &Client, new: &Self::New) -> Result<Self, Error>;
    async fn read(client: &Client, id: ActionId) -> Result<Self, Error>;
    async fn command(client: &Client, id: ActionId, command: ActionCommand) -> Result<Self, Error>;
}

/// The flags of a command that lists actions.
#[derive(Debug, Args)]
pub(crate) struct ListActions {
    #[command(flatten)]
    pub(crate) list: ListArgs,

    #[command(flatten)]
    pub(crate) format: FormatArgs,

    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

/// The flags of a command about one action.
#[derive(Debug, Args)]
pub(crate) struct OneAction {
    /// The id of the action.
    id: ActionId,

    #[command(flatten)]
    format: FormatArgs,

    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

/// The flags of a command after which an action goes on.
#[derive(Debug, Args)]
pub(crate) struct GoOn {
    #[command(flatten)]
    pub(crate) one: OneAction,

    /// Wait until the action has ended or stopped.
    #[arg(long)]
    wait: bool,
}

/// Whether a command waits for the end of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    ForEnd,
    No,
}

impl Wait {
    pub(crate) fn of(flag: bool) -> Self {
        if flag { Wait::ForEnd } else { Wait::No }
    }
}

/// Returns what an action does and what it has done, as words before `12 jobs`.
pub(crate) fn words(action: BulkActionName) -> (&'static str, &'static str) {
    match action {
        BulkActionName::Revive => ("revive", "revived"),
        BulkActionName::RunNow => ("make due", "made due"),
        BulkActionName::Cancel => ("cancel", "cancelled"),
        BulkActionName::Delete => ("delete", "deleted"),
        BulkActionName::Resolve => ("resolve", "resolved"),
        BulkActionName::Move => ("move", "moved"),
        BulkActionName::Reprioritise => ("reprioritise", "reprioritised"),
        BulkActionName::Patch => ("patch", "patched"),
    }
}

/// Returns the body that creates an action. `flag` names the flag of a field outside the filter.
pub(crate) fn action_body<B: Body + DeserializeOwned>(
    mut fields: Value,
    filter: &JobFilter,
    flag: fn(&str) -> String,
) -> anyhow::Result<B> {
    if let Some(fields) = fields.as_object_mut() {
        fields.insert("filter".to_owned(), json!(filter));
    }
    body_of(fields, |field| {
        let in_filter = field.strip_prefix("filter.");
        in_filter.map_or_else(|| flag(field), flag_of)
    })
}

/// Starts an action, or prints what it would do. `verb` is what it does, such as `revive`.
pub(crate) async fn start<T: Action>(
    api: &Api,
    new: &T::New,
    verb: &str,
    change: &ChangeArgs,
    wait: Wait,
    (output, format): (&Output, Format),
) -> anyhow::Result<Option<T>> {
    let client = api.client();
    if change.dry_run {
        let preview = T::preview(client, new).await?;
        preview::print(&preview, verb, output, format)?;
        return Ok(None);
    }
    if !change.yes {
        let preview = T::preview(client, new).await?;
        let count = usize::try_from(preview.matched).unwrap_or(usize::MAX);
        change.confirm(verb, count, &preview::jobs(&preview))?;
    }
    let created = T::create(client, new).await?;
    Ok(Some(follow::follow(api, created, wait).await?))
}

/// Prints one action.
pub(crate) async fn show<T: Action>(
    args: &OneAction,
    client: &Client,
    output: &Output,
) -> anyhow::Result<()> {
    let format = output.format(&args.format)?;
    let action = T::read(client, args.id).await?;
    output.print_one(format, &action, || action.page(format))
}

/// Pauses or aborts an action.
pub(crate) async fn command<T: Action>(
    args: &OneAction,
    command: ActionCommand,
    client: &Client,
    output: &Output,
) -> anyhow::Result<()> {
    let format = output.format(&args.format)?;
    let action = T::command(client, args.id, command).await?;
    output.print_one(format, &action, || action.page(format))
}

/// Resumes or continues an action.
pub(crate) async fn go_on<T: Action>(
    args: &GoOn,
    command: ActionCommand,
    api: &Api,
    output: &Output,
) -> anyhow::Result<()> {
    let format = output.format(&args.one.format)?;
    let action = T::command(api.client(), args.one.id, command).await?;
    let action = follow::follow(api, action, Wait::of(args.wait)).await?;
    print_end(&action, output, format, || action.page(format))
}

/// Prints an action that was started. Fails if it did not reach its end.
pub(crate) fn print_end<T: Action>(
    action: &T,
    output: &Output,
    format: Format,
    text: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    output.print_one(format, action, text)?;
    let (name, id, to_do) = (T::NAME, action.action_id(), action.to_do());
    match action.state() {
        ActionState::Stopped => {
            let why = action.stopped_because().unwrap_or_default();
            let noun = T::COMMAND;
            anyhow::bail!(
                "{name} {id} stopped: {why}; {to_do} jobs were not touched; `windlass {noun} continue {id}` goes on, `windlass {noun} abort {id}` ends it"
            )
        }
        ActionState::Aborted => {
            anyhow::bail!("{name} {id} was aborted; {to_do} jobs were not touched")
        }
        ActionState::Running | ActionState::Paused | ActionState::Finished => Ok(()),
    }
}

/// Returns the cell of a state.
pub(crate) fn state(state: ActionState) -> Cell {
    let tone = match state {
        ActionState::Running => Tone::Busy,
        ActionState::Paused => Tone::Waiting,
        ActionState::Stopped => Tone::Bad,
        ActionState::Finished => Tone::Good,
        ActionState::Aborted => Tone::Faint,
    };
    Cell::new(state).tone(tone)
}

/// Returns what an action waits for, as a sentence without a subject.
pub(crate) fn waiting(waiting_for: WaitingFor, queue: Option<&QueueName>) -> String {
    let queue = queue.map_or_else(String::new, |queue| format!(" {queue}"));
    match waiting_for {
        WaitingFor::Counting => "counts the matching jobs".to_owned(),
        WaitingFor::Canary => "waits for the outcomes of the canary".to_owned(),
        WaitingFor::MaxPending => "waits for the outcomes of revived jobs".to_owned(),
        WaitingFor::LastOutcomes => "waits for the outcomes of the last revived jobs".to_owned(),
        WaitingFor::QueuePaused => format!("waits because queue{queue} is paused"),
        WaitingFor::QueueFull => format!("waits because queue{queue} is full"),
    }
}
