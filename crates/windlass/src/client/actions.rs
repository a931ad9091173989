//! Bulk actions and replays.

use std::sync::Arc;

use windlass_core::{ActionId, ActionState};
use windlass_engine::{ActionRunner, ActionRunnerConfig, ActionStatus, Actions, Activity};

use super::Client;
use crate::error::Error;

impl Client {
    /// Creates, reads and controls bulk actions and replays.
    ///
    /// Any worker or server of the store carries them on. [`admin`](crate::admin) has an example.
    pub fn actions(&self) -> Actions {
        Actions::new(Arc::clone(&self.engine))
    }

    /// Carries an action on in this process until it has finished, was paused or aborted, or
    /// stopped itself. `on_progress` sees its status after every step.
    ///
    /// Only a program without a worker or server on the store needs it. Other actions that run
    /// are carried on too. If another process carries the action on, this waits for it. A replay
    /// does not finish without a worker: it waits for the outcomes of the jobs that it revived.
    ///
    /// # Errors
    ///
    /// [`Error::Action`] if there is no such action, [`Error::Store`] if the store fails. Another
    /// call continues the action.
    pub async fn carry_on_action(
        &self,
        id: ActionId,
        mut on_progress: impl FnMut(&ActionStatus),
    ) -> Result<ActionStatus, Error> {
        let config = ActionRunnerConfig {
            rest: 0, // no worker needs the store
            ..ActionRunnerConfig::default()
        };
        let name = format!("client {:016x}", self.engine.ids().bits());
        let runner = ActionRunner::new(Arc::clone(&self.engine), &name, config.clone());
        loop {
            let activity = runner.pass().await?;
            let status = self.actions().get(id).await?;
            on_progress(&status);
            if status.action.state != ActionState::Running {
                return Ok(status);
            }
            let wait = match activity {
                Activity::Busy => continue,
                Activity::Waiting => config.every,
                Activity::Idle => config.idle,
            };
            self.engine.clock().sleep(wait).await;
        }
    }
}
