//! Creates many jobs: either all or none, or each independently.

use windlass::Receipt;
use windlass_api::{Bulk, BulkAnswer, BulkMode, BulkResult, CheckedBulk, PROBLEMS_MAX, Param};
use windlass_core::{Invalid, Job};
use windlass_store::EnqueueMode;

use super::bulk_answer::CompactBulk;
use super::create::{enqueue, made, receipt_view};
use crate::answer::Answer;
use crate::call::Call;
use crate::endpoint::{Extract, RawReply, Signature};
use crate::problem::Problem;

/// A bulk request whose jobs are read separately.
pub(super) struct PostedBulk(CheckedBulk);

impl Extract for PostedBulk {
    fn declare(signature: &mut Signature) -> Vec<Param> {
        signature.takes::<Bulk>();
        Vec::new()
    }

    fn extract(call: &Call, _: &[Param]) -> Result<Self, Problem> {
        Ok(PostedBulk(Bulk::read(call.text()?, call.now)?))
    }
}

pub(super) async fn create(
    call: Call,
    PostedBulk(bulk): PostedBulk,
) -> Result<RawReply<BulkAnswer>, Problem> {
    let receipts = match bulk.mode {
        BulkMode::AllOrNone => all_or_none(&call, bulk).await?,
        BulkMode::Each => each(&call, bulk).await?,
    };
    let results = receipts.into_iter().map(|receipt| match receipt {
        Ok(receipt) => BulkResult::Stored(receipt_view(receipt, &call)),
        Err(problem) => BulkResult::Refused {
            problem: Box::new(problem.into_json()),
        },
    });
    let answer = BulkAnswer::new(results.collect());
    let compact = CompactBulk::new(&answer.data);
    Ok(Answer::ok(&answer)?.compact(compact).into())
}

type Receipts = Vec<Result<Receipt, Problem>>;

async fn all_or_none(call: &Call, bulk: CheckedBulk) -> Result<Receipts, Problem> {
    let problems = bulk.jobs.iter().filter_map(|job| job.as_ref().err());
    let problems: Vec<Invalid> = problems.flatten().take(PROBLEMS_MAX).cloned().collect();
    if !problems.is_empty() {
        return Err(Problem::invalid(&problems).hint("no job was created; fix the invalid jobs, or use the mode `each` to create the valid ones"));
    }
    let (mut jobs, mut signers) = (Vec::with_capacity(bulk.jobs.len()), call.signers());
    for (index, new) in bulk.jobs.into_iter().flatten().enumerate() {
        let job = made(call, &mut signers, call.new_job_id(), new).await;
        jobs.push(job.map_err(|problem| problem.within(&format!("jobs[{index}]")))?);
    }
    enqueue(&call.app, jobs, EnqueueMode::AllOrNone).await
}

async fn each(call: &Call, bulk: CheckedBulk) -> Result<Receipts, Problem> {
    let (mut jobs, mut refused) = (Vec::with_capacity(bulk.jobs.len()), Vec::new());
    let mut signers = call.signers();
    for (index, new) in bulk.jobs.into_iter().enumerate() {
        // Every job gets an id, even a refused one, so that the id follows from the position.
        let id = call.new_job_id();
        let job: Result<Job, Problem> = match new {
            Ok(new) => {
                let job = made(call, &mut signers, id, new).await;
                job.map_err(|problem| problem.within(&format!("jobs[{index}]")))
            }
            Err(problems) => Err(Problem::invalid(&problems)),
        };
        match job {
            Ok(job) => {
                jobs.push(job);
                refused.push(None);
            }
            Err(problem) => refused.push(Some(problem)),
        }
    }
    let mut stored = Vec::new();
    if !jobs.is_empty() {
        stored = enqueue(&call.app, jobs, EnqueueMode::Independent).await?;
    }
    let mut stored = stored.into_iter();
    let missing = || {
        Err(Problem::internal(
            &"the store returned no result for an enqueued job",
        ))
    };
    let receipts = refused.into_iter().map(|refused| match refused {
        Some(problem) => Err(problem),
        None => stored.next().unwrap_or_else(missing),
    });
    Ok(receipts.collect())
}
