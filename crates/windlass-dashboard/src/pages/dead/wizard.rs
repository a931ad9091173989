//! Starts a replay in four steps: which jobs, what changes, how fast, and a review.
//!
//! The whole plan is in the URL, so back works and nothing is kept on the server. Each step makes a
//! dry run; only the last one, a form, creates the replay.

use std::time::Duration;

use askama::Template;
use axum::http::Method;
use serde_json::Value;
use windlass_api::{ActionPreview, FailureGroup, JobDiff, Page, Replay};
use windlass_core::Timestamp;

use super::super::actions::ReplayView;
use super::super::job;
use super::filters_of;
use crate::failure::Failure;
use crate::fields::Fields;
use crate::frame::{Frame, Section};
use crate::markup::Markup;
use crate::show;
use crate::site::PageResult;
use crate::visit::{Submit, Visit};

mod plan;

use plan::{Rules, command, plan_chart, plan_query, request, takes};

/// A cause that was seen within this time is still there.
const STILL_SEEN: Duration = Duration::from_secs(300);
/// A step of the wizard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Step {
    Jobs,
    Payload,
    Pace,
    Review,
}

impl Step {
    const ALL: [(Step, &'static str, &'static str); 4] = [
        (Step::Jobs, "jobs", "Jobs"),
        (Step::Payload, "payload", "Payload"),
        (Step::Pace, "pace", "Pace"),
        (Step::Review, "review", "Review"),
    ];

    fn named(name: Option<&str>) -> Step {
        let found = Step::ALL
            .into_iter()
            .find(|(_, known, _)| Some(*known) == name);
        found.map_or(Step::Jobs, |(step, ..)| step)
    }

    fn name(self) -> &'static str {
        let found = Step::ALL.into_iter().find(|(step, ..)| *step == self);
        found.map_or("jobs", |(_, name, _)| name)
    }

    fn after(self) -> Step {
        match self {
            Step::Jobs => Step::Payload,
            Step::Payload => Step::Pace,
            Step::Pace | Step::Review => Step::Review,
        }
    }

    fn before(self) -> Option<Step> {
        match self {
            Step::Jobs => None,
            Step::Payload => Some(Step::Jobs),
            Step::Pace => Some(Step::Payload),
            Step::Review => Some(Step::Pace),
        }
    }
}

/// A step in the head of the dialog.
struct StepView {
    number: usize,
    name: String,
    done: bool,
    current: bool,
    link: String,
}

/// The change of one job, line by line.
struct DiffView {
    job: String,
    refused: Option<String>,
    lines: Vec<(char, String)>,
}

#[derive(Template)]
#[template(path = "replay_new.html")]
struct WizardTemplate {
    frame: Frame,
    steps: Vec<StepView>,
    step: Step,
    count: String,
    matched: u64,
    complete: bool,
    what: String,
    filters: Vec<(String, String)>,
    /// All fields of the plan and the filter, for the forms of the other steps.
    hidden: Vec<(String, String)>,
    back: Option<String>,
    next: &'static str,
    cancel: String,
    warning: Option<String>,
    failure: Option<Failure>,
    samples: Vec<(String, String)>,
    diffs: Vec<DiffView>,
    patch: String,
    canary: String,
    canary_timeout: String,
    rate: String,
    failed_percent: String,
    keeps_failures: bool,
    force: bool,
    reason: String,
    chart: Markup,
    takes: String,
    earlier: Vec<ReplayView>,
    commands: Vec<String>,
}

impl WizardTemplate {
    fn is(&self, name: &str) -> bool {
        self.step.name() == name
    }
}

pub(super) async fn form(visit: Visit) -> PageResult {
    let fields = visit.query().clone();
    render(&visit, &fields, Step::named(fields.get("step")), None).await
}

pub(super) async fn start(submit: Submit) -> PageResult {
    // The filter and the plan come from the form; the query of the page may be older.
    let fields = submit.fields.without(&["csrf", "from"]);
    let created = match request(&fields, None) {
        Ok(body) => {
            submit
                .visit
                .send::<Replay>(Method::POST, "/api/v1/replays", &body)
                .await
        }
        Err(failure) => Err(failure),
    };
    match created {
        Ok(replay) => {
            let path = format!("/actions/replays/{}", replay.id);
            Ok(submit
                .visit
                .done(&path, "The replay has started with its canary."))
        }
        Err(failure) => render(&submit.visit, &fields, Step::Review, Some(failure)).await,
    }
}

async fn render(
    visit: &Visit,
    fields: &Fields,
    step: Step,
    failure: Option<Failure>,
) -> PageResult {
    let filters = filters_of(fields);
    let (preview, step, failure) = dry_run(visit, fields, step, failure).await?;
    let rules = Rules::read(fields);
    let group = group_of(visit, &filters).await?;
    let (matched, complete) = (preview.matched, preview.complete);
    let plan = plan_query(fields);
    let link = |step: Step| {
        format!(
            "{}/dead/replay{}",
            visit.base(),
            plan.with("step", step.name()).query()
        )
    };
    let text = |name: &str| fields.get(name).unwrap_or_default().to_owned();
    let status = failure.as_ref().map(|failure| failure.status);
    let frame = Frame::new(
        visit,
        format!("Replay {} jobs", show::grouped(matched)),
        Section::Dead,
    )
    .await?;
    let what = match &group {
        Some(group) => {
            let error = group.sample.error.as_deref().unwrap_or_default();
            format!(
                "{} in {}: {}",
                group.kind,
                group.queue,
                show::clipped(error, 80)
            )
        }
        None => "dead jobs".to_owned(),
    };
    let page = WizardTemplate {
        steps: steps(step, fields, link),
        count: show::grouped(matched),
        matched,
        complete,
        what: show::visible(&what),
        filters: filters
            .pairs()
            .map(|(name, value)| (name.replace('_', " "), show::visible(value)))
            .collect(),
        hidden: plan
            .pairs()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        back: step.before().map(link),
        next: step.after().name(),
        cancel: format!("{}/dead{}", visit.base(), filters.query()),
        warning: group.as_ref().and_then(|group| warning(group, visit.now())),
        samples: preview
            .samples
            .iter()
            .take(5)
            .map(|one| (one.id.to_string(), job::title(one)))
            .collect(),
        diffs: preview.diff.iter().take(3).map(diff_view).collect(),
        patch: text("patch"),
        canary: rules.canary_jobs.to_string(),
        canary_timeout: text_or(fields, "canary_timeout", "5m"),
        rate: rules.rate.to_string(),
        failed_percent: text_or(fields, "failed_percent", "20"),
        keeps_failures: fields.get("failures") == Some("keep"),
        force: fields.get("force").is_some(),
        reason: text("why"),
        chart: plan_chart(matched, &rules),
        takes: takes(matched, &rules),
        earlier: earlier(visit, &filters).await?,
        commands: vec![command(fields)],
        failure,
        step,
        frame,
    };
    let mut response = visit.page(&page)?;
    if let Some(status) = status {
        *response.status_mut() = status;
    }
    Ok(response)
}

/// Makes a dry run of the plan. If the plan is refused, shows the step that can repair it.
async fn dry_run(
    visit: &Visit,
    fields: &Fields,
    step: Step,
    failure: Option<Failure>,
) -> Result<(ActionPreview, Step, Option<Failure>), Failure> {
    let tried = match request(fields, Some("dry run")) {
        Ok(body) => {
            visit
                .send::<ActionPreview>(Method::POST, "/api/v1/replays", &body)
                .await
        }
        Err(refused) => Err(refused),
    };
    let refused = match tried {
        Ok(preview) => return Ok((preview, step, failure)),
        Err(refused) => refused,
    };
    // Without the plan, the filter alone must be valid; otherwise there is nothing to show.
    let body = request(&filters_of(fields), Some("dry run"))?;
    let preview = visit.send(Method::POST, "/api/v1/replays", &body).await?;
    let step = match refused.detail.contains("patch") {
        true => Step::Payload,
        false => Step::Pace,
    };
    Ok((preview, step, Some(failure.unwrap_or(refused))))
}

fn steps(current: Step, fields: &Fields, link: impl Fn(Step) -> String) -> Vec<StepView> {
    let view = |(number, (step, _, name)): (usize, (Step, &str, &str))| StepView {
        number,
        name: match (step, fields.get("patch").is_some()) {
            (Step::Payload, false) if step < current => format!("{name}, unchanged"),
            (Step::Payload, true) if step < current => format!("{name}, patched"),
            _ => name.to_owned(),
        },
        done: step < current,
        current: step == current,
        link: link(step),
    };
    (1..).zip(Step::ALL).map(view).collect()
}

fn text_or(fields: &Fields, name: &str, default: &str) -> String {
    fields.get(name).unwrap_or(default).to_owned()
}

async fn group_of(visit: &Visit, filters: &Fields) -> Result<Option<FailureGroup>, Failure> {
    let Some(fingerprint) = filters.get("fingerprint") else {
        return Ok(None);
    };
    let mut query = Fields::default()
        .with("fingerprint", fingerprint)
        .with("limit", "1");
    for name in ["queue", "kind"] {
        query = query.with(name, filters.get(name).unwrap_or_default());
    }
    let groups: Page<FailureGroup> = visit
        .get(&format!("/api/v1/failures{}", query.query()))
        .await?;
    Ok(groups.data.into_iter().next())
}

/// A warning while the cause is still seen.
fn warning(group: &FailureGroup, now: Timestamp) -> Option<String> {
    let age = now.since(group.last_seen_at);
    if age > STILL_SEEN {
        return None;
    }
    Some(format!(
        "The cause is still there: {}, the last one {} ago. The canary would probably stop this replay.",
        super::causes::recent(&group.hours),
        show::roughly(age),
    ))
}

/// Other replays of the same cause or queue, newest first.
async fn earlier(visit: &Visit, filters: &Fields) -> Result<Vec<ReplayView>, Failure> {
    let replays: Page<Replay> = visit.get("/api/v1/replays?limit=50").await?;
    let fingerprint = filters.get("fingerprint");
    let alike = |replay: &Replay| {
        let own = replay.filter.fingerprint.as_ref().map(ToString::to_string);
        own.as_deref() == fingerprint
    };
    let alike = replays.data.into_iter().filter(alike).take(5);
    Ok(alike
        .map(|replay| ReplayView::new(replay, None, visit.now(), visit.zone()))
        .collect())
}

fn diff_view(diff: &JobDiff) -> DiffView {
    let mut lines = Vec::new();
    for (name, change) in diff.changes.iter().flatten() {
        let text = |value: &Value| show::clipped(&value.to_string(), 400);
        lines.push(('-', format!("{name}: {}", text(&change.from))));
        lines.push(('+', format!("{name}: {}", text(&change.to))));
    }
    DiffView {
        job: diff.job_id.to_string(),
        refused: diff.refused.as_deref().map(show::visible),
        lines,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_fresh_cause_warns_and_an_old_one_does_not() {
        let group = |seen: &str| -> FailureGroup {
            serde_json::from_value(json!({
                "fingerprint": "26f30b1c9d2e4a57", "queue": "mail", "kind": "k", "dead": 3,
                "retrying": 0, "first_seen_at": "2026-01-01T00:00:00Z", "last_seen_at": seen,
                "sample": {"job_id": null, "error": null}, "hours": [1, 2],
            }))
            .unwrap()
        };
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        assert!(
            warning(&group("2026-01-01T11:58:00Z"), now)
                .unwrap()
                .contains("2\u{a0}m ago")
        );
        assert_eq!(warning(&group("2026-01-01T11:54:00Z"), now), None);
    }
}
