//! Methods for schedules. A parameter `schedule` is a name or an id.

use serde::de::DeserializeOwned;
use windlass_api::{
    Backfill, BackfillAnswer, BulkSchedules, BulkSchedulesAnswer, Firing, NewSchedule, Occurrence,
    Page, Preview, PreviewParams, PutSchedule, ReplacedPayload, RunAnswer, Schedule,
    ScheduleParams, SchedulePatch, ScheduleView,
};
use windlass_core::{JobId, ScheduleName};

use crate::client::{Call, Client, Method};
use crate::error::Error;
use crate::pager::Pager;

impl Client {
    /// Creates a schedule.
    ///
    /// The client repeats a failed request only with an
    /// [idempotency key](Client::idempotency_key).
    ///
    /// # Errors
    ///
    /// Refused with `schedule_exists` if another schedule has the same name.
    pub async fn create_schedule(&self, new: &NewSchedule) -> Result<Schedule, Error> {
        let call = Call::new(Method::Post, &["schedules"]).creates();
        self.send_json(call.body(new)?).await
    }

    /// Creates many schedules, at most 1,000. A refused one does not stop the
    /// others.
    ///
    /// The client repeats a failed request only with an
    /// [idempotency key](Client::idempotency_key).
    pub async fn create_schedules(
        &self,
        new: &BulkSchedules,
    ) -> Result<BulkSchedulesAnswer, Error> {
        let call = Call::new(Method::Post, &["schedules", "bulk"]).creates();
        self.send_json(call.body(new)?).await
    }

    /// Lists schedules by name that match all given filters.
    pub fn schedules_matching(&self, params: &ScheduleParams) -> Pager<ScheduleView> {
        Pager::new(self, Call::new(Method::Get, &["schedules"]).query(params))
    }

    /// Lists schedules by name: those that will fire again, are paused, or cannot be read.
    pub fn schedules(&self) -> Pager<ScheduleView> {
        Pager::new(self, Call::new(Method::Get, &["schedules"]))
    }

    /// Returns a schedule by name or id, even if it will not fire again.
    pub async fn schedule(&self, schedule: &str) -> Result<ScheduleView, Error> {
        self.send_json(Call::new(Method::Get, &["schedules", schedule]))
            .await
    }

    /// Creates a schedule, or replaces the schedule with this name.
    pub async fn put_schedule(
        &self,
        name: &ScheduleName,
        put: &PutSchedule,
    ) -> Result<Schedule, Error> {
        let call = Call::new(Method::Put, &["schedules", name.as_str()]);
        self.send_json(call.body(put)?).await
    }

    /// Changes the given fields of a schedule, by name or id.
    pub async fn edit_schedule(
        &self,
        schedule: &str,
        patch: &SchedulePatch,
    ) -> Result<Schedule, Error> {
        let call = Call::new(Method::Patch, &["schedules", schedule]);
        self.send_json(call.body(patch)?).await
    }

    /// Deletes a schedule, by name or id. Jobs that it has created stay.
    pub async fn delete_schedule(&self, schedule: &str) -> Result<(), Error> {
        self.send_and_discard(Call::new(Method::Delete, &["schedules", schedule]))
            .await
    }

    /// Pauses a schedule, by name or id. It does not fire until it is resumed.
    pub async fn pause_schedule(&self, schedule: &str) -> Result<Schedule, Error> {
        let call = Call::new(Method::Post, &["schedules", schedule, "pause"]);
        self.send_json(call.repeatable()).await
    }

    /// Resumes a paused schedule, by name or id. The server records the occurrences during the pause as
    /// skipped.
    pub async fn resume_schedule(&self, schedule: &str) -> Result<Schedule, Error> {
        let call = Call::new(Method::Post, &["schedules", schedule, "resume"]);
        self.send_json(call.repeatable()).await
    }

    /// Runs the job of a schedule now, in addition to its occurrences. Returns the id of the job.
    ///
    /// The client repeats a failed request only with an
    /// [idempotency key](Client::idempotency_key).
    pub async fn run_schedule_now(&self, schedule: &str) -> Result<JobId, Error> {
        let call = Call::new(Method::Post, &["schedules", schedule, "run-now"]);
        let answer: RunAnswer = self.send_json(call.creates()).await?;
        Ok(answer.job_id)
    }

    /// Creates the jobs of past occurrences that did not fire. Returns the number of new jobs.
    ///
    /// The client repeats a failed request only with an
    /// [idempotency key](Client::idempotency_key).
    pub async fn backfill_schedule(&self, schedule: &str, range: &Backfill) -> Result<u64, Error> {
        let call = Call::new(Method::Post, &["schedules", schedule, "backfill"]).creates();
        let answer: BackfillAnswer = self.send_json(call.body(range)?).await?;
        Ok(answer.created)
    }

    /// Lists the past occurrences of a schedule, fired and skipped, newest first.
    pub fn occurrences(&self, schedule: &str) -> Pager<Occurrence> {
        let path = ["schedules", schedule, "occurrences"];
        Pager::new(self, Call::new(Method::Get, &path))
    }

    /// Returns the next occurrences of a schedule, as if it were not paused.
    pub async fn preview_schedule(
        &self,
        schedule: &str,
        params: PreviewParams,
    ) -> Result<Vec<Firing>, Error> {
        let call = Call::new(Method::Get, &["schedules", schedule, "preview"]);
        self.rows(call.query(&params)).await
    }

    /// Returns the next occurrences of a rule, without storing it.
    pub async fn preview_rule(&self, preview: &Preview) -> Result<Vec<Firing>, Error> {
        let call = Call::new(Method::Post, &["schedules", "preview"]).repeatable();
        self.rows(call.body(preview)?).await
    }

    /// Returns a payload that a change of a schedule replaced. `sha256` is its hash, from the audit log.
    pub async fn replaced_schedule_payload(
        &self,
        name: &ScheduleName,
        sha256: &str,
    ) -> Result<ReplacedPayload, Error> {
        let path = ["schedules", name.as_str(), "replaced-payloads", sha256];
        self.send_json(Call::new(Method::Get, &path)).await
    }

    async fn rows<T: DeserializeOwned>(&self, call: Call) -> Result<Vec<T>, Error> {
        let page: Page<T> = self.send_json(call).await?;
        Ok(page.data)
    }
}
