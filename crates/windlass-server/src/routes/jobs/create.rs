//! Creates one job.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use windlass::Receipt;
use windlass_api::{
    Body, Checks, Content, Created, CreatedJob, NewJobOrForm, Param, Receipt as ReceiptView,
    read_body,
};
use windlass_core::{Invalid, Job, JobId, NewJob, Payload};
use windlass_http::form::SchedulerForm;
use windlass_http::with_defaults;
use windlass_store::EnqueueMode;

use super::form;
use crate::access::Scope;
use crate::app::App;
use crate::call::Call;
use crate::endpoint::{Extract, Reply, Signature};
use crate::http_jobs::{check_form, check_request, with_deadline, with_depth};
use crate::problem::Problem;
use crate::signing::Signers;

/// A job or a scheduler form.
pub(super) enum Posted {
    Job(Box<NewJob>),
    Form(Box<SchedulerForm>),
}

impl Extract for Posted {
    fn declare(signature: &mut Signature) -> Vec<Param> {
        signature.takes::<NewJobOrForm>();
        Vec::new()
    }

    fn extract(call: &Call, _: &[Param]) -> Result<Self, Problem> {
        let text = call.text()?;
        if form::is_form(text) {
            return Ok(Posted::Form(Box::new(form::read(text, call.now)?)));
        }
        let new = read_body::<WithRequest>(text, call.now)?;
        Ok(Posted::Job(Box::new(new)))
    }
}

/// A new job. The payload of an HTTP job is checked as a request.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
struct WithRequest(windlass_api::NewJob);

impl Body for WithRequest {
    type Checked = NewJob;

    fn check(self, checks: &mut Checks) -> Option<NewJob> {
        let payload_field = match self.0.http {
            Some(_) => "http",
            None => "payload",
        };
        let new = self.0.check(checks)?;
        for problem in request_problems(&new) {
            checks.report(problem.rename_field("payload", payload_field));
        }
        Some(new)
    }
}

/// Returns all problems of the request of an HTTP job. Removes an invalid field to find the next
/// one.
pub(in crate::routes) fn request_problems(new: &NewJob) -> Vec<Invalid> {
    let (mut problems, mut payload) = (Vec::new(), new.payload.clone());
    while let Err(problem) = check_form((&new.kind, new.delivery), &payload) {
        let field = problem.field().strip_prefix("payload.").unwrap_or_default();
        let rest = without(&payload, field.split(['.', '[']).next().unwrap_or_default());
        problems.push(problem);
        match rest {
            Some(rest) => payload = rest,
            None => break,
        }
    }
    problems
}

/// Returns a request without one of its fields, or with a valid URL instead of an invalid one.
pub(super) fn without(request: &Payload, field: &str) -> Option<Payload> {
    const URL: &str = "https://example.com";
    let mut fields: Map<String, Value> = request.decode().ok()?;
    let bad = fields.remove(field).filter(|value| value != URL)?;
    if field == "url" && !bad.is_null() {
        fields.insert(field.to_owned(), URL.into());
    }
    Payload::from_serialize(&fields, usize::MAX).ok()
}

pub(super) async fn create(call: Call, posted: Posted) -> Result<Reply<Created>, Problem> {
    let new = match posted {
        Posted::Job(new) => *new,
        Posted::Form(form) => return form::create(&call, *form).await,
    };
    let job = made(&call, &mut call.signers(), call.new_job_id(), new).await?;
    let stored = enqueue(&call.app, vec![job.clone()], EnqueueMode::AllOrNone).await?;
    let receipt = stored.into_iter().next();
    let receipt = receipt
        .ok_or_else(|| Problem::internal(&"the store returned no result for an enqueued job"))??;
    let receipt = receipt_view(receipt, &call);
    if receipt.id != job.id && !call.caller.may(Scope::Read) {
        // The caller may not read the existing job.
        return Ok(Reply::ok(Created::Receipt(receipt)));
    }
    let content = match call.content() {
        // The error of the existing job does not come from this request.
        Content::Withheld if receipt.id != job.id => Content::Withheld,
        _ => Content::NotRepeated,
    };
    let job = if receipt.id == job.id {
        job
    } else {
        let first = call.app.client.get(receipt.id).await?;
        // The existing job may have been removed since.
        first.unwrap_or(Job {
            id: receipt.id,
            ..job
        })
    };
    let status = if receipt.duplicate {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    };
    let path = call.address(&format!("/jobs/{}", job.id));
    let created = CreatedJob {
        job: windlass_api::Job::new(job, call.app.client.now(), content),
        duplicate: receipt.duplicate,
        payload_differs: receipt.payload_differs,
        replaced: receipt.replaced,
    };
    let reply = Reply::ok(Created::Job(Box::new(created)));
    Ok(reply.status(status).location(path))
}

/// Checks a new job and returns it as it will be stored.
pub(super) async fn made(
    call: &Call,
    signers: &mut Signers<'_>,
    id: JobId,
    new: NewJob,
) -> Result<Job, Problem> {
    let most = call.app.settings.payload_bytes_max;
    check_payload(&new, most)?;
    check_request(signers, (&new.kind, new.delivery), &new.payload).await?;
    let new = with_depth(&call.headers, with_defaults(new));
    let new = with_deadline(&call.headers, new)?;
    Ok(new.into_job_with(id, call.now, most)?)
}

pub(super) fn check_payload(new: &NewJob, most: usize) -> Result<(), Problem> {
    new.payload.check_size(most).map_err(|error| {
        let detail = error.within("payload").to_string();
        Problem::too_large("payload_too_large", detail)
            .hint("store large data elsewhere and put its address into the payload")
    })
}

/// Stores jobs and returns the result of each.
pub(super) async fn enqueue(
    app: &App,
    jobs: Vec<Job>,
    mode: EnqueueMode,
) -> Result<Vec<Result<Receipt, Problem>>, Problem> {
    let receipts = app.client.enqueue_jobs(jobs, mode).await?.into_iter();
    Ok(receipts.map(|receipt| Ok(receipt?)).collect())
}

/// The result of an enqueue, as the caller may see it. A caller who may not read payloads does not
/// learn whether they differ, because that would allow guessing the payload of the existing job.
pub(super) fn receipt_view(receipt: Receipt, call: &Call) -> ReceiptView {
    let may_know = !receipt.duplicate || call.caller.may(Scope::ReadPayload);
    ReceiptView {
        id: receipt.id,
        duplicate: receipt.duplicate,
        payload_differs: may_know.then_some(receipt.payload_differs),
        replaced: receipt.replaced,
    }
}
