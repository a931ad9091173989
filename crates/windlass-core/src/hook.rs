//! Hooks: what Windlass reports to a URL, and the HTTP jobs that carry the reports.
//!
//! An event comes from stored facts: a dead job, a failure group, a stopped replay, a queue without
//! starts. The job of a report has an id and a unique key that follow from the hook, the event, its
//! group and its minute. So every node may look at the same facts any number of times, and each
//! report is one job.

mod report;
mod stall;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use report::{HookReport, HookSubject, hook_queue};
pub use stall::{QueueStarts, STALL_QUEUES_MAX, idle_since};

use crate::duration::check_duration;
use crate::words::string_enum;
use crate::{HookName, Invalid, Kind, QueueName, Tag, Timestamp};

/// The queue of the HTTP jobs that carry reports. Its own jobs are never reported.
pub const HOOK_QUEUE: &str = "windlass.hooks";

/// The most hooks of a store.
pub const HOOKS_MAX: usize = 100;

/// How long a queue has no start before a hook reports it, unless the hook says otherwise. 5 min.
pub const STALLED_AFTER_DEFAULT: Duration = Duration::from_secs(300);

/// The shortest such time. Statistics say only every 10 s which queues started jobs.
const STALLED_AFTER_MIN: Duration = Duration::from_secs(60);

/// The most bytes of a URL.
const URL_BYTES_MAX: usize = 2048;

/// The most secrets that sign one report.
const SIGN_MAX: usize = 8;

/// What a hook can report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HookEvent {
    /// A job died.
    Dead,
    /// A job failed of a cause that its queue and kind did not have in the last 24 hours.
    FailureGroupCreated,
    /// A replay stopped itself.
    ReplayStopped,
    /// A queue that is not paused has ready jobs, but started none for a while.
    QueueStalled,
}

string_enum!(HookEvent {
    Dead = "dead",
    FailureGroupCreated = "failure_group_created",
    ReplayStopped = "replay_stopped",
    QueueStalled = "queue_stalled",
});

/// Which events to report, and where to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookDefinition {
    /// The URL that gets the reports.
    pub url: String,
    /// The names of the secrets that sign the reports.
    pub sign: Vec<String>,
    /// What to report.
    pub events: BTreeSet<HookEvent>,
    /// Only events of this queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueName>,
    /// Only events of jobs of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// Whether reports contain the text of errors. It may contain personal data.
    #[serde(default)]
    pub include_error_text: bool,
    /// How long a queue has no start before the hook reports it.
    #[serde(with = "crate::duration::text")]
    pub stalled_after: Duration,
    /// Whether the hook reports nothing.
    #[serde(default)]
    pub paused: bool,
}

/// A hook in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    /// Its name.
    pub name: HookName,
    /// What it reports, and where to.
    #[serde(flatten)]
    pub definition: HookDefinition,
    /// When it was created.
    pub created_at: Timestamp,
    /// Since when it reports: its creation, or the end of its last pause. Earlier events are not
    /// reported.
    pub active_since: Timestamp,
}

impl HookDefinition {
    /// A hook that reports these events to a URL, signed with a secret.
    pub fn new(url: &str, sign: &str, events: impl IntoIterator<Item = HookEvent>) -> Self {
        HookDefinition {
            url: url.to_owned(),
            sign: vec![sign.to_owned()],
            events: events.into_iter().collect(),
            queue: None,
            kind: None,
            include_error_text: false,
            stalled_after: STALLED_AFTER_DEFAULT,
            paused: false,
        }
    }

    /// Returns all rules that the definition breaks. The executor of HTTP jobs has more rules for
    /// URLs and secrets.
    pub fn problems(&self) -> Vec<Invalid> {
        let mut problems = Vec::new();
        let mut refuse = |field: &str, rule: String| problems.push(Invalid::new(field, rule));
        let is_http = self.url.starts_with("https://") || self.url.starts_with("http://");
        if !is_http || self.url.len() > URL_BYTES_MAX {
            let rule = format!("must be an http or https URL of at most {URL_BYTES_MAX} bytes");
            refuse("url", rule);
        }
        if self.sign.is_empty() || self.sign.len() > SIGN_MAX {
            let rule =
                format!("must name 1 to {SIGN_MAX} secrets, so that the target can verify reports");
            refuse("sign", rule);
        }
        if self.events.is_empty() {
            refuse("events", "must name at least one event".to_owned());
        }
        if self.kind.is_some() && self.events.contains(&HookEvent::QueueStalled) {
            let rule = "must not be given with the event `queue_stalled`, because a queue has jobs of many kinds";
            refuse("kind", rule.to_owned());
        }
        if self.queue.as_ref().is_some_and(QueueName::is_reserved) {
            let rule =
                "must not begin with `windlass.`, because hooks do not report reserved queues";
            refuse("queue", rule.to_owned());
        }
        let is_short = self.stalled_after < STALLED_AFTER_MIN;
        if is_short || check_duration(self.stalled_after).is_err() {
            refuse("stalled_after", "must be 1m to 3650d".to_owned());
        }
        problems
    }

    /// Checks the definition, and names the first rule that it breaks.
    pub fn check(&self) -> Result<(), Invalid> {
        self.problems().into_iter().next().map_or(Ok(()), Err)
    }
}

impl Hook {
    /// A new hook, or the new definition of a stored one.
    pub fn put(
        name: HookName,
        definition: HookDefinition,
        stored: Option<&Hook>,
        now: Timestamp,
    ) -> Self {
        let resumes = stored.is_some_and(|hook| hook.definition.paused && !definition.paused);
        let stays = stored.filter(|_| !resumes);
        Hook {
            name,
            definition,
            created_at: stored.map_or(now, |hook| hook.created_at),
            active_since: stays.map_or(now, |hook| hook.active_since),
        }
    }

    /// The tag of all jobs that carry reports of the hook.
    pub fn tag(name: &HookName) -> Tag {
        Tag::new(&format!("hook:{name}")).expect("the name of a hook fits into a tag")
    }
}

#[cfg(test)]
mod tests;
