//! Replays: dead jobs revived step by step, with a canary, a rate and stop rules.

use windlass_api::{
    Canary, Content, FailureCount, JobFilter, NewReplay, Page, PageParams, Replay, ReplayAnswer,
    ReplayPosition, Retry, StopRules,
};
use windlass_core::{ActionCommand, BulkRevival, ReplayProgress, ReplayRules};
use windlass_engine::{ActionStatus, NewAction, Work};

use super::Route;
use super::actions::{self, Noun};
use crate::access::Scope;
use crate::call::Call;
use crate::endpoint::{JsonBody, Params, Reply};
use crate::problem::Problem;

const TAG: &str = "replays";

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/api/v1/replays", Scope::Operate, create)
            .summary(
                TAG,
                "Creates a replay: revives dead jobs step by step, and stops itself if they fail again.",
            )
            .status(201, "The replay.")
            .status(200, "What the replay would do (`dry_run`). Nothing was created.")
            .idempotent(),
        Route::get("/api/v1/replays", Scope::Read, list)
            .summary(TAG, "Lists replays, newest first.")
            .status(200, "A page of replays."),
        Route::get("/api/v1/replays/{id}", Scope::Read, get)
            .summary(TAG, "Returns a replay.")
            .status(200, "The replay."),
        Route::post("/api/v1/replays/{id}/pause", Scope::Operate, pause)
            .summary(TAG, "Pauses a replay. Jobs that it revived stay revived.")
            .status(200, "The replay."),
        Route::post("/api/v1/replays/{id}/resume", Scope::Operate, resume)
            .summary(TAG, "Resumes a paused replay.")
            .status(200, "The replay."),
        Route::post("/api/v1/replays/{id}/abort", Scope::Operate, abort)
            .summary(TAG, "Ends a replay. Jobs that it revived stay revived.")
            .status(200, "The replay."),
        Route::post("/api/v1/replays/{id}/continue", Scope::Operate, go_on)
            .summary(
                TAG,
                "Continues a replay that stopped itself, with another canary.",
            )
            .status(200, "The replay."),
    ]
}

async fn create(
    call: Call,
    JsonBody(new): JsonBody<NewReplay>,
) -> Result<Reply<ReplayAnswer>, Problem> {
    let action = NewAction {
        filter: new.filter,
        work: Work::Replay {
            revival: new.revival,
            rules: new.rules,
            progress: ReplayProgress::default(),
        },
        reason: new.reason,
    };
    if new.dry_run {
        let preview = actions::preview(&call, action).await?;
        return Ok(Reply::ok(ReplayAnswer::Preview(preview)));
    }
    let status = actions::create(&call, action).await?;
    let path = call.address(&format!("/replays/{}", status.action.id));
    let replay = view(&call, status)?;
    Ok(Reply::created(ReplayAnswer::Created(Box::new(replay))).location(path))
}

async fn list(
    call: Call,
    Params(page): Params<PageParams<ReplayPosition>>,
) -> Result<Reply<Page<Replay>>, Problem> {
    let (page, link) =
        actions::list(&call, page, Noun::Replay, |status| view(&call, status)).await?;
    let data = page.data.into_iter().collect::<Result<_, _>>()?;
    let next_cursor = page.next_cursor;
    Ok(Reply::ok(Page { data, next_cursor }).next(link))
}

async fn get(call: Call) -> Result<Reply<Replay>, Problem> {
    let status = actions::find(&call, Noun::Replay).await?;
    Ok(Reply::ok(view(&call, status)?))
}

async fn pause(call: Call) -> Result<Reply<Replay>, Problem> {
    command(call, ActionCommand::Pause).await
}

async fn resume(call: Call) -> Result<Reply<Replay>, Problem> {
    command(call, ActionCommand::Resume).await
}

async fn abort(call: Call) -> Result<Reply<Replay>, Problem> {
    command(call, ActionCommand::Abort).await
}

async fn go_on(call: Call) -> Result<Reply<Replay>, Problem> {
    command(call, ActionCommand::Continue).await
}

async fn command(call: Call, command: ActionCommand) -> Result<Reply<Replay>, Problem> {
    let status = actions::command(&call, Noun::Replay, command).await?;
    Ok(Reply::ok(view(&call, status)?))
}

fn view(call: &Call, status: ActionStatus) -> Result<Replay, Problem> {
    let content = call.content();
    let Work::Replay {
        revival,
        rules,
        progress,
    } = &status.action.work
    else {
        return Err(Problem::not_found("such replay"));
    };
    Ok(replay_of(&status, (revival, rules, progress), content))
}

fn replay_of(
    status: &ActionStatus,
    (revival, rules, progress): (&BulkRevival, &ReplayRules, &ReplayProgress),
    content: Content,
) -> Replay {
    let (action, tally) = (&status.action, &status.tally);
    Replay {
        id: action.id,
        state: action.state,
        phase: progress.phase,
        matched: action.matched,
        to_do: status.to_do(),
        revived: tally.changed(),
        skipped: action.skipped_total(),
        skipped_by: action.skipped.clone(),
        pending: tally.pending,
        recovered: tally.recovered,
        failed_again: tally.failed_again,
        gone: tally.gone,
        waiting_for: action.waiting_for,
        waiting_queue: action.waiting_queue.clone(),
        stop_reason: action.stop_reason,
        filter: JobFilter::new(&action.filter, content),
        canary: Canary::from(rules),
        rate: rules.rate,
        max_pending: rules.pending_max(),
        stop: StopRules::from(rules),
        failures: FailureCount::from(revival),
        payload_patch: actions::shown_patch(revival.payload_patch.as_ref(), content),
        force: revival.force,
        max_attempts: actions::limit(&revival.changes),
        retry: revival.changes.retry.as_ref().map(Retry::from),
        queue: revival.changes.queue.clone(),
        priority: revival.changes.priority,
        reason: action.reason.clone(),
        created_at: action.created_at,
        created_by: action.created_by.clone(),
        ended_at: action.ended_at,
        item_failures: actions::item_failures(status, content),
    }
}
