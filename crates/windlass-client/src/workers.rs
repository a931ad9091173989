//! Methods for workers, and for the operators who control them. [`Worker`](crate::Worker) calls them
//! for you.

use windlass_api::{
    Claim, ClaimAnswer, NewWorker, Outcomes, Progress, RenewAnswer, Renewal, SettleAnswer, Worker,
    WorkerPage,
};
use windlass_core::WorkerName;

use crate::client::{Call, Client, Method};
use crate::error::Error;
use crate::pager::Pager;

impl Client {
    /// Claims jobs, each under a lease. If no job is ready, the server waits for up to `wait`.
    ///
    /// The client repeats a failed claim only with a `claim_id`: the server then returns the same jobs
    /// again. Without one, the jobs of a claim whose response is lost go back to the queue.
    pub async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, Error> {
        let millis = |millis: windlass_api::Millis| millis.to();
        let wait_ms = claim
            .wait_ms
            .map(millis)
            .map(std::time::Duration::from_millis);
        let wait = claim.wait.map(|wait| wait.0).or(wait_ms);
        let mut call = Call::new(Method::Post, &["claim"]).server_wait(wait.unwrap_or_default());
        if claim.claim_id.is_some() {
            call = call.repeatable();
        }
        self.send_json(call.body(claim)?).await
    }

    /// Reports the outcomes of up to 1000 attempts. The answer has a status for each.
    ///
    /// Reporting the same outcome twice changes nothing.
    pub async fn settle(&self, outcomes: &Outcomes) -> Result<SettleAnswer, Error> {
        let call = Call::new(Method::Post, &["settle"]).repeatable();
        self.send_json(call.body(outcomes)?).await
    }

    /// Renews leases, and is the heartbeat of the worker. Send it every third of the lease.
    ///
    /// The answer says which attempts to stop, and has the signal of an operator, if any.
    pub async fn renew(&self, renewal: &Renewal) -> Result<RenewAnswer, Error> {
        let call = Call::new(Method::Post, &["renew"]).repeatable();
        self.send_json(call.body(renewal)?).await
    }

    /// Reports the progress of a running attempt, up to 16 KiB of JSON.
    ///
    /// # Errors
    ///
    /// Refused with `lease_lost` if the attempt no longer belongs to this worker.
    pub async fn progress(&self, progress: &Progress) -> Result<(), Error> {
        let call = Call::new(Method::Post, &["progress"]).repeatable();
        self.send_and_discard(call.body(progress)?).await
    }

    /// Registers a worker, or updates the worker with this name. Clears a signal to it.
    pub async fn register_worker(&self, worker: &NewWorker) -> Result<Worker, Error> {
        let call = Call::new(Method::Post, &["workers"]).repeatable();
        self.send_json(call.body(worker)?).await
    }

    /// Lists workers and nodes by name.
    pub fn workers(&self) -> Pager<Worker> {
        Pager::new(self, Call::new(Method::Get, &["workers"]))
    }

    /// Returns the configuration differences between the servers of the store, one sentence each.
    pub async fn server_differences(&self) -> Result<Vec<String>, Error> {
        let call = Call::new(Method::Get, &["workers"]).param("limit", "1");
        let page: WorkerPage = self.send_json(call).await?;
        Ok(page.differences)
    }

    /// Removes a worker that has stopped from the list.
    pub async fn remove_worker(&self, name: &WorkerName) -> Result<(), Error> {
        self.send_and_discard(Call::new(Method::Delete, &["workers", name.as_str()]))
            .await
    }

    /// Asks a worker to claim nothing more.
    pub async fn pause_worker_claims(&self, name: &WorkerName) -> Result<Worker, Error> {
        self.signal(name, "pause-claims").await
    }

    /// Asks a worker to finish its jobs and exit.
    pub async fn stop_worker(&self, name: &WorkerName) -> Result<Worker, Error> {
        self.signal(name, "stop").await
    }

    /// Clears the signal to a worker, so that it claims jobs again.
    pub async fn resume_worker(&self, name: &WorkerName) -> Result<Worker, Error> {
        self.signal(name, "resume").await
    }

    async fn signal(&self, name: &WorkerName, signal: &str) -> Result<Worker, Error> {
        let call = Call::new(Method::Post, &["workers", name.as_str(), signal]);
        self.send_json(call.repeatable()).await
    }
}
