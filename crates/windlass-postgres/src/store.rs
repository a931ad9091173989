//! The `Store` trait: each verb becomes one transaction.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::watch;
use windlass_core::{
    ActionId, ActionTally, GroupKey, Job, JobId, QueueName, ScheduleId, Timestamp,
};
use windlass_store::refused::{SweepPart, SweepSteps, split_on_refusal};
use windlass_store::{
    ActionStep, Attempt, AttemptId, AttemptReport, Change, Changed, Claim, Claimed, Counts,
    Document, DueQueues, Enqueue, Enqueued, Expected, FailureGroup, Filter, Fire, Fired,
    FiredOccurrence, GroupFilter, Listed, Node, Page, QueueLimits, Record, RecordRange, Renewed,
    Schedule, ScheduleRef, Schedules, Settled, Store, StoreError, Swept, Written,
};

use crate::change::{self, Order};
use crate::claim::{self, BusyKeys, ClaimMode, ClaimOutcome, ClaimParams};
use crate::connect::ConnectionClass::{self, Other, Vital};
use crate::error::{DriverError, DriverResult};
use crate::session::Session;
use crate::unreadable::Unreadable;
use crate::{
    PostgresStore, document, enqueue, failure_group, fold, list, node, queue, read, record, row,
    schedule, settle, tally_change, unreadable, upkeep,
};

/// The most times a claim runs if it meets unreadable jobs, each time without those it has met.
const CLAIM_ROUNDS: u32 = 16;

impl PostgresStore {
    /// Runs a transaction on a connection of this class.
    pub(crate) async fn run<T: Send, F, Work>(
        &self,
        class: ConnectionClass,
        work: F,
    ) -> Result<T, StoreError>
    where
        F: Fn(Session) -> Work + Send + Sync,
        Work: Future<Output = DriverResult<T>> + Send,
    {
        self.connections.run(class, work).await
    }

    /// Runs a claim once.
    async fn claim_once(
        &self,
        claim: &Claim,
        mode: ClaimMode,
        now: Timestamp,
    ) -> Result<ClaimOutcome, StoreError> {
        let (settings, marks) = (&self.settings, &self.wake.marks);
        self.run(Other, |mut session| async move {
            let number = settings.number(&mut session, &claim.retry).await?;
            let claim_params = ClaimParams::new(claim, number, now);
            claim::claim(&mut session, settings, marks, &claim_params, mode).await
        })
        .await
    }

    /// Takes back the leases of jobs that a claim has just taken but that cannot be read.
    async fn give_back(
        &self,
        claim: &Claim,
        jobs: &[Unreadable],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let claim_params = &ClaimParams::new(claim, 0, now);
        let unparked = self
            .run(Other, |mut session| async move {
                unreadable::give_back(&mut session, jobs, claim_params).await
            })
            .await?;
        self.wake.notify_orders(unparked);
        Ok(())
    }
}

#[async_trait]
impl SweepSteps for PostgresStore {
    async fn sweep_part(
        &self,
        part: SweepPart,
        limit: usize,
        now: Timestamp,
        random: u64,
    ) -> Result<Swept, StoreError> {
        let (settings, groups, part) = (&self.settings, &self.groups, &part);
        let (swept, claimable) = self
            .run(Vital, |mut session| async move {
                settle::sweep(&mut session, settings, groups, part, limit, now, random).await
            })
            .await?;
        self.wake.settled();
        self.wake.notify_orders(claimable);
        Ok(swept)
    }

    async fn to_sweep(
        &self,
        except: Vec<JobId>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<JobId>, StoreError> {
        let except = &except;
        self.run(Vital, |mut session| async move {
            settle::to_sweep(&mut session, except, limit, now).await
        })
        .await
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn enqueue(&self, enqueue: Enqueue, now: Timestamp) -> Result<Vec<Enqueued>, StoreError> {
        let (jobs, mode, settings) = (&enqueue.jobs, enqueue.mode, &self.settings);
        let mut answers = self
            .run(Other, |mut session| async move {
                enqueue::enqueue(&mut session, settings, jobs, mode, now).await
            })
            .await;
        // Enqueueing again shows whether it happened: a job that exists under its id was stored.
        if let Err(StoreError::Indeterminate(_)) = &answers {
            answers = self
                .run(Other, |mut session| async move {
                    let repeated =
                        enqueue::enqueue(&mut session, settings, jobs, mode, now).await?;
                    Ok(enqueue::as_first_time(repeated, jobs))
                })
                .await;
        }
        self.wake.notify_jobs(jobs);
        answers
    }

    async fn claim(&self, claim: &Claim, now: Timestamp) -> Result<Claimed, StoreError> {
        let wake = &self.wake;
        let mut mode = ClaimMode::after(wake.limited.limit(&claim.queue));
        for _ in 0..CLAIM_ROUNDS {
            let settles = wake.limited.settles();
            let unreadable_jobs = &match self.claim_once(claim, mode, now).await? {
                ClaimOutcome::Done(done) => {
                    wake.notify_orders(done.promoted);
                    let may_have_more = wake.limited.claimed(&claim.queue, done.limit, settles);
                    if may_have_more || done.left_some {
                        wake.wake_local();
                    }
                    let mut claimed = done.claimed;
                    if done.unreadable.is_empty() {
                        let next_at = done.idle_until;
                        claimed.idle_until = next_at.and_then(|at| wake.idle_until(at, now));
                        return Ok(claimed);
                    }
                    self.give_back(claim, &done.unreadable, now).await?;
                    if !claimed.jobs.is_empty() {
                        wake.wake_local(); // readable jobs may follow: claim again
                        return Ok(claimed);
                    }
                    continue;
                }
                ClaimOutcome::Repeat(next, promoted) => {
                    wake.notify_orders(promoted);
                    mode = next;
                    continue;
                }
                ClaimOutcome::Unreadable(unreadable) => unreadable,
            };
            self.run(Other, |mut session| async move {
                unreadable::set_aside(&mut session, unreadable_jobs).await?;
                session.commit().await
            })
            .await?;
        }
        if mode != ClaimMode::Keyed(BusyKeys::Wait) {
            wake.wake_local(); // readable jobs may follow: claim again
        }
        Ok(Claimed::default())
    }

    async fn due_queues(
        &self,
        look: &DueQueues,
        now: Timestamp,
    ) -> Result<Vec<QueueName>, StoreError> {
        let (queues, promoted) = self
            .run(Other, |mut session| async move {
                claim::due_queues(&mut session, look, now).await
            })
            .await?;
        self.wake.notify_orders(promoted);
        Ok(queues)
    }

    async fn renew(
        &self,
        attempts: &[AttemptId],
        lease: Duration,
        now: Timestamp,
    ) -> Result<Vec<Renewed>, StoreError> {
        let step = |attempts: Arc<Vec<AttemptId>>| async move {
            let attempts = attempts.as_slice();
            self.run(Vital, |mut session| async move {
                settle::renew(&mut session, attempts, lease, now).await
            })
            .await
        };
        split_on_refusal(attempts.to_vec(), step, |reason| {
            tracing::warn!(
                reason,
                "the database refused to renew a lease; the worker loses the job"
            );
            Renewed::LeaseLost
        })
        .await
    }

    async fn settle(
        &self,
        reports: Vec<AttemptReport>,
        now: Timestamp,
    ) -> Result<Vec<Settled>, StoreError> {
        let step = |reports: Arc<Vec<AttemptReport>>| async move {
            let (settings, groups) = (&self.settings, &self.groups);
            let reports = reports.as_slice();
            let (answers, claimable) = self
                .run(Vital, |mut session| async move {
                    settle::settle_all(&mut session, settings, groups, reports, now).await
                })
                .await?;
            self.wake.settled();
            self.wake.notify_orders(claimable);
            Ok(answers)
        };
        split_on_refusal(reports, step, |reason| Settled::Refused { reason }).await
    }

    async fn sweep(&self, limit: usize, now: Timestamp, random: u64) -> Result<Swept, StoreError> {
        self.refusals.sweep(self, limit, now, random).await
    }

    async fn change(
        &self,
        jobs: &[JobId],
        change: &Change,
        step: Option<&ActionStep>,
        now: Timestamp,
    ) -> Result<Vec<Changed>, StoreError> {
        let (settings, groups) = (&self.settings, &self.groups);
        let order = Order { change, step };
        let (answers, claimable) = self
            .run(Other, |mut session| async move {
                change::change(&mut session, settings, groups, jobs, order, now).await
            })
            .await?;
        self.wake.notify_orders(claimable);
        Ok(answers)
    }

    async fn get(&self, jobs: &[JobId]) -> Result<Vec<Option<Job>>, StoreError> {
        let settings = &self.settings;
        self.run(Other, |mut session| async move {
            read::get(&mut session, settings, jobs).await
        })
        .await
    }

    async fn list(
        &self,
        filter: &Filter,
        page: Page,
        now: Timestamp,
    ) -> Result<Listed, StoreError> {
        let settings = &self.settings;
        self.run(Other, |mut session| async move {
            list::list(&mut session, settings, filter, page, now).await
        })
        .await
    }

    async fn attempts(&self, job: JobId, limit: usize) -> Result<Vec<Attempt>, StoreError> {
        let settings = &self.settings;
        self.run(Other, |mut session| async move {
            read::attempts(&mut session, settings, job, limit).await
        })
        .await
    }

    async fn counts(&self, now: Timestamp) -> Result<BTreeMap<QueueName, Counts>, StoreError> {
        self.run(Other, |mut session| async move {
            read::counts(&mut session, now).await
        })
        .await
    }

    async fn failure_groups(
        &self,
        filter: &GroupFilter,
        after: Option<&GroupKey>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<FailureGroup>, StoreError> {
        self.run(Other, |mut session| async move {
            failure_group::list(&mut session, filter, after, limit, now).await
        })
        .await
    }

    async fn action_tally(&self, action: ActionId) -> Result<ActionTally, StoreError> {
        self.run(Other, |mut session| async move {
            tally_change::action_tally(&mut session, action).await
        })
        .await
    }

    async fn trim_tallies(
        &self,
        groups_before: Timestamp,
        actions_before: Timestamp,
    ) -> Result<(), StoreError> {
        let trimmed = self
            .run(Other, |mut session| async move {
                fold::trim(&mut session, groups_before, actions_before).await
            })
            .await;
        self.groups.forget();
        trimmed
    }

    async fn put_queue(
        &self,
        queue: &QueueName,
        limits: &QueueLimits,
        expected: Option<&QueueLimits>,
    ) -> Result<bool, StoreError> {
        let written = self
            .run(Other, |mut session| async move {
                queue::put_queue(&mut session, queue, limits, expected).await
            })
            .await?;
        self.wake.wake_local();
        Ok(written)
    }

    async fn queues(&self) -> Result<BTreeMap<QueueName, QueueLimits>, StoreError> {
        self.run(Other, |mut session| async move {
            queue::queues(&mut session).await
        })
        .await
    }

    async fn put_schedule(
        &self,
        schedule: &Schedule,
        expected: Expected,
    ) -> Result<Written, StoreError> {
        self.run(Other, |mut session| async move {
            schedule::put(&mut session, schedule, expected).await
        })
        .await
    }

    async fn schedules(&self) -> Result<Schedules, StoreError> {
        self.run(Other, |mut session| async move {
            schedule::all(&mut session).await
        })
        .await
    }

    async fn schedule(&self, which: &ScheduleRef) -> Result<Option<Schedule>, StoreError> {
        self.run(Other, |mut session| async move {
            schedule::one(&mut session, which).await
        })
        .await
    }

    async fn occurrences(
        &self,
        schedule: ScheduleId,
        before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Vec<FiredOccurrence>, StoreError> {
        self.run(Other, |mut session| async move {
            schedule::occurrences(&mut session, schedule, before, limit).await
        })
        .await
    }

    async fn due(&self, limit: usize, now: Timestamp) -> Result<Vec<Schedule>, StoreError> {
        self.run(Other, |mut session| async move {
            schedule::due(&mut session, limit, now).await
        })
        .await
    }

    async fn fire(&self, fires: Vec<Fire>, now: Timestamp) -> Result<Vec<Fired>, StoreError> {
        let step = |fires: Arc<Vec<Fire>>| async move {
            let fires = fires.as_slice();
            let (fired, new) = self
                .run(Other, |mut session| async move {
                    schedule::fire(&mut session, fires, now).await
                })
                .await?;
            self.wake.notify_jobs(&new);
            Ok(fired)
        };
        split_on_refusal(fires, step, |reason| Fired::Refused { reason }).await
    }

    async fn unfinished_occurrences(
        &self,
        schedules: &[ScheduleId],
    ) -> Result<Vec<Vec<Job>>, StoreError> {
        let settings = &self.settings;
        self.run(Other, |mut session| async move {
            schedule::unfinished_occurrences(&mut session, settings, schedules).await
        })
        .await
    }

    async fn remove_schedule(
        &self,
        schedule: ScheduleId,
        expected: Expected,
    ) -> Result<Written, StoreError> {
        self.run(Other, |mut session| async move {
            schedule::remove(&mut session, schedule, expected).await
        })
        .await
    }

    async fn beat(&self, name: &str, about: &Value, now: Timestamp) -> Result<(), StoreError> {
        self.run(Vital, |mut session| async move {
            node::beat(&mut session, name, about, now).await
        })
        .await
    }

    async fn nodes(&self) -> Result<Vec<Node>, StoreError> {
        self.run(Other, |mut session| async move {
            node::nodes(&mut session).await
        })
        .await
    }

    async fn remove_node(&self, name: &str) -> Result<(), StoreError> {
        self.run(Other, |mut session| async move {
            node::remove_node(&mut session, name).await
        })
        .await
    }

    async fn put_document(
        &self,
        collection: &str,
        name: &str,
        value: &Value,
        expected: Expected,
        expires_at: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<Written, StoreError> {
        self.run(Other, |mut session| async move {
            let document = document::NewDocument {
                collection,
                name,
                value,
                expires_at,
            };
            document::put(&mut session, document, expected, now).await
        })
        .await
    }

    async fn document(
        &self,
        collection: &str,
        name: &str,
        now: Timestamp,
    ) -> Result<Option<Document>, StoreError> {
        self.run(Other, |mut session| async move {
            document::one(&mut session, collection, name, now).await
        })
        .await
    }

    async fn documents(
        &self,
        collection: &str,
        now: Timestamp,
    ) -> Result<Vec<Document>, StoreError> {
        self.run(Other, |mut session| async move {
            document::all(&mut session, collection, now).await
        })
        .await
    }

    async fn remove_expired(&self, limit: usize, now: Timestamp) -> Result<usize, StoreError> {
        self.run(Other, |mut session| async move {
            document::remove_expired(&mut session, limit, now).await
        })
        .await
    }

    async fn document_names(
        &self,
        collection: &str,
        after: &str,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<String>, StoreError> {
        self.run(Other, |mut session| async move {
            document::names(&mut session, collection, after, limit, now).await
        })
        .await
    }

    async fn remove_document(
        &self,
        collection: &str,
        name: &str,
        expected: Expected,
    ) -> Result<Written, StoreError> {
        self.run(Other, |mut session| async move {
            document::remove(&mut session, collection, name, expected).await
        })
        .await
    }

    async fn append(
        &self,
        topic: &str,
        values: &[Value],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.run(Other, |mut session| async move {
            record::append(&mut session, topic, values, now).await
        })
        .await
    }

    async fn records(
        &self,
        topic: &str,
        range: RecordRange,
        limit: usize,
    ) -> Result<Vec<Record>, StoreError> {
        self.run(Other, |mut session| async move {
            record::records(&mut session, topic, range, limit).await
        })
        .await
    }

    async fn trim(
        &self,
        topic: &str,
        before: Timestamp,
        limit: usize,
    ) -> Result<usize, StoreError> {
        self.run(Other, |mut session| async move {
            record::trim(&mut session, topic, before, limit).await
        })
        .await
    }

    async fn drop_history(&self, before: Timestamp) -> Result<usize, StoreError> {
        upkeep::drop_days(&self.connections, before).await
    }

    async fn time(&self) -> Result<Option<Timestamp>, StoreError> {
        self.run(Vital, |mut session| async move {
            let rows = session.read("select clock_timestamp()", &[]).await?;
            let row = rows
                .first()
                .ok_or_else(|| DriverError::damaged("the server did not return its time"))?;
            row::time(row, 0).map(Some)
        })
        .await
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.wake.changes()
    }
}
