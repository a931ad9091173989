//! Wake-ups: a node that adds jobs notifies its own workers and the other nodes.
//!
//! Between nodes a notice goes through `pg_notify`. It names, for each lane, the first position at
//! which a job arrived, because claims start at a watermark and must not skip that job
//! (`watermark.rs`). `pg_notify` takes a lock on the whole database at commit, so notices are never
//! part of a verb's transaction: concurrent enqueues would wait for one another's sync. A
//! background task sends the first notice at once and then at most one every few milliseconds, for
//! many jobs. Its commit is not synced, because a notice need not survive a crash.
//!
//! Notices are only hints. If they do not arrive, for example behind a transaction pooler, every
//! node still polls once a second.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio_postgres::{AsyncMessage, Row};
use windlass_core::{Job, JobId, QueueName, Timestamp};
use windlass_store::{Kinds, StoreError};

use crate::connect::{ConnectionClass, Connections};
use crate::error::DriverResult;
use crate::limited::LimitedQueues;
use crate::lock;
use crate::param::{Time, params};
use crate::row;
use crate::statement::Sql;
use crate::watermark::{ClaimLane, ClaimOrder, FRONT, Watermarks};
use crate::write;

const CHANNEL: &str = "windlass";

/// How long a node collects positions after it has sent a notice.
const BATCH_DELAY: Duration = Duration::from_millis(5);

/// How often every node looks for jobs without a notice.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The timeout for connecting the listener.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The most bytes of a notice; PostgreSQL refuses 8000 and more.
const NOTICE_BYTES_MAX: usize = 7000;

#[derive(Debug)]
pub(crate) struct Wake {
    node: u64,
    changes: watch::Sender<u64>,
    pub(crate) marks: Watermarks,
    pub(crate) limited: LimitedQueues,
    /// Whether this node receives the notices of others.
    listens: AtomicBool,
    pending: Mutex<BTreeMap<(QueueName, i16), ClaimOrder>>,
    pending_signal: Notify,
}

/// Queue and lane, with rank, time and id of the first job that arrived there.
type FirstJob = (QueueName, i16, i32, i64, JobId);

/// What nodes send one another: the first new job of each lane. `None` means that jobs may have
/// arrived anywhere.
#[derive(Debug, Serialize, Deserialize)]
struct Notice {
    node: u64,
    lanes: Option<Vec<FirstJob>>,
}

impl Wake {
    pub(crate) fn new() -> Self {
        Wake {
            node: RandomState::new().hash_one(0),
            changes: watch::Sender::new(0),
            marks: Watermarks::default(),
            limited: LimitedQueues::default(),
            listens: AtomicBool::new(false),
            pending: Mutex::default(),
            pending_signal: Notify::new(),
        }
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Wakes the workers of this node: there may be something new to claim.
    pub(crate) fn wake_local(&self) {
        self.changes
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Until when a queue stays idle after a claim at `now` that left nothing, unless a change is
    /// reported before: until the next job becomes due at `next_at`, but not longer than half a
    /// poll, because a notice can get lost. `None` while this node receives no notices.
    pub(crate) fn idle_until(&self, next_at: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let until = next_at.min(now.saturating_add(POLL_INTERVAL / 2));
        (self.listens.load(Ordering::SeqCst) && until > now).then_some(until)
    }

    /// Wakes the workers of this node after attempts ended, if that may have freed a limit.
    pub(crate) fn settled(&self) {
        if self.limited.settled() {
            self.wake_local();
        }
    }

    /// Announces waiting jobs, to this node at once and to the others within milliseconds.
    pub(crate) fn notify_jobs<'a>(&self, jobs: impl IntoIterator<Item = &'a Job>) {
        self.notify_orders(jobs.into_iter().map(write::claimable));
    }

    /// Like [`Wake::notify_jobs`], for positions in the claim order.
    pub(crate) fn notify_orders(
        &self,
        claim_orders: impl IntoIterator<Item = (QueueName, i16, ClaimOrder)>,
    ) {
        let mut first: BTreeMap<(QueueName, i16), ClaimOrder> = BTreeMap::new();
        for (queue, lane, order) in claim_orders {
            let known = first.entry((queue, lane)).or_insert(order);
            *known = order.min(*known);
        }
        if first.is_empty() {
            return;
        }
        let mut pending = lock(&self.pending);
        for (lane, order) in first {
            self.marks.lower(&lane.0, lane.1, order);
            let known = pending.entry(lane).or_insert(order);
            *known = order.min(*known);
        }
        drop(pending);
        self.wake_local();
        self.pending_signal.notify_one();
    }

    /// Sends notices to the other nodes, as long as the store is open.
    pub(crate) async fn send_notices(&self, connections: &Connections) {
        loop {
            self.pending_signal.notified().await;
            let pending = std::mem::take(&mut *lock(&self.pending));
            let notice = &self.notice(pending);
            let sent = connections
                .run(ConnectionClass::Other, |mut session| async move {
                    let sql = Sql::Kept(
                        "select set_config('synchronous_commit', 'off', true), pg_notify($1, $2)",
                    );
                    session.single(sql, params![CHANNEL, notice.as_str()]).await
                })
                .await;
            if let Err(error) = sent {
                tracing::debug!(%error, "notify failed; other nodes will find the jobs when they poll");
            }
            tokio::time::sleep(BATCH_DELAY).await;
        }
    }

    /// Looks for jobs before the watermarks whose notice was lost, and moves watermarks past jobs
    /// of other kinds, as long as the store is open.
    ///
    /// These scans step over all dead index entries that another session's snapshot keeps, and over
    /// jobs of other kinds. Claims must not do that. So the scans run outside of claims, with
    /// pauses ten times as long as they took.
    pub(crate) async fn look(&self, connections: &Connections) {
        let mut pause = POLL_INTERVAL;
        loop {
            tokio::time::sleep(pause).await;
            let started = tokio::time::Instant::now();
            for (lane, order, version) in self.marks.all() {
                if let Err(error) = self.look_at(connections, &lane, order, version).await {
                    tracing::debug!(%error, queue = %lane.0, "scan for missed jobs failed; retrying");
                }
            }
            pause = POLL_INTERVAL.max(started.elapsed() * 10);
        }
    }

    async fn look_at(
        &self,
        connections: &Connections,
        lane: &ClaimLane,
        order: ClaimOrder,
        version: u64,
    ) -> Result<(), StoreError> {
        let find_missed = include_str!("../sql/find_missed.sql");
        if order > FRONT
            && let Some(missed) = first(connections, find_missed, lane, order).await?
        {
            self.marks.lower(&lane.0, lane.1, missed);
            self.wake_local();
            return Ok(());
        }
        let pass_over = include_str!("../sql/pass_over.sql");
        if lane.2 != Kinds::ALL
            && let Some(next) = first(connections, pass_over, lane, order).await?
        {
            self.marks.advance(lane, version, next);
        }
        Ok(())
    }

    fn notice(&self, pending: BTreeMap<(QueueName, i16), ClaimOrder>) -> String {
        let lanes = pending
            .into_iter()
            .map(|((queue, lane), (rank, at, id))| (queue, lane, rank, at.as_micros(), id));
        let text = |lanes| {
            let notice = Notice {
                node: self.node,
                lanes,
            };
            serde_json::to_string(&notice).expect("a notice is plain JSON")
        };
        let notice = text(Some(lanes.collect()));
        if notice.len() > NOTICE_BYTES_MAX {
            return text(None);
        }
        notice
    }

    fn receive(&self, text: &str) {
        let notice: Option<Notice> = serde_json::from_str(text).ok();
        match notice {
            Some(notice) if notice.node == self.node => return,
            Some(Notice {
                lanes: Some(lanes), ..
            }) => {
                for (queue, lane, rank, at, id) in lanes {
                    let at = Timestamp::from_micros(at).unwrap_or(Timestamp::MIN);
                    self.marks.lower(&queue, lane, (rank, at, id));
                }
            }
            _ => self.marks.reset(),
        }
        self.wake_local();
    }

    /// Receives notices of other nodes, as long as the store is open. Reconnects if the connection
    /// is lost.
    pub(crate) async fn listen(&self, connections: &Connections) {
        let mut poll = tokio::time::interval(POLL_INTERVAL);
        loop {
            let ended = self.listen_once(connections, &mut poll).await;
            self.listens.store(false, Ordering::SeqCst);
            if let Err(error) = ended {
                tracing::debug!(%error, "listener disconnected; reconnecting");
            }
            self.marks.reset();
            poll.tick().await;
            self.wake_local();
        }
    }

    async fn listen_once(
        &self,
        connections: &Connections,
        poll: &mut tokio::time::Interval,
    ) -> Result<(), tokio_postgres::Error> {
        let connect = connections.options.server.connect(connections.tls.clone());
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, connect).await;
        let Ok(connected) = connected else {
            return Ok(()); // timeout; the caller tries again
        };
        let (client, mut connection) = connected?;
        let mut messages =
            futures_util::stream::poll_fn(move |context| connection.poll_message(context));
        let listen = client.batch_execute("listen windlass");
        tokio::pin!(listen);
        let mut listening = false;
        loop {
            tokio::select! {
                done = &mut listen, if !listening => {
                    done?;
                    listening = true;
                    self.marks.reset(); // earlier notices were missed
                    self.wake_local();
                    self.listens.store(true, Ordering::SeqCst);
                }
                message = messages.next() => match message {
                    Some(Ok(AsyncMessage::Notification(notice))) => self.receive(notice.payload()),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Err(error),
                    None => return Ok(()),
                },
                _ = poll.tick() => self.wake_local(),
            }
        }
    }
}

/// Returns the first job that a statement finds, given a lane and its watermark.
async fn first(
    connections: &Connections,
    sql: &str,
    (queue, lane, kinds): &ClaimLane,
    (rank, at, id): ClaimOrder,
) -> Result<Option<ClaimOrder>, StoreError> {
    let (kinds, includes) = kinds.parts();
    let kinds: &Vec<&str> = &kinds.iter().map(|kind| kind.as_str()).collect();
    connections
        .run(ConnectionClass::Other, |mut session| async move {
            let (queue, at, id) = (queue.as_str(), Time(at), row::uuid(id));
            let params = params![queue, *lane, rank, at, id, *kinds, includes];
            let rows = session.query(sql, params).await?;
            session.commit().await?;
            let order = |found: &Row| {
                DriverResult::Ok((found.try_get(0)?, row::time(found, 1)?, row::id(found, 2)?))
            };
            rows.first().map(order).transpose()
        })
        .await
}
