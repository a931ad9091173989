//! The stream of events, as server-sent events: with filters, and going on where a reader was cut off.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, Method};
use futures_util::stream;
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
/// How many events are put into one piece at most.
const PIECE_MAX: usize = 100;

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
    let hello = stream::once(async { Ok::<_, Infallible>(Bytes::from_static(b"retry: 1000\n\n")) });
    let events = stream::unfold(reader, |mut reader| async move {
        let piece = reader.piece().await;
        let may_listen = reader.may_listen().await;
        may_listen.then_some((Ok(piece), reader))
    });
    let stopping = call.app.stopping.clone().cancelled_owned();
    let events = futures_util::StreamExt::take_until(events, stopping);
    let body = Body::from_stream(futures_util::StreamExt::chain(hello, events));
    Ok(Answer::other("text/event-stream", body))
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
    /// The next piece of the stream: events that are there, or a sign that it lives.
    async fn piece(&mut self) -> Bytes {
        let until = self.clock.now().saturating_add(QUIET);
        let mut text = String::new();
        for events in 1.. {
            let next = tokio::select! {
                biased;
                () = self.clock.sleep_until(until) => break,
                next = self.feed.next(self.last) => next,
                () = std::future::ready(()), if !text.is_empty() => break,
            };
            text.push_str(&self.take(next));
            if events % PIECE_MAX == 0 {
                if !text.is_empty() {
                    break;
                }
                tokio::task::yield_now().await; // many events that nobody wants here
            }
        }
        match text.is_empty() {
            true => Bytes::from_static(b": nothing happened\n\n"),
            false => Bytes::from(text),
        }
    }

    /// Whether its key is still good. Where the keys cannot be read now, the stream ends: the reader connects again and
    /// goes on behind its last event.
    async fn may_listen(&self) -> bool {
        let now = self.clock.now();
        let checked = self.access.recheck(&self.caller, Scope::Read, now);
        checked.await.is_ok()
    }

    fn take(&mut self, next: Next) -> String {
        match next {
            Next::Missed { last, count } => {
                self.last = last;
                let missed = json!({"event": "missed", "count": count});
                format!("id: {last}\nevent: missed\ndata: {missed}\n\n")
            }
            Next::Event(id, event) => {
                self.last = id;
                if !self.wanted.has(&event) {
                    return String::new();
                }
                format!(
                    "id: {id}\nevent: {}\ndata: {}\n\n",
                    event.name(),
                    event_json(&event, self.content)
                )
            }
        }
    }
}
