//! Bulk actions: one change to all jobs that match a filter.

use windlass_api::{
    BulkAction, BulkActionAnswer, BulkActionFields, BulkActionName, BulkActionPosition, Content,
    FailureCount, JobFilter, JobPatch, List, NewBulkAction, Page, PageParams, Retry,
};
use windlass_core::{ActionCommand, BulkChange};
use windlass_engine::{ActionStatus, NewAction, Work};

use super::Route;
use super::actions::{self, Noun};
use crate::access::Scope;
use crate::call::Call;
use crate::endpoint::{JsonBody, Params, Reply};
use crate::problem::Problem;

const TAG: &str = "bulk actions";

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/api/v1/bulk-actions", Scope::Operate, create)
            .summary(
                TAG,
                "Creates a bulk action: makes one change to all jobs that match a filter.",
            )
            .status(201, "The bulk action.")
            .status(
                200,
                "What the bulk action would do (`dry_run`). Nothing was created.",
            )
            .idempotent(),
        Route::get("/api/v1/bulk-actions", Scope::Read, list)
            .summary(TAG, "Lists bulk actions, newest first.")
            .status(200, "A page of bulk actions."),
        Route::get("/api/v1/bulk-actions/{id}", Scope::Read, get)
            .summary(TAG, "Returns a bulk action.")
            .status(200, "The bulk action."),
        Route::post("/api/v1/bulk-actions/{id}/pause", Scope::Operate, pause)
            .summary(TAG, "Pauses a bulk action.")
            .status(200, "The bulk action."),
        Route::post("/api/v1/bulk-actions/{id}/resume", Scope::Operate, resume)
            .summary(TAG, "Resumes a paused bulk action.")
            .status(200, "The bulk action."),
        Route::post("/api/v1/bulk-actions/{id}/abort", Scope::Operate, abort)
            .summary(
                TAG,
                "Ends a bulk action. Jobs that it changed stay as they are.",
            )
            .status(200, "The bulk action."),
    ]
}

async fn create(
    call: Call,
    JsonBody(new): JsonBody<NewBulkAction>,
) -> Result<Reply<BulkActionAnswer>, Problem> {
    let action = NewAction {
        filter: new.filter,
        work: Work::Bulk {
            change: new.change,
            rate: new.rate,
        },
        reason: new.reason,
    };
    if new.dry_run {
        let preview = actions::preview(&call, action).await?;
        return Ok(Reply::ok(BulkActionAnswer::Preview(preview)));
    }
    let status = actions::create(&call, action).await?;
    let path = call.address(&format!("/bulk-actions/{}", status.action.id));
    let created = BulkActionAnswer::Created(Box::new(view(&call, &status)));
    Ok(Reply::created(created).location(path))
}

async fn list(
    call: Call,
    Params(page): Params<PageParams<BulkActionPosition>>,
) -> Result<Reply<Page<BulkAction>>, Problem> {
    let view = |status| view(&call, &status);
    let (page, link) = actions::list(&call, page, Noun::BulkAction, view).await?;
    Ok(Reply::ok(page).next(link))
}

async fn get(call: Call) -> Result<Reply<BulkAction>, Problem> {
    let status = actions::find(&call, Noun::BulkAction).await?;
    Ok(Reply::ok(view(&call, &status)))
}

async fn pause(call: Call) -> Result<Reply<BulkAction>, Problem> {
    command(call, ActionCommand::Pause).await
}

async fn resume(call: Call) -> Result<Reply<BulkAction>, Problem> {
    command(call, ActionCommand::Resume).await
}

async fn abort(call: Call) -> Result<Reply<BulkAction>, Problem> {
    command(call, ActionCommand::Abort).await
}

async fn command(call: Call, command: ActionCommand) -> Result<Reply<BulkAction>, Problem> {
    let status = actions::command(&call, Noun::BulkAction, command).await?;
    Ok(Reply::ok(view(&call, &status)))
}

fn view(call: &Call, status: &ActionStatus) -> BulkAction {
    let (action, content) = (&status.action, call.content());
    let change = action.work.bulk_change();
    BulkAction {
        id: action.id,
        action: BulkActionName::from(&change),
        state: action.state,
        matched: action.matched,
        to_do: status.to_do(),
        done: status.done(),
        skipped: action.skipped_total(),
        skipped_by: action.skipped.clone(),
        waiting_for: action.waiting_for,
        waiting_queue: action.waiting_queue.clone(),
        filter: JobFilter::new(&action.filter, content),
        rate: match action.work {
            Work::Bulk { rate, .. } => rate,
            Work::Replay { .. } => None,
        },
        fields: fields_of(change, content),
        reason: action.reason.clone(),
        created_at: action.created_at,
        created_by: action.created_by.clone(),
        ended_at: action.ended_at,
        item_failures: actions::item_failures(status, content),
    }
}

/// The fields of an action, as in the request.
fn fields_of(change: BulkChange, content: Content) -> BulkActionFields {
    let none = BulkActionFields::default();
    match change {
        BulkChange::Revive(revival) => BulkActionFields {
            failures: Some(FailureCount::from(&revival)),
            payload_patch: actions::shown_patch(revival.payload_patch.as_ref(), content),
            run_at: revival.run_at,
            force: Some(revival.force),
            max_attempts: actions::limit(&revival.changes),
            retry: revival.changes.retry.as_ref().map(Retry::from),
            queue: revival.changes.queue,
            priority: revival.changes.priority,
            ..none
        },
        BulkChange::Move { queue } => BulkActionFields {
            queue: Some(queue),
            ..none
        },
        BulkChange::Reprioritise { priority } => BulkActionFields {
            priority: Some(priority),
            ..none
        },
        BulkChange::Patch { patch } => BulkActionFields {
            patch: Some(JobPatch {
                payload: actions::shown_patch(patch.payload.as_ref(), content),
                priority: patch.priority,
                queue: patch.queue,
                tags: patch.tags.map(List),
                retry: patch.retry.as_ref().map(Retry::from),
            }),
            ..none
        },
        BulkChange::RunNow | BulkChange::Cancel | BulkChange::Delete | BulkChange::Resolve => none,
    }
}
