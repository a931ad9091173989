//! Dead letters: dead jobs that wait for an operator, grouped by error.

use std::collections::{BTreeMap, HashSet};

use windlass_api::{
    BatchAnswer, Content, DeadFilter, DeadGroup, DeadGroups, JobBatch, JobFilter, JobPage,
    JobState, PageParams, ReviveByFilter,
};
use windlass_core::{Fingerprint, Job, JobId, State};
use windlass_store::{Change, Changed, PAGE_MAX, Page};

use super::Route;
use super::jobs::{allow, answer_page, batch_answer, batch_detail, batch_jobs};
use crate::access::Scope;
use crate::audit::{Before, record_pass};
use crate::call::Call;
use crate::endpoint::{JsonBody, Params, Reply};
use crate::http_jobs::check_request;
use crate::problem::Problem;
use crate::search::search_of;

const TAG: &str = "dead letters";

/// The most dead jobs that are read to build the groups.
const GROUPED_MAX: usize = 10_000;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/api/v1/dead-letters", Scope::Read, list)
            .summary(TAG, "Lists dead jobs, newest first.")
            .status(200, "A page of jobs."),
        Route::get("/api/v1/dead-letters/groups", Scope::Read, groups)
            .summary(TAG, "Groups dead jobs by error, the largest group first.")
            .status(200, "The groups of the newest 10,000 dead jobs."),
        Route::post("/api/v1/dead-letters/revive", Scope::Operate, revive)
            .summary(
                TAG,
                "Revives a batch of dead jobs, selected by filter or by id.",
            )
            .status(200, "The result of the batch."),
    ]
}

async fn list(
    call: Call,
    Params(page): Params<PageParams<JobId>>,
    Params(filter): Params<DeadFilter>,
) -> Result<Reply<JobPage>, Problem> {
    answer_page(&call, page, dead(filter)).await
}

fn dead(filter: JobFilter) -> JobFilter {
    JobFilter {
        state: Some(JobState::Dead),
        ..filter
    }
}

async fn groups(
    call: Call,
    Params(filter): Params<DeadFilter>,
) -> Result<Reply<DeadGroups>, Problem> {
    allow(&call, &filter)?;
    let (client, search) = (&call.app.client, search_of(&dead(filter)));
    let mut groups: BTreeMap<String, DeadGroup> = BTreeMap::new();
    let (mut after, mut scanned) = (None, 0);
    loop {
        let found = client
            .search(
                &search,
                Page {
                    after,
                    limit: PAGE_MAX,
                },
            )
            .await?;
        scanned += found.scanned;
        let mut add = |job: &Job| add(&mut groups, job, call.content());
        found.jobs.iter().for_each(&mut add);
        after = found.next;
        if after.is_none() || scanned >= GROUPED_MAX {
            break;
        }
    }
    let mut groups: Vec<DeadGroup> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse((group.count, group.last_at)));
    Ok(Reply::ok(DeadGroups {
        data: groups,
        next_cursor: None,
        scanned,
        complete: after.is_none(),
    }))
}

fn add(groups: &mut BTreeMap<String, DeadGroup>, job: &Job, content: Content) {
    let State::Dead(reason) = job.state() else {
        return;
    };
    let at = job.finished_at().unwrap_or(job.created_at);
    let fingerprint = Fingerprint::of_job(job);
    let group = groups.entry(fingerprint.to_string());
    let group = group.or_insert_with(|| DeadGroup {
        fingerprint: fingerprint.to_string(),
        kind: job.kind.clone(),
        pattern: (content == Content::Shown).then(|| fingerprint.pattern().to_owned()),
        count: 0,
        example: job.id,
        first_at: at,
        last_at: at,
        reasons: BTreeMap::new(),
    });
    group.count += 1;
    group.first_at = group.first_at.min(at);
    group.last_at = group.last_at.max(at);
    *group.reasons.entry(reason).or_default() += 1;
}

async fn revive(
    call: Call,
    JsonBody((batch, revival)): JsonBody<ReviveByFilter>,
) -> Result<Reply<BatchAnswer>, Problem> {
    allow(&call, &batch.filter)?;
    super::jobs::check_payload(&call, revival.payload.as_ref())?;
    let dead_batch = JobBatch {
        filter: dead(batch.filter.clone()),
        ..batch.clone()
    };
    let found = batch_jobs(&call, &dead_batch).await?;
    if let Some(payload) = &revival.payload {
        // The check depends only on kind and delivery, so each combination is checked once.
        let kinds: HashSet<_> = found
            .jobs
            .iter()
            .map(|job| (&job.kind, job.delivery))
            .collect();
        let mut signers = call.signers();
        for kind in kinds {
            check_request(&mut signers, kind, payload).await?;
        }
    }
    // Jobs selected by id may be in another state.
    let is_dead = |job: &&Job| matches!(job.state(), State::Dead(_));
    let (dead, others): (Vec<&Job>, Vec<&Job>) = found.jobs.iter().partition(is_dead);
    let new_payload = revival.payload.as_ref();
    let before = Before::keep_all(&call, dead.iter().copied().cloned(), new_payload).await?;
    let ids: Vec<JobId> = before.iter().map(Before::id).collect();
    let revive = Change::Revive(revival.clone());
    let mut changed = call.app.client.change_many(&ids, &revive).await?;
    let changes = Before::changes_of(&before, &changed, |job, state| job.revived(&revival, state));
    changed.extend(others.iter().map(|job| Changed::Conflict(job.state())));
    let answer = batch_answer(&changed, &found);
    let detail = batch_detail(&batch, &answer);
    record_pass(&call, "dead_letters.revive", detail, changes).await;
    Ok(Reply::ok(answer))
}
