//! Methods for failures, replays and bulk actions.

use serde::de::DeserializeOwned;
use windlass_api::{
    ActionPreview, BulkAction, FailureGroup, FailureParams, NewBulkAction, NewReplay, Replay,
};
use windlass_core::{ActionCommand, ActionId};

use crate::client::{Call, Client, Method};
use crate::error::Error;
use crate::pager::Pager;

const REPLAYS: &str = "replays";
const BULK_ACTIONS: &str = "bulk-actions";

impl Client {
    /// Lists causes of failures with their dead and retrying jobs, the most jobs first.
    ///
    /// The order changes while jobs fail and recover, so a later page may repeat or leave out a
    /// group.
    pub fn failures(&self, params: &FailureParams) -> Pager<FailureGroup> {
        Pager::new(self, Call::new(Method::Get, &["failures"]).query(params))
    }

    /// Creates a replay: the server revives dead jobs step by step, and stops if they fail again.
    ///
    /// The client repeats a failed request only with an
    /// [idempotency key](Client::idempotency_key). `dry_run` is ignored: see
    /// [`preview_replay`](Client::preview_replay).
    ///
    /// # Errors
    ///
    /// Refused with `invalid` if a field breaks a rule, and with `too_many_actions` if too many
    /// replays and bulk actions have not ended.
    pub async fn create_replay(&self, new: &NewReplay) -> Result<Replay, Error> {
        let new = NewReplay {
            dry_run: None,
            ..new.clone()
        };
        let call = Call::new(Method::Post, &[REPLAYS]).creates();
        self.send_json(call.body(&new)?).await
    }

    /// Returns what a replay would do, without creating it.
    pub async fn preview_replay(&self, new: &NewReplay) -> Result<ActionPreview, Error> {
        let new = NewReplay {
            dry_run: Some(true),
            ..new.clone()
        };
        let call = Call::new(Method::Post, &[REPLAYS]).repeatable();
        self.send_json(call.body(&new)?).await
    }

    /// Returns a replay.
    ///
    /// # Errors
    ///
    /// Refused with `not_found` if the replay does not exist. The server keeps an ended replay for
    /// 30 days.
    pub async fn replay(&self, id: ActionId) -> Result<Replay, Error> {
        self.send_json(Call::new(Method::Get, &[REPLAYS, &id.to_string()]))
            .await
    }

    /// Lists replays, newest first.
    pub fn replays(&self) -> Pager<Replay> {
        Pager::new(self, Call::new(Method::Get, &[REPLAYS]))
    }

    /// Pauses, resumes, aborts or continues a replay.
    ///
    /// # Errors
    ///
    /// Refused with `wrong_state` if the command does not apply to the state of the replay.
    pub async fn command_replay(
        &self,
        id: ActionId,
        command: ActionCommand,
    ) -> Result<Replay, Error> {
        self.send_command(REPLAYS, id, command).await
    }

    /// Creates a bulk action: the server makes one change to all jobs that match a filter.
    ///
    /// The client repeats a failed request only with an
    /// [idempotency key](Client::idempotency_key). `dry_run` is ignored: see
    /// [`preview_bulk_action`](Client::preview_bulk_action).
    ///
    /// # Errors
    ///
    /// Refused with `invalid` if a field breaks a rule, and with `too_many_actions` if too many
    /// replays and bulk actions have not ended.
    pub async fn create_bulk_action(&self, new: &NewBulkAction) -> Result<BulkAction, Error> {
        let new = NewBulkAction {
            dry_run: None,
            ..new.clone()
        };
        let call = Call::new(Method::Post, &[BULK_ACTIONS]).creates();
        self.send_json(call.body(&new)?).await
    }

    /// Returns what a bulk action would do, without creating it.
    pub async fn preview_bulk_action(&self, new: &NewBulkAction) -> Result<ActionPreview, Error> {
        let new = NewBulkAction {
            dry_run: Some(true),
            ..new.clone()
        };
        let call = Call::new(Method::Post, &[BULK_ACTIONS]).repeatable();
        self.send_json(call.body(&new)?).await
    }

    /// Returns a bulk action.
    ///
    /// # Errors
    ///
    /// Refused with `not_found` if the bulk action does not exist. The server keeps an ended one
    /// for 30 days.
    pub async fn bulk_action(&self, id: ActionId) -> Result<BulkAction, Error> {
        self.send_json(Call::new(Method::Get, &[BULK_ACTIONS, &id.to_string()]))
            .await
    }

    /// Lists bulk actions, newest first.
    pub fn bulk_actions(&self) -> Pager<BulkAction> {
        Pager::new(self, Call::new(Method::Get, &[BULK_ACTIONS]))
    }

    /// Pauses, resumes or aborts a bulk action.
    ///
    /// # Errors
    ///
    /// Refused with `wrong_state` if the command does not apply to its state. Only a replay can be
    /// continued.
    pub async fn command_bulk_action(
        &self,
        id: ActionId,
        command: ActionCommand,
    ) -> Result<BulkAction, Error> {
        self.send_command(BULK_ACTIONS, id, command).await
    }

    async fn send_command<T: DeserializeOwned>(
        &self,
        noun: &str,
        id: ActionId,
        command: ActionCommand,
    ) -> Result<T, Error> {
        let path = [noun, &id.to_string(), command.name()];
        let call = Call::new(Method::Post, &path);
        // A second pause or resume changes nothing; a second abort would be refused.
        let call = match command {
            ActionCommand::Pause | ActionCommand::Resume => call.repeatable(),
            ActionCommand::Abort | ActionCommand::Continue => call,
        };
        self.send_json(call).await
    }
}
