//! Schedules. Every method that takes a `schedule` finds it by name or by id.

use serde::de::DeserializeOwned;
use windlass_api::{
    Backfill, BackfillAnswer, Firing, NewSchedule, Occurrence, Page, Preview, PreviewParams,
    PutSchedule, ReplacedPayload, RunAnswer, Schedule, SchedulePatch, ScheduleView,
};
use windlass_core::{JobId, ScheduleName};

use crate::client::{Call, Client, Method};
use crate::error::Error;
use crate::pager::Pager;

impl Client {
    /// Creates a schedule. With an idempotency key, the request is repeated if it fails.
    pub async fn create_schedule(&self, new: &NewSchedule) -> Result<Schedule, Error> {
        let call = Call::new(Method::Post, &["schedules"]).creates();
        self.json(call.body(new)?).await
    }

    /// The schedules that will fire again, are paused, or cannot be read, by name.
    pub fn schedules(&self) -> Pager<ScheduleView> {
        Pager::new(self, Call::new(Method::Get, &["schedules"]))
    }

    /// One schedule, also if it will not fire again.
    pub async fn schedule(&self, schedule: &str) -> Result<ScheduleView, Error> {
        self.json(Call::new(Method::Get, &["schedules", schedule]))
            .await
    }

    /// Creates a schedule or replaces the one of that name.
    pub async fn put_schedule(
        &self,
        name: &ScheduleName,
        put: &PutSchedule,
    ) -> Result<Schedule, Error> {
        let call = Call::new(Method::Put, &["schedules", name.as_str()]);
        self.json(call.body(put)?).await
    }

    /// Changes the given fields of a schedule.
    pub async fn edit_schedule(
        &self,
        schedule: &str,
        patch: &SchedulePatch,
    ) -> Result<Schedule, Error> {
        let call = Call::new(Method::Patch, &["schedules", schedule]);
        self.json(call.body(patch)?).await
    }

    /// Removes a schedule; its jobs stay.
    pub async fn delete_schedule(&self, schedule: &str) -> Result<(), Error> {
        self.done(Call::new(Method::Delete, &["schedules", schedule]))
            .await
    }

    /// Pauses a schedule: it does not fire until it is resumed.
    pub async fn pause_schedule(&self, schedule: &str) -> Result<Schedule, Error> {
        let call = Call::new(Method::Post, &["schedules", schedule, "pause"]);
        self.json(call.repeatable()).await
    }

    /// Resumes a schedule: it fires again, and the occurrences that it missed are recorded as
    /// skipped.
    pub async fn resume_schedule(&self, schedule: &str) -> Result<Schedule, Error> {
        let call = Call::new(Method::Post, &["schedules", schedule, "resume"]);
        self.json(call.repeatable()).await
    }

    /// Runs the job of a schedule now, in addition to its occurrences. With an idempotency key, the
    /// request is repeated if it fails.
    pub async fn run_schedule_now(&self, schedule: &str) -> Result<JobId, Error> {
        let call = Call::new(Method::Post, &["schedules", schedule, "run-now"]);
        let answer: RunAnswer = self.json(call.creates()).await?;
        Ok(answer.job_id)
    }

    /// Runs the occurrences of a range in the past that did not fire; returns how many jobs that
    /// created. With an idempotency key, the request is repeated if it fails.
    pub async fn backfill_schedule(&self, schedule: &str, range: &Backfill) -> Result<u64, Error> {
        let call = Call::new(Method::Post, &["schedules", schedule, "backfill"]).creates();
        let answer: BackfillAnswer = self.json(call.body(range)?).await?;
        Ok(answer.created)
    }

    /// The occurrences of a schedule that fired and the ranges that were skipped, newest first.
    pub fn occurrences(&self, schedule: &str) -> Pager<Occurrence> {
        let path = ["schedules", schedule, "occurrences"];
        Pager::new(self, Call::new(Method::Get, &path))
    }

    /// The next occurrences of a schedule, as if it were not paused.
    pub async fn preview_schedule(
        &self,
        schedule: &str,
        params: PreviewParams,
    ) -> Result<Vec<Firing>, Error> {
        let call = Call::new(Method::Get, &["schedules", schedule, "preview"]);
        self.rows(call.query(&params)).await
    }

    /// When a rule would fire, without storing it.
    pub async fn preview_rule(&self, preview: &Preview) -> Result<Vec<Firing>, Error> {
        let call = Call::new(Method::Post, &["schedules", "preview"]).repeatable();
        self.rows(call.body(preview)?).await
    }

    /// The payload that a change of a schedule replaced, by the hash in the audit log.
    pub async fn replaced_schedule_payload(
        &self,
        name: &ScheduleName,
        sha256: &str,
    ) -> Result<ReplacedPayload, Error> {
        let path = ["schedules", name.as_str(), "replaced-payloads", sha256];
        self.json(Call::new(Method::Get, &path)).await
    }

    async fn rows<T: DeserializeOwned>(&self, call: Call) -> Result<Vec<T>, Error> {
        let page: Page<T> = self.json(call).await?;
        Ok(page.data)
    }
}
