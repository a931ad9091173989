//! Lists of jobs, and passes over them.

use serde::Serialize;
use serde_json::{Map, Value};
use windlass_api::{After, Cursor, JobFilter, JobView, ListPage, PassAnswer};
use windlass_core::fields::Fields;
use windlass_core::{Invalid, JobId, Timestamp};
use windlass_store::{Change, Changed, PAGE_MAX, Store, StoreError};

use crate::access::Scope;
use crate::answer::Answer;
use crate::audit::{Before, record_pass};
use crate::call::Call;
use crate::problem::Problem;
use crate::search::{Found, search};

/// One pass changes so many jobs unless it is said.
const PASS_DEFAULT: usize = 100;

/// The audit log names so many of the jobs that were named.
const IDS_TOLD_MAX: usize = 100;

/// A page of jobs, and how far a search got.
#[derive(Serialize)]
struct JobPage<'a> {
    #[serde(flatten)]
    page: ListPage<JobView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scanned: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scanned_until: Option<Timestamp>,
}

/// `GET /api/v1/jobs`.
pub(super) async fn list(call: Call) -> Result<Answer, Problem> {
    let filter = filter_of(&call)?;
    answer(&call, filter).await
}

/// What a query asks of jobs. What payloads and errors hold can only be asked by those who may read them.
pub(in crate::routes) fn filter_of(call: &Call) -> Result<JobFilter, Problem> {
    let filter = JobFilter::from_query(&mut call.query())?;
    allow(call, &filter)?;
    Ok(filter)
}

pub(in crate::routes) fn allow(call: &Call, filter: &JobFilter) -> Result<(), Problem> {
    let reserved = filter.payload.is_some() || filter.error.is_some();
    if reserved && !call.caller.may(Scope::ReadPayload) {
        let needed = Scope::ReadPayload;
        return Err(crate::access::Refused::Scope { needed }.into());
    }
    Ok(())
}

/// The page of a list that a query asks for.
pub(in crate::routes) async fn answer(call: &Call, filter: JobFilter) -> Result<Answer, Problem> {
    let (limit, after) = call.page()?;
    let found = search(&call.app, &filter, after, limit, call.now).await?;
    let content = call.content();
    let view = |job| JobView {
        job,
        now: call.now,
        content,
    };
    let next_cursor = found.next.map(|id| Cursor::Job(id).to_string());
    let link = call.link(next_cursor.as_ref());
    let page = JobPage {
        page: ListPage {
            data: found.jobs.iter().map(view).collect(),
            next_cursor,
        },
        scanned: filter.searches().then_some(found.scanned),
        scanned_until: found.scanned_until.filter(|_| filter.searches()),
    };
    Ok(Answer::ok(&page)?.next(link))
}

/// `POST /api/v1/jobs/run-now`.
pub(super) async fn run_now(call: Call) -> Result<Answer, Problem> {
    let wanted = call.read(|parts| {
        let (wanted, rest) = pass_request(parts.values()?)?;
        Fields::of(&rest).finish()?;
        Ok(wanted)
    })?;
    allow(&call, &wanted.filter)?;
    let found = pass(&call, &wanted).await?;
    // A filter is about retries that wait: fresh jobs with a time of their own must be named to be run before it.
    let by_name = wanted.ids.is_some();
    let meant = found.jobs.iter().filter(|job| by_name || job.failures > 0);
    let before = Before::keep_all(&call, meant.cloned(), None).await?;
    let ids: Vec<JobId> = before.iter().map(Before::id).collect();
    let changed = call.app.client.change_many(&ids, &Change::RunNow).await?;
    let answer = pass_answer(&changed, &found);
    let changes = Before::changes_of(&before, &changed, Before::made_due);
    record_pass(&call, "jobs.run_now", wanted.told(&answer), changes).await;
    Answer::ok(&answer)
}

/// What a pass over jobs is about.
pub(in crate::routes) struct PassRequest {
    pub(in crate::routes) filter: JobFilter,
    told: Value,
    ids: Option<Vec<JobId>>,
    limit: usize,
    after: Option<JobId>,
}

impl PassRequest {
    /// What the audit keeps of it.
    pub(in crate::routes) fn told(&self, answer: &PassAnswer) -> Value {
        let ids = self.ids.as_ref();
        serde_json::json!({
            "filter": self.told,
            "ids": ids.map(|ids| ids.iter().take(IDS_TOLD_MAX).collect::<Vec<_>>()),
            "ids_given": ids.map(Vec::len),
            "changed": answer.changed, "conflicts": answer.conflicts,
        })
    }
}

/// What a pass did.
pub(in crate::routes) fn pass_answer(changed: &[Changed], found: &Found) -> PassAnswer {
    let done = |one: &&Changed| matches!(one, Changed::Now(_) | Changed::Removed);
    let done = changed.iter().filter(done).count();
    PassAnswer {
        changed: done,
        conflicts: changed.len() - done + found.unreadable.len(),
        unreadable: found.unreadable.clone(),
        scanned: found.scanned,
        next_cursor: found.next.map(|id| After(id).to_string()),
    }
}

/// Reads `filter` or `ids`, `limit` and `cursor`; what else there is comes back.
pub(in crate::routes) fn pass_request(
    mut map: Map<String, Value>,
) -> Result<(PassRequest, Map<String, Value>), Invalid> {
    let names = ["filter", "ids", "limit", "cursor"];
    let ours: Map<String, Value> = names
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), map.remove(*name)?)))
        .collect();
    let mut fields = Fields::of(&ours);
    let told = fields.value("filter").cloned().unwrap_or(Value::Null);
    let filter = match &told {
        Value::Null => JobFilter::default(),
        Value::Object(asked) => {
            JobFilter::from_fields(asked).map_err(|error| error.within("filter"))?
        }
        _ => return Err(Invalid::new("filter", "must be an object")),
    };
    let ids = read_ids(&mut fields)?;
    if filter.is_empty() == ids.is_none() {
        let rule = "that asks something, or `ids`, must be given, and only one of them";
        return Err(Invalid::new("filter", rule));
    }
    let most = i64::try_from(PAGE_MAX).unwrap_or(i64::MAX);
    let limit = fields.integer("limit", 1, most)?;
    let after = fields.parsed("cursor", Cursor::job)?;
    let request = PassRequest {
        filter,
        told: without_values(told),
        ids,
        limit: limit
            .and_then(|limit| limit.try_into().ok())
            .unwrap_or(PASS_DEFAULT),
        after,
    };
    Ok((request, map))
}

/// What was asked, without what was looked for in payloads: the audit log is not for those who may read them alone.
fn without_values(mut asked: Value) -> Value {
    if let Some(value) = asked.get_mut("payload_value") {
        *value = Value::from("…");
    }
    asked
}

/// A list of job ids under `ids`.
fn read_ids(fields: &mut Fields<'_>) -> Result<Option<Vec<JobId>>, Invalid> {
    let Some(list) = fields.list("ids")? else {
        return Ok(None);
    };
    if list.is_empty() || list.len() > PAGE_MAX {
        let rule = format!("must list 1 to {PAGE_MAX} ids, got {}", list.len());
        return Err(Invalid::new("ids", rule));
    }
    let read = |(place, value): (usize, &Value)| {
        let text = value.as_str().unwrap_or_default();
        let id: Result<JobId, Invalid> = text.parse();
        id.map_err(|error| error.within(&format!("ids[{place}]")))
    };
    let ids: Result<Vec<JobId>, Invalid> = list.iter().enumerate().map(read).collect();
    Ok(Some(ids?))
}

/// The jobs of one pass.
pub(in crate::routes) async fn pass(call: &Call, wanted: &PassRequest) -> Result<Found, Problem> {
    match &wanted.ids {
        None => {
            search(
                &call.app,
                &wanted.filter,
                wanted.after,
                wanted.limit,
                call.now,
            )
            .await
        }
        Some(ids) => named(call.app.store(), ids).await,
    }
}

/// The jobs with these ids. One that cannot be read keeps nothing from the others; one that is not
/// there is refused.
async fn named(store: &dyn Store, ids: &[JobId]) -> Result<Found, Problem> {
    let mut found = Found {
        scanned: ids.len(),
        ..Found::default()
    };
    let jobs = match store.get(ids).await {
        Err(StoreError::Unreadable { .. }) => vec![None; ids.len()],
        jobs => jobs?,
    };
    for (id, job) in ids.iter().zip(jobs) {
        match job {
            Some(job) => found.jobs.push(job),
            // Asked for alone, a job that is there but cannot be read is an error.
            None => match store.get(&[*id]).await {
                Err(StoreError::Unreadable { .. }) => found.unreadable.push(*id),
                Err(error) => return Err(error.into()),
                Ok(_) => return Err(Problem::not_found(format!("job {id}"))),
            },
        }
    }
    Ok(found)
}
