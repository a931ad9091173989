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

use crate::connect::{Class, Connections};
use crate::error::Step;
use crate::param::{Time, params};
use crate::row;
use crate::watermark::{Place, Watermarks};
use crate::write;

const CHANNEL: &str = "windlass";

/// So long notices are gathered: each takes a lock of the whole database.
const GATHER: Duration = Duration::from_millis(5);

/// So often everybody looks, whatever is told.
const LOOK: Duration = Duration::from_secs(1);

/// So long it may take to connect.
const LISTEN_TIME_MAX: Duration = Duration::from_secs(10);

/// PostgreSQL takes no longer ones.
const NOTICE_BYTES_MAX: usize = 7000;

#[derive(Debug)]
pub(crate) struct Wake {
    node: u64,
    changes: watch::Sender<u64>,
    pub(crate) marks: Watermarks,
    untold: Mutex<BTreeMap<(QueueName, i16), Place>>,
    bell: Notify,
}

/// Queue and lane; rank, time and id of the first job that came in there.
type FirstOf = (QueueName, i16, i32, i64, JobId);

/// What nodes tell one another: the first place of each lane where something came in. Without any, it may be everywhere.
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
            untold: Mutex::default(),
            bell: Notify::new(),
        }
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Something may be claimable that was not.
    pub(crate) fn ring(&self) {
        self.changes
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Jobs wait now: tells this node at once, and the others soon.
    pub(crate) fn tell<'a>(&self, jobs: impl IntoIterator<Item = &'a Job>) {
        self.tell_places(jobs.into_iter().map(|job| {
            let place = (write::rank(job), job.run_at, job.id);
            (job.queue.clone(), write::lane(job), place)
        }));
    }

    /// The same of places.
    pub(crate) fn tell_places(&self, places: impl IntoIterator<Item = (QueueName, i16, Place)>) {
        let mut first: BTreeMap<(QueueName, i16), Place> = BTreeMap::new();
        for (queue, lane, place) in places {
            let known = first.entry((queue, lane)).or_insert(place);
            *known = place.min(*known);
        }
        if first.is_empty() {
            return;
        }
        let mut untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        for (lane, place) in first {
            self.marks.lower(&lane.0, lane.1, place);
            let known = untold.entry(lane).or_insert(place);
            *known = place.min(*known);
        }
        drop(untold);
        self.ring();
        self.bell.notify_one();
    }

    /// Tells the others, for as long as the store lives.
    pub(crate) async fn tell_others(&self, connections: &Connections) {
        loop {
            self.bell.notified().await;
            tokio::time::sleep(GATHER).await;
            let untold =
                std::mem::take(&mut *self.untold.lock().unwrap_or_else(PoisonError::into_inner));
            let notice = &self.notice(untold);
            let told = connections
                .run(Class::Other, |mut session| async move {
                    let sql = "select pg_notify($1, $2)";
                    session.alone(sql, params![CHANNEL, notice.as_str()]).await
                })
                .await;
            if let Err(error) = told {
                tracing::debug!(%error, "others were not told of new jobs: they look by themselves");
            }
        }
    }

    /// Looks for jobs before the places where claims begin, which nobody told of, for as long as the store lives. It may
    /// walk over all that an old snapshot keeps, so it takes a tenth of the time at most.
    pub(crate) async fn look_back(&self, connections: &Connections) {
        let mut pause = LOOK;
        loop {
            tokio::time::sleep(pause).await;
            let started = tokio::time::Instant::now();
            for ((queue, lane, kinds), (rank, at, id)) in self.marks.all() {
                let (kinds, wanted) = kinds.parts();
                let kinds: &Vec<&str> = &kinds.iter().map(|kind| kind.as_str()).collect();
                let queue = &queue;
                let found = connections
                    .run(Class::Other, |mut session| async move {
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
                        let place = |found: &Row| {
                            Step::Ok((found.try_get(0)?, row::time(found, 1)?, row::id(found, 2)?))
                        };
                        found.map(place).transpose()
                    })
                    .await;
                match found {
                    Ok(Some(place)) => {
                        self.marks.lower(queue, lane, place);
                        self.ring();
                    }
                    Ok(None) => {}
                    Err(error) => {
                        tracing::debug!(%error, "nobody looked for jobs that were missed: it is tried again")
                    }
                }
            }
            pause = LOOK.max(started.elapsed() * 10);
        }
    }

    fn notice(&self, untold: BTreeMap<(QueueName, i16), Place>) -> String {
        let lanes = untold
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

    fn hear(&self, text: &str) {
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
            _ => self.marks.forget(),
        }
        self.ring();
    }

    /// Listens to the others, for as long as the store lives; connects again when the connection is lost.
    pub(crate) async fn listen(&self, connections: &Connections) {
        let mut look = tokio::time::interval(LOOK);
        loop {
            if let Err(error) = self.listen_once(connections, &mut look).await {
                tracing::debug!(%error, "the connection that listens for new jobs is lost");
            }
            self.marks.forget();
            look.tick().await;
            self.ring();
        }
    }

    async fn listen_once(
        &self,
        connections: &Connections,
        look: &mut tokio::time::Interval,
    ) -> Result<(), tokio_postgres::Error> {
        let connect = connections.options.server.connect(connections.tls.clone());
        let connected = tokio::time::timeout(LISTEN_TIME_MAX, connect).await;
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
                    self.marks.forget(); // what was told before is not known
                }
                message = messages.next() => match message {
                    Some(Ok(AsyncMessage::Notification(notice))) => self.hear(notice.payload()),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Err(error),
                    None => return Ok(()),
                },
                _ = look.tick() => self.ring(),
            }
        }
    }
}
