//! Pausing and resuming all queues: first the list of what changes, then a request for each queue.

use askama::Template;
use axum::http::Method;
use serde_json::json;
use windlass_api::{Page, Queue};
use windlass_core::Timestamp;

use crate::failure::Failure;
use crate::fields::escaped;
use crate::frame::{Frame, Section};
use crate::show;
use crate::site::PageResult;
use crate::visit::{Submit, Visit};

/// The most queues that one request changes.
const QUEUES_MAX: usize = 1000;

/// What happens to the queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Pause,
    Resume,
}

impl Verb {
    /// Whether a queue changes: one that is paused already keeps the reason that it has.
    fn changes(self, queue: &Queue) -> bool {
        queue.paused.is_some() == (self == Verb::Resume)
    }

    fn name(self) -> &'static str {
        match self {
            Verb::Pause => "pause",
            Verb::Resume => "resume",
        }
    }

    fn done(self) -> &'static str {
        match self {
            Verb::Pause => "Paused",
            Verb::Resume => "Resumed",
        }
    }
}

#[derive(Template)]
#[template(path = "queues_all.html")]
struct AllPage {
    frame: Frame,
    is_pause: bool,
    /// The queues that change.
    queues: Vec<Queue>,
    /// How many queues do not change.
    others: usize,
    commands: Vec<String>,
}

pub(super) async fn pause_form(visit: Visit) -> PageResult {
    form(visit, Verb::Pause).await
}

pub(super) async fn resume_form(visit: Visit) -> PageResult {
    form(visit, Verb::Resume).await
}

async fn form(visit: Visit, verb: Verb) -> PageResult {
    let title = match verb {
        Verb::Pause => "Pause all queues",
        Verb::Resume => "Resume paused queues",
    };
    let frame = Frame::new(&visit, title, Section::Queues).await?;
    let all = read(&visit).await?;
    let (queues, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|queue| verb.changes(queue));
    let reason = match verb {
        Verb::Pause => " --reason 'why'",
        Verb::Resume => "",
    };
    let name = verb.name();
    let command =
        format!("windlass queues list -o id | xargs -r -n 1 windlass queues {name}{reason}");
    visit.page(&AllPage {
        frame,
        is_pause: verb == Verb::Pause,
        others: others.len(),
        queues,
        commands: vec![command],
    })
}

async fn read(visit: &Visit) -> Result<Vec<Queue>, Failure> {
    let path = format!("/api/v1/queues?limit={QUEUES_MAX}");
    let page: Page<Queue> = visit.get(&path).await?;
    Ok(page.data)
}

pub(super) async fn pause(submit: Submit) -> PageResult {
    let from = submit.visit.site().backend().now();
    let (changed, failures) = change_chosen(&submit, Verb::Pause).await?;
    let to = submit.visit.site().backend().now();
    if !failures.is_empty() || changed == 0 {
        return Ok(answer(&submit.visit, Verb::Pause, changed, &failures));
    }
    let undo = format!("/all-queues/{}-{}/resume", from.as_micros(), to.as_micros());
    let message = format!("Paused {}. Running jobs continue.", queues(changed));
    Ok(submit.visit.undoable("/queues", &undo, &message))
}

pub(super) async fn resume(submit: Submit) -> PageResult {
    let (changed, failures) = change_chosen(&submit, Verb::Resume).await?;
    Ok(answer(&submit.visit, Verb::Resume, changed, &failures))
}

/// Resumes the queues that someone paused in a span of time, which is that of one request.
pub(super) async fn undo_pause(submit: Submit) -> PageResult {
    let visit = &submit.visit;
    let (from, to) = span(visit.param("span")).ok_or_else(Failure::no_page)?;
    let all = read(visit).await?;
    let paused_then = all.into_iter().filter(|queue| {
        let paused = queue.paused.as_ref();
        paused.is_some_and(|pause| (from..=to).contains(&pause.at))
    });
    let (changed, failures) = change(visit, Verb::Resume, paused_then.collect(), None).await;
    Ok(answer(visit, Verb::Resume, changed, &failures))
}

/// Parses `1773709964000000-1773709964250000`: two instants in microseconds.
fn span(text: &str) -> Option<(Timestamp, Timestamp)> {
    let (from, to) = text.split_once('-')?;
    let instant = |micros: &str| Timestamp::from_micros(micros.parse().ok()?);
    Some((instant(from)?, instant(to)?))
}

/// Changes the queues that the form names, as far as they still need it.
async fn change_chosen(submit: &Submit, verb: Verb) -> Result<(usize, Vec<Failure>), Failure> {
    let mut all = read(&submit.visit).await?;
    let chosen: Vec<&str> = submit.fields.all("queue").collect();
    if chosen.is_empty() {
        return Err(Failure::invalid("select at least one queue"));
    }
    all.retain(|queue| verb.changes(queue) && chosen.contains(&queue.name.as_str()));
    let reason = submit.fields.get("reason");
    Ok(change(&submit.visit, verb, all, reason).await)
}

async fn change(
    visit: &Visit,
    verb: Verb,
    queues: Vec<Queue>,
    reason: Option<&str>,
) -> (usize, Vec<Failure>) {
    let body = reason.map_or_else(|| json!({}), |reason| json!({"reason": reason}));
    let (mut changed, mut failures) = (0, Vec::new());
    for queue in queues {
        let name = escaped(queue.name.as_str());
        let path = format!("/api/v1/queues/{name}/{}", verb.name());
        match visit.send::<Queue>(Method::POST, &path, &body).await {
            Ok(_) => changed += 1,
            Err(failure) => failures.push(failure),
        }
    }
    (changed, failures)
}

fn answer(
    visit: &Visit,
    verb: Verb,
    changed: usize,
    failures: &[Failure],
) -> axum::http::Response<axum::body::Body> {
    let Some(first) = failures.first() else {
        let message = match (changed, verb) {
            (0, Verb::Pause) => "No queue changed: all of them were paused already.".to_owned(),
            (0, Verb::Resume) => "No queue changed: none of them was paused.".to_owned(),
            _ => format!("{} {}.", verb.done(), queues(changed)),
        };
        return visit.done("/queues", &message);
    };
    let mut all = first.clone();
    all.detail = format!(
        "{} {changed} of {}. The first that failed: {}",
        verb.done(),
        queues(changed + failures.len()),
        first.detail
    );
    visit.failed("/queues", &all)
}

/// A number of queues in words.
fn queues(count: usize) -> String {
    match count {
        1 => "1 queue".to_owned(),
        _ => format!("{} queues", show::count(count as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_two_instants() {
        let (from, to) = span("1773709964000000-1773709964250000").unwrap();
        assert_eq!(to.since(from).as_millis(), 250);
        for text in ["", "-", "1-", "x-1", "1", "99999999999999999999-1"] {
            assert!(span(text).is_none(), "{text}");
        }
    }
}
