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

/// A job, or a schedule in the form of one.
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
        if form::is_meant(text) {
            return Ok(Posted::Form(Box::new(form::read(text, call.now)?)));
        }
        let new = read_body::<WithRequest>(text, call.now)?;
        Ok(Posted::Job(Box::new(new)))
    }
}

/// A new job; if it is an HTTP job, its payload is a request.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
struct WithRequest(windlass_api::NewJob);

impl Body for WithRequest {
    type Checked = NewJob;

    fn check(self, checks: &mut Checks) -> Option<NewJob> {
        let spelled = match self.0.http {
            Some(_) => "http",
            None => "payload",
        };
        let new = self.0.check(checks)?;
        for problem in request_problems(&new) {
            checks.report(problem.rename_field("payload", spelled));
        }
        Some(new)
    }
}

/// Everything that is wrong with the request of an HTTP job, found by leaving out what is wrong.
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

/// A request without one of its fields; with a good URL in place of a bad one.
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
    let receipt = receipt.ok_or_else(|| Problem::internal(&"an enqueue without an answer"))??;
    let receipt = receipt_view(receipt, &call);
    if receipt.id != job.id && !call.caller.may(Scope::Read) {
        // The caller may not know what the job that was there first is like.
        return Ok(Reply::ok(Created::Receipt(receipt)));
    }
    let content = match call.content() {
        // The error of the job that was there first was not given by this request.
        Content::Withheld if receipt.id != job.id => Content::Withheld,
        _ => Content::NotRepeated,
    };
    let job = if receipt.id == job.id {
        job
    } else {
        let first = call.app.client.get(receipt.id).await?;
        // It may have been removed since: then the answer says what is known.
        first.unwrap_or(Job {
            id: receipt.id,
            ..job
        })
    };
    let status = match receipt.duplicate {
        true => StatusCode::OK,
        false => StatusCode::CREATED,
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

/// The job that this request asks for, checked.
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
            .hint("keep large data elsewhere, and its address in the payload")
    })
}

/// Stores jobs, and returns what happened to each.
pub(super) async fn enqueue(
    app: &App,
    jobs: Vec<Job>,
    mode: EnqueueMode,
) -> Result<Vec<Result<Receipt, Problem>>, Problem> {
    let receipts = app.client.enqueue_jobs(jobs, mode).await?.into_iter();
    Ok(receipts.map(|receipt| Ok(receipt?)).collect())
}

/// What happened to a job that was enqueued, as its caller may see it. Who may not read payloads
/// does not learn whether they differ: they could guess what the first job carries.
pub(super) fn receipt_view(receipt: Receipt, call: &Call) -> ReceiptView {
    let may_know = !receipt.duplicate || call.caller.may(Scope::ReadPayload);
    ReceiptView {
        id: receipt.id,
        duplicate: receipt.duplicate,
        payload_differs: may_know.then_some(receipt.payload_differs),
        replaced: receipt.replaced,
    }
}
