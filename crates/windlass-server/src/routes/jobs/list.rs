//! Lists of jobs.

use windlass_api::{
    Job, JobFilter, JobOrder, JobPage, JobPosition, ListParams, PageCursor, PageParams,
};
use windlass_core::{Filter, Invalid, ListedState};
use windlass_store::{ListCursor, ListOrder, Page};

use crate::access::{Refused, Scope};
use crate::call::Call;
use crate::endpoint::{Params, Reply};
use crate::problem::Problem;

/// The number of jobs on a page if the request gives no limit.
const PAGE_DEFAULT: usize = 50;

pub(super) async fn list(
    call: Call,
    Params(page): Params<PageParams<JobPosition>>,
    Params(filter): Params<JobFilter>,
    Params(list): Params<ListParams>,
) -> Result<Reply<JobPage>, Problem> {
    answer(&call, page, &filter, list).await
}

/// Refuses a filter on payloads or errors to a caller who may not read them.
pub(in crate::routes) fn allow(call: &Call, filter: &Filter) -> Result<(), Problem> {
    let reads_payloads = filter.payload.is_some() || filter.error.is_some();
    if reads_payloads && !call.caller.may(Scope::ReadPayload) {
        let needed = Scope::ReadPayload;
        return Err(Refused::Scope { needed }.into());
    }
    Ok(())
}

/// Returns a page of the jobs that match a filter.
pub(in crate::routes) async fn answer(
    call: &Call,
    page: PageParams<JobPosition>,
    filter: &Filter,
    list: ListParams,
) -> Result<Reply<JobPage>, Problem> {
    allow(call, filter)?;
    let page = store_page(page, list.order.unwrap_or_default())?;
    let found = call.app.client.search(filter, page).await?;
    let next_cursor = found.next.map(|next| {
        let (finished_at, id) = (next.finished_at, next.id);
        PageCursor(JobPosition { finished_at, id }).to_string()
    });
    let link = call.link(next_cursor.as_ref());
    let scans = has_no_index(filter);
    let jobs = found.jobs.into_iter();
    let page = JobPage {
        data: jobs
            .map(|job| Job::new(job, found.at, call.content()))
            .collect(),
        scanned: scans.then_some(found.scanned),
        scanned_until: found.scanned_until.filter(|_| scans),
        complete: scans.then_some(next_cursor.is_none()),
        next_cursor,
    };
    Ok(Reply::ok(page).next(link))
}

fn store_page(page: PageParams<JobPosition>, order: JobOrder) -> Result<Page, Invalid> {
    let limit = page.limit_or(PAGE_DEFAULT);
    let order = match order {
        JobOrder::Created => ListOrder::Created,
        JobOrder::FinishedAt => ListOrder::Finished,
    };
    let after = page.after();
    let has_time = |after: &JobPosition| after.finished_at.is_some();
    if after.is_some_and(|after| has_time(&after) != (order == ListOrder::Finished)) {
        let rule = "must be a `next_cursor` of a list with the same `order`";
        return Err(Invalid::new("cursor", rule));
    }
    let cursor = |position: JobPosition| ListCursor {
        finished_at: position.finished_at,
        id: position.id,
    };
    Ok(Page {
        order,
        after: after.map(cursor),
        limit,
    })
}

/// Whether a condition has no index, so that the server may examine many jobs that do not match.
fn has_no_index(filter: &Filter) -> bool {
    let is_dead = filter.state == Some(ListedState::Dead);
    filter.error.is_some()
        || filter.payload.is_some()
        || filter.failed_from.is_some()
        || filter.failed_before.is_some()
        || filter.finished_from.is_some()
        || filter.retrying.is_some()
        || filter.replay.is_some()
        || (filter.fingerprint.is_some() && !is_dead)
}
