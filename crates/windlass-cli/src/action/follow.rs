//! Follows a bulk action or replay until it ends.

use std::io::Write as _;
use std::time::Duration;

use tokio::signal::ctrl_c;
use tokio_util::sync::CancellationToken;
use windlass_core::{ActionState, WaitingFor};
use windlass_engine::{ActionStatus, is_alive};

use super::{Action, Wait, waiting};
use crate::backend::{Api, Runner};
use crate::progress::progress;

/// The first and the longest time between two requests.
const EVERY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Follows an action that was created or goes on, and returns it.
///
/// Without a server, this process carries the action on itself if no other process can. Then it
/// waits in any case.
pub(super) async fn follow<T: Action>(api: &Api, action: T, wait: Wait) -> anyhow::Result<T> {
    match api.runner() {
        Runner::ThisProcess(store) => {
            carry_on(store, &action).await?;
            Ok(T::read(api.client(), action.action_id()).await?)
        }
        Runner::OtherProcesses(store) => {
            let (nodes, now) = (store.nodes().await?, store.now());
            if !nodes.iter().any(|node| is_alive(node, now)) {
                warn("no worker or server runs on this store; the action waits until one starts")?;
            }
            until_end(api, action, wait).await
        }
        Runner::Server => until_end(api, action, wait).await,
    }
}

/// Reads an action again and again until it has ended or stopped.
async fn until_end<T: Action>(api: &Api, mut action: T, wait: Wait) -> anyhow::Result<T> {
    if wait == Wait::No {
        return Ok(action);
    }
    let bar = progress("changed", Some(0));
    let (mut pause, longest) = EVERY;
    while matches!(action.state(), ActionState::Running | ActionState::Paused) {
        bar.set_length(action.matched());
        bar.set_position(action.matched().saturating_sub(action.to_do()));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = ctrl_c() => {
                bar.finish_and_clear();
                return Err(interrupted(&action));
            }
        }
        pause = longest.min(pause * 2);
        action = T::read(api.client(), action.action_id()).await?;
    }
    bar.finish_and_clear();
    Ok(action)
}

/// Carries an action on in this process, until it ends or waits for a worker or a queue.
async fn carry_on<T: Action>(store: &windlass::Client, action: &T) -> anyhow::Result<()> {
    let bar = progress("changed", Some(0));
    let held = CancellationToken::new();
    let mut held_by = None;
    let carried = store.carry_on_action(action.action_id(), |status| {
        bar.set_length(status.matched());
        bar.set_position(status.matched().saturating_sub(status.to_do()));
        // It is called between two steps, so that stopping here interrupts none.
        if let Some(warning) = needs_others(status) {
            held_by = Some(warning);
            held.cancel();
        }
    });
    let done = tokio::select! {
        done = carried => done.map(drop).map_err(anyhow::Error::from),
        () = held.cancelled() => Ok(()),
        _ = ctrl_c() => Err(interrupted(action)),
    };
    bar.finish_and_clear();
    done?;
    held_by.map_or(Ok(()), |warning| warn(&warning))
}

/// Returns what this process cannot do, if an action waits for that.
fn needs_others(status: &ActionStatus) -> Option<String> {
    let (action, is_running) = (&status.action, status.action.state == ActionState::Running);
    let waiting_for = action.waiting_for.filter(|_| is_running)?;
    match waiting_for {
        WaitingFor::Counting => None,
        WaitingFor::Canary | WaitingFor::MaxPending | WaitingFor::LastOutcomes => {
            Some("no worker runs; revived jobs wait until one starts".to_owned())
        }
        WaitingFor::QueuePaused | WaitingFor::QueueFull => {
            let why = waiting(waiting_for, action.waiting_queue.as_ref());
            Some(format!("it {why}; a worker or server goes on later"))
        }
    }
}

fn interrupted<T: Action>(action: &T) -> anyhow::Error {
    let (name, id) = (T::NAME, action.action_id());
    anyhow::anyhow!(
        "interrupted; {name} {id} is not aborted: any worker or server of the store goes on with it"
    )
}

fn warn(text: &str) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stderr(), "warning: {text}")?)
}
