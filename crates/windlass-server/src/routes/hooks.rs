//! Hooks: which events Windlass reports to a URL.

use serde_json::{Value, json};
use windlass_api::{Hook, HookDetails, HookReport, HookTest, Page, PutHook};
use windlass_core::{HookDefinition, HookName};
use windlass_engine::{HookError, StoredHooks};
use windlass_http::HttpRequest;
use windlass_store::Expected;

use super::Route;
use crate::access::Scope;
use crate::call::Call;
use crate::endpoint::{JsonBody, Reply};
use crate::preconditions::exists;
use crate::problem::Problem;

const TAG: &str = "hooks";

/// The number of reports that a hook shows.
const REPORTS_MAX: usize = 20;

pub(super) fn routes() -> Vec<Route> {
    let one = "/api/v1/hooks/{name}";
    vec![
        Route::get("/api/v1/hooks", Scope::Admin, list)
            .summary(TAG, "Lists hooks by name.")
            .status(200, "All hooks."),
        Route::get(one, Scope::Admin, get)
            .summary(TAG, "Returns a hook with its last reports.")
            .status(200, "The hook."),
        Route::put(one, Scope::Admin, put)
            .summary(TAG, "Creates a hook, or replaces the hook of this name.")
            .status(200, "The hook was replaced.")
            .status(201, "The hook was created."),
        Route::delete(one, Scope::Admin, delete).summary(
            TAG,
            "Removes a hook. Reports that are enqueued already are still sent.",
        ),
        Route::post("/api/v1/hooks/{name}/test", Scope::Admin, test)
            .summary(
                TAG,
                "Reports the event `test`, also for a paused hook, so that you can check the target.",
            )
            .status(201, "The job of the report was created.")
            .idempotent(),
    ]
}

fn hooks(call: &Call) -> StoredHooks {
    call.app.client.hooks()
}

async fn list(call: Call) -> Result<Reply<Page<Hook>>, Problem> {
    let listed = hooks(&call).list().await?;
    Ok(Reply::ok(Page::single(
        listed.into_iter().map(Hook::from).collect(),
    )))
}

async fn get(call: Call) -> Result<Reply<HookDetails>, Problem> {
    let name: HookName = call.name("name")?;
    let hook = hooks(&call).get(&name).await?;
    let jobs = hooks(&call).reports(&name, REPORTS_MAX).await?;
    let report = |job| HookReport::new(job, call.now, call.content());
    Ok(Reply::ok(HookDetails {
        hook: hook.into(),
        reports: jobs.into_iter().map(report).collect(),
    }))
}

async fn put(call: Call, JsonBody(definition): JsonBody<PutHook>) -> Result<Reply<Hook>, Problem> {
    let name: HookName = call.name("name")?;
    let host = check_request(&call, &name, &definition).await?;
    let expected = match call.only_creates() {
        true => Expected::Absent,
        false => Expected::Any,
    };
    let (hook, is_new) = hooks(&call).put(&name, &definition, expected).await?;
    let detail = audited(&definition, &host);
    call.audit("hook.put", name.as_str(), detail).await;
    let hook = Hook::from(hook);
    Ok(match is_new {
        true => Reply::created(hook),
        false => Reply::ok(hook),
    })
}

/// Refuses a URL or a secret that no HTTP job could use. Returns the host.
async fn check_request(
    call: &Call,
    name: &HookName,
    definition: &HookDefinition,
) -> Result<String, Problem> {
    let hook = windlass_core::Hook::put(name.clone(), definition.clone(), None, call.now);
    let request = HttpRequest::from_json(hook.test_job(call.now).payload.as_str())?;
    if let Some(refusal) = call.signers().refusal(&request).await? {
        return Err(refusal.into());
    }
    Ok(request.url.host().unwrap_or_default().to_owned())
}

/// What the audit log says about a hook. The path of a URL may be secret.
fn audited(definition: &HookDefinition, host: &str) -> Value {
    json!({
        "host": host, "events": definition.events, "queue": definition.queue,
        "kind": definition.kind, "sign": definition.sign, "paused": definition.paused,
        "include_error_text": definition.include_error_text,
    })
}

async fn delete(call: Call) -> Result<Reply<()>, Problem> {
    let name: HookName = call.name("name")?;
    hooks(&call).remove(&name).await?;
    call.audit_plain("hook.delete", name.as_str()).await;
    Ok(Reply::empty())
}

async fn test(call: Call) -> Result<Reply<HookTest>, Problem> {
    let name: HookName = call.name("name")?;
    let job_id = call.new_job_id();
    hooks(&call).test_as(&name, job_id, call.now).await?;
    call.audit("hook.test", name.as_str(), json!({"job_id": job_id}))
        .await;
    let path = call.address(&format!("/jobs/{job_id}"));
    Ok(Reply::created(HookTest { job_id }).location(path))
}

impl From<HookError> for Problem {
    fn from(error: HookError) -> Self {
        match error {
            HookError::Invalid(invalid) => invalid.into(),
            HookError::Store(error) => error.into(),
            HookError::NotFound(name) => Problem::not_found(format!("hook {name}")),
            HookError::Exists(name) => exists(&format!("hook {name}")),
            error @ HookError::TooMany => Problem::conflict("too_many_hooks", error.to_string()),
        }
    }
}
