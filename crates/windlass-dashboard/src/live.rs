//! The stream that notifies a tab when its page is out of date.
//!
//! A tab has one stream. All streams of this node share the snapshots, so more tabs cost no more
//! reads of the counts.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Response};
use futures_util::stream;
use tokio::time::{Instant, sleep};

use crate::site::Site;
use crate::visit::Visit;

/// The shortest time between two events.
const EVERY: Duration = Duration::from_secs(2);
/// The longest time without an event. The script calls figures out of date that are 12 s old.
const AT_LEAST_EVERY: Duration = Duration::from_secs(8);
/// A stream ends after this time and the tab reconnects, so that an ended session ends it too.
const STREAM_FOR: Duration = Duration::from_secs(300);

/// Returns a stream of events. Each says that the page may be out of date.
pub(crate) fn stream_of(visit: &Visit) -> Response<Body> {
    let begin = LiveState {
        site: visit.site().clone(),
        begun: Instant::now(),
        version: None,
        sent_at: Instant::now(),
    };
    let events = stream::unfold(begin, |mut live| async move {
        let event = live.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(event)), live))
    });
    let mut response = Response::new(Body::from_stream(events));
    let stream = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(CONTENT_TYPE, stream);
    let unbuffered = HeaderValue::from_static("no");
    response
        .headers_mut()
        .insert("x-accel-buffering", unbuffered);
    visit.finish(response)
}

struct LiveState {
    site: Site,
    begun: Instant,
    /// The version of the snapshot that the tab knows. `None` before the first event.
    version: Option<u64>,
    sent_at: Instant,
}

impl LiveState {
    /// Waits for a change. Returns `None` at the end of the stream.
    async fn next(&mut self) -> Option<String> {
        loop {
            if self.version.is_some() {
                tokio::select! {
                    () = sleep(EVERY) => {}
                    () = self.site.backend().stopped() => return None,
                }
            }
            if self.begun.elapsed() > STREAM_FOR {
                return None;
            }
            let Ok(snapshot) = self.site.snapshot().await else {
                if self.version.is_some() && self.sent_at.elapsed() < AT_LEAST_EVERY {
                    continue;
                }
                self.version = Some(self.version.unwrap_or_default());
                self.sent_at = Instant::now();
                return Some(self.event("stale"));
            };
            let event = match self.version {
                None => "connected",
                Some(known) if known != snapshot.version => "changed",
                Some(_) if self.sent_at.elapsed() >= AT_LEAST_EVERY => "changed",
                Some(_) => continue,
            };
            self.version = Some(snapshot.version);
            self.sent_at = Instant::now();
            return Some(self.event(event));
        }
    }

    fn event(&self, name: &str) -> String {
        let now_ms = self.site.backend().now().as_micros() / 1000;
        format!("retry: 2000\nevent: {name}\ndata: {now_ms}\n\n")
    }
}
