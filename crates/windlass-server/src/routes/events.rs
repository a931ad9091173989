//! The event stream as server-sent events, with filters. A reader that was disconnected can resume.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderName;
use axum::response::IntoResponse as _;
use axum::response::sse::{Event as SseEvent, Sse};
use futures_util::{StreamExt as _, stream};
use serde_json::json;
use windlass_api::{Content, Event as EventJson, EventName, EventParams};
use windlass_core::Invalid;
use windlass_engine::{Clock, Event};

use super::Route;
use crate::access::{Access, Caller, Scope};
use crate::answer::Answer;
use crate::call::Call;
use crate::endpoint::{Params, RawReply};
use crate::events::{EventId, Feed, Next, name_of, shown};
use crate::permits::Permit;
use crate::problem::Problem;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// How often the server sends a heartbeat on an idle stream.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(15);
/// How many events are read before the key is checked again.
const BATCH_MAX: usize = 100;
/// After this time, a disconnected reader reconnects.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

pub(super) fn routes() -> Vec<Route> {
    let last_event_id = json!({"type": "string", "description": "Resume after this event."});
    vec![
        Route::get("/api/v1/events", Scope::Read, listen)
            .summary(
                "events",
                "Streams what happens on this node, as server-sent events. The `data` of each is an event.",
            )
            .header("Last-Event-ID", last_event_id)
            .content_type("text/event-stream")
            .status(200, "The stream. It does not end."),
    ]
}

async fn listen(
    call: Call,
    Params(filter): Params<EventParams>,
) -> Result<RawReply<EventJson>, Problem> {
    let last = filter.last_event_id.as_deref();
    let last = last.or_else(|| call.header(&LAST_EVENT_ID));
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
        filter,
        last,
        clock: Arc::clone(call.app.clock()),
        access: call.app.access.clone(),
        caller: call.caller.clone(),
        content: call.content(),
        _permit: permit,
    };
    let reconnect = stream::iter([SseEvent::default().retry(RECONNECT_AFTER)]);
    let events = stream::unfold(reader, |mut reader| async move {
        let batch = reader.batch().await;
        let may_listen = reader.may_listen().await;
        may_listen.then_some((stream::iter(batch), reader))
    });
    let stopping = call.app.stopping.clone().cancelled_owned();
    let sent = reconnect.chain(events.flatten().take_until(stopping));
    let sent = Sse::new(sent.map(Ok::<_, Infallible>)).into_response();
    Ok(Answer::other("text/event-stream", sent.into_body()).into())
}

/// Whether an event matches the filter of a reader.
fn matches(filter: &EventParams, event: &Event) -> bool {
    let (queue, kind, schedule) = match event {
        Event::Job { job, .. } => (Some(&job.queue), Some(&job.kind), None),
        Event::Schedule { id, .. } => (None, None, Some(*id)),
        Event::Action { .. } => (None, None, None),
    };
    let names = filter.event.as_ref();
    names.is_none_or(|names| names.contains(&name_of(event)))
        && (filter.queue.is_none() || filter.queue.as_ref() == queue)
        && (filter.kind.is_none() || filter.kind.as_ref() == kind)
        && (filter.job.is_none() || filter.job == event.job())
        && (filter.schedule.is_none() || filter.schedule == schedule)
}

/// A client that reads the stream.
struct Reader {
    feed: Arc<Feed>,
    filter: EventParams,
    last: EventId,
    clock: Arc<dyn Clock>,
    access: Access,
    caller: Caller,
    content: Content,
    _permit: Permit,
}

impl Reader {
    /// Returns the next events that match the filter, or a heartbeat.
    async fn batch(&mut self) -> Vec<SseEvent> {
        let until = self.clock.now().saturating_add(HEARTBEAT_EVERY);
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
                tokio::task::yield_now().await; // many events in a row that do not match
            }
        }
        if batch.is_empty() {
            batch.push(SseEvent::default().comment("heartbeat"));
        }
        batch
    }

    /// Whether the key is still valid. If the keys cannot be read, the stream ends; the reader
    /// reconnects and resumes after its last event.
    async fn may_listen(&self) -> bool {
        let now = self.clock.now();
        let checked = self.access.recheck(&self.caller, Scope::Read, now);
        checked.await.is_ok()
    }

    fn take(&mut self, next: Next) -> Option<SseEvent> {
        let (id, event) = match next {
            Next::Missed { last, count } => {
                let event = EventName::Missed;
                let missed = EventJson {
                    event,
                    count,
                    ..EventJson::default()
                };
                (last, Some(missed))
            }
            Next::Event(id, event) => {
                let event = matches(&self.filter, &event).then(|| shown(&event, self.content));
                (id, event)
            }
        };
        self.last = id;
        let event = event?;
        let sent = SseEvent::default()
            .id(id.to_string())
            .event(event.event.name());
        Some(sent.data(serde_json::to_string(&event).unwrap_or_default()))
    }
}
