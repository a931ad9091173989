//! `POST /claim`: hands out jobs to remote workers.

use windlass_api::{Claim, ClaimAnswer, Content, Job};
use windlass_core::{Invalid, format_duration};
use windlass_engine::remote::{Admission, ClaimError, RemoteClaim};

use super::{signal_word, worker_of};
use crate::access::{Caller, Scope};
use crate::app::App;
use crate::call::Call;
use crate::endpoint::{JsonBody, Reply};
use crate::permits::Permit;
use crate::problem::Problem;

pub(super) async fn claim(
    call: Call,
    JsonBody(request): JsonBody<Claim>,
) -> Result<Reply<ClaimAnswer>, Problem> {
    let wait_max = call.app.settings.wait_max;
    if request.wait > wait_max {
        let rule = format!("must be at most {}", format_duration(wait_max));
        return Err(Invalid::new("wait", rule).into());
    }
    let key = &call.caller.id;
    let claim = RemoteClaim {
        worker: worker_of(&call, request.worker)?,
        queues: request.queues,
        order: request.order,
        kinds: request.kinds,
        jobs: request.ids,
        limit: request.limit,
        lease: request.lease,
        claim_id: request.claim_id.map(|id| format!("{key}\n{id}")),
        wait: request.wait,
        slots: request.slots,
        retries_running: request.retries_running,
    };
    let app = &call.app;
    let admission = KeyAdmission {
        app: app.clone(),
        caller: call.caller.clone(),
    };
    let claimed = app.remote.claim(claim, admission, &app.stopping).await;
    let claimed = claimed.map_err(|error| match error {
        ClaimError::Remote(error) => error.into(),
        ClaimError::Refused(problem) => problem,
        ClaimError::Interrupted => Problem::internal(&error),
    })?;
    let now = app.client.now();
    let jobs = claimed.jobs.into_iter();
    Ok(Reply::ok(ClaimAnswer {
        data: jobs.map(|job| Job::new(job, now, Content::Shown)).collect(),
        signal: claimed.signal.map(signal_word),
    }))
}

/// Lets a key claim while it is valid, and wait while it has permits left.
struct KeyAdmission {
    app: App,
    caller: Caller,
}

impl Admission for KeyAdmission {
    type Refusal = Problem;
    type Permit = Permit;

    async fn check(&self) -> Result<(), Problem> {
        let now = self.app.client.now();
        let checked = self.app.access.recheck(&self.caller, Scope::Work, now);
        Ok(checked.await?)
    }

    fn wait(&self) -> Result<Permit, Problem> {
        self.app.waiting.take(&self.caller)
    }
}

#[cfg(test)]
mod tests;
