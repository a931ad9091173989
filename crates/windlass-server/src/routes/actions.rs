//! What replays and bulk actions share: create, read, list and control them.

use windlass_api::{
    ActionPreview, BoundedInt, Content, ItemFailure, Job as JobView, JobDiff, Json, Page,
    PageCursor, PageParams, Position,
};
use windlass_core::{
    ActionCommand, ActionId, Consent, DeadReason, Payload, PayloadPatch, RevivalChanges, State,
};
use windlass_engine::{ActionError, ActionStatus, NewAction};
use windlass_store::Changed;

use super::jobs::allow;
use crate::call::Call;
use crate::problem::Problem;

/// The number of actions on a page if the request gives no limit.
const LIST_DEFAULT: usize = 50;

/// Which actions a route is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Noun {
    Replay,
    BulkAction,
}

impl Noun {
    fn is_replay(self) -> bool {
        self == Noun::Replay
    }

    fn name(self) -> &'static str {
        match self {
            Noun::Replay => "replay",
            Noun::BulkAction => "bulk action",
        }
    }
}

/// Creates an action. A request that is repeated with its `Idempotency-Key` finds the first one.
pub(super) async fn create(call: &Call, new: NewAction) -> Result<ActionStatus, Problem> {
    allow(call, &new.filter)?;
    let (actions, actor) = (call.app.client.actions(), call.caller.actor());
    let action = actions.create_from(new, &actor, &call.origin()).await?;
    Ok(actions.get(action.id).await?)
}

/// Returns what an action would do.
pub(super) async fn preview(call: &Call, new: NewAction) -> Result<ActionPreview, Problem> {
    allow(call, &new.filter)?;
    let consent = consent_of(&new);
    let preview = call.app.client.actions().preview(new).await?;
    // Later than the preview, so that jobs which it makes due are ready.
    let (now, content) = (call.app.client.now(), call.content());
    let mut shown = ActionPreview {
        matched: preview.matched,
        complete: preview.is_complete,
        samples: Vec::new(),
        diff: Vec::new(),
    };
    for (job, changed) in preview.samples {
        let before = JobView::new(job, now, content);
        shown.diff.push(match changed {
            Ok(after) => {
                let after = after.map(|after| JobView::new(after, now, content));
                JobDiff::between(&before, after.as_ref())
            }
            Err(refused) => JobDiff::refused(before.id, refusal(&refused, consent, content)),
        });
        shown.samples.push(before);
    }
    Ok(shown)
}

/// Whether the action may revive jobs that may have run; `None` if it revives none.
fn consent_of(new: &NewAction) -> Option<Consent> {
    match new.work.bulk_change() {
        windlass_core::BulkChange::Revive(revival) => Some(revival.revival().consent),
        _ => None,
    }
}

/// Why an action would leave a job alone.
fn refusal(refused: &Changed, consent: Option<Consent>, content: Content) -> String {
    match refused {
        Changed::Conflict(State::Dead(DeadReason::Lost)) if consent == Some(Consent::NotGiven) => {
            "the job may have run; it needs `force`".to_owned()
        }
        Changed::Conflict(state) => {
            format!("the job is {state}; the action does not apply to a job in this state")
        }
        // The reason may quote the payload.
        Changed::PatchFailed { reason } if content == Content::Shown => reason.clone(),
        Changed::PatchFailed { .. } => "the patch does not apply".to_owned(),
        _ => "the action does not apply to the job".to_owned(),
    }
}

/// Returns the action of the path.
pub(super) async fn find(call: &Call, noun: Noun) -> Result<ActionStatus, Problem> {
    let missing = || Problem::not_found(format!("such {}", noun.name()));
    let id: ActionId = call.param("id").parse().map_err(|_| missing())?;
    match call.app.client.actions().get(id).await {
        Ok(status) if status.action.work.is_replay() == noun.is_replay() => Ok(status),
        Ok(_) | Err(ActionError::NotFound(_)) => Err(missing()),
        Err(error) => Err(error.into()),
    }
}

/// Pauses, resumes, aborts or continues the action of the path.
pub(super) async fn command(
    call: &Call,
    noun: Noun,
    command: ActionCommand,
) -> Result<ActionStatus, Problem> {
    let id = find(call, noun).await?.action.id;
    let actor = call.caller.actor();
    let actions = call.app.client.actions();
    Ok(actions.command(id, command, &actor).await?)
}

/// Returns a page of actions, newest first, and the URL of the next page.
pub(super) async fn list<T, P: Position + From<ActionId> + Into<ActionId>>(
    call: &Call,
    page: PageParams<P>,
    noun: Noun,
    view: impl Fn(ActionStatus) -> T,
) -> Result<(Page<T>, Option<String>), Problem> {
    let (limit, before) = (page.limit_or(LIST_DEFAULT), page.after().map(P::into));
    let actions = call.app.client.actions();
    let listed = actions.list(noun.is_replay(), before, limit + 1).await?;
    let next = listed
        .get(limit - 1)
        .filter(|_| listed.len() > limit)
        .map(|last| PageCursor(P::from(last.action.id)).to_string());
    let link = call.link(next.as_ref());
    let page = Page {
        data: listed.into_iter().take(limit).map(view).collect(),
        next_cursor: next,
    };
    Ok((page, link))
}

/// The jobs that an action could not change. Their errors may quote payloads.
pub(super) fn item_failures(status: &ActionStatus, content: Content) -> Vec<ItemFailure> {
    let failures = status.action.failures.iter();
    let shown = failures.map(|failure| ItemFailure {
        job_id: failure.job_id,
        reason: failure.reason,
        error: Some(failure.error.clone()).filter(|_| content == Content::Shown),
    });
    shown.collect()
}

/// A patch of payloads, for callers who may see payloads.
pub(super) fn shown_patch(patch: Option<&PayloadPatch>, content: Content) -> Option<Json> {
    let patch = patch.filter(|_| content == Content::Shown)?;
    Payload::from_serialize(patch, usize::MAX).ok().map(Json)
}

/// The limit of attempts that a revival sets.
pub(super) fn limit(changes: &RevivalChanges) -> Option<BoundedInt<1, 1000>> {
    let limit = changes.max_attempts?;
    BoundedInt::new(limit.get().into())
}

impl From<ActionError> for Problem {
    fn from(error: ActionError) -> Self {
        let detail = error.to_string();
        match error {
            ActionError::Invalid(invalid) => invalid.into(),
            ActionError::Store(error) => error.into(),
            ActionError::NotFound(_) => Problem::not_found("such bulk action or replay"),
            ActionError::Conflict { .. } => Problem::conflict("wrong_state", detail)
                .hint("read it again: its `state` decides which commands are possible"),
            ActionError::TooMany => Problem::conflict("too_many_actions", detail),
        }
    }
}
