//! What workers send, and what operators ask of them.

use windlass_api::{
    Claim, ClaimAnswer, NewWorker, Outcomes, Progress, RenewAnswer, Renewal, SettleAnswer, Worker,
};
use windlass_core::WorkerName;

use crate::client::{Call, Client, Method};
use crate::error::Error;
use crate::pager::Pager;

impl Client {
    /// Claims jobs, each under a lease; waits for some if the claim says so. A claim with a
    /// `claim_id` is repeated if it fails.
    pub async fn claim(&self, claim: &Claim) -> Result<ClaimAnswer, Error> {
        let millis = |millis: windlass_api::Millis| millis.to();
        let wait_ms = claim
            .wait_ms
            .map(millis)
            .map(std::time::Duration::from_millis);
        let wait = claim.wait.map(|wait| wait.0).or(wait_ms);
        let mut call = Call::new(Method::Post, &["claim"]).waits(wait.unwrap_or_default());
        if claim.claim_id.is_some() {
            call = call.repeatable();
        }
        self.json(call.body(claim)?).await
    }

    /// Reports how attempts ended. An outcome that was reported before counts once.
    pub async fn settle(&self, outcomes: &Outcomes) -> Result<SettleAnswer, Error> {
        let call = Call::new(Method::Post, &["settle"]).repeatable();
        self.json(call.body(outcomes)?).await
    }

    /// Prolongs leases, and is a heartbeat.
    pub async fn renew(&self, renewal: &Renewal) -> Result<RenewAnswer, Error> {
        let call = Call::new(Method::Post, &["renew"]).repeatable();
        self.json(call.body(renewal)?).await
    }

    /// Reports how far a running attempt is.
    pub async fn progress(&self, progress: &Progress) -> Result<(), Error> {
        let call = Call::new(Method::Post, &["progress"]).repeatable();
        self.done(call.body(progress)?).await
    }

    /// Registers a worker; a signal to one of that name is forgotten.
    pub async fn register_worker(&self, worker: &NewWorker) -> Result<Worker, Error> {
        let call = Call::new(Method::Post, &["workers"]).repeatable();
        self.json(call.body(worker)?).await
    }

    /// Workers and nodes by name.
    pub fn workers(&self) -> Pager<Worker> {
        Pager::new(self, Call::new(Method::Get, &["workers"]))
    }

    /// Forgets a worker that has ended.
    pub async fn remove_worker(&self, name: &WorkerName) -> Result<(), Error> {
        self.done(Call::new(Method::Delete, &["workers", name.as_str()]))
            .await
    }

    /// Asks a worker to claim nothing more.
    pub async fn quiet_worker(&self, name: &WorkerName) -> Result<Worker, Error> {
        self.signal(name, "quiet").await
    }

    /// Asks a worker to finish what it has and end.
    pub async fn stop_worker(&self, name: &WorkerName) -> Result<Worker, Error> {
        self.signal(name, "stop").await
    }

    /// Takes a signal to a worker back.
    pub async fn resume_worker(&self, name: &WorkerName) -> Result<Worker, Error> {
        self.signal(name, "resume").await
    }

    async fn signal(&self, name: &WorkerName, signal: &str) -> Result<Worker, Error> {
        let call = Call::new(Method::Post, &["workers", name.as_str(), signal]);
        self.json(call.repeatable()).await
    }
}
