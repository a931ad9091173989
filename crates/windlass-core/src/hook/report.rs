//! One report: whether a hook makes it, what it says, and the job that carries it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{HOOK_QUEUE, Hook, HookEvent};
use crate::job::{OnDuplicate, Timeout, Unique};
use crate::random::fixed_hash;
use crate::retry::{AttemptLimit, Preset};
use crate::{
    ActionId, DeadReason, Deadline, GroupKey, JobId, Key, Kind, NewJob, PAYLOAD_BYTES_MAX, Payload,
    QueueName, StopReason, Tag, Timestamp,
};

/// The version of the body. It changes when a field changes its meaning or is removed.
const BODY_VERSION: u32 = 1;

/// How many attempts a report has. With the delays of the preset `webhook`, the last one is about
/// 20 minutes after the first.
const ATTEMPTS: i64 = 12;

/// How long one attempt may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// After this time, a report that could not start is dropped: a late alarm misleads.
const EXPIRES_AFTER: Duration = Duration::from_secs(24 * 3600);

/// How long the unique key is held at least: longer than any node looks back.
const UNIQUE_FOR: Duration = Duration::from_secs(24 * 3600);

const MINUTE_MICROS: i64 = 60_000_000;

/// Something that happened, as stored facts show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookReport {
    /// What happened.
    pub event: HookEvent,
    /// When it happened.
    pub at: Timestamp,
    /// To what it happened.
    pub subject: HookSubject,
}

/// What an event is about. It is also the group of the event: a hook reports an event of a group at
/// most once a minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookSubject {
    /// A failure group.
    Group {
        /// The queue, kind and cause.
        key: GroupKey,
        /// One of the jobs behind the event.
        job: Option<JobId>,
        /// Why that job is dead.
        reason: Option<DeadReason>,
        /// How many jobs of the group are dead now.
        dead: u64,
        /// How many jobs of the group wait or run after a failure now.
        retrying: u64,
        /// The error of the first failure of the group.
        error: String,
    },
    /// A replay.
    Replay {
        /// The replay.
        id: ActionId,
        /// The queue that its filter names.
        queue: Option<QueueName>,
        /// The kind that its filter names.
        kind: Option<Kind>,
        /// Why it stopped.
        reason: StopReason,
        /// How many jobs it revived.
        revived: u64,
        /// How many of these failed again.
        failed_again: u64,
        /// How many jobs it has not touched.
        to_do: u64,
    },
    /// A queue.
    Queue {
        /// The queue.
        queue: QueueName,
        /// How many of its jobs are ready now.
        ready: u64,
        /// How many of its jobs run now.
        running: u64,
        /// Since when it has ready jobs and starts none.
        idle_since: Timestamp,
    },
}

impl HookReport {
    /// The start of the minute of the event.
    pub fn minute_start(&self) -> Timestamp {
        let micros = minute_of(self.at).saturating_mul(MINUTE_MICROS);
        Timestamp::from_micros(micros).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

impl HookSubject {
    /// The queue and the kind of the jobs that the event is about, as far as known.
    fn queue_and_kind(&self) -> (Option<&QueueName>, Option<&Kind>) {
        match self {
            HookSubject::Group { key, .. } => (Some(&key.queue), Some(&key.kind)),
            HookSubject::Replay { queue, kind, .. } => (queue.as_ref(), kind.as_ref()),
            HookSubject::Queue { queue, .. } => (Some(queue), None),
        }
    }

    /// Text that no other subject has.
    fn identity(&self) -> String {
        match self {
            HookSubject::Group { key, .. } => {
                format!("{}\0{}\0{}", key.queue, key.kind, key.fingerprint)
            }
            HookSubject::Replay { id, .. } => id.to_string(),
            HookSubject::Queue { queue, .. } => queue.to_string(),
        }
    }

    /// The path of the REST API where a person looks next.
    fn link(&self) -> String {
        match self {
            HookSubject::Group { key, job: None, .. } => {
                format!("/api/v1/failures?queue={}", key.queue)
            }
            HookSubject::Group { job: Some(job), .. } => format!("/api/v1/jobs/{job}"),
            HookSubject::Replay { id, .. } => format!("/api/v1/replays/{id}"),
            HookSubject::Queue { queue, .. } => format!("/api/v1/queues/{queue}"),
        }
    }

    fn fields(&self, include_error_text: bool) -> Map<String, Value> {
        let fields = match self {
            HookSubject::Group {
                key,
                job,
                reason,
                dead,
                retrying,
                error,
            } => {
                let mut fields = json!({
                    "queue": key.queue, "kind": key.kind, "fingerprint": key.fingerprint,
                    "job_id": job, "reason": reason, "dead": dead, "retrying": retrying,
                });
                if let (true, Some(fields)) = (include_error_text, fields.as_object_mut()) {
                    fields.insert("error".to_owned(), json!(error));
                }
                fields
            }
            HookSubject::Replay {
                id,
                queue,
                kind,
                reason,
                revived,
                failed_again,
                to_do,
            } => json!({
                "replay_id": id, "queue": queue, "kind": kind, "reason": reason,
                "revived": revived, "failed_again": failed_again, "to_do": to_do,
            }),
            HookSubject::Queue {
                queue,
                ready,
                running,
                idle_since,
            } => json!({
                "queue": queue, "ready": ready, "running": running, "idle_since": idle_since,
            }),
        };
        match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }
}

impl Hook {
    /// Whether the hook reports this. Nothing that happens in a reserved queue is ever reported, so
    /// that reports cannot cause reports.
    pub fn reports(&self, report: &HookReport) -> bool {
        let definition = &self.definition;
        let (queue, kind) = report.subject.queue_and_kind();
        let is_wanted = |wanted: Option<&str>, found: Option<&str>| {
            wanted.is_none_or(|wanted| found == Some(wanted))
        };
        !definition.paused
            && definition.events.contains(&report.event)
            && report.at >= self.active_since
            && !queue.is_some_and(QueueName::is_reserved)
            && is_wanted(
                definition.queue.as_ref().map(QueueName::as_str),
                queue.map(QueueName::as_str),
            )
            && is_wanted(
                definition.kind.as_ref().map(Kind::as_str),
                kind.map(Kind::as_str),
            )
    }

    /// The job that carries a report: its id, and the job to enqueue. All nodes make the same id and
    /// unique key for one hook, event, group and minute.
    pub fn report_job(&self, report: &HookReport) -> (JobId, NewJob) {
        let minute = minute_of(report.at);
        let group = fixed_hash(report.subject.identity().as_bytes());
        let key = format!("{}:{}:{group:016x}:{minute}", self.name, report.event);
        let id = JobId::new(report.minute_start(), fixed_hash(key.as_bytes()));
        let mut body = report.subject.fields(self.definition.include_error_text);
        body.insert("link".to_owned(), json!(report.subject.link()));
        let mut job = self.job(report.event.name(), report.at, body);
        job.unique = Key::new(&key).ok().map(|key| Unique {
            key,
            unique_for: Some(UNIQUE_FOR),
            on_duplicate: OnDuplicate::Keep,
        });
        (id, job)
    }

    /// The job of a test: a report of the event `test`, which shows that the target gets reports.
    pub fn test_job(&self, now: Timestamp) -> NewJob {
        let link = json!(format!("/api/v1/hooks/{}", self.name));
        let body = Map::from_iter([("link".to_owned(), link)]);
        self.job("test", now, body)
    }

    fn job(&self, event: &str, at: Timestamp, mut body: Map<String, Value>) -> NewJob {
        let common = [
            ("version", json!(BODY_VERSION)),
            ("event", json!(event)),
            ("at", json!(at)),
            ("hook", json!(self.name)),
        ];
        body.extend(common.map(|(name, value)| (name.to_owned(), value)));
        let payload = json!({
            "url": self.definition.url, "method": "POST", "sign": self.definition.sign, "body": body,
        });
        let payload = Payload::from_serialize(&payload, PAYLOAD_BYTES_MAX);
        let tags = [
            Ok(Hook::tag(&self.name)),
            Tag::new(&format!("event:{event}")),
        ];
        NewJob {
            payload: payload.expect("a report has a few bounded fields"),
            queue: hook_queue(),
            retry: Some(Arc::new(Preset::Webhook.policy())),
            max_attempts: AttemptLimit::from_max_attempts(ATTEMPTS).unwrap_or_default(),
            timeout: Some(Timeout::After(TIMEOUT)),
            deadline: Some(Deadline::After(EXPIRES_AFTER)),
            tags: tags.into_iter().flatten().collect(),
            ..NewJob::new(Kind::new("http").expect("`http` is a valid kind"))
        }
    }
}

/// [`HOOK_QUEUE`] as a name.
pub fn hook_queue() -> QueueName {
    QueueName::new(HOOK_QUEUE).expect("the name is valid")
}

/// The minute of an instant, counted from 1970.
fn minute_of(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(MINUTE_MICROS)
}
