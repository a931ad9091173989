//! Creates one job.

use axum::http::StatusCode;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use windlass::Receipt;
use windlass_api::{Content, JobView, read_new_job};
use windlass_core::fields::RawFields;
use windlass_core::{Invalid, Job, JobId, NewJob, Timestamp};
use windlass_http::form::SchedulerForm;
use windlass_store::EnqueueMode;

use super::form;
use crate::access::Scope;
use crate::answer::Answer;
use crate::app::App;
use crate::call::Call;
use crate::http_jobs::{check_form, check_queue, check_request, with_deadline, with_depth};
use crate::problem::Problem;
use crate::signing::Signers;

/// `POST /api/v1/jobs`.
pub(super) async fn create(call: Call) -> Result<Answer, Problem> {
    let Asked::Job(new) = call.read(read_asked)? else {
        return form::create(&call).await;
    };
    let new = *new;
    let job = made(&call, &mut call.signers(), call.new_job_id(), new).await?;
    let stored = enqueue(&call.app, vec![job.clone()], EnqueueMode::AllOrNone).await?;
    let receipt = stored.into_iter().next();
    let receipt = receipt.ok_or_else(|| Problem::internal(&"an enqueue without an answer"))??;
    let receipt = ReceiptView::new(receipt, &call);
    if receipt.id != job.id && !call.caller.may(Scope::Read) {
        // What the job that was there first is like is not theirs to read.
        return Answer::ok(&receipt);
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
        // It may have been removed since: then what is told of it is what is known.
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
    let now = call.app.engine().now();
    let answer = Answer::json(
        status,
        &CreatedJob {
            job: &job,
            receipt,
            content,
            now,
        },
    )?;
    Ok(answer.location(&call.address(&format!("/jobs/{}", job.id))))
}

/// What is asked for: a job, or a schedule in the form of one.
enum Asked {
    Job(Box<NewJob>),
    Form,
}

fn read_asked(parts: RawFields) -> Result<Asked, Invalid> {
    if SchedulerForm::is_meant_by(&parts) {
        return Ok(Asked::Form);
    }
    let spelled = match parts.has("http") {
        true => "http",
        false => "payload",
    };
    let new = read_new_job(parts)?;
    new.check_with(usize::MAX)?;
    let request = check_form((&new.kind, new.delivery), &new.payload);
    request.map_err(|error| error.respelled("payload", spelled))?;
    Ok(Asked::Job(Box::new(new)))
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
    check_queue(call.app.engine(), &new.kind, &new.queue).await?;
    let new = with_deadline(&call.headers, with_depth(&call.headers, new))?;
    Ok(new.into_job_with(id, call.now, most)?)
}

pub(super) fn check_payload(new: &NewJob, most: usize) -> Result<(), Problem> {
    new.payload.check_size(most).map_err(|error| {
        let told = error.within("payload").to_string();
        Problem::too_large("payload_too_large", told)
            .hint("keep large data elsewhere, and its address in the payload")
    })
}

/// Stores jobs, and tells what became of each.
pub(super) async fn enqueue(
    app: &App,
    jobs: Vec<Job>,
    mode: EnqueueMode,
) -> Result<Vec<Result<Receipt, Problem>>, Problem> {
    let answers = app.engine().enqueue(jobs, mode).await?;
    let receipts = answers.into_iter().map(Receipt::try_from);
    Ok(receipts.map(|receipt| Ok(receipt?)).collect())
}

/// What became of a job that was enqueued, as its caller may see it.
#[derive(Debug, Serialize)]
pub(super) struct ReceiptView {
    pub(super) id: JobId,
    pub(super) duplicate: bool,
    /// Withheld from those who may not read payloads: with it they could guess what the first job carries.
    pub(super) payload_differs: Option<bool>,
    pub(super) replaced: bool,
}

impl ReceiptView {
    pub(super) fn new(receipt: Receipt, call: &Call) -> Self {
        let may_know = !receipt.duplicate || call.caller.may(Scope::ReadPayload);
        ReceiptView {
            id: receipt.id,
            duplicate: receipt.duplicate,
            payload_differs: may_know.then_some(receipt.payload_differs),
            replaced: receipt.replaced,
        }
    }
}

/// A job with what became of the request. What it carries was just given, and is not repeated.
struct CreatedJob<'a> {
    job: &'a Job,
    receipt: ReceiptView,
    content: Content,
    now: Timestamp,
}

impl Serialize for CreatedJob<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let view = JobView {
            job: self.job,
            now: self.now,
            content: self.content,
        };
        view.fields(&mut map)?;
        map.serialize_entry("duplicate", &self.receipt.duplicate)?;
        map.serialize_entry("payload_differs", &self.receipt.payload_differs)?;
        map.serialize_entry("replaced", &self.receipt.replaced)?;
        map.end()
    }
}
