//! What a connection is doing, and until when it may.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// More requests that the other side itself gave up than this end a connection, if they are most of its requests.
const GIVEN_UP_MAX: u64 = 100;

/// How long a connection may be in each phase.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// A head comes within this time.
    pub(crate) header: Duration,
    /// So long there may be no request.
    pub(crate) idle: Duration,
    /// How slowly an answer may be taken.
    pub(crate) write: WritePace,
}

/// How slowly the other side may read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WritePace {
    /// In each stretch of so long …
    pub(crate) stretch: Duration,
    /// … it takes at least so many bytes, or all that there are.
    pub(crate) bytes: usize,
}

/// What a connection is doing.
#[derive(Debug)]
pub(crate) struct Activity {
    times: Times,
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
    /// Whether the network has not taken all that was answered.
    unwritten: bool,
    /// Answers of which the other side has something to take, by the number of their request.
    sending: HashMap<u64, Stretch>,
}

/// The time in which the other side must take some of an answer.
#[derive(Debug)]
struct Stretch {
    until: Instant,
    taken: usize,
}

impl Now {
    /// When the phase that it is in lasts too long.
    fn until(&self, times: &Times) -> Option<Instant> {
        match (self.in_flight, self.head_since) {
            (0, _) if self.unwritten => None, // the stream has its own limit
            (0, Some(since)) => Some(since + times.header),
            (0, None) => Some(self.idle_since + times.idle),
            _ => self.sending.values().map(|stretch| stretch.until).min(),
        }
    }
}

impl Activity {
    /// Of a new connection, whose first head is expected from now on.
    pub(crate) fn new(times: Times) -> Self {
        let now = Instant::now();
        Activity {
            times,
            now: Mutex::new(Now {
                requests: 0,
                in_flight: 0,
                given_up: 0,
                head_since: Some(now),
                idle_since: now,
                unwritten: false,
                sending: HashMap::new(),
            }),
            changed: Notify::new(),
        }
    }

    /// Bytes came in. Between two requests of HTTP/1 they are the beginning of a head.
    pub(crate) fn bytes_came(&self, is_http2: bool) {
        let mut now = self.lock();
        match (is_http2, now.in_flight, now.head_since) {
            (true, _, Some(_)) => now.head_since = None,
            (false, 0, None) => now.head_since = Some(Instant::now()),
            _ => return,
        }
        drop(now);
        self.changed.notify_one();
    }

    /// The network does not take more for now.
    pub(crate) fn write_waits(&self) {
        self.lock().unwritten = true;
        self.changed.notify_one();
    }

    /// The network has taken all: what comes next has its whole time.
    pub(crate) fn all_written(&self) {
        let mut now = self.lock();
        let at = Instant::now();
        now.unwritten = false;
        now.idle_since = at;
        now.head_since = now.head_since.map(|_| at);
        drop(now);
        self.changed.notify_one();
    }

    /// A request begins; it ends with what is returned.
    pub(crate) fn request_began(self: &Arc<Self>) -> InFlight {
        let mut now = self.lock();
        now.requests += 1;
        now.in_flight += 1;
        now.head_since = None;
        let number = now.requests;
        drop(now);
        self.changed.notify_one();
        InFlight {
            activity: Arc::clone(self),
            number,
            answered: false,
        }
    }

    /// Ends when the connection has been in one phase for too long.
    pub(crate) async fn overdue(&self) {
        loop {
            let until = {
                let now = self.lock();
                if now.given_up > GIVEN_UP_MAX && now.given_up * 2 > now.requests {
                    return;
                }
                now.until(&self.times)
            };
            match until {
                None => self.changed.notified().await,
                Some(until) if until <= Instant::now() => return,
                Some(until) => tokio::select! {
                    () = tokio::time::sleep_until(until) => {}
                    () = self.changed.notified() => {}
                },
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct InFlight {
    activity: Arc<Activity>,
    number: u64,
    answered: bool,
}

impl InFlight {
    /// The answer is there, to be taken: whoever goes away from now on has not given up.
    pub(crate) fn answered(&mut self) {
        self.answered = true;
        self.hands_out(0);
    }

    /// The other side has taken what it was given before, and is given so many bytes more.
    pub(crate) fn hands_out(&self, bytes: usize) {
        let pace = self.activity.times.write;
        let fresh = || Stretch {
            until: Instant::now() + pace.stretch,
            taken: 0,
        };
        let mut now = self.activity.lock();
        let stretches = now.sending.len();
        let stretch = now.sending.entry(self.number).or_insert_with(fresh);
        stretch.taken = stretch.taken.saturating_add(bytes);
        if stretch.taken >= pace.bytes {
            *stretch = fresh();
        }
        let is_new = now.sending.len() > stretches;
        drop(now);
        if is_new {
            self.activity.changed.notify_one();
        }
    }

    /// The other side has taken all that there is for now.
    pub(crate) fn waits(&self) {
        self.activity.lock().sending.remove(&self.number);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut now = self.activity.lock();
        now.in_flight = now.in_flight.saturating_sub(1);
        now.given_up += u64::from(!self.answered);
        now.idle_since = Instant::now();
        now.sending.remove(&self.number);
        drop(now);
        self.activity.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> Arc<Activity> {
        Arc::new(Activity::new(Times {
            header: Duration::from_secs(10),
            idle: Duration::from_secs(60),
            write: WritePace {
                stretch: Duration::from_secs(30),
                bytes: 1000,
            },
        }))
    }

    async fn ends_after(activity: &Activity) -> u64 {
        let start = Instant::now();
        activity.overdue().await;
        start.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn each_phase_has_its_own_time() {
        let activity = fresh();
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
        let activity = fresh();
        for _ in 0..=GIVEN_UP_MAX {
            activity.request_began();
        }
        assert_eq!(ends_after(&activity).await, 0);
        let activity = fresh();
        for _ in 0..=GIVEN_UP_MAX {
            activity.request_began();
            for _ in 0..2 {
                activity.request_began().answered();
            }
        }
        assert_eq!(ends_after(&activity).await, 60);
    }

    #[tokio::test(start_paused = true)]
    async fn each_answer_is_taken_at_a_pace() {
        let activity = fresh();
        let (mut slow, mut other) = (activity.request_began(), activity.request_began());
        other.answered();
        other.waits();
        slow.answered();
        assert_eq!(ends_after(&activity).await, 30, "nothing was taken");
        slow.hands_out(1000);
        let drip = async {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                slow.hands_out(10);
                other.hands_out(2000);
            }
        };
        tokio::select! {
            seconds = ends_after(&activity) => assert_eq!(seconds, 30, "a little now and then"),
            () = drip => {}
        }
        slow.waits();
        other.waits();
        let endless = tokio::time::timeout(Duration::from_secs(1000), activity.overdue()).await;
        assert!(endless.is_err(), "there is nothing to take");
        let more = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            slow.hands_out(10);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            seconds = ends_after(&activity) => assert_eq!(seconds, 35, "there is something again"),
            () = more => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_once_the_network_has_taken_all() {
        let activity = fresh();
        activity.write_waits();
        activity.request_began().answered();
        activity.bytes_came(false);
        let endless = tokio::time::timeout(Duration::from_secs(1000), activity.overdue()).await;
        assert!(endless.is_err(), "the stream watches this phase");
        activity.all_written();
        assert_eq!(ends_after(&activity).await, 10, "a head had begun");
    }
}
