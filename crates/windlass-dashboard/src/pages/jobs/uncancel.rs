//! Taking back the cancellation of selected jobs that waited.
//!
//! The path of the action names the jobs and when each was due, so nothing is kept between the two
//! requests, and no job that someone else cancelled changes.

use axum::http::Method;
use serde_json::{Value, json};
use windlass_api::{Job, JobState};
use windlass_core::{JobId, Timestamp};

use super::selected::{jobs, list_of};
use crate::failure::Failure;
use crate::site::PageResult;
use crate::visit::{Submit, Visit};

/// The longest list that fits in a cookie next to its message: 55 jobs, and a page shows 50.
const LIST_BYTES_MAX: usize = 3000;

/// Jobs that waited, each with the instant at which it is due.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Waits(Vec<(JobId, Timestamp)>);

impl Waits {
    /// Remembers a job if it waits.
    pub(super) async fn note(&mut self, visit: &Visit, id: &str) {
        let job = visit.get::<Job>(&format!("/api/v1/jobs/{id}")).await;
        let waits = |job: &Job| matches!(job.state, JobState::Scheduled | JobState::Ready);
        let job = job.ok().filter(waits);
        self.0
            .extend(job.and_then(|job| Some((job.id, job.run_at?))));
    }

    /// The path of the action that lets the jobs wait again, if all `cancelled` jobs waited.
    pub(super) fn undo(&self, cancelled: usize) -> Option<String> {
        let is_all = cancelled > 0 && self.0.len() == cancelled;
        let list = self.list();
        (is_all && list.len() <= LIST_BYTES_MAX).then(|| format!("/jobs/selected/{list}/uncancel"))
    }

    /// `<id>.<microseconds>` for each job, with `~` between them.
    fn list(&self) -> String {
        let jobs = self
            .0
            .iter()
            .map(|(id, run_at)| format!("{id}.{}", run_at.as_micros()));
        jobs.collect::<Vec<_>>().join("~")
    }

    fn parse(list: &str) -> Option<Waits> {
        let job = |text: &str| {
            let (id, micros) = text.split_once('.')?;
            let run_at = Timestamp::from_micros(micros.parse().ok()?)?;
            Some((id.parse().ok()?, run_at))
        };
        let is_short = list.len() <= LIST_BYTES_MAX;
        let jobs: Option<Vec<_>> = list.split('~').filter(|_| is_short).map(job).collect();
        jobs.filter(|jobs| !jobs.is_empty()).map(Waits)
    }
}

/// Lets the jobs wait again, with their failures and until their old times.
pub(super) async fn uncancel(submit: Submit) -> PageResult {
    let visit = &submit.visit;
    let waits = Waits::parse(visit.param("waits")).ok_or_else(Failure::no_page)?;
    let mut failures: Vec<Failure> = Vec::new();
    for (id, run_at) in &waits.0 {
        let path = format!("/api/v1/jobs/{id}/revive");
        let body = json!({"failures": "keep", "run_at": run_at});
        if let Err(failure) = visit.send::<Value>(Method::POST, &path, &body).await {
            failures.push(failure);
        }
    }
    let list = list_of(submit.fields.get("from"));
    let again = waits.0.len() - failures.len();
    let verb = if again == 1 { "waits" } else { "wait" };
    let Some(first) = failures.first() else {
        return Ok(visit.done(list, &format!("{} {verb} again.", jobs(again))));
    };
    let mut all = first.clone();
    all.detail = format!(
        "{} of {} {verb} again. The first that failed: {}",
        again,
        jobs(waits.0.len()),
        first.detail
    );
    Ok(visit.failed(list, &all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(count: usize) -> Waits {
        let id = "01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap();
        let run_at = Timestamp::from_micros(1_773_709_964_000_000).unwrap();
        Waits(vec![(id, run_at); count])
    }

    #[test]
    fn a_list_of_jobs_is_a_segment_of_a_path() {
        let two = waits(2);
        assert_eq!(Waits::parse(&two.list()).as_ref(), Some(&two));
        for text in ["", "~", "x.1", "01890a5d-ac96-774b-bcce-b302099a8057.x"] {
            assert_eq!(Waits::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_jobs_that_all_waited_and_fit_in_a_cookie_can_wait_again() {
        assert!(waits(50).undo(50).is_some());
        assert_eq!(waits(2).undo(3), None, "one of them ran");
        assert_eq!(waits(0).undo(0), None);
        assert_eq!(waits(60).undo(60), None, "too long");
    }
}
