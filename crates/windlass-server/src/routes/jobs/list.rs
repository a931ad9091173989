//! Lists of jobs, and passes over them.

use serde_json::{Value, json};
use windlass::{Client, Error};
use windlass_api::{
    Job, JobFilter, JobPage, PageCursor, PageParams, Pass, PassAnswer, RunNowByFilter,
};
use windlass_core::JobId;
use windlass_store::{Change, Changed, StoreError};

use crate::access::{Refused, Scope};
use crate::audit::{Before, record_pass};
use crate::call::Call;
use crate::endpoint::{JsonBody, Params, Reply};
use crate::problem::Problem;
use crate::search::search_of;

/// Rows of a page that names no limit.
const PAGE_DEFAULT: usize = 50;

/// The audit log lists at most this many of the ids that were given.
const IDS_LOGGED_MAX: usize = 100;

pub(super) async fn list(
    call: Call,
    Params(page): Params<PageParams<JobId>>,
    Params(filter): Params<JobFilter>,
) -> Result<Reply<JobPage>, Problem> {
    answer(&call, page, filter).await
}

/// Refuses a filter on payloads and errors to those who may not read them.
pub(in crate::routes) fn allow(call: &Call, filter: &JobFilter) -> Result<(), Problem> {
    if filter.reads_payloads() && !call.caller.may(Scope::ReadPayload) {
        let needed = Scope::ReadPayload;
        return Err(Refused::Scope { needed }.into());
    }
    Ok(())
}

/// A page of the jobs that a filter finds.
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
    JsonBody(wanted): JsonBody<RunNowByFilter>,
) -> Result<Reply<PassAnswer>, Problem> {
    allow(&call, &wanted.filter)?;
    let found = pass(&call, &wanted).await?;
    // A filter is about retries that wait: fresh jobs with a time of their own must be named to be
    // run before it.
    let by_name = wanted.ids.is_some();
    let meant = found.jobs.iter().filter(|job| by_name || job.failures > 0);
    let before = Before::keep_all(&call, meant.cloned(), None).await?;
    let ids: Vec<JobId> = before.iter().map(Before::id).collect();
    let changed = call.app.client.change_many(&ids, &Change::RunNow).await?;
    let answer = pass_answer(&changed, &found);
    let changes = Before::changes_of(&before, &changed, Before::made_due);
    record_pass(
        &call,
        "jobs.run_now",
        pass_detail(&wanted, &answer),
        changes,
    )
    .await;
    Ok(Reply::ok(answer))
}

/// What the audit log keeps of a pass. What it looked for in payloads is only for those who may
/// read them.
pub(in crate::routes) fn pass_detail(pass: &Pass, answer: &PassAnswer) -> Value {
    let ids = pass.ids.as_ref();
    let filter = ids.is_none().then(|| pass.filter.clone().without_values());
    json!({
        "filter": filter,
        "ids": ids.map(|ids| ids.iter().take(IDS_LOGGED_MAX).collect::<Vec<_>>()),
        "ids_given": ids.map(Vec::len),
        "changed": answer.changed, "conflicts": answer.conflicts,
    })
}

/// The jobs that a pass found, and how far it got.
#[derive(Debug, Default)]
pub(in crate::routes) struct BatchJobs {
    pub(in crate::routes) jobs: Vec<windlass_core::Job>,
    /// Jobs that were named and cannot be read.
    unreadable: Vec<JobId>,
    next: Option<JobId>,
    scanned: usize,
}

/// The jobs of a filter behind a cursor.
pub(in crate::routes) async fn found_by(
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

/// What a pass did.
pub(in crate::routes) fn pass_answer(changed: &[Changed], found: &BatchJobs) -> PassAnswer {
    let done = |one: &&Changed| matches!(one, Changed::Now(_) | Changed::Removed);
    let done = changed.iter().filter(done).count();
    PassAnswer {
        changed: done,
        conflicts: changed.len() - done + found.unreadable.len(),
        unreadable: found.unreadable.clone(),
        scanned: found.scanned,
        next_cursor: found.next.map(|id| PageCursor(id).to_string()),
    }
}

/// The jobs of one pass.
pub(in crate::routes) async fn pass(call: &Call, pass: &Pass) -> Result<BatchJobs, Problem> {
    match &pass.ids {
        None => found_by(call, &pass.filter, pass.after, pass.limit).await,
        Some(ids) => named(&call.app.client, ids).await,
    }
}

/// The jobs with these ids. A job that cannot be read does not stop the others; an id that names no
/// job is refused.
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
            // Read alone, a job that exists but cannot be read is an error.
            None => match client.get(*id).await {
                Err(Error::Store(StoreError::Unreadable { .. })) => found.unreadable.push(*id),
                Err(error) => return Err(error.into()),
                Ok(_) => return Err(Error::NotFound(*id).into()),
            },
        }
    }
    Ok(found)
}
