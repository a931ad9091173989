//! Creates many jobs: all or none, or each for itself.

use windlass::Receipt;
use windlass_api::{Bulk, BulkMode, PROBLEMS_MAX};
use windlass_core::{Invalid, Job};
use windlass_store::EnqueueMode;

use super::bulk_answer::{BulkResult, CompactBulk, told};
use super::create::{ReceiptView, enqueue, made};
use crate::answer::Answer;
use crate::call::Call;
use crate::problem::Problem;

/// `POST /api/v1/jobs/bulk`.
pub(super) async fn create(call: Call) -> Result<Answer, Problem> {
    let bulk = call.read(|parts| Bulk::read(&parts))?;
    match bulk.mode {
        BulkMode::AllOrNone => all_or_none(&call, bulk).await,
        BulkMode::EachForItself => each(&call, bulk).await,
    }
}

async fn all_or_none(call: &Call, bulk: Bulk) -> Result<Answer, Problem> {
    let wrong = bulk.jobs.iter().filter_map(|job| job.as_ref().err());
    let wrong: Vec<Invalid> = wrong.flatten().take(PROBLEMS_MAX).cloned().collect();
    if !wrong.is_empty() {
        return Err(Problem::invalid(&wrong).hint("nothing was stored"));
    }
    let (mut jobs, mut signers) = (Vec::with_capacity(bulk.jobs.len()), call.signers());
    for (place, new) in bulk.jobs.into_iter().enumerate() {
        let new = new.map_err(|problems| Problem::invalid(&problems))?;
        let job = made(call, &mut signers, call.new_job_id(), new).await;
        jobs.push(job.map_err(|problem| problem.within(&format!("jobs[{place}]")))?);
    }
    let receipts = enqueue(&call.app, jobs, EnqueueMode::AllOrNone).await?;
    answer(call, receipts)
}

async fn each(call: &Call, bulk: Bulk) -> Result<Answer, Problem> {
    let mut jobs: Vec<Result<Job, Problem>> = Vec::with_capacity(bulk.jobs.len());
    let mut signers = call.signers();
    for (place, new) in bulk.jobs.into_iter().enumerate() {
        // One for each, so that a job's id follows from its position.
        let id = call.new_job_id();
        jobs.push(match new {
            Ok(new) => {
                let job = made(call, &mut signers, id, new).await;
                job.map_err(|problem| problem.within(&format!("jobs[{place}]")))
            }
            Err(problems) => Err(Problem::invalid(&problems)),
        });
    }
    let good: Vec<Job> = jobs
        .iter()
        .filter_map(|job| job.as_ref().ok())
        .cloned()
        .collect();
    let mut stored = Vec::new();
    if !good.is_empty() {
        stored = enqueue(&call.app, good, EnqueueMode::EachForItself).await?;
    }
    let mut stored = stored.into_iter();
    let missing = || Err(Problem::internal(&"an enqueue without an answer"));
    let receipts = jobs.into_iter().map(|job| match job {
        Ok(_) => stored.next().unwrap_or_else(missing),
        Err(problem) => Err(problem),
    });
    answer(call, receipts.collect())
}

fn answer(call: &Call, receipts: Vec<Result<Receipt, Problem>>) -> Result<Answer, Problem> {
    let results = receipts.into_iter().map(|receipt| match receipt {
        Ok(receipt) => BulkResult::Stored(ReceiptView::new(receipt, call)),
        Err(problem) => BulkResult::Refused {
            problem: Box::new(problem.into_json()),
        },
    });
    let results: Vec<BulkResult> = results.collect();
    let compact = CompactBulk::of(&results);
    Ok(told(results)?.compact(compact))
}
