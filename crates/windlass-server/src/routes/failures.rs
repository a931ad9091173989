//! The causes of failures.

use windlass::admin::FailureFilter;
use windlass_api::{
    Content, FailureGroup, FailureParams, FailureSample, Page, PageCursor, PageParams,
};
use windlass_core::GroupCursor;
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
                "Lists causes of failures with their dead and retrying jobs: the largest groups on the first page, the others on the next pages, by queue, kind and fingerprint.",
            )
            .status(200, "A page of failure groups."),
    ]
}

async fn list(
    call: Call,
    Params(page): Params<PageParams<GroupCursor>>,
    Params(params): Params<FailureParams>,
) -> Result<Reply<Page<FailureGroup>>, Problem> {
    let filter = FailureFilter {
        queue: params.queue,
        kind: params.kind,
        fingerprint: params.fingerprint,
        member: params.state.map(Into::into),
    };
    let limit = page.limit_or(LIST_DEFAULT);
    let after = page.after();
    let client = &call.app.client;
    let found = client
        .failure_groups(&filter, limit, after.as_ref())
        .await?;
    let groups = found.groups.into_iter();
    let page = Page {
        data: groups.map(|group| view(group, call.content())).collect(),
        next_cursor: found.next.map(|next| PageCursor(next).to_string()),
    };
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
