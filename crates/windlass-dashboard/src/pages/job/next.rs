//! What happens next to a job, in one figure and one sentence.

use windlass_api::{Job, JobState, PlannedAttempt, Why};
use windlass_core::Timestamp;

use super::strong;
use crate::markup::{Markup, escaped};
use crate::show::{self, Zone};

/// The figure and the sentence at the top of the page.
pub(super) struct Next {
    /// The instant that the figure counts down to.
    pub(super) until: Option<Timestamp>,
    /// The figure.
    pub(super) figure: String,
    /// What the figure means.
    pub(super) note: String,
    /// What happened and what follows.
    pub(super) sentence: Markup,
}

impl Next {
    pub(super) fn new(job: &Job, why: &Why, zone: &Zone, now: Timestamp) -> Next {
        match job.state {
            JobState::Scheduled | JobState::Ready => waiting(job, why, zone, now),
            JobState::Running => running(job, why, zone, now),
            JobState::Succeeded => succeeded(job),
            JobState::Dead => dead(job, why, zone, now),
            JobState::Cancelled => cancelled(job, zone, now),
        }
    }
}

/// The last failed attempts as a sentence: `5 attempts failed: connection refused.`
fn failures(job: &Job) -> Markup {
    let failed = match job.failures {
        1 => "1 attempt failed".to_owned(),
        count => format!("{count} attempts failed"),
    };
    match &job.last_error {
        Some(error) => Markup(format!("{failed}: {}", ending(error))),
        None => Markup(format!("{failed}.")),
    }
}

/// An error at the end of a sentence, which it ends unless it does so itself.
fn ending(error: &str) -> String {
    let shown = show::clipped(error, 90);
    let stop = match shown.ends_with(['…', '.', '!', '?']) {
        true => "",
        false => ".",
    };
    format!("{}{stop}", strong(&shown))
}

/// What follows if `attempt`, the next one, fails too.
fn rest(attempt: u32, why: &Why, zone: &Zone, now: Timestamp) -> String {
    let Some(plan) = &why.plan else {
        return String::new();
    };
    let Some(last) = plan.attempts.last() else {
        return "If it fails, the job is dead.".to_owned();
    };
    let more = plan.attempts.len().saturating_sub(1);
    let when = match range(last, zone, now) {
        (earliest, latest) if earliest == latest => format!("at {earliest}"),
        (earliest, latest) => format!("between {earliest} and {latest}"),
    };
    match more {
        0 => format!("Attempt {attempt} is the last: if it fails, the job is dead."),
        1 => format!("One more follows attempt {attempt}; if both fail, the job is dead {when}."),
        _ => format!("{more} more follow attempt {attempt}; if all fail, the job is dead {when}."),
    }
}

fn range(last: &PlannedAttempt, zone: &Zone, now: Timestamp) -> (String, String) {
    (
        zone.short(last.earliest_at, now),
        zone.short(last.latest_at, now),
    )
}

fn waiting(job: &Job, why: &Why, zone: &Zone, now: Timestamp) -> Next {
    let attempt = job.attempt + 1;
    let limit = why.plan.as_ref().map(|plan| plan.max_attempts);
    let number = match limit {
        Some(limit) if job.failures > 0 => {
            format!("attempt {attempt}, {} of {limit} failed", job.failures)
        }
        _ => format!("attempt {attempt}"),
    };
    let due = job.run_at.unwrap_or(now);
    let rest = escaped(&rest(attempt, why, zone, now));
    let sentence = match job.failures {
        0 => Markup(format!("It has not failed yet. {rest}")),
        _ => Markup(format!("{} {rest}", failures(job))),
    };
    if due > now {
        return Next {
            until: Some(due),
            figure: show::duration(std::time::Duration::from_secs(due.since(now).as_secs())),
            note: format!("until {number}, at {}", zone.short(due, now)),
            sentence,
        };
    }
    Next {
        until: None,
        figure: "due".to_owned(),
        note: format!("{number}, since {}", zone.short(due, now)),
        sentence,
    }
}

fn running(job: &Job, why: &Why, zone: &Zone, now: Timestamp) -> Next {
    let since = job.started_at.unwrap_or(now);
    let worker = job
        .worker
        .as_ref()
        .map_or("a worker", |worker| worker.as_str());
    let next = why.plan.as_ref().and_then(|plan| plan.attempts.first());
    let follows = match next {
        Some(_) => "If it fails, the policy retries it.",
        None => "If it fails, the job is dead.",
    };
    let mut sentence = format!("{} runs it. {follows}", strong(&show::visible(worker)));
    if job.failures > 0 {
        sentence = format!("{} {sentence}", failures(job));
    }
    if let Some(until) = job.lease_until {
        sentence.push_str(&format!(
            " The lease ends at {}.",
            escaped(&zone.short(until, now))
        ));
    }
    Next {
        until: None,
        figure: show::duration(now.since(since)),
        note: format!(
            "attempt {} runs, since {}",
            job.attempt,
            zone.short(since, now)
        ),
        sentence: Markup(sentence),
    }
}

fn succeeded(job: &Job) -> Next {
    let finished = job.finished_at.unwrap_or(job.created_at);
    let sentence = match (job.failures, job.attempt) {
        (0, 0 | 1) => "It succeeded with the first attempt.".to_owned(),
        (0, attempts) => format!("It succeeded with attempt {attempts}; none failed."),
        (1, _) => "It succeeded after one failed attempt.".to_owned(),
        (failures, _) => format!("It succeeded after {failures} failed attempts."),
    };
    Next {
        until: None,
        figure: show::duration(finished.since(job.created_at)),
        note: "from its creation to its end".to_owned(),
        sentence: Markup(sentence),
    }
}

fn dead(job: &Job, why: &Why, zone: &Zone, now: Timestamp) -> Next {
    let at = job.finished_at.unwrap_or(now);
    let reason = job.dead_reason.map_or("dead", |reason| reason.name());
    let mut sentence = match &why.death {
        Some(death) => format!("It died because {}.", escaped(&show::visible(&death.text))),
        None => String::new(),
    };
    if let Some(error) = &job.last_error {
        sentence.push_str(&format!(" The last error is {}", ending(error)));
    }
    match &why.revive {
        Some(revive) if revive.allowed => sentence.push_str(&format!(
            " Reviving it gives it {} {}.",
            revive.attempts_left,
            if revive.attempts_left == 1 {
                "attempt"
            } else {
                "attempts"
            }
        )),
        Some(revive) => {
            let why: Vec<&str> = revive
                .refusals
                .iter()
                .map(|one| one.text.as_str())
                .collect();
            let why = escaped(&show::visible(&why.join("; ")));
            sentence.push_str(&format!(" It cannot be revived as it is: {why}."));
        }
        None => {}
    }
    Next {
        until: None,
        figure: reason.to_owned(),
        note: format!(
            "died {}, at {}",
            show::relative(at, now),
            zone.short(at, now)
        ),
        sentence: Markup(sentence),
    }
}

fn cancelled(job: &Job, zone: &Zone, now: Timestamp) -> Next {
    let at = job.finished_at.unwrap_or(now);
    Next {
        until: None,
        figure: show::relative(at, now),
        note: format!("cancelled at {}", zone.short(at, now)),
        sentence: Markup(
            "An operator cancelled it. It does not run again unless someone revives it.".to_owned(),
        ),
    }
}
