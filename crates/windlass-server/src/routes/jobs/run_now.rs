//! Makes a batch of waiting jobs due now.

use serde_json::json;
use windlass::{Client, Error};
use windlass_api::{BatchAnswer, RunNow};
use windlass_core::JobId;
use windlass_store::{Change, Changed, StoreError};

use crate::audit::{Before, record_pass};
use crate::call::Call;
use crate::endpoint::{JsonBody, Reply};
use crate::problem::Problem;

/// The most ids of a request that the audit log lists.
const IDS_LOGGED_MAX: usize = 100;

pub(super) async fn run_now(
    call: Call,
    JsonBody(ids): JsonBody<RunNow>,
) -> Result<Reply<BatchAnswer>, Problem> {
    let found = named(&call.app.client, &ids).await?;
    let before = Before::keep_all(&call, found.jobs, None).await?;
    let readable: Vec<JobId> = before.iter().map(Before::id).collect();
    let client = &call.app.client;
    let changed = client.change_many(&readable, &Change::RunNow).await?;
    let done = |one: &&Changed| matches!(one, Changed::Now(_));
    let done = changed.iter().filter(done).count();
    let answer = BatchAnswer {
        changed: done,
        conflicts: changed.len() - done + found.unreadable.len(),
        unreadable: found.unreadable,
    };
    let detail = json!({
        "ids": ids.iter().take(IDS_LOGGED_MAX).collect::<Vec<_>>(), "ids_given": ids.len(),
        "changed": answer.changed, "conflicts": answer.conflicts,
    });
    let changes = Before::changes_of(&before, &changed, Before::made_due);
    record_pass(&call, "jobs.run_now", detail, changes).await;
    Ok(Reply::ok(answer))
}

/// The jobs of a batch.
#[derive(Debug, Default)]
struct BatchJobs {
    jobs: Vec<windlass_core::Job>,
    /// Jobs that the server cannot read.
    unreadable: Vec<JobId>,
}

/// Returns the jobs with these ids. A job that the server cannot read does not affect the others.
/// An id without a job is an error.
async fn named(client: &Client, ids: &[JobId]) -> Result<BatchJobs, Problem> {
    let mut found = BatchJobs::default();
    let jobs = match client.get_many(ids).await {
        Err(Error::Store(StoreError::Unreadable { .. })) => vec![None; ids.len()],
        jobs => jobs?,
    };
    for (id, job) in ids.iter().zip(jobs) {
        match job {
            Some(job) => found.jobs.push(job),
            // Reading a job alone distinguishes an unreadable job from a missing one.
            None => match client.get(*id).await {
                Err(Error::Store(StoreError::Unreadable { .. })) => found.unreadable.push(*id),
                Err(error) => return Err(error.into()),
                Ok(_) => return Err(Error::NotFound(*id).into()),
            },
        }
    }
    Ok(found)
}
