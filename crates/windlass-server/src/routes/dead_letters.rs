//! Dead letters: what waits for a person, grouped by what went wrong.

use std::collections::{BTreeMap, HashSet};

use axum::http::Method;
use serde::Serialize;
use serde_json::{Value, json};
use windlass_api::schema::{Field, Schema, filter_params};
use windlass_api::{Content, JobFilter, group_of, read_revival};
use windlass_core::fields::RawFields;
use windlass_core::{Invalid, Job, JobId, Kind, Revival, State, Timestamp};
use windlass_store::{Change, Changed, PAGE_MAX};

use super::Route;
use super::jobs::{
    PassRequest, allow, answer_page, filter_of, page_params, pass, pass_answer, pass_request,
    scan_fields,
};
use crate::access::Scope;
use crate::answer::Answer;
use crate::audit::{Before, record_pass};
use crate::call::Call;
use crate::http_jobs::check_request;
use crate::problem::Problem;
use crate::search::search;

const TAG: &str = "dead letters";

/// So many dead jobs are looked at for their groups.
const GROUPED_MAX: usize = 10_000;

pub(super) fn routes() -> Vec<Route> {
    let filters = || {
        filter_params()
            .into_iter()
            .filter(|param| param.name() != "state")
    };
    let mut params = page_params();
    params.extend(filters());
    vec![
        Route::new(Method::GET, "/api/v1/dead-letters", Scope::Read, list)
            .says(TAG, "Lists dead jobs, newest first.")
            .params(params)
            .answers(
                200,
                "A page.",
                Schema::page(Schema::named("Job"), scan_fields()),
            ),
        Route::new(
            Method::GET,
            "/api/v1/dead-letters/groups",
            Scope::Read,
            groups,
        )
        .says(
            TAG,
            "Groups dead jobs by what went wrong, the largest group first.",
        )
        .params(filters())
        .answers(
            200,
            "The groups of the newest 10,000.",
            Schema::page(
                Schema::named("DeadGroup"),
                vec![
                    Field::always("scanned", Schema::count()),
                    Field::always("complete", Schema::flag()),
                ],
            ),
        ),
        Route::new(
            Method::POST,
            "/api/v1/dead-letters/revive",
            Scope::Operate,
            revive,
        )
        .says(
            TAG,
            "Revives dead jobs of a filter, or by their ids, one pass of them.",
        )
        .takes("ReviveByFilter")
        .answers(200, "How far the pass got.", Schema::named("PassAnswer")),
    ]
}

async fn list(call: Call) -> Result<Answer, Problem> {
    let filter = dead(filter_of(&call)?);
    answer_page(&call, filter).await
}

fn dead(filter: JobFilter) -> JobFilter {
    JobFilter {
        state: Some("dead"),
        ..filter
    }
}

/// Dead jobs that went wrong in the same way.
#[derive(Debug, Serialize)]
struct Group {
    fingerprint: String,
    kind: Kind,
    /// The error's text without its details; for those who may read errors.
    pattern: Option<String>,
    count: usize,
    example: JobId,
    first_at: Timestamp,
    last_at: Timestamp,
    reasons: BTreeMap<&'static str, usize>,
}

async fn groups(call: Call) -> Result<Answer, Problem> {
    let filter = dead(filter_of(&call)?);
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    let (mut after, mut scanned) = (None, 0);
    loop {
        let found = search(&call.app, &filter, after, PAGE_MAX, call.now).await?;
        scanned += found.scanned;
        let mut add = |job: &Job| add(&mut groups, job, call.content());
        found.jobs.iter().for_each(&mut add);
        after = found.next;
        if after.is_none() || scanned >= GROUPED_MAX {
            break;
        }
    }
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse((group.count, group.last_at)));
    Answer::ok(&json!({
        "data": groups, "next_cursor": null, "scanned": scanned, "complete": after.is_none(),
    }))
}

fn add(groups: &mut BTreeMap<String, Group>, job: &Job, content: Content) {
    let State::Dead(reason) = job.state() else {
        return;
    };
    let at = job.finished_at().unwrap_or(job.created_at);
    let fingerprint = group_of(job);
    let group = groups
        .entry(fingerprint.to_string())
        .or_insert_with(|| Group {
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
    *group.reasons.entry(reason.name()).or_default() += 1;
}

fn read_revive(mut parts: RawFields, now: Timestamp) -> Result<(PassRequest, Revival), Invalid> {
    let payload = parts.take("payload");
    let (mut wanted, rest) = pass_request(parts.values()?)?;
    if wanted.filter.state.is_some_and(|state| state != "dead") {
        let rule = "must be `dead` here, or not given";
        return Err(Invalid::new("filter.state", rule));
    }
    wanted.filter = dead(wanted.filter);
    let mut rest = RawFields::parse(&Value::Object(rest).to_string())?;
    if let Some(payload) = payload {
        rest.put("payload", payload);
    }
    Ok((wanted, read_revival(&rest, now)?))
}

async fn revive(call: Call) -> Result<Answer, Problem> {
    let (wanted, revival) = call.read(|parts| read_revive(parts, call.now))?;
    allow(&call, &wanted.filter)?;
    super::jobs::check_payload(&call, revival.payload.as_ref())?;
    let found = pass(&call, &wanted).await?;
    if let Some(payload) = &revival.payload {
        // Of jobs of one kind and delivery, one is enough.
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
    // Jobs that were named may be in another state.
    let is_dead = |job: &&Job| matches!(job.state(), State::Dead(_));
    let (dead, others): (Vec<&Job>, Vec<&Job>) = found.jobs.iter().partition(is_dead);
    let new_payload = revival.payload.as_ref();
    let before = Before::keep_all(&call, dead.iter().copied().cloned(), new_payload).await?;
    let ids: Vec<JobId> = before.iter().map(Before::id).collect();
    let revive = Change::Revive(revival.clone());
    let mut changed = call.app.client.change_many(&ids, &revive).await?;
    let changes = Before::changes_of(&before, &changed, |job, state| job.revived(&revival, state));
    changed.extend(others.iter().map(|job| Changed::Conflict(job.state())));
    let answer = pass_answer(&changed, &found);
    record_pass(&call, "dead_letters.revive", wanted.told(&answer), changes).await;
    Answer::ok(&answer)
}
