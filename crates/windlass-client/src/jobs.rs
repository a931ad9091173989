//! Jobs and dead letters.

use std::time::Duration;

use serde::Serialize;
use windlass_api::{
    Attempt, BulkAnswer, BulkMode, Completion, CompletionTaken, DeadGroups, Edit, Job, JobFilter,
    NewJob, Page, PassAnswer, Receipt, ReplacedPayload, Revival, ReviveByFilter, RunNowByFilter,
    Span, Why,
};
use windlass_core::JobId;

use crate::client::{Call, Client, Method};
use crate::error::Error;
use crate::pager::Pager;

#[derive(Serialize)]
struct Jobs<'a> {
    jobs: &'a [NewJob],
    mode: BulkMode,
}

impl Client {
    /// Creates a job. With an idempotency key, the request is repeated if it fails.
    pub async fn create_job(&self, job: &NewJob) -> Result<Receipt, Error> {
        let call = Call::new(Method::Post, &["jobs"]).creates();
        self.json(call.body(job)?).await
    }

    /// Creates up to 10,000 jobs.
    pub async fn create_jobs(&self, jobs: &[NewJob], mode: BulkMode) -> Result<BulkAnswer, Error> {
        let call = Call::new(Method::Post, &["jobs", "bulk"]).creates();
        self.json(call.body(&Jobs { jobs, mode })?).await
    }

    /// One job.
    pub async fn job(&self, id: JobId) -> Result<Job, Error> {
        self.of_job(Method::Get, id, &[]).await
    }

    /// Jobs that match a filter, newest first.
    pub fn jobs(&self, filter: &JobFilter) -> Pager<Job> {
        Pager::new(self, Call::new(Method::Get, &["jobs"]).query(filter))
    }

    /// Changes a waiting job.
    pub async fn edit_job(&self, id: JobId, edit: &Edit) -> Result<Job, Error> {
        let call = Call::new(Method::Patch, &["jobs", &id.to_string()]);
        self.json(call.body(edit)?).await
    }

    /// Waits until a job has finished, at most this long, and returns it as it is then.
    pub async fn wait_for_job(&self, id: JobId, timeout: Duration) -> Result<Job, Error> {
        let call = Call::new(Method::Get, &["jobs", &id.to_string(), "wait"]);
        let timeout_text = serde_json::json!({"timeout": Span(timeout)});
        self.json(call.query(&timeout_text).waits(timeout)).await
    }

    /// The ended attempts of a job, newest first.
    pub async fn job_history(&self, id: JobId) -> Result<Vec<Attempt>, Error> {
        let page: Page<Attempt> = self.of_job(Method::Get, id, &["history"]).await?;
        Ok(page.data)
    }

    /// Why a job is not running.
    pub async fn why(&self, id: JobId) -> Result<Why, Error> {
        self.of_job(Method::Get, id, &["why"]).await
    }

    /// Cancels a job: a waiting one ends, a running one is asked to stop.
    pub async fn cancel_job(&self, id: JobId) -> Result<Job, Error> {
        self.of_job(Method::Post, id, &["cancel"]).await
    }

    /// Makes a waiting job due now.
    pub async fn run_job_now(&self, id: JobId) -> Result<Job, Error> {
        self.of_job(Method::Post, id, &["run-now"]).await
    }

    /// Makes waiting retries that match a filter due now, one pass of them.
    pub async fn run_jobs_now(&self, which: &RunNowByFilter) -> Result<PassAnswer, Error> {
        let call = Call::new(Method::Post, &["jobs", "run-now"]);
        self.json(call.body(which)?).await
    }

    /// Runs a dead or cancelled job again.
    pub async fn revive_job(&self, id: JobId, revival: &Revival) -> Result<Job, Error> {
        let call = Call::new(Method::Post, &["jobs", &id.to_string(), "revive"]);
        self.json(call.body(revival)?).await
    }

    /// Runs dead jobs that match a filter again, one pass of them.
    pub async fn revive_jobs(&self, which: &ReviveByFilter) -> Result<PassAnswer, Error> {
        let call = Call::new(Method::Post, &["dead-letters", "revive"]);
        self.json(call.body(which)?).await
    }

    /// Takes a dead job off the dead letters, without running it again.
    pub async fn resolve_job(&self, id: JobId) -> Result<Job, Error> {
        self.of_job(Method::Post, id, &["resolve"]).await
    }

    /// Removes a finished job with its history.
    pub async fn delete_job(&self, id: JobId) -> Result<(), Error> {
        self.of_job(Method::Delete, id, &[]).await
    }

    /// The payload that a change replaced, by the hash that the audit log has.
    pub async fn replaced_payload(
        &self,
        id: JobId,
        sha256: &str,
    ) -> Result<ReplacedPayload, Error> {
        let path = ["replaced-payloads", sha256];
        self.of_job(Method::Get, id, &path).await
    }

    /// Dead jobs that match a filter, newest first.
    pub fn dead_letters(&self, filter: &JobFilter) -> Pager<Job> {
        Pager::new(
            self,
            Call::new(Method::Get, &["dead-letters"]).query(filter),
        )
    }

    /// The same in groups of jobs that failed in the same way, the largest first.
    pub async fn dead_groups(&self, filter: &JobFilter) -> Result<DeadGroups, Error> {
        let call = Call::new(Method::Get, &["dead-letters", "groups"]);
        self.json(call.query(filter)).await
    }

    /// Reports how an HTTP job ended that its target took for later, by the token that came with its
    /// request. A report that was made before counts once.
    pub async fn complete(&self, token: &str, completion: &Completion) -> Result<JobId, Error> {
        let call = Call::new(Method::Post, &["completions", token]).repeatable();
        let taken: CompletionTaken = self.json(call.body(completion)?).await?;
        Ok(taken.id)
    }

    async fn of_job<T: serde::de::DeserializeOwned>(
        &self,
        method: Method,
        id: JobId,
        rest: &[&str],
    ) -> Result<T, Error> {
        let id = id.to_string();
        let path = [&["jobs", id.as_str()], rest].concat();
        self.json(Call::new(method, &path)).await
    }
}
