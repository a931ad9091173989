//! One job: what happened, what happens next, and why it waits.

mod attempt;
mod change;
mod drawing;
mod new;
mod next;

use askama::Template;
use axum::Router;
use serde_json::Value;
use windlass_api::{
    Attempt, AuditPage, FailureGroup, Job, JobState, Page, PolicyFrom, PolicyInForce, Retry,
    Schedule, Scope, Why, WhyReason,
};
use windlass_core::retry::RetryPolicy;
use windlass_core::{JobId, Outcome, Timestamp, format_duration};

use self::attempt::AttemptView;
pub(super) use self::change::id_end;
use self::drawing::{PlanView, TimelineView};
use self::next::Next;
use crate::failure::Failure;
use crate::fields::escaped;
use crate::frame::{Frame, Look, Section};
use crate::markup::Markup;
use crate::show;
use crate::site::{PageResult, Site, action, page};
use crate::timeline::Scale;
use crate::visit::Visit;

/// The most attempts that the page shows.
const ATTEMPTS_MAX: usize = 50;

/// A payload larger than this is shown on demand.
const PAYLOAD_SHOWN_BYTES: usize = 16 * 1024;

pub(super) fn routes() -> Router<Site> {
    Router::new()
        .route("/new/job", page(new::new_form).merge(action(new::create)))
        .route("/jobs/{id}", page(show))
        .route(
            "/jobs/{id}/edit",
            page(change::edit_form).merge(action(change::edit)),
        )
        .route(
            "/jobs/{id}/clone",
            page(change::clone_form).merge(action(change::clone)),
        )
        .route("/jobs/{id}/run-now", action(change::run_now))
        .route("/jobs/{id}/cancel", action(change::cancel))
        .route("/jobs/{id}/{run_at}/uncancel", action(change::uncancel))
        .route("/jobs/{id}/revive", action(change::revive))
        .route("/jobs/{id}/resolve", action(change::resolve))
        .route("/jobs/{id}/delete", action(change::delete))
}

/// The id in the path of the page.
fn job_id(visit: &Visit) -> Result<JobId, Failure> {
    let no_job = || {
        let mut failure = Failure::no_page();
        failure.detail = "This is not the id of a job.".to_owned();
        failure
    };
    visit.param("id").parse().map_err(|_| no_job())
}

async fn show(visit: Visit) -> PageResult {
    let id = job_id(&visit)?;
    let job: Job = visit.get(&format!("/api/v1/jobs/{id}")).await?;
    let history = format!("/api/v1/jobs/{id}/history?limit={ATTEMPTS_MAX}");
    let history: Page<Attempt> = visit.get(&history).await?;
    let mut attempts = history.data;
    attempts.reverse();
    let why: Why = visit.get(&format!("/api/v1/jobs/{id}/why")).await?;
    let group = group_of(&visit, &job).await;
    let title = title(&job);
    let frame = Frame::new(&visit, title.clone(), Section::Jobs).await?;
    let now = visit.now();
    let chosen = visit
        .query()
        .get("attempt")
        .and_then(|number| number.parse().ok());
    let chosen = attempts
        .iter()
        .find(|attempt| Some(attempt.attempt) == chosen)
        .or_else(|| {
            attempts
                .iter()
                .rev()
                .find(|attempt| attempt.error.is_some())
        })
        .or(attempts.last());
    let policy = policy_in_force(&why);
    let rules = policy.and_then(|policy| rules_of(policy.retry.as_ref()));
    let scale = Scale::named(visit.query().get("scale"));
    let drawing = drawing::Facts {
        job: &job,
        attempts: &attempts,
        plan: why.plan.as_ref().map_or(&[][..], |plan| &plan.attempts),
        policy: rules.as_ref(),
        chosen: chosen.map(|attempt| attempt.attempt),
        now,
        zone: visit.zone(),
    };
    let page = JobTemplate {
        title,
        look: look(&job),
        timeline: drawing.timeline(scale),
        plan: drawing.plan(),
        chosen: chosen.map(|attempt| AttemptView::new(attempt, &attempts, &job)),
        next: Next::new(&job, &why, visit.zone(), now),
        schedule: schedule_of(&visit, &job).await,
        changes: changes_of(&visit, id).await,
        policy_words: rules.as_ref().map(policy_words),
        policy_source: policy.map_or("", |policy| source_words(policy.source)),
        lab_query: policy
            .and_then(|policy| policy.retry.as_ref())
            .map(lab_query),
        max_attempts: max_attempts(&job, &why),
        payload: PayloadView::new(&job),
        result: result_text(&job),
        meta: meta_rows(&job),
        commands: commands(&job, &visit.site().backend().about().url),
        older: usize::try_from(job.attempt)
            .unwrap_or(usize::MAX)
            .saturating_sub(attempts.len() + usize::from(job.state == JobState::Running)),
        is_active: matches!(
            job.state,
            JobState::Scheduled | JobState::Ready | JobState::Running
        ),
        group,
        scale,
        why,
        job,
        frame,
    };
    visit.page(&page)
}

#[derive(Template)]
#[template(path = "job.html")]
struct JobTemplate {
    frame: Frame,
    job: Job,
    why: Why,
    title: String,
    look: Look,
    timeline: TimelineView,
    plan: Option<PlanView>,
    chosen: Option<AttemptView>,
    next: Next,
    group: Option<FailureGroup>,
    schedule: Option<Schedule>,
    changes: Vec<ChangeRow>,
    policy_words: Option<String>,
    policy_source: &'static str,
    lab_query: Option<String>,
    max_attempts: Option<u32>,
    payload: PayloadView,
    result: Option<String>,
    meta: Vec<(String, String)>,
    commands: Vec<String>,
    /// Attempts before the first one that is shown.
    older: usize,
    is_active: bool,
    scale: Scale,
}

impl JobTemplate {
    fn may_run_now(&self) -> bool {
        matches!(self.job.state, JobState::Scheduled)
    }

    fn may_edit(&self) -> bool {
        matches!(self.job.state, JobState::Scheduled | JobState::Ready)
    }

    fn may_revive(&self) -> bool {
        matches!(self.job.state, JobState::Dead | JobState::Cancelled)
    }

    fn needs_force(&self) -> bool {
        let revive = self.why.revive.as_ref();
        revive.is_some_and(|revive| revive.refusals.iter().any(|one| one.code == "needs_force"))
    }

    fn can_resolve(&self) -> bool {
        let lost = windlass_core::DeadReason::Lost;
        self.job.dead_reason == Some(lost)
    }

    /// A reason as a sentence that begins with a capital letter. The page has its own words for a
    /// time that has not come, because it shows times in the zone of the reader.
    fn reason_text(&self, reason: &WhyReason) -> Markup {
        let text = match (reason.code.as_str(), self.job.run_at) {
            ("not_due", Some(at)) if self.job.failures > 0 => {
                let left = show::duration(at.since(self.frame.now));
                format!(
                    "not due for {left}, by its policy after failure {}",
                    self.job.failures
                )
            }
            ("not_due", Some(at)) => {
                format!("not due for {}", show::duration(at.since(self.frame.now)))
            }
            _ => reason.text.clone(),
        };
        self.frame
            .linked(&super::schedules::sentence(&show::visible(&text)))
    }

    fn is_finished(&self) -> bool {
        !self.is_active
    }

    fn timeout(&self) -> String {
        match self.job.timeout.0 {
            windlass_core::Timeout::After(after) => {
                format!("{} an attempt", show::duration(after))
            }
            windlass_core::Timeout::None => "none".to_owned(),
        }
    }

    fn unique_for(&self) -> Option<String> {
        self.job
            .unique_for
            .as_ref()
            .map(|text| format_duration(text.0))
    }

    /// The list of the jobs with the same cause.
    fn group_link(&self, state: &str) -> String {
        let Some(group) = &self.group else {
            return String::new();
        };
        format!(
            "?fingerprint={}&state={state}",
            escaped(&group.fingerprint.to_string())
        )
    }

    fn dead_link(&self) -> String {
        let Some(group) = &self.group else {
            return String::new();
        };
        super::dead::group_query(group)
    }
}

/// The name of a job: what it requests, or its kind.
pub(super) fn title(job: &Job) -> String {
    let request = http_request(job);
    show::visible(&request.unwrap_or_else(|| job.kind.as_str().to_owned()))
}

/// Method and target of an HTTP job, without its query.
fn http_request(job: &Job) -> Option<String> {
    const HTTP: &str = "http";
    if job.kind.as_str() != HTTP {
        return None;
    }
    let payload: Value = job.payload.as_ref()?.0.decode().ok()?;
    let url = payload.get("url")?.as_str()?;
    let method = payload
        .get("method")
        .and_then(Value::as_str)
        .unwrap_or("POST");
    let target = url.split_once("://").map_or(url, |(_, target)| target);
    let target = target.split(['?', '#']).next().unwrap_or(target);
    Some(format!("{method} {}", show::clipped(target, 80)))
}

/// How the state of a job looks.
fn look(job: &Job) -> Look {
    match job.state {
        JobState::Scheduled if job.failures > 0 => {
            Look::new("waiting to retry", "retrying", "retrying")
        }
        JobState::Ready if job.failures > 0 => Look::new("ready to retry", "retrying", "retrying"),
        JobState::Scheduled => Look::new("scheduled", "scheduled", "scheduled"),
        JobState::Ready => Look::new("ready", "ready", "ready"),
        JobState::Running if job.cancel_requested => {
            Look::new("running, asked to stop", "running", "running")
        }
        JobState::Running => Look::new("running", "running", "running"),
        JobState::Succeeded => Look::new("succeeded", "succeeded", "succeeded"),
        JobState::Dead => Look::new("dead", "dead", "dead"),
        JobState::Cancelled => Look::new("cancelled", "cancelled", "cancelled"),
    }
}

/// How an outcome looks.
pub(super) fn outcome_look(outcome: Outcome) -> Look {
    match outcome {
        Outcome::Succeeded => Look::new("succeeded", "succeeded", "succeeded"),
        Outcome::Failed => Look::new("failed", "failed", "dead"),
        Outcome::TimedOut => Look::new("timed out", "timed_out", "dead"),
        Outcome::Lost => Look::new("lost", "lost", "dead"),
        Outcome::Snoozed => Look::new("snoozed", "snoozed", "scheduled"),
        Outcome::Released => Look::new("released", "released", "ready"),
        Outcome::Cancelled => Look::new("cancelled", "cancelled", "cancelled"),
    }
}

/// The policy that applies to the next failure, or applied to the last one.
fn policy_in_force(why: &Why) -> Option<&PolicyInForce> {
    let plan = why.plan.as_ref().map(|plan| &plan.policy);
    let death = why.death.as_ref().map(|death| &death.policy);
    plan.or(death)
        .or(why.revive.as_ref().map(|revive| &revive.policy))
}

fn rules_of(retry: Option<&Retry>) -> Option<RetryPolicy> {
    let value = serde_json::to_value(retry?).ok()?;
    RetryPolicy::from_json(&value).ok()
}

/// A retry policy in words.
pub(super) fn policy_words(policy: &RetryPolicy) -> String {
    let words = format!(
        "{}, jitter {}",
        policy.backoff().words(),
        policy.jitter().words()
    );
    words.replace(" %", &format!("{}%", show::SPACE))
}

fn source_words(source: PolicyFrom) -> &'static str {
    match source {
        PolicyFrom::Job => "its own",
        PolicyFrom::Kind => "of its kind",
        PolicyFrom::Queue => "of its queue",
        PolicyFrom::Default => "the default",
        PolicyFrom::None => "none: the first failure is final",
    }
}

/// The query of the policy lab for a policy.
pub(super) fn lab_query(retry: &Retry) -> String {
    let text = serde_json::to_string(retry).unwrap_or_default();
    format!("?a={}", escaped(text.trim_matches('"')))
}

fn max_attempts(job: &Job, why: &Why) -> Option<u32> {
    let plan = why.plan.as_ref().map(|plan| plan.max_attempts);
    let death = why.death.as_ref().map(|death| death.max_attempts);
    plan.or(death).or(job.max_attempts)
}

async fn group_of(visit: &Visit, job: &Job) -> Option<FailureGroup> {
    let fingerprint = job.fingerprint.as_ref()?.to_string();
    let (queue, kind) = (escaped(job.queue.as_str()), escaped(job.kind.as_str()));
    let path = format!(
        "/api/v1/failures?queue={queue}&kind={kind}&fingerprint={}&limit=1",
        escaped(&fingerprint)
    );
    let groups: Page<FailureGroup> = visit.get(&path).await.ok()?;
    groups.data.into_iter().next()
}

async fn schedule_of(visit: &Visit, job: &Job) -> Option<Schedule> {
    let id = job.schedule_id?;
    visit.get(&format!("/api/v1/schedules/{id}")).await.ok()
}

/// A change of the job by an operator.
struct ChangeRow {
    at: Timestamp,
    who: String,
    what: String,
    detail: String,
}

/// What operators did to the job. Only for administrators, who may read the audit log.
async fn changes_of(visit: &Visit, id: JobId) -> Vec<ChangeRow> {
    if !visit.may(Scope::Admin) {
        return Vec::new();
    }
    let path = format!("/api/v1/audit?target={id}&limit=20");
    let Ok(audit) = visit.get::<AuditPage>(&path).await else {
        return Vec::new();
    };
    let row = |record: windlass_api::AuditRecord| ChangeRow {
        at: record.at,
        who: show::visible(&record.name),
        what: record.action,
        detail: match &record.detail {
            Value::Null => String::new(),
            Value::Object(fields) if fields.is_empty() => String::new(),
            detail => show::clipped(&detail.to_string(), 200),
        },
    };
    audit.data.into_iter().map(row).collect()
}

/// The payload as the page shows it.
struct PayloadView {
    text: Option<String>,
    bytes: usize,
    size: String,
    withheld: bool,
    /// Whether it is shown only on demand.
    large: bool,
}

impl PayloadView {
    fn new(job: &Job) -> Self {
        let raw = job.payload.as_ref().map(|payload| payload.0.as_str());
        PayloadView {
            bytes: raw.map_or(0, str::len),
            size: show::grouped(raw.map_or(0, str::len) as u64),
            large: raw.is_some_and(|raw| raw.len() > PAYLOAD_SHOWN_BYTES),
            text: raw.map(pretty),
            withheld: job.payload_withheld,
        }
    }
}

/// JSON with indentation, with control characters made visible.
pub(super) fn pretty(json: &str) -> String {
    show::visible(&crate::pretty::pretty(json))
}

fn result_text(job: &Job) -> Option<String> {
    let result = job.result.as_ref().map(|result| result.0.as_str())?;
    (result != "null").then(|| pretty(result))
}

fn meta_rows(job: &Job) -> Vec<(String, String)> {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let rows = job.meta.iter().take(32);
    rows.map(|(name, value)| (show::visible(name), show::clipped(&text(value), 300)))
        .collect()
}

/// Commands for the same job.
fn commands(job: &Job, url: &str) -> Vec<String> {
    let id = job.id;
    let mut commands = vec![
        format!("windlass jobs show {id}"),
        format!("windlass jobs history {id}"),
        format!("windlass jobs why {id}"),
    ];
    match job.state {
        JobState::Dead | JobState::Cancelled => {
            commands.push(format!("windlass jobs revive {id}"));
        }
        JobState::Scheduled | JobState::Ready | JobState::Running => {
            commands.push(format!("windlass jobs cancel {id}"));
        }
        JobState::Succeeded => {}
    }
    if job.state == JobState::Scheduled {
        commands.push(format!("windlass jobs run-now {id}"));
    }
    commands.push(change::command_of(job));
    commands.push(change::curl_of(job, url));
    commands
}

/// A piece of text with a number in bold.
fn strong(text: &str) -> Markup {
    Markup(format!(
        "<strong class=\"mid\">{}</strong>",
        crate::markup::escaped(text)
    ))
}
