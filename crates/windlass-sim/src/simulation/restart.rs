//! Restarts of the one process that has the store open, as after `kill -9`.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use windlass_core::{Job, State, Verdict};
use windlass_engine::{PROGRESS, QUEUE_SETTINGS};
use windlass_store::{AttemptId, Store, StoreError};

use super::Simulation;
use super::reading::read_all;
use super::world::NOBODY;
use crate::history::{EndFacts, Event, Final, digest_of};
use crate::planted::Bug;

impl Simulation<'_> {
    /// Ends all nodes at once, opens what is left of the store, and starts the nodes again. Does
    /// nothing to a store in memory, of which nothing would be left.
    pub(super) async fn restart(&mut self) -> Result<(), StoreError> {
        let now = self.world.now();
        let seed = self.plan.stream("restart", self.lives).bits();
        let Some(current) = self.opened.last() else {
            return Ok(());
        };
        let before = read_all(&*current.store, now).await?;
        let documents = documents(&*current.store, now).await?;
        let Some(opened) = current.crash(now, seed) else {
            return Ok(());
        };
        let opened = opened?;
        for node in self.nodes.iter().filter(|node| !node.is_dead()) {
            node.kill(&self.world);
        }
        self.store = Bug::around_store(self.plan.planted, Arc::clone(&opened.store));
        self.opened.push(opened);
        if self.plan.planted == Some(Bug::ForgetAtRestart) {
            forget_a_job(&*self.store, &before, now).await?;
        }
        let after = read_all(&*self.store, now).await?;
        let lost = lost_attempts(&before, &after);
        self.world
            .end_by_restart(lost.iter().map(|(attempt, _)| *attempt));
        let is_lost = |job: &Job| lost.iter().any(|(attempt, _)| attempt.job == job.id);
        let mut parts_before = parts(&before, &is_lost);
        let mut parts_after = parts(&after, &is_lost);
        parts_before.push(("documents", documents));
        parts_after.push(("documents", self::documents(&*self.store, now).await?));
        self.world.record(
            NOBODY,
            Event::Restarted {
                lost,
                before: parts_before,
                after: parts_after,
            },
        );
        let numbers: Vec<(u32, Arc<AtomicI64>)> = self
            .nodes
            .iter()
            .map(|node| (node.number, Arc::clone(&node.ahead)))
            .collect();
        for (number, ahead) in numbers {
            self.start_node(number, ahead);
        }
        Ok(())
    }
}

/// Attempts that ran before and have an end afterwards.
fn lost_attempts(before: &Final, after: &Final) -> Vec<(AttemptId, EndFacts)> {
    let mut lost = Vec::new();
    let running = before
        .jobs
        .iter()
        .filter(|job| job.state() == State::Running);
    for job in running {
        let found = after.jobs.iter().zip(&after.attempts);
        let mut found = found.filter(|(other, _)| other.id == job.id);
        let Some((now, attempts)) = found.next() else {
            continue;
        };
        let row = attempts.iter().find(|row| row.attempt == job.attempt);
        if let Some(row) = row {
            let waiting = Verdict::Waiting { run_at: now.run_at };
            let end = EndFacts {
                outcome: row.outcome,
                state: now.state(),
                run_at: (now.state() == waiting.state()).then_some(now.run_at),
                failures: now.failures,
            };
            let (job, attempt) = (job.id, job.attempt);
            lost.push((AttemptId { job, attempt }, end));
        }
    }
    lost
}

/// Digests of what a restart must not change.
fn parts(store: &Final, is_lost: &dyn Fn(&Job) -> bool) -> Vec<(&'static str, u64)> {
    let jobs = store.jobs.iter().zip(&store.attempts);
    let kept: Vec<_> = jobs.filter(|(job, _)| !is_lost(job)).collect();
    let text = |value: &dyn std::fmt::Debug| digest_of(&format!("{value:?}"));
    vec![
        ("jobs and attempts", text(&kept)),
        ("schedules", text(&store.schedules)),
    ]
}

/// A digest of the settings of queues, and of what jobs report.
async fn documents(store: &dyn Store, now: windlass_core::Timestamp) -> Result<u64, StoreError> {
    let limits = store.queues().await?;
    let settings = store.documents(QUEUE_SETTINGS, now).await?;
    let progress = store.documents(PROGRESS, now).await?;
    Ok(digest_of(&format!("{limits:?} {settings:?} {progress:?}")))
}

/// The planted bug of a restart: a finished job is gone.
async fn forget_a_job(
    store: &dyn Store,
    before: &Final,
    now: windlass_core::Timestamp,
) -> Result<(), StoreError> {
    let finished = before.jobs.iter().find(|job| job.state().is_final());
    if let Some(job) = finished {
        let purge = windlass_store::Change::Purge;
        store.change(&[job.id], &purge, None, now).await?;
    }
    Ok(())
}
