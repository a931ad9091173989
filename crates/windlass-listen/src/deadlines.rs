//! Deadlines for the phases of a connection: waiting for a request head, idle, and sending a
//! response.
//!
//! A request has no deadline while the router works on it; a body that is read has its own (see
//! `body`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::lock;

/// A connection ends when its client abandoned more requests than this, and more than half of all.
const ABANDONED_REQUESTS_MAX: u64 = 100;

/// How long a connection may stay in each phase.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PhaseTimeouts {
    /// From the first byte of a request head, or the start of the connection, to its last byte.
    pub(crate) header: Duration,
    /// Between two requests.
    pub(crate) idle: Duration,
    /// While the client reads a response.
    pub(crate) write: MinWriteRate,
}

/// The slowest rate at which a client may read a response: at least `bytes`, or everything that is
/// there to read, in every window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MinWriteRate {
    pub(crate) window: Duration,
    pub(crate) bytes: usize,
}

/// Follows the phases of one connection and knows when the current one takes too long.
#[derive(Debug)]
pub(crate) struct ConnectionDeadlines {
    timeouts: PhaseTimeouts,
    progress: Mutex<ConnectionProgress>,
    changed: Notify,
}

#[derive(Debug)]
struct ConnectionProgress {
    requests: u64,
    in_flight: u64,
    /// Requests that ended before they had a response.
    abandoned: u64,
    /// When the current request head started.
    head_since: Option<Instant>,
    idle_since: Instant,
    /// Whether the network has not accepted all bytes of the last responses yet.
    write_blocked: bool,
    /// Responses that have data for the client, by the number of their request.
    sending: HashMap<u64, WriteWindow>,
}

/// A window in which the client must read at least `MinWriteRate::bytes` of a response.
#[derive(Debug)]
struct WriteWindow {
    ends_at: Instant,
    bytes: usize,
}

impl ConnectionProgress {
    /// The deadline of the current phase, if it has one.
    fn deadline(&self, timeouts: &PhaseTimeouts) -> Option<Instant> {
        match (self.in_flight, self.head_since) {
            (0, _) if self.write_blocked => None, // `GuardedStream` has its own deadline for this
            (0, Some(since)) => Some(since + timeouts.header),
            (0, None) => Some(self.idle_since + timeouts.idle),
            _ => self.sending.values().map(|window| window.ends_at).min(),
        }
    }
}

impl ConnectionDeadlines {
    /// Starts with a new connection, which now waits for its first request head.
    pub(crate) fn new(timeouts: PhaseTimeouts) -> Self {
        let now = Instant::now();
        ConnectionDeadlines {
            timeouts,
            progress: Mutex::new(ConnectionProgress {
                requests: 0,
                in_flight: 0,
                abandoned: 0,
                head_since: Some(now),
                idle_since: now,
                write_blocked: false,
                sending: HashMap::new(),
            }),
            changed: Notify::new(),
        }
    }

    /// Records that bytes arrived. Between two HTTP/1 requests, they start a request head.
    pub(crate) fn bytes_received(&self, is_http2: bool) {
        let mut progress = self.lock();
        match (is_http2, progress.in_flight, progress.head_since) {
            (true, _, Some(_)) => progress.head_since = None,
            (false, 0, None) => progress.head_since = Some(Instant::now()),
            _ => return,
        }
        drop(progress);
        self.changed.notify_one();
    }

    /// Records that the network accepts no more bytes for now.
    pub(crate) fn write_blocked(&self) {
        self.lock().write_blocked = true;
        self.changed.notify_one();
    }

    /// Records that the network accepted all bytes. The next phase starts now.
    pub(crate) fn all_written(&self) {
        let mut progress = self.lock();
        let now = Instant::now();
        progress.write_blocked = false;
        progress.idle_since = now;
        progress.head_since = progress.head_since.map(|_| now);
        drop(progress);
        self.changed.notify_one();
    }

    /// Records that a request starts. It ends when the returned value is dropped.
    pub(crate) fn begin_request(self: &Arc<Self>) -> InFlightRequest {
        let mut progress = self.lock();
        progress.requests += 1;
        progress.in_flight += 1;
        progress.head_since = None;
        let number = progress.requests;
        drop(progress);
        self.changed.notify_one();
        InFlightRequest {
            deadlines: Arc::clone(self),
            number,
            has_response: false,
        }
    }

    /// Waits until the current phase takes too long, or the client abandoned too many requests.
    pub(crate) async fn exceeded(&self) {
        loop {
            let deadline = {
                let progress = self.lock();
                let abandoned = progress.abandoned;
                if abandoned > ABANDONED_REQUESTS_MAX && abandoned * 2 > progress.requests {
                    return;
                }
                progress.deadline(&self.timeouts)
            };
            match deadline {
                None => self.changed.notified().await,
                Some(deadline) if deadline <= Instant::now() => return,
                Some(deadline) => tokio::select! {
                    () = tokio::time::sleep_until(deadline) => {}
                    () = self.changed.notified() => {}
                },
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionProgress> {
        lock(&self.progress)
    }
}

/// A request from its head to the end of its response.
#[derive(Debug)]
pub(crate) struct InFlightRequest {
    deadlines: Arc<ConnectionDeadlines>,
    number: u64,
    has_response: bool,
}

impl InFlightRequest {
    /// Records that the response is ready to be read. From now on, a client that disconnects has
    /// not abandoned the request.
    pub(crate) fn response_ready(&mut self) {
        self.has_response = true;
        self.bytes_offered(0);
    }

    /// Records that the client read everything offered before and is offered `bytes` more.
    pub(crate) fn bytes_offered(&self, bytes: usize) {
        let rate = self.deadlines.timeouts.write;
        let new_window = || WriteWindow {
            ends_at: Instant::now() + rate.window,
            bytes: 0,
        };
        let mut progress = self.deadlines.lock();
        let windows_before = progress.sending.len();
        let window = progress
            .sending
            .entry(self.number)
            .or_insert_with(new_window);
        window.bytes = window.bytes.saturating_add(bytes);
        if window.bytes >= rate.bytes {
            *window = new_window();
        }
        let is_new = progress.sending.len() > windows_before;
        drop(progress);
        if is_new {
            self.deadlines.changed.notify_one();
        }
    }

    /// Records that the client read everything and the response has no more data for now.
    pub(crate) fn nothing_to_send(&self) {
        self.deadlines.lock().sending.remove(&self.number);
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        let mut progress = self.deadlines.lock();
        progress.in_flight = progress.in_flight.saturating_sub(1);
        progress.abandoned += u64::from(!self.has_response);
        progress.idle_since = Instant::now();
        progress.sending.remove(&self.number);
        drop(progress);
        self.deadlines.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> Arc<ConnectionDeadlines> {
        Arc::new(ConnectionDeadlines::new(PhaseTimeouts {
            header: Duration::from_secs(10),
            idle: Duration::from_secs(60),
            write: MinWriteRate {
                window: Duration::from_secs(30),
                bytes: 1000,
            },
        }))
    }

    async fn ends_after(deadlines: &ConnectionDeadlines) -> u64 {
        let start = Instant::now();
        deadlines.exceeded().await;
        start.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn each_phase_has_its_own_timeout() {
        let deadlines = fresh();
        assert_eq!(ends_after(&deadlines).await, 10, "no byte arrived");
        let mut request = deadlines.begin_request();
        let endless = tokio::time::timeout(Duration::from_secs(1000), deadlines.exceeded()).await;
        assert!(endless.is_err(), "a request has no deadline");
        request.response_ready();
        drop(request);
        assert_eq!(ends_after(&deadlines).await, 60, "idle");
        deadlines.bytes_received(false);
        deadlines.bytes_received(false);
        assert_eq!(ends_after(&deadlines).await, 10, "a head that does not end");
        deadlines.bytes_received(true);
        assert!(
            ends_after(&deadlines).await <= 60,
            "HTTP/2 is idle between its requests"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_abandons_most_of_its_requests_is_disconnected() {
        let deadlines = fresh();
        for _ in 0..=ABANDONED_REQUESTS_MAX {
            deadlines.begin_request();
        }
        assert_eq!(ends_after(&deadlines).await, 0);
        let deadlines = fresh();
        for _ in 0..=ABANDONED_REQUESTS_MAX {
            deadlines.begin_request();
            for _ in 0..2 {
                deadlines.begin_request().response_ready();
            }
        }
        assert_eq!(ends_after(&deadlines).await, 60);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_must_read_each_response_fast_enough() {
        let deadlines = fresh();
        let (mut slow, mut other) = (deadlines.begin_request(), deadlines.begin_request());
        other.response_ready();
        other.nothing_to_send();
        slow.response_ready();
        assert_eq!(ends_after(&deadlines).await, 30, "the client read nothing");
        slow.bytes_offered(1000);
        let drip = async {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                slow.bytes_offered(10);
                other.bytes_offered(2000);
            }
        };
        tokio::select! {
            seconds = ends_after(&deadlines) => assert_eq!(seconds, 30, "the client reads too little"),
            () = drip => {}
        }
        slow.nothing_to_send();
        other.nothing_to_send();
        let endless = tokio::time::timeout(Duration::from_secs(1000), deadlines.exceeded()).await;
        assert!(endless.is_err(), "there is nothing to read");
        let more = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            slow.bytes_offered(10);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            seconds = ends_after(&deadlines) => assert_eq!(seconds, 35, "there is something to read again"),
            () = more => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_once_the_network_accepted_all_bytes() {
        let deadlines = fresh();
        deadlines.write_blocked();
        deadlines.begin_request().response_ready();
        deadlines.bytes_received(false);
        let endless = tokio::time::timeout(Duration::from_secs(1000), deadlines.exceeded()).await;
        assert!(endless.is_err(), "the stream watches this phase");
        deadlines.all_written();
        assert_eq!(ends_after(&deadlines).await, 10, "a head had started");
    }
}
