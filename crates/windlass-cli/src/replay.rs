//! `windlass replay`: revive dead jobs step by step, and stop if they fail again.

mod start;
mod view;

use clap::Subcommand;
use windlass_api::{ActionPreview, NewReplay, Replay};
use windlass_client::{Client, Error};
use windlass_core::{ActionCommand, ActionId, ActionState, StopReason};

use crate::action::{self, Action, GoOn, ListActions, OneAction};
use crate::backend::{Api, ApiArgs, run_on_api};
use crate::output::{Format, Output};

use start::StartReplay;

#[derive(Debug, Subcommand)]
pub(crate) enum ReplayCommand {
    /// Start a replay: revive a few dead jobs, then the others at a rate.
    Start(Box<StartReplay>),
    /// List replays, newest first.
    List(ListActions),
    /// Show a replay: its progress, its outcomes and its rules.
    Show(OneAction),
    /// Pause a replay. Revived jobs stay as they are.
    Pause(OneAction),
    /// Resume a paused replay.
    Resume(GoOn),
    /// End a replay. Revived jobs stay as they are.
    Abort(OneAction),
    /// Continue a replay that stopped itself, with a new canary.
    Continue(GoOn),
}

impl ReplayCommand {
    fn api(&self) -> &ApiArgs {
        match self {
            ReplayCommand::Start(start) => &start.api,
            ReplayCommand::List(list) => &list.api,
            ReplayCommand::Show(one) | ReplayCommand::Pause(one) | ReplayCommand::Abort(one) => {
                &one.api
            }
            ReplayCommand::Resume(args) | ReplayCommand::Continue(args) => &args.one.api,
        }
    }
}

pub(crate) fn run(command: &ReplayCommand, output: &Output) -> anyhow::Result<()> {
    run_on_api(command.api(), async |api| {
        run_on(command, api, output).await
    })
}

async fn run_on(command: &ReplayCommand, api: &Api, output: &Output) -> anyhow::Result<()> {
    let client = api.client();
    match command {
        ReplayCommand::Start(start) => start::start(start, api, output).await,
        ReplayCommand::List(args) => {
            let format = output.format(&args.format)?;
            let page = args.list.read(|| client.replays()).await?;
            output.print_list(format, &page)
        }
        ReplayCommand::Show(one) => action::show::<Replay>(one, client, output).await,
        ReplayCommand::Pause(one) => {
            action::command::<Replay>(one, ActionCommand::Pause, client, output).await
        }
        ReplayCommand::Resume(args) => {
            action::go_on::<Replay>(args, ActionCommand::Resume, api, output).await
        }
        ReplayCommand::Abort(one) => {
            action::command::<Replay>(one, ActionCommand::Abort, client, output).await
        }
        ReplayCommand::Continue(args) => {
            action::go_on::<Replay>(args, ActionCommand::Continue, api, output).await
        }
    }
}

impl Action for Replay {
    type New = NewReplay;
    const NAME: &'static str = "replay";
    const COMMAND: &'static str = "replay";

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
        let (failed, revived) = (self.failed_again, self.revived);
        let why = match self.stop_reason? {
            StopReason::FailedShare => "too many jobs failed again",
            StopReason::SameFingerprint => "jobs failed again with the cause that they had died of",
            StopReason::CanaryTimeout => {
                "too many jobs of the canary failed again or had no outcome in time"
            }
        };
        Some(format!("{why} ({failed} of {revived} failed again)"))
    }

    fn page(&self, format: Format) -> String {
        view::page(self, format)
    }

    async fn preview(client: &Client, new: &NewReplay) -> Result<ActionPreview, Error> {
        client.preview_replay(new).await
    }

    async fn create(client: &Client, new: &NewReplay) -> Result<Self, Error> {
        client.create_replay(new).await
    }

    async fn read(client: &Client, id: ActionId) -> Result<Self, Error> {
        client.replay(id).await
    }

    async fn command(client: &Client, id: ActionId, command: ActionCommand) -> Result<Self, Error> {
        client.command_replay(id, command).await
    }
}
