//! An action on selected jobs of a page: first a question, then one request for each job.

use askama::Template;
use axum::http::Method;
use serde_json::{Value, json};
use windlass_core::JobId;

use super::uncancel::Waits;
use crate::failure::Failure;
use crate::fields::escaped;
use crate::frame::{Frame, Section};
use crate::site::PageResult;
use crate::visit::{Submit, Visit};

/// The most jobs that one request changes.
const SELECTED_MAX: usize = 100;

/// The verb that changes payloads. It needs a dry run, so it works on all jobs that match.
pub(super) const PATCH: &str = "patch";

/// What can be done to many jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verb {
    pub(super) name: &'static str,
    /// The question, before the number of jobs.
    pub(super) ask: &'static str,
    /// What happened, before the number of jobs.
    pub(super) done: &'static str,
    /// What it means.
    pub(super) about: &'static str,
    /// The field that it needs: name, label, placeholder.
    pub(super) field: Option<(&'static str, &'static str, &'static str)>,
    pub(super) bad: bool,
}

impl Verb {
    /// The verb alone, without the jobs that it changes.
    pub(super) fn name_in_words(self) -> &'static str {
        self.ask.trim_end_matches(" of")
    }
}

/// All verbs, in the order of the buttons.
pub(super) const VERBS: [Verb; 8] = [
    Verb {
        name: "run_now",
        ask: "Run now",
        done: "Made due",
        about: "They are due at once. Their failure counts do not change.",
        field: None,
        bad: false,
    },
    Verb {
        name: "revive",
        ask: "Revive",
        done: "Revived",
        about: "Dead or cancelled jobs run again, with a failure count of zero.",
        field: None,
        bad: false,
    },
    Verb {
        name: "move",
        ask: "Move",
        done: "Moved",
        about: "Waiting jobs move to another queue.",
        field: Some(("queue", "To queue", "default")),
        bad: false,
    },
    Verb {
        name: "reprioritise",
        ask: "Change the priority of",
        done: "Changed the priority of",
        about: "Higher priorities run first.",
        field: Some(("priority", "Priority", "0")),
        bad: false,
    },
    Verb {
        name: PATCH,
        ask: "Patch the payload of",
        done: "Patched",
        about: "Waiting, dead and cancelled jobs get another payload.",
        field: Some((PATCH, "Payload patch", r#"{"template": "invoice-v2"}"#)),
        bad: false,
    },
    Verb {
        name: "resolve",
        ask: "Resolve",
        done: "Resolved",
        about: "Lost at-most-once jobs that did their work count as succeeded.",
        field: None,
        bad: false,
    },
    Verb {
        name: "cancel",
        ask: "Cancel",
        done: "Cancelled",
        about: "Waiting jobs end at once. The workers of running jobs are asked to stop them.",
        field: None,
        bad: true,
    },
    Verb {
        name: "delete",
        ask: "Delete",
        done: "Deleted",
        about: "Finished jobs and all their attempts are removed for good.",
        field: None,
        bad: true,
    },
];

pub(super) fn verb(name: &str) -> Result<Verb, Failure> {
    let found = VERBS.into_iter().find(|verb| verb.name == name);
    found.ok_or_else(|| Failure::invalid("choose an action"))
}

/// The verb of a form for selected jobs.
fn selected_verb(submit: &Submit) -> Result<Verb, Failure> {
    let verb = verb(submit.required("action")?)?;
    match verb.name {
        PATCH => Err(Failure::invalid(
            "select all jobs that match to patch their payloads",
        )),
        _ => Ok(verb),
    }
}

#[derive(Template)]
#[template(path = "jobs_confirm.html")]
struct ConfirmPage {
    frame: Frame,
    verb: Verb,
    ids: Vec<String>,
    back: String,
    commands: Vec<String>,
}

fn ids(submit: &Submit) -> Result<Vec<String>, Failure> {
    let ids: Vec<String> = submit
        .fields
        .all("id")
        .take(SELECTED_MAX + 1)
        .map(str::to_owned)
        .collect();
    if ids.is_empty() {
        return Err(Failure::invalid("select at least one job"));
    }
    if ids.len() > SELECTED_MAX || ids.iter().any(|id| id.parse::<JobId>().is_err()) {
        return Err(Failure::invalid(format!(
            "select at most {SELECTED_MAX} jobs"
        )));
    }
    Ok(ids)
}

/// Asks before anything changes. Running jobs now is harmless and happens at once.
pub(super) async fn confirm(submit: Submit) -> PageResult {
    let verb = selected_verb(&submit)?;
    if verb.name == "run_now" {
        return apply(submit).await;
    }
    let ids = ids(&submit)?;
    let visit = &submit.visit;
    let frame = Frame::new(
        visit,
        format!("{} {}", verb.ask, jobs(ids.len())),
        Section::Jobs,
    )
    .await?;
    let edit = |change: &str| {
        ids.iter()
            .map(|id| format!("windlass jobs edit {id} {change}"))
            .collect()
    };
    let commands = match verb.name {
        "move" => edit("--queue default"),
        "reprioritise" => edit("--priority 0"),
        name => vec![format!("windlass jobs {name} {}", ids.join(" "))],
    };
    let back = submit.fields.get("from").unwrap_or("/jobs").to_owned();
    visit.page(&ConfirmPage {
        frame,
        verb,
        back,
        commands,
        ids,
    })
}

pub(super) fn jobs(count: usize) -> String {
    if count == 1 {
        "1 job".to_owned()
    } else {
        format!("{count} jobs")
    }
}

pub(super) async fn apply(submit: Submit) -> PageResult {
    let verb = selected_verb(&submit)?;
    let ids = ids(&submit)?;
    let value = match verb.field {
        Some((name, ..)) => submit.required(name)?,
        None => "",
    };
    let mut failures: Vec<Failure> = Vec::new();
    let mut waits = Waits::default();
    for id in &ids {
        if verb.name == "cancel" {
            waits.note(&submit.visit, id).await;
        }
        if let Err(failure) = change(&submit.visit, verb, id, value).await {
            failures.push(failure);
        }
    }
    let from = list_of(submit.fields.get("back").or(submit.fields.get("from")));
    Ok(match failures.first() {
        None => {
            let message = format!("{} {}.", verb.done, jobs(ids.len()));
            match waits.undo(ids.len()) {
                Some(undo) => submit.visit.undoable(from, &undo, &message),
                None => submit.visit.done(from, &message),
            }
        }
        Some(first) => {
            let changed = ids.len() - failures.len();
            let mut all = first.clone();
            all.detail = format!(
                "{} {changed} of {}. The first that failed: {}",
                verb.done,
                jobs(ids.len()),
                first.detail
            );
            submit.visit.failed(from, &all)
        }
    })
}

/// The list of jobs to return to.
pub(super) fn list_of(from: Option<&str>) -> &str {
    from.filter(|from| from.starts_with("/jobs"))
        .unwrap_or("/jobs")
}

async fn change(visit: &Visit, verb: Verb, id: &str, value: &str) -> Result<(), Failure> {
    let job = format!("/api/v1/jobs/{}", escaped(id));
    let (method, path, body) = match verb.name {
        "run_now" => (Method::POST, format!("{job}/run-now"), json!({})),
        "revive" => (Method::POST, format!("{job}/revive"), json!({})),
        "cancel" => (Method::POST, format!("{job}/cancel"), json!({})),
        "resolve" => (Method::POST, format!("{job}/resolve"), json!({})),
        "delete" => (Method::DELETE, job, json!({})),
        "move" => (Method::PATCH, job, json!({"queue": value})),
        _ => {
            let priority: i64 = value
                .trim()
                .parse()
                .map_err(|_| Failure::invalid("the priority must be a whole number"))?;
            (Method::PATCH, job, json!({"priority": priority}))
        }
    };
    let _: Value = visit.send(method, &path, &body).await?;
    Ok(())
}
