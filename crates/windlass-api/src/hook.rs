//! Hooks: which events Windlass reports to a URL.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{
    Hook as StoredHook, HookDefinition, HookEvent, HookName, JobId, Kind, QueueName,
    STALLED_AFTER_DEFAULT, Tag, Timestamp,
};

use crate::read::request;
use crate::value::either_duration;
use crate::{Body, Checks, Content, DurationText, Job, JobState, List, Millis, Text};

/// The name of a secret.
type SecretName = Text<1, 128>;

request! {
    /// A hook to create, or to replace the hook of this name.
    pub struct PutHook {
        /// URL that gets the reports, by `POST`.
        #[schemars(required, example = "https://ops.example.com/windlass")]
        pub url: String,
        /// Names of the secrets that sign the reports: 1 to 8.
        #[schemars(required)]
        pub sign: List<SecretName, 1, 8>,
        /// Events to report.
        #[schemars(required)]
        pub events: List<HookEvent, 1, { HookEvent::ALL.len() }>,
        /// Only events of this queue. A replay counts for the queue that its filter names.
        pub queue: QueueName,
        /// Only events of jobs of this kind. Not allowed with the event `queue_stalled`.
        pub kind: Kind,
        /// Include the error text of failures. It may contain personal data. Default: `false`.
        pub include_error_text: bool,
        /// Report a queue that has ready jobs and started none for this time: at least `1m`.
        /// Default: `5m`.
        pub stalled_after: DurationText,
        /// `stalled_after` in milliseconds.
        pub stalled_after_ms: Millis,
        /// Whether the hook is paused: it reports nothing, and never reports what happens
        /// meanwhile. Default: `false`.
        pub paused: bool,
    }
}

impl Body for PutHook {
    type Checked = HookDefinition;

    fn check(self, checks: &mut Checks) -> Option<HookDefinition> {
        let after = self.stalled_after;
        let after = either_duration(checks, "stalled_after", after, self.stalled_after_ms);
        let url = checks.required("url", self.url);
        let sign = checks.required("sign", self.sign);
        let events = checks.required("events", self.events);
        let definition = HookDefinition {
            // Placeholders for missing parts, so that the other rules are checked too.
            url: url.unwrap_or_else(|| "https://-".to_owned()),
            sign: sign.map_or_else(
                || vec!["-".to_owned()],
                |names| names.0.into_iter().map(Text::into_string).collect(),
            ),
            events: events.map_or_else(
                || [HookEvent::Dead].into(),
                |events| events.0.into_iter().collect(),
            ),
            queue: self.queue,
            kind: self.kind,
            include_error_text: self.include_error_text.unwrap_or_default(),
            stalled_after: after.unwrap_or(STALLED_AFTER_DEFAULT),
            paused: self.paused.unwrap_or_default(),
        };
        for problem in definition.problems() {
            checks.report(problem);
        }
        Some(definition)
    }
}

/// A hook: which events Windlass reports to a URL.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Hook {
    /// Name of the hook.
    pub name: HookName,
    /// URL that gets the reports.
    pub url: String,
    /// Names of the secrets that sign the reports.
    pub sign: Vec<String>,
    /// Events that it reports.
    pub events: Vec<HookEvent>,
    /// Only events of this queue. Null: of all queues.
    pub queue: Option<QueueName>,
    /// Only events of jobs of this kind. Null: of all kinds.
    pub kind: Option<Kind>,
    /// Whether reports include the error text of failures.
    pub include_error_text: bool,
    /// How long a queue has ready jobs and starts none before the hook reports it.
    pub stalled_after: DurationText,
    /// Whether the hook is paused.
    pub paused: bool,
    /// When the hook was created.
    pub created_at: Timestamp,
    /// Since when the hook reports. It does not report earlier events.
    pub active_since: Timestamp,
}

impl From<StoredHook> for Hook {
    fn from(hook: StoredHook) -> Self {
        let definition = hook.definition;
        Hook {
            name: hook.name,
            url: definition.url,
            sign: definition.sign,
            events: definition.events.into_iter().collect(),
            queue: definition.queue,
            kind: definition.kind,
            include_error_text: definition.include_error_text,
            stalled_after: DurationText(definition.stalled_after),
            paused: definition.paused,
            created_at: hook.created_at,
            active_since: hook.active_since,
        }
    }
}

/// A hook with its last reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HookDetails {
    /// The hook.
    #[serde(flatten)]
    pub hook: Hook,
    /// The jobs of its last reports, newest first, at most 20. Read one with `GET
    /// /api/v1/jobs/{id}`.
    pub reports: Vec<HookReport>,
}

/// A report of a hook. It is a job in the queue `windlass.hooks`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HookReport {
    /// Id of the job.
    pub job_id: JobId,
    /// Event that it reports: an event of the hook, or `test`.
    pub event: String,
    /// State of the job.
    pub state: JobState,
    /// Number of attempts so far.
    pub attempt: u32,
    /// When the job was enqueued.
    pub created_at: Timestamp,
    /// When the job finished. Null until then.
    pub finished_at: Option<Timestamp>,
    /// Error of the last failed attempt. Null if there is none, or the key lacks the scope
    /// `read-payload`.
    pub error: Option<String>,
}

impl HookReport {
    /// The report of a job.
    pub fn new(job: windlass_core::Job, now: Timestamp, content: Content) -> Self {
        let event = job.tags.iter().map(Tag::as_str);
        let event = event.filter_map(|tag| tag.strip_prefix("event:")).next();
        let event = event.unwrap_or_default().to_owned();
        let error = job.last_error.as_ref().map(ToString::to_string);
        let view = Job::new(job, now, content);
        HookReport {
            job_id: view.id,
            event,
            state: view.state,
            attempt: view.attempt,
            created_at: view.created_at,
            finished_at: view.finished_at,
            error: error.filter(|_| content == Content::Shown),
        }
    }
}

/// The answer to the test of a hook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HookTest {
    /// Id of the job that reports the event `test`.
    pub job_id: JobId,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BodyRefused, read_body};

    fn refused(text: &str) -> Vec<String> {
        match read_body::<PutHook>(text, Timestamp::UNIX_EPOCH) {
            Err(BodyRefused::Invalid(problems)) => {
                let field = |problem: &windlass_core::Invalid| problem.field().to_owned();
                let mut fields: Vec<String> = problems.iter().map(field).collect();
                fields.sort();
                fields
            }
            _ => panic!("not refused: {text}"),
        }
    }

    #[test]
    fn a_hook_is_read_with_its_defaults() {
        let text = r#"{"url":"https://a.example/x","sign":["k"],"events":["dead"]}"#;
        let read = read_body::<PutHook>(text, Timestamp::UNIX_EPOCH).unwrap();
        let expected = HookDefinition::new("https://a.example/x", "k", [HookEvent::Dead]);
        assert_eq!(read, expected);
    }

    #[test]
    fn every_field_of_a_hook_is_read() {
        let text = r#"{"url":"https://a.example/x","sign":["k","l"],"events":["dead"],"queue":"q",
            "kind":"a","include_error_text":true,"stalled_after":"10m","paused":true}"#;
        let read = read_body::<PutHook>(text, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(read.sign, ["k", "l"]);
        assert_eq!(read.queue.unwrap().as_str(), "q");
        assert_eq!(read.kind.unwrap().as_str(), "a");
        assert!(read.include_error_text && read.paused);
        assert_eq!(read.stalled_after.as_secs(), 600);
    }

    #[test]
    fn all_problems_of_a_hook_are_named_at_once() {
        assert_eq!(refused("{}"), ["events", "sign", "url"]);
        let text = r#"{"url":"gopher://a","sign":[],"events":["died"],"queue":"windlass.hooks"}"#;
        assert_eq!(refused(text), ["events[0]", "queue", "sign", "url"]);
        let text = r#"{"url":"https://a.example","sign":["k"],"events":["queue_stalled"],
            "kind":"a","stalled_after":"10s"}"#;
        assert_eq!(refused(text), ["kind", "stalled_after"]);
    }
}
