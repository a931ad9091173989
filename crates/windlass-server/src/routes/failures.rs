//! The causes of failures.

use windlass::admin::FailureFilter;
use windlass_api::{Content, FailureGroup, FailureParams, FailureSample, Page, PageParams};
use windlass_store::FailureGroup as StoredGroup;

use super::Route;
use crate::access::Scope;
use crate::call::Call;
use crate::endpoint::{Params, Reply};
use crate::problem::Problem;

/// The number of groups on a page if the request gives no limit.
const LIST_DEFAULT: usize = 50;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/api/v1/failures", Scope::Read, list)
            .summary(
                "failures",
                "Lists causes of failures with their dead and retrying jobs, the most jobs first.",
            )
            .status(200, "A page of failure groups."),
    ]
}

async fn list(
    call: Call,
    Params(page): Params<PageParams<u64>>,
    Params(params): Params<FailureParams>,
) -> Result<Reply<Page<FailureGroup>>, Problem> {
    let filter = FailureFilter {
        queue: params.queue,
        kind: params.kind,
        fingerprint: params.fingerprint,
        member: params.state.map(Into::into),
    };
    let limit = page.limit_or(LIST_DEFAULT);
    // The list has no stable key: its order changes with the numbers of jobs.
    let start = usize::try_from(page.after().unwrap_or(0)).unwrap_or(usize::MAX);
    let end = start.saturating_add(limit);
    let positions = start..end.saturating_add(1);
    let groups = call.app.client.failure_groups(&filter, positions).await?;
    let groups = groups.into_iter().map(|group| view(group, call.content()));
    let page = Page::first(groups.collect(), limit, |_| {
        u64::try_from(end).unwrap_or(u64::MAX)
    });
    let link = call.link(page.next_cursor.as_ref());
    Ok(Reply::ok(page).next(link))
}

fn view(group: StoredGroup, content: Content) -> FailureGroup {
    let is_shown = content == Content::Shown;
    FailureGroup {
        fingerprint: group.key.fingerprint,
        queue: group.key.queue,
        kind: group.key.kind,
        dead: group.dead,
        retrying: group.retrying,
        first_seen_at: group.first_seen_at,
        last_seen_at: group.last_seen_at,
        sample: FailureSample {
            job_id: group.sample,
            error: Some(group.error).filter(|_| is_shown),
            error_withheld: !is_shown,
        },
        hours: group.hours.to_vec(),
    }
}
