//! The `Store` trait: each verb becomes a request to the writer or a reader.

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
    FiredOccurrence, GroupFilter, ListOrder, Listed, ListedState, Node, Page, QueueLimits, Record,
    RecordRange, Renewed, Schedule, ScheduleRef, Schedules, Settled, Store, StoreError, Swept,
    Written,
};

use crate::SqliteStore;
use crate::group::{RequestClass, Urgency};
use crate::writer::Writer;

#[async_trait]
impl SweepSteps for SqliteStore {
    async fn sweep_part(
        &self,
        part: SweepPart,
        limit: usize,
        now: Timestamp,
        random: u64,
    ) -> Result<Swept, StoreError> {
        self.write(RequestClass::Settle, limit, move |writer| {
            writer.sweep(&part, limit, now, random)
        })
        .await
    }

    async fn to_sweep(
        &self,
        except: Vec<JobId>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<JobId>, StoreError> {
        self.write(RequestClass::Read, 0, move |writer| {
            Ok(Ok(writer.to_sweep(&except, limit, now)))
        })
        .await
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn enqueue(&self, enqueue: Enqueue, now: Timestamp) -> Result<Vec<Enqueued>, StoreError> {
        let Enqueue { jobs, mode } = enqueue;
        // A KiB of payload counts as a row, so that a group is bounded in bytes too.
        let bytes: usize = jobs.iter().map(|job| job.payload.as_str().len()).sum();
        let rows = jobs.len() + bytes / 1024;
        self.write(RequestClass::Enqueue, rows, move |writer| {
            writer.enqueue(&jobs, mode, now)
        })
        .await
    }

    async fn claim(&self, claim: &Claim, now: Timestamp) -> Result<Claimed, StoreError> {
        let claim = claim.clone();
        let rows = usize::try_from(claim.plan.limit).unwrap_or(usize::MAX);
        self.write(RequestClass::Claim, rows, move |writer| {
            writer.claim(&claim, now)
        })
        .await
    }

    async fn due_queues(
        &self,
        look: &DueQueues,
        now: Timestamp,
    ) -> Result<Vec<QueueName>, StoreError> {
        let look = look.clone();
        self.write(RequestClass::Read, 0, move |writer| {
            writer.due_queues(&look, now)
        })
        .await
    }

    async fn renew(
        &self,
        attempts: &[AttemptId],
        lease: Duration,
        now: Timestamp,
    ) -> Result<Vec<Renewed>, StoreError> {
        let step = |attempts: Arc<Vec<AttemptId>>| {
            self.write(RequestClass::Settle, attempts.len(), move |writer| {
                writer.renew(&attempts, lease, now)
            })
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
        let step = |reports: Arc<Vec<AttemptReport>>| {
            self.write(RequestClass::Settle, reports.len(), move |writer| {
                writer.settle(&reports, now)
            })
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
        let (jobs, change, step) = (jobs.to_vec(), change.clone(), step.cloned());
        let class = match change {
            Change::Cancel | Change::Purge => RequestClass::Relief,
            Change::Revive(_)
            | Change::RunNow
            | Change::Edit(_)
            | Change::Patch(_)
            | Change::Resolve => RequestClass::Other,
        };
        let urgency = match step {
            Some(_) => Urgency::Background,
            None => Urgency::Foreground,
        };
        self.write_with(urgency, class, jobs.len(), move |writer| {
            writer.change_all(&jobs, &change, step.as_ref(), now)
        })
        .await
    }

    async fn get(&self, jobs: &[JobId]) -> Result<Vec<Option<Job>>, StoreError> {
        let jobs = jobs.to_vec();
        self.read(move |reader| reader.get(&jobs)).await
    }

    async fn list(
        &self,
        filter: &Filter,
        page: Page,
        now: Timestamp,
    ) -> Result<Listed, StoreError> {
        let filter = filter.clone();
        let is_active = matches!(
            filter.state,
            Some(ListedState::Scheduled | ListedState::Ready | ListedState::Running)
        );
        let active = match page.order {
            ListOrder::Finished if is_active => return Ok(Listed::default()),
            ListOrder::Created if is_active && filter.fingerprint.is_none() => {
                let filter = filter.clone();
                let look =
                    move |writer: &mut Writer<'_>| Ok(Ok(writer.active_page(&filter, page, now)));
                Some(self.write(RequestClass::Read, 0, look).await?)
            }
            _ => None,
        };
        self.read(move |reader| match &active {
            Some(active) => reader.list_active(active, &filter, page, now),
            None => reader.list(&filter, page, now),
        })
        .await
    }

    async fn attempts(&self, job: JobId, limit: usize) -> Result<Vec<Attempt>, StoreError> {
        self.read(move |reader| reader.attempts(job, limit)).await
    }

    async fn counts(&self, now: Timestamp) -> Result<BTreeMap<QueueName, Counts>, StoreError> {
        self.write(RequestClass::Read, 0, move |writer| writer.counts(now))
            .await
    }

    async fn failure_groups(
        &self,
        filter: &GroupFilter,
        after: Option<&GroupKey>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<FailureGroup>, StoreError> {
        let (filter, after) = (filter.clone(), after.cloned());
        self.write(RequestClass::Read, 0, move |writer| {
            let tallies = &writer.tallies;
            Ok(Ok(tallies.failure_groups(
                &filter,
                after.as_ref(),
                limit,
                now,
            )))
        })
        .await
    }

    async fn action_tally(&self, action: ActionId) -> Result<ActionTally, StoreError> {
        self.write(RequestClass::Read, 0, move |writer| {
            let tally = writer.tallies.actions.get(&action);
            Ok(Ok(tally.copied().unwrap_or_default()))
        })
        .await
    }

    async fn trim_tallies(
        &self,
        groups_before: Timestamp,
        actions_before: Timestamp,
    ) -> Result<(), StoreError> {
        self.write(RequestClass::Relief, 1, move |writer| {
            writer.tallies.trim(groups_before, actions_before);
            Ok(Ok(()))
        })
        .await
    }

    async fn put_queue(
        &self,
        queue: &QueueName,
        limits: &QueueLimits,
        expected: Option<&QueueLimits>,
    ) -> Result<bool, StoreError> {
        let (queue, limits, expected) = (queue.clone(), limits.clone(), expected.cloned());
        self.write(RequestClass::Relief, 1, move |writer| {
            writer.put_queue(&queue, &limits, expected.as_ref())
        })
        .await
    }

    async fn queues(&self) -> Result<BTreeMap<QueueName, QueueLimits>, StoreError> {
        self.read(|reader| reader.queues()).await
    }

    async fn put_schedule(
        &self,
        schedule: &Schedule,
        expected: Expected,
    ) -> Result<Written, StoreError> {
        let schedule = schedule.clone();
        self.write(RequestClass::Other, 1, move |writer| {
            writer.put_schedule(&schedule, expected)
        })
        .await
    }

    async fn schedules(&self) -> Result<Schedules, StoreError> {
        self.read(|reader| reader.schedules()).await
    }

    async fn schedule(&self, which: &ScheduleRef) -> Result<Option<Schedule>, StoreError> {
        let which = which.clone();
        self.read(move |reader| reader.schedule(&which)).await
    }

    async fn occurrences(
        &self,
        schedule: ScheduleId,
        before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Vec<FiredOccurrence>, StoreError> {
        self.read(move |reader| reader.occurrences(schedule, before, limit))
            .await
    }

    async fn due(&self, limit: usize, now: Timestamp) -> Result<Vec<Schedule>, StoreError> {
        self.read(move |reader| reader.due(limit, now)).await
    }

    async fn fire(&self, fires: Vec<Fire>, now: Timestamp) -> Result<Vec<Fired>, StoreError> {
        let step = |fires: Arc<Vec<Fire>>| {
            let size = fires.iter().map(Fire::size).sum();
            self.write(RequestClass::Other, size, move |writer| {
                writer.fire_all(&fires, now)
            })
        };
        split_on_refusal(fires, step, |reason| Fired::Refused { reason }).await
    }

    async fn unfinished_occurrences(
        &self,
        schedules: &[ScheduleId],
    ) -> Result<Vec<Vec<Job>>, StoreError> {
        let schedules = schedules.to_vec();
        self.read(move |reader| reader.unfinished_occurrences(&schedules))
            .await
    }

    async fn remove_schedule(
        &self,
        schedule: ScheduleId,
        expected: Expected,
    ) -> Result<Written, StoreError> {
        self.write(RequestClass::Relief, 1, move |writer| {
            writer.remove_schedule(schedule, expected)
        })
        .await
    }

    async fn beat(&self, name: &str, about: &Value, now: Timestamp) -> Result<(), StoreError> {
        let (name, about) = (name.to_owned(), about.clone());
        self.write(RequestClass::Settle, 1, move |writer| {
            writer.beat(&name, &about, now)
        })
        .await
    }

    async fn nodes(&self) -> Result<Vec<Node>, StoreError> {
        self.read(|reader| reader.nodes()).await
    }

    async fn remove_node(&self, name: &str) -> Result<(), StoreError> {
        let name = name.to_owned();
        self.write(RequestClass::Relief, 1, move |writer| {
            writer.remove_node(&name)
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
        let (collection, name, value) = (collection.to_owned(), name.to_owned(), value.clone());
        // Updating an existing document takes hardly any space. The audit log does that when an
        // operator frees space, so it must work on a full disk.
        let class = match expected {
            Expected::Version(_) => RequestClass::Relief,
            Expected::Any | Expected::Absent => RequestClass::Other,
        };
        self.write(class, 1, move |writer| {
            writer.put_document(&collection, &name, &value, expected, expires_at, now)
        })
        .await
    }

    async fn document(
        &self,
        collection: &str,
        name: &str,
        now: Timestamp,
    ) -> Result<Option<Document>, StoreError> {
        let (collection, name) = (collection.to_owned(), name.to_owned());
        self.read(move |reader| reader.document(&collection, &name, now))
            .await
    }

    async fn documents(
        &self,
        collection: &str,
        now: Timestamp,
    ) -> Result<Vec<Document>, StoreError> {
        let collection = collection.to_owned();
        self.read(move |reader| reader.documents(&collection, now))
            .await
    }

    async fn remove_expired(&self, limit: usize, now: Timestamp) -> Result<usize, StoreError> {
        self.write(RequestClass::Relief, limit, move |writer| {
            writer.remove_expired(limit, now)
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
        let (collection, after) = (collection.to_owned(), after.to_owned());
        self.read(move |reader| reader.document_names(&collection, &after, limit, now))
            .await
    }

    async fn remove_document(
        &self,
        collection: &str,
        name: &str,
        expected: Expected,
    ) -> Result<Written, StoreError> {
        let (collection, name) = (collection.to_owned(), name.to_owned());
        self.write(RequestClass::Relief, 1, move |writer| {
            writer.remove_document(&collection, &name, expected)
        })
        .await
    }

    async fn append(
        &self,
        topic: &str,
        values: &[Value],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let (topic, values) = (topic.to_owned(), values.to_vec());
        self.write(RequestClass::Relief, values.len(), move |writer| {
            writer.append(&topic, &values, now)
        })
        .await
    }

    async fn records(
        &self,
        topic: &str,
        range: RecordRange,
        limit: usize,
    ) -> Result<Vec<Record>, StoreError> {
        let topic = topic.to_owned();
        self.read(move |reader| reader.records(&topic, range, limit))
            .await
    }

    async fn trim(
        &self,
        topic: &str,
        before: Timestamp,
        limit: usize,
    ) -> Result<usize, StoreError> {
        let topic = topic.to_owned();
        self.write(RequestClass::Relief, limit, move |writer| {
            writer.trim(&topic, before, limit)
        })
        .await
    }

    async fn drop_history(&self, _before: Timestamp) -> Result<usize, StoreError> {
        Ok(0) // there are no partitions by day here
    }

    async fn time(&self) -> Result<Option<Timestamp>, StoreError> {
        Ok(None)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}
