//! What a connection is doing, and until when it may.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// More requests that the other side itself gave up than this end a connection, if they are most of its requests.
const GIVEN_UP_MAX: u64 = 100;

/// What a connection is doing.
#[derive(Debug)]
pub(super) struct Activity {
    header_time: Duration,
    idle_time: Duration,
    now: Mutex<Now>,
    changed: Notify,
}

#[derive(Debug)]
struct Now {
    requests: u64,
    in_flight: u64,
    given_up: u64,
    /// Since when a head is coming in.
    head_since: Option<Instant>,
    idle_since: Instant,
}

impl Activity {
    /// Of a new connection, whose first head is expected from now on.
    pub(super) fn new(header_time: Duration, idle_time: Duration) -> Self {
        let now = Instant::now();
        Activity {
            header_time,
            idle_time,
            now: Mutex::new(Now {
                requests: 0,
                in_flight: 0,
                given_up: 0,
                head_since: Some(now),
                idle_since: now,
            }),
            changed: Notify::new(),
        }
    }

    /// Bytes came in. Between two requests of HTTP/1 they are the beginning of a head.
    pub(super) fn bytes_came(&self, is_http2: bool) {
        let mut now = self.lock();
        match (is_http2, now.in_flight, now.head_since) {
            (true, _, Some(_)) => now.head_since = None,
            (false, 0, None) => now.head_since = Some(Instant::now()),
            _ => return,
        }
        drop(now);
        self.changed.notify_one();
    }

    /// A request begins; it ends with what is returned.
    pub(super) fn request_began(self: &std::sync::Arc<Self>) -> InFlight {
        let mut now = self.lock();
        now.requests += 1;
        now.in_flight += 1;
        now.head_since = None;
        drop(now);
        self.changed.notify_one();
        InFlight {
            activity: std::sync::Arc::clone(self),
            answered: false,
        }
    }

    /// Ends when the connection has been in one phase for too long.
    pub(super) async fn overdue(&self) {
        loop {
            let until = {
                let now = self.lock();
                if now.given_up > GIVEN_UP_MAX && now.given_up * 2 > now.requests {
                    return;
                }
                match (now.in_flight, now.head_since) {
                    (0, Some(since)) => Some(since + self.header_time),
                    (0, None) => Some(now.idle_since + self.idle_time),
                    _ => None,
                }
            };
            let Some(until) = until else {
                self.changed.notified().await;
                continue;
            };
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                () = self.changed.notified() => continue,
            }
            return;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(super) struct InFlight {
    activity: std::sync::Arc<Activity>,
    answered: bool,
}

impl InFlight {
    /// The answer is there: whoever goes away from now on has not given up.
    pub(super) fn answered(&mut self) {
        self.answered = true;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut now = self.activity.lock();
        now.in_flight = now.in_flight.saturating_sub(1);
        now.given_up += u64::from(!self.answered);
        now.idle_since = Instant::now();
        drop(now);
        self.activity.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const HEADER: Duration = Duration::from_secs(10);
    const IDLE: Duration = Duration::from_secs(60);

    async fn ends_after(activity: &Activity) -> u64 {
        let start = Instant::now();
        activity.overdue().await;
        start.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn each_phase_has_its_own_time() {
        let activity = Arc::new(Activity::new(HEADER, IDLE));
        assert_eq!(ends_after(&activity).await, 10, "nothing was ever sent");
        let mut request = activity.request_began();
        let endless = tokio::time::timeout(Duration::from_secs(1000), activity.overdue()).await;
        assert!(endless.is_err(), "a request may take its time");
        request.answered();
        drop(request);
        assert_eq!(ends_after(&activity).await, 60, "idle");
        activity.bytes_came(false);
        activity.bytes_came(false);
        assert_eq!(ends_after(&activity).await, 10, "a head that does not end");
        activity.bytes_came(true);
        assert!(
            ends_after(&activity).await <= 60,
            "HTTP/2 is idle between its requests"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_who_gives_up_most_of_its_requests_is_ended() {
        let activity = Arc::new(Activity::new(HEADER, IDLE));
        for _ in 0..=GIVEN_UP_MAX {
            activity.request_began();
        }
        assert_eq!(ends_after(&activity).await, 0);
        let activity = Arc::new(Activity::new(HEADER, IDLE));
        for _ in 0..=GIVEN_UP_MAX {
            activity.request_began();
            for _ in 0..2 {
                activity.request_began().answered();
            }
        }
        assert_eq!(ends_after(&activity).await, 60);
    }
}
