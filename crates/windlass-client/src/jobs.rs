//! Methods for jobs and dead letters.

use std::time::Duration;

use serde::Serialize;
use windlass_api::{
    Attempt, BatchAnswer, BulkAnswer, BulkMode, CompletedJob, Completion, DurationText, Edit,
    HistoryParams, Job, JobFilter, JobLog, JobOrder, ListParams, LogParams, NewJob, Page, Receipt,
    ReplacedPayload, Revival, Why,
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
    /// Creates a job.
    ///
    /// If another job holds the same `unique_key`, the server creates no second job: the receipt has
    /// the id of the first one and `duplicate: true`. The client repeats a failed request only with an
    /// [idempotency key](Client::idempotency_key).
    ///
    /// # Errors
    ///
    /// Refused with `invalid` if a field breaks a rule, and with `queue_full` if the queue has reached
    /// its `max_depth`.
    pub async fn create_job(&self, job: &NewJob) -> Result<Receipt, Error> {
        let call = Call::new(Method::Post, &["jobs"]).creates();
        self.send_json(call.body(job)?).await
    }

    /// Creates up to 10,000 jobs.
    ///
    /// `mode` says what happens if a job is invalid: the server creates none of the jobs, or the valid
    /// ones. The client repeats a failed request only with an
    /// [idempotency key](Client::idempotency_key).
    pub async fn create_jobs(&self, jobs: &[NewJob], mode: BulkMode) -> Result<BulkAnswer, Error> {
        let call = Call::new(Method::Post, &["jobs", "bulk"]).creates();
        self.send_json(call.body(&Jobs { jobs, mode })?).await
    }

    /// Returns a job. The payload and the result are withheld from a key without the scope
    /// `read-payload`.
    ///
    /// # Errors
    ///
    /// Refused with `not_found` if the job does not exist.
    pub async fn job(&self, id: JobId) -> Result<Job, Error> {
        self.send_for_job(Method::Get, id, &[]).await
    }

    /// Lists jobs that match a filter, newest first. An empty filter matches all jobs.
    pub fn jobs(&self, filter: &JobFilter) -> Pager<Job> {
        Pager::new(self, Call::new(Method::Get, &["jobs"]).query(filter))
    }

    /// Lists jobs that match a filter in an order of your choice.
    pub fn jobs_by(&self, order: JobOrder, filter: &JobFilter) -> Pager<Job> {
        let order = ListParams { order: Some(order) };
        let call = Call::new(Method::Get, &["jobs"]);
        Pager::new(self, call.query(filter).query(&order))
    }

    /// Changes the given fields of a waiting job.
    ///
    /// # Errors
    ///
    /// Refused with `wrong_state` if the job is not waiting.
    pub async fn edit_job(&self, id: JobId, edit: &Edit) -> Result<Job, Error> {
        let call = Call::new(Method::Patch, &["jobs", &id.to_string()]);
        self.send_json(call.body(edit)?).await
    }

    /// Waits until a job has finished or the timeout has passed, and returns the job. Check its state:
    /// after the timeout the job may still be waiting or running.
    ///
    /// # Errors
    ///
    /// Refused with `invalid` if the timeout is longer than the server allows, 60 s by default.
    pub async fn wait_for_job(&self, id: JobId, timeout: Duration) -> Result<Job, Error> {
        let call = Call::new(Method::Get, &["jobs", &id.to_string(), "wait"]);
        let timeout_text = serde_json::json!({"timeout": DurationText(timeout)});
        self.send_json(call.query(&timeout_text).server_wait(timeout))
            .await
    }

    /// Returns the latest 10 attempts of a job that have ended, newest first.
    pub async fn job_history(&self, id: JobId) -> Result<Vec<Attempt>, Error> {
        self.job_history_with(id, &HistoryParams::default()).await
    }

    /// Returns up to 1000 attempts of a job that have ended, newest first.
    pub async fn job_history_with(
        &self,
        id: JobId,
        params: &HistoryParams,
    ) -> Result<Vec<Attempt>, Error> {
        let call = Call::new(Method::Get, &["jobs", &id.to_string(), "history"]);
        let page: Page<Attempt> = self.send_json(call.query(params)).await?;
        Ok(page.data)
    }

    /// Returns lines that an attempt of a job logged. Needs the scope `read-payload`.
    ///
    /// To follow a log, repeat the call with the `next_after` of the answer and a `wait`, until the
    /// answer has an `outcome` and no lines.
    ///
    /// # Errors
    ///
    /// Refused with `not_found` if the job does not exist.
    pub async fn job_log(&self, id: JobId, params: &LogParams) -> Result<JobLog, Error> {
        let call = Call::new(Method::Get, &["jobs", &id.to_string(), "logs"]);
        let wait = params.wait.as_ref().map_or(Duration::ZERO, |wait| wait.0);
        self.send_json(call.query(params).server_wait(wait)).await
    }

    /// Explains why a job is not running, or why it is dead and what a revival would do.
    pub async fn why(&self, id: JobId) -> Result<Why, Error> {
        self.send_for_job(Method::Get, id, &["why"]).await
    }

    /// Cancels a job. A waiting job is cancelled immediately; the worker of a running job is asked to
    /// stop it.
    ///
    /// # Errors
    ///
    /// Refused with `wrong_state` if the job has finished.
    pub async fn cancel_job(&self, id: JobId) -> Result<Job, Error> {
        self.send_for_job(Method::Post, id, &["cancel"]).await
    }

    /// Makes a waiting job due now.
    ///
    /// # Errors
    ///
    /// Refused with `wrong_state` if the job is not waiting.
    pub async fn run_job_now(&self, id: JobId) -> Result<Job, Error> {
        self.send_for_job(Method::Post, id, &["run-now"]).await
    }

    /// Makes up to 1000 waiting jobs due now.
    pub async fn run_jobs_now(&self, ids: &[JobId]) -> Result<BatchAnswer, Error> {
        let call = Call::new(Method::Post, &["jobs", "run-now"]);
        self.send_json(call.body(&serde_json::json!({"ids": ids}))?)
            .await
    }

    /// Runs a dead or cancelled job again.
    ///
    /// # Errors
    ///
    /// Refused with `wrong_state` if the job is neither dead nor cancelled.
    pub async fn revive_job(&self, id: JobId, revival: &Revival) -> Result<Job, Error> {
        let call = Call::new(Method::Post, &["jobs", &id.to_string(), "revive"]);
        self.send_json(call.body(revival)?).await
    }

    /// Marks a dead at-most-once job whose outcome was lost as succeeded, without running it again.
    pub async fn resolve_job(&self, id: JobId) -> Result<Job, Error> {
        self.send_for_job(Method::Post, id, &["resolve"]).await
    }

    /// Deletes a finished job and its history.
    ///
    /// # Errors
    ///
    /// Refused with `wrong_state` if the job has not finished.
    pub async fn delete_job(&self, id: JobId) -> Result<(), Error> {
        self.send_for_job(Method::Delete, id, &[]).await
    }

    /// Returns a payload that an edit or a revival of a job replaced. `sha256` is its hash, from the
    /// audit log. The server keeps such a payload for 7 days by default.
    pub async fn replaced_payload(
        &self,
        id: JobId,
        sha256: &str,
    ) -> Result<ReplacedPayload, Error> {
        let path = ["replaced-payloads", sha256];
        self.send_for_job(Method::Get, id, &path).await
    }

    /// Lists dead jobs that match a filter, newest first.
    pub fn dead_letters(&self, filter: &JobFilter) -> Pager<Job> {
        Pager::new(
            self,
            Call::new(Method::Get, &["dead-letters"]).query(filter),
        )
    }

    /// Reports the outcome of an HTTP job whose target accepted the request to complete it later.
    /// Returns the id of the job.
    ///
    /// The token came with the request and replaces an API key. Reporting the same outcome twice
    /// changes nothing.
    ///
    /// # Errors
    ///
    /// Refused with `completion_too_late` if another outcome was reported or the time has passed.
    pub async fn complete(&self, token: &str, completion: &Completion) -> Result<JobId, Error> {
        let call = Call::new(Method::Post, &["completions", token]).repeatable();
        let taken: CompletedJob = self.send_json(call.body(completion)?).await?;
        Ok(taken.id)
    }

    async fn send_for_job<T: serde::de::DeserializeOwned>(
        &self,
        method: Method,
        id: JobId,
        rest: &[&str],
    ) -> Result<T, Error> {
        let id = id.to_string();
        let path = [&["jobs", id.as_str()], rest].concat();
        self.send_json(Call::new(method, &path)).await
    }
}
