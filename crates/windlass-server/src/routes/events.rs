//! The stream of events, as server-sent events: with filters, and going on where a reader was cut off.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderName, Method};
use axum::response::IntoResponse as _;
use axum::response::sse::{Event as Sent, Sse};
use futures_util::{StreamExt as _, stream};
use serde_json::json;
use windlass_api::schema::{Field, Schema};
use windlass_api::{Content, Query};
use windlass_core::fields::one_of;
use windlass_core::{Invalid, JobId, Kind, QueueName, ScheduleId};
use windlass_engine::{Clock, Event};

use super::Route;
use crate::access::{Access, Caller, Scope};
use crate::answer::Answer;
use crate::call::Call;
use crate::events::{EventId, Feed, Next, event_json};
use crate::permits::Permit;
use crate::problem::Problem;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// A stream on which nothing happens says so this often.
const QUIET: Duration = Duration::from_secs(15);
/// How many events are looked at before the key is checked again.
const BATCH_MAX: usize = 100;
/// A reader that was cut off connects again after this time.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

/// The words for events.
const NAMES: [&str; 15] = [
    "enqueued",
    "claimed",
    "started",
    "succeeded",
    "failed",
    "timed_out",
    "lost",
    "retried",
    "snoozed",
    "released",
    "cancelled",
    "dead",
    "revived",
    "fired",
    "skipped",
];

pub(super) fn routes() -> Vec<Route> {
    let text = |name, about: &str| Field::maybe(name, Schema::text().about(about));
    vec![
        Route::new(Method::GET, "/api/v1/events", Scope::Read, listen)
            .says(
                "events",
                "What happens on this node, as server-sent events.",
            )
            .params([
                text("event", "Names of events, with commas between them."),
                text("queue", "Only of this queue."),
                text("kind", "Only of this kind."),
                Field::maybe("job", Schema::id()),
                Field::maybe("schedule", Schema::id()),
                text("last_event_id", "The same as the header `Last-Event-ID`."),
            ])
            .header(text("Last-Event-ID", "Go on behind this event."))
            .content_type("text/event-stream")
            .answers(200, "The stream; it does not end.", Schema::text()),
    ]
}

async fn listen(call: Call) -> Result<Answer, Problem> {
    let mut query = call.query();
    let wanted = Wanted::read(&mut query)?;
    let last = match query.text("last_event_id")? {
        Some(last) => Some(last),
        None => call.header(&LAST_EVENT_ID),
    };
    let last = last.filter(|last| !last.is_empty()); // a reader that has seen no event yet
    let last = last.map(|last| {
        let rule = "must be the `id` of an event of this stream";
        EventId::parse(last).ok_or_else(|| Invalid::new("last_event_id", rule))
    });
    let feed = Arc::clone(&call.app.feed);
    let last = match last.transpose()? {
        Some(last) => feed.behind(last),
        None => feed.now(),
    };
    let permit = call.app.listening.take(&call.caller)?;
    let reader = Reader {
        feed,
        wanted,
        last,
        clock: Arc::clone(call.app.engine().clock()),
        access: call.app.access.clone(),
        caller: call.caller.clone(),
        content: call.content(),
        _permit: permit,
    };
    let hello = stream::iter([Sent::default().retry(RECONNECT_AFTER)]);
    let events = stream::unfold(reader, |mut reader| async move {
        let batch = reader.batch().await;
        let may_listen = reader.may_listen().await;
        may_listen.then_some((stream::iter(batch), reader))
    });
    let stopping = call.app.stopping.clone().cancelled_owned();
    let sent = hello.chain(events.flatten().take_until(stopping));
    let sent = Sse::new(sent.map(Ok::<_, Infallible>)).into_response();
    Ok(Answer::other("text/event-stream", sent.into_body()))
}

/// Which events a reader wants.
#[derive(Debug, Default)]
struct Wanted {
    names: Option<BTreeSet<&'static str>>,
    queue: Option<QueueName>,
    kind: Option<Kind>,
    job: Option<JobId>,
    schedule: Option<ScheduleId>,
}

impl Wanted {
    fn read(query: &mut Query<'_>) -> Result<Self, Invalid> {
        let names = query.parsed("event", |text| {
            let words = NAMES.map(|name| (name, name));
            text.split(',')
                .map(|name| one_of(name.trim(), &words))
                .collect()
        });
        Ok(Wanted {
            names: names?,
            queue: query.parsed("queue", QueueName::new)?,
            kind: query.parsed("kind", Kind::new)?,
            job: query.parsed("job", str::parse)?,
            schedule: query.parsed("schedule", str::parse)?,
        })
    }

    fn has(&self, event: &Event) -> bool {
        let (queue, kind, schedule) = match event {
            Event::Job { job, .. } => (Some(&job.queue), Some(&job.kind), None),
            Event::Schedule { id, .. } => (None, None, Some(*id)),
        };
        self.names
            .as_ref()
            .is_none_or(|names| names.contains(event.name()))
            && self
                .queue
                .as_ref()
                .is_none_or(|wanted| queue == Some(wanted))
            && self.kind.as_ref().is_none_or(|wanted| kind == Some(wanted))
            && self.job.is_none_or(|wanted| event.job() == Some(wanted))
            && self.schedule.is_none_or(|wanted| schedule == Some(wanted))
    }
}

/// One who listens.
struct Reader {
    feed: Arc<Feed>,
    wanted: Wanted,
    last: EventId,
    clock: Arc<dyn Clock>,
    access: Access,
    caller: Caller,
    content: Content,
    _permit: Permit,
}

impl Reader {
    /// The next events that it wants, or a heartbeat.
    async fn batch(&mut self) -> Vec<Sent> {
        let until = self.clock.now().saturating_add(QUIET);
        let mut batch = Vec::new();
        for events in 1.. {
            let next = tokio::select! {
                biased;
                () = self.clock.sleep_until(until) => break,
                next = self.feed.next(self.last) => next,
                () = std::future::ready(()), if !batch.is_empty() => break,
            };
            batch.extend(self.take(next));
            if events % BATCH_MAX == 0 {
                if !batch.is_empty() {
                    break;
                }
                tokio::task::yield_now().await; // many events that nobody wants here
            }
        }
        if batch.is_empty() {
            batch.push(Sent::default().comment("nothing happened"));
        }
        batch
    }

    /// Whether its key is still good. Where the keys cannot be read now, the stream ends: the reader connects again and
    /// goes on behind its last event.
    async fn may_listen(&self) -> bool {
        let now = self.clock.now();
        let checked = self.access.recheck(&self.caller, Scope::Read, now);
        checked.await.is_ok()
    }

    fn take(&mut self, next: Next) -> Option<Sent> {
        let (id, name, json) = match next {
            Next::Missed { last, count } => {
                self.last = last;
                (last, "missed", json!({"event": "missed", "count": count}))
            }
            Next::Event(id, event) => {
                self.last = id;
                if !self.wanted.has(&event) {
                    return None;
                }
                (id, event.name(), event_json(&event, self.content))
            }
        };
        let sent = Sent::default().id(id.to_string()).event(name);
        Some(sent.data(json.to_string()))
    }
}
