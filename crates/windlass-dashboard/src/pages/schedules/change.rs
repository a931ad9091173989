//! Pauses, resumes, runs, backfills and deletes a schedule.

use axum::body::Bytes;
use axum::http::Method;
use serde_json::json;
use windlass_api::{BackfillAnswer, RunAnswer};

use super::api_path;
use crate::failure::Failure;
use crate::fields::escaped;
use crate::site::PageResult;
use crate::visit::Submit;

/// The page of the schedule in the path.
fn page_of(submit: &Submit) -> (String, String) {
    let name = submit.visit.param("name").to_owned();
    let page = format!("/schedules/{}", escaped(&name));
    (name, page)
}

pub(super) async fn command(submit: Submit, route: &'static str) -> PageResult {
    let (name, page) = page_of(&submit);
    let path = format!("{}/{route}", api_path(&name));
    submit
        .visit
        .call(Method::POST, &path, Bytes::new(), None)
        .await?;
    let (inverse, done) = match route {
        "pause" => (
            "resume",
            "Paused. It does not fire until someone resumes it.",
        ),
        _ => (
            "pause",
            "Resumed. Occurrences that it missed are recorded as skipped.",
        ),
    };
    let undo = format!("{page}/{inverse}");
    Ok(submit.visit.undoable(&page, &undo, done))
}

pub(super) async fn run_now(submit: Submit) -> PageResult {
    let (name, _) = page_of(&submit);
    let path = format!("{}/run-now", api_path(&name));
    let answer = submit
        .visit
        .call(Method::POST, &path, Bytes::new(), None)
        .await?;
    let created: RunAnswer =
        serde_json::from_slice(&answer.body).map_err(|error| Failure::unreadable(&error))?;
    let job = format!("/jobs/{}", created.job_id);
    Ok(submit.visit.done(
        &job,
        "Created a job, in addition to the occurrences of the schedule.",
    ))
}

pub(super) async fn backfill(submit: Submit) -> PageResult {
    let (name, page) = page_of(&submit);
    let instant = |field: &str| {
        let text = submit.required(field)?.trim().to_owned();
        // A field of the browser has no zone and may have no seconds.
        let has_zone = text.ends_with('Z') || text.contains('+');
        let seconds = if text.len() == 16 { ":00" } else { "" };
        Ok::<_, Failure>(if has_zone {
            text
        } else {
            format!("{text}{seconds}Z")
        })
    };
    let body = json!({"from": instant("from_at")?, "to": instant("to_at")?});
    let path = format!("{}/backfill", api_path(&name));
    let answer: BackfillAnswer = submit.visit.send(Method::POST, &path, &body).await?;
    let done = match answer.created {
        0 => "No occurrence was missing in this range.".to_owned(),
        1 => "Created 1 job.".to_owned(),
        created => format!("Created {created} jobs."),
    };
    Ok(submit.visit.done(&page, &done))
}

pub(super) async fn delete(submit: Submit) -> PageResult {
    let (name, _) = page_of(&submit);
    if submit.fields.get("confirm") != Some(name.as_str()) {
        return Err(Failure::invalid(
            "type the name of the schedule to delete it",
        ));
    }
    submit
        .visit
        .call(Method::DELETE, &api_path(&name), Bytes::new(), None)
        .await?;
    Ok(submit
        .visit
        .done("/schedules", "Deleted the schedule. Its jobs stay."))
}
