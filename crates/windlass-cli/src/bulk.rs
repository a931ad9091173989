//! `windlass bulk`: make one change to all jobs that match a filter.

mod start;
pub(crate) mod view;

use clap::Subcommand;
use windlass_api::{ActionPreview, BulkAction, BulkActionName, NewBulkAction};
use windlass_client::{Client, Error};
use windlass_core::{ActionCommand, ActionId, ActionState};

use crate::action::{self, Action, GoOn, ListActions, OneAction, Wait, words};
use crate::backend::{Api, ApiArgs, run_on_api};
use crate::change::ChangeArgs;
use crate::output::{Format, Output};

use start::StartBulk;

#[derive(Debug, Subcommand)]
pub(crate) enum BulkCommand {
    /// Start a bulk action: change all jobs that match the filters.
    Start(Box<StartBulk>),
    /// List bulk actions, newest first.
    List(ListActions),
    /// Show a bulk action: its progress and the jobs that it could not change.
    Show(OneAction),
    /// Pause a bulk action.
    Pause(OneAction),
    /// Resume a paused bulk action.
    Resume(GoOn),
    /// End a bulk action. Jobs that it changed stay as they are.
    Abort(OneAction),
}

impl BulkCommand {
    fn api(&self) -> &ApiArgs {
        match self {
            BulkCommand::Start(start) => &start.api,
            BulkCommand::List(list) => &list.api,
            BulkCommand::Show(one) | BulkCommand::Pause(one) | BulkCommand::Abort(one) => &one.api,
            BulkCommand::Resume(args) => &args.one.api,
        }
    }
}

pub(crate) fn run(command: &BulkCommand, output: &Output) -> anyhow::Result<()> {
    run_on_api(command.api(), async |api| {
        run_on(command, api, output).await
    })
}

async fn run_on(command: &BulkCommand, api: &Api, output: &Output) -> anyhow::Result<()> {
    let client = api.client();
    match command {
        BulkCommand::Start(start) => start::start(start, api, output).await,
        BulkCommand::List(args) => {
            let format = output.format(&args.format)?;
            let page = args.list.read(|| client.bulk_actions()).await?;
            output.print_list(format, &page)
        }
        BulkCommand::Show(one) => action::show::<BulkAction>(one, client, output).await,
        BulkCommand::Pause(one) => {
            action::command::<BulkAction>(one, ActionCommand::Pause, client, output).await
        }
        BulkCommand::Resume(args) => {
            action::go_on::<BulkAction>(args, ActionCommand::Resume, api, output).await
        }
        BulkCommand::Abort(one) => {
            action::command::<BulkAction>(one, ActionCommand::Abort, client, output).await
        }
    }
}

/// Changes all jobs that match a filter with a bulk action, and waits for its end.
pub(crate) async fn change_all(
    api: &Api,
    new: &NewBulkAction,
    change: &ChangeArgs,
    output: &Output,
    format: Format,
) -> anyhow::Result<()> {
    let (verb, done) = words(new.action.unwrap_or(BulkActionName::Revive));
    let printer = (output, format);
    let ended = action::start::<BulkAction>(api, new, verb, change, Wait::ForEnd, printer).await?;
    let Some(bulk) = ended else { return Ok(()) };
    action::print_end(&bulk, output, format, || {
        let mut text = format!("{done} {} jobs\n", bulk.done);
        if bulk.skipped > 0 {
            text.push_str(&format!(
                "left {} jobs alone; `windlass bulk show {}` says why\n",
                bulk.skipped, bulk.id
            ));
        }
        text
    })
}

impl Action for BulkAction {
    type New = NewBulkAction;
    const NAME: &'static str = "bulk action";
    const COMMAND: &'static str = "bulk";

    fn action_id(&self) -> ActionId {
        self.id
    }

    fn state(&self) -> ActionState {
        self.state
    }

    fn matched(&self) -> u64 {
        self.matched
    }

    fn to_do(&self) -> u64 {
        self.to_do
    }

    fn stopped_because(&self) -> Option<String> {
        None // only replays have stop rules
    }

    fn page(&self, format: Format) -> String {
        view::page(self, format)
    }

    async fn preview(client: &Client, new: &NewBulkAction) -> Result<ActionPreview, Error> {
        client.preview_bulk_action(new).await
    }

    async fn create(client: &Client, new: &NewBulkAction) -> Result<Self, Error> {
        client.create_bulk_action(new).await
    }

    async fn read(client: &Client, id: ActionId) -> Result<Self, Error> {
        client.bulk_action(id).await
    }

    async fn command(client: &Client, id: ActionId, command: ActionCommand) -> Result<Self, Error> {
        client.command_bulk_action(id, command).await
    }
}
