//! Wake-ups between nodes: who brings work tells the others where, at most once in a few milliseconds.
//!
//! Only hints. Where they do not arrive, as behind a transaction pooler, everybody looks once a second.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio_postgres::{AsyncMessage, Row};
use windlass_core::{Job, JobId, QueueName, Timestamp};

use crate::connect::{ConnectionClass, Connections};
use crate::error::DriverResult;
use crate::param::{Time, params};
use crate::row;
use crate::watermark::{ClaimOrder, Watermarks};
use crate::write;

const CHANNEL: &str = "windlass";

/// So long notices are gathered: each takes a lock of the whole database.
const BATCH_DELAY: Duration = Duration::from_millis(5);

/// So often everybody looks, whatever is told.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// So long it may take to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// PostgreSQL takes no longer ones.
const NOTICE_BYTES_MAX: usize = 7000;

#[derive(Debug)]
pub(crate) struct Wake {
    node: u64,
    changes: watch::Sender<u64>,
    pub(crate) marks: Watermarks,
    pending: Mutex<BTreeMap<(QueueName, i16), ClaimOrder>>,
    pending_signal: Notify,
}

/// Queue and lane; rank, time and id of the first job that came in there.
type FirstOf = (QueueName, i16, i32, i64, JobId);

/// What nodes tell one another: the first order of each lane where something came in. Without any, it may be everywhere.
#[derive(Debug, Serialize, Deserialize)]
struct Notice {
    node: u64,
    lanes: Option<Vec<FirstOf>>,
}

impl Wake {
    pub(crate) fn new() -> Self {
        Wake {
            node: RandomState::new().hash_one(0),
            changes: watch::Sender::new(0),
            marks: Watermarks::default(),
            pending: Mutex::default(),
            pending_signal: Notify::new(),
        }
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Something may be claimable that was not.
    pub(crate) fn wake_local(&self) {
        self.changes
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Jobs wait now: tells this node at once, and the others soon.
    pub(crate) fn notify_jobs<'a>(&self, jobs: impl IntoIterator<Item = &'a Job>) {
        self.notify_orders(jobs.into_iter().map(|job| {
            let order = (write::rank(job), job.run_at, job.id);
            (job.queue.clone(), write::lane(job), order)
        }));
    }

    /// The same of claim_orders.
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
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        for (lane, order) in first {
            self.marks.lower(&lane.0, lane.1, order);
            let known = pending.entry(lane).or_insert(order);
            *known = order.min(*known);
        }
        drop(pending);
        self.wake_local();
        self.pending_signal.notify_one();
    }

    /// Tells the others, for as long as the store lives.
    pub(crate) async fn send_notices(&self, connections: &Connections) {
        loop {
            self.pending_signal.notified().await;
            tokio::time::sleep(BATCH_DELAY).await;
            let pending =
                std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
            let notice = &self.notice(pending);
            let told = connections
                .run(ConnectionClass::Other, |mut session| async move {
                    let sql = "select pg_notify($1, $2)";
                    session.single(sql, params![CHANNEL, notice.as_str()]).await
                })
                .await;
            if let Err(error) = told {
                tracing::debug!(%error, "others were not told of new jobs: they poll by themselves");
            }
        }
    }

    /// Looks for jobs before the claim_orders where claims begin, which nobody told of, for as long as the store lives. It may
    /// walk over all that an old snapshot keeps, so it takes a tenth of the time at most.
    pub(crate) async fn find_missed(&self, connections: &Connections) {
        let mut pause = POLL_INTERVAL;
        loop {
            tokio::time::sleep(pause).await;
            let started = tokio::time::Instant::now();
            for ((queue, lane, kinds), (rank, at, id)) in self.marks.raised() {
                let (kinds, wanted) = kinds.parts();
                let kinds: &Vec<&str> = &kinds.iter().map(|kind| kind.as_str()).collect();
                let queue = &queue;
                let found = connections
                    .run(ConnectionClass::Other, |mut session| async move {
                        let sql = include_str!("../sql/find_missed.sql");
                        let params = params![
                            queue.as_str(),
                            lane,
                            rank,
                            Time(at),
                            row::uuid(id),
                            *kinds,
                            wanted
                        ];
                        let rows = session.query(sql, params).await?;
                        session.commit().await?;
                        let found = rows.first();
                        let order = |found: &Row| {
                            DriverResult::Ok((
                                found.try_get(0)?,
                                row::time(found, 1)?,
                                row::id(found, 2)?,
                            ))
                        };
                        found.map(order).transpose()
                    })
                    .await;
                match found {
                    Ok(Some(order)) => {
                        self.marks.lower(queue, lane, order);
                        self.wake_local();
                    }
                    Ok(None) => {}
                    Err(error) => {
                        tracing::debug!(%error, "nobody looked for jobs that were missed: it is tried again")
                    }
                }
            }
            pause = POLL_INTERVAL.max(started.elapsed() * 10);
        }
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
        match notice.len() > NOTICE_BYTES_MAX {
            true => text(None),
            false => notice,
        }
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

    /// Listens to the others, for as long as the store lives; connects again when the connection is lost.
    pub(crate) async fn listen(&self, connections: &Connections) {
        let mut poll = tokio::time::interval(POLL_INTERVAL);
        loop {
            if let Err(error) = self.listen_once(connections, &mut poll).await {
                tracing::debug!(%error, "the connection that listens for new jobs is lost");
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
            return Ok(()); // somebody took the call and says nothing
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
                    self.marks.reset(); // what was told before is not known
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
