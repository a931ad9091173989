//! Lists of jobs, and changes to batches of jobs.

use serde_json::{Value, json};
use windlass::{Client, Error};
use windlass_api::{
    BatchAnswer, Job, JobBatch, JobFilter, JobPage, PageCursor, PageParams, RunNowByFilter,
};
use windlass_core::JobId;
use windlass_store::{Change, Changed, StoreError};

use crate::access::{Refused, Scope};
use crate::audit::{Before, record_pass};
use crate::call::Call;
use crate::endpoint::{JsonBody, Params, Reply};
use crate::problem::Problem;
use crate::search::search_of;

/// The number of jobs on a page if the request gives no limit.
const PAGE_DEFAULT: usize = 50;

/// The most ids of a request that the audit log lists.
const IDS_LOGGED_MAX: usize = 100;

pub(super) async fn list(
    call: Call,
    Params(page): Params<PageParams<JobId>>,
    Params(filter): Params<JobFilter>,
) -> Result<Reply<JobPage>, Problem> {
    answer(&call, page, filter).await
}

/// Refuses a filter on payloads or errors to a caller who may not read them.
pub(in crate::routes) fn allow(call: &Call, filter: &JobFilter) -> Result<(), Problem> {
    if filter.reads_payloads() && !call.caller.may(Scope::ReadPayload) {
        let needed = Scope::ReadPayload;
        return Err(Refused::Scope { needed }.into());
    }
    Ok(())
}

/// Returns a page of the jobs that match a filter.
pub(in crate::routes) async fn answer(
    call: &Call,
    page: PageParams<JobId>,
    filter: JobFilter,
) -> Result<Reply<JobPage>, Problem> {
    allow(call, &filter)?;
    let search = search_of(&filter);
    let page = windlass_store::Page {
        limit: page.limit_or(PAGE_DEFAULT),
        after: page.after(),
    };
    let found = call.app.client.search(&search, page).await?;
    let jobs = found.jobs.into_iter();
    let next_cursor = found.next.map(|id| PageCursor(id).to_string());
    let link = call.link(next_cursor.as_ref());
    let scans = !search.scan.is_empty();
    let page = JobPage {
        data: jobs
            .map(|job| Job::new(job, found.at, call.content()))
            .collect(),
        next_cursor,
        scanned: scans.then_some(found.scanned),
        scanned_until: found.scanned_until.filter(|_| scans),
    };
    Ok(Reply::ok(page).next(link))
}

pub(super) async fn run_now(
    call: Call,
    JsonBody(batch): JsonBody<RunNowByFilter>,
) -> Result<Reply<BatchAnswer>, Problem> {
    allow(&call, &batch.filter)?;
    let found = batch_jobs(&call, &batch).await?;
    // A filter selects only waiting retries. A new job that is scheduled for later runs early only
    // if it is selected by id.
    let by_id = batch.ids.is_some();
    let selected = found.jobs.iter().filter(|job| by_id || job.failures > 0);
    let before = Before::keep_all(&call, selected.cloned(), None).await?;
    let ids: Vec<JobId> = before.iter().map(Before::id).collect();
    let changed = call.app.client.change_many(&ids, &Change::RunNow).await?;
    let answer = batch_answer(&changed, &found);
    let changes = Before::changes_of(&before, &changed, Before::made_due);
    record_pass(
        &call,
        "jobs.run_now",
        batch_detail(&batch, &answer),
        changes,
    )
    .await;
    Ok(Reply::ok(answer))
}

/// The details of a batch in the audit log. Values searched for in payloads are masked.
pub(in crate::routes) fn batch_detail(batch: &JobBatch, answer: &BatchAnswer) -> Value {
    let ids = batch.ids.as_ref();
    let filter = ids.is_none().then(|| batch.filter.clone().without_values());
    json!({
        "filter": filter,
        "ids": ids.map(|ids| ids.iter().take(IDS_LOGGED_MAX).collect::<Vec<_>>()),
        "ids_given": ids.map(Vec::len),
        "changed": answer.changed, "conflicts": answer.conflicts,
    })
}

/// The jobs of a batch.
#[derive(Debug, Default)]
pub(in crate::routes) struct BatchJobs {
    pub(in crate::routes) jobs: Vec<windlass_core::Job>,
    /// Jobs selected by id that the server cannot read.
    unreadable: Vec<JobId>,
    next: Option<JobId>,
    scanned: usize,
}

/// Returns the jobs that match a filter and come after a cursor.
pub(in crate::routes) async fn jobs_matching(
    call: &Call,
    filter: &JobFilter,
    after: Option<JobId>,
    limit: usize,
) -> Result<BatchJobs, Problem> {
    let page = windlass_store::Page { after, limit };
    let found = call.app.client.search(&search_of(filter), page).await?;
    Ok(BatchJobs {
        jobs: found.jobs,
        unreadable: Vec::new(),
        next: found.next,
        scanned: found.scanned,
    })
}

/// Summarizes the result of a batch.
pub(in crate::routes) fn batch_answer(changed: &[Changed], found: &BatchJobs) -> BatchAnswer {
    let done = |one: &&Changed| matches!(one, Changed::Now(_) | Changed::Removed);
    let done = changed.iter().filter(done).count();
    BatchAnswer {
        changed: done,
        conflicts: changed.len() - done + found.unreadable.len(),
        unreadable: found.unreadable.clone(),
        scanned: found.scanned,
        next_cursor: found.next.map(|id| PageCursor(id).to_string()),
    }
}

/// Returns the jobs of a batch.
pub(in crate::routes) async fn batch_jobs(
    call: &Call,
    batch: &JobBatch,
) -> Result<BatchJobs, Problem> {
    match &batch.ids {
        None => jobs_matching(call, &batch.filter, batch.after, batch.limit).await,
        Some(ids) => named(&call.app.client, ids).await,
    }
}

/// Returns the jobs with these ids. A job that the server cannot read does not affect the others.
/// An id without a job is an error.
async fn named(client: &Client, ids: &[JobId]) -> Result<BatchJobs, Problem> {
    let mut found = BatchJobs {
        scanned: ids.len(),
        ..BatchJobs::default()
    };
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
