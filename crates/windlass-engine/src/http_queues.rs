//! The queues that HTTP jobs wait in: noted before the first of them does, so that whoever runs HTTP jobs finds them.
//!
//! A note is forgotten a day after it was last made, where its queue has no jobs. Who relies on one makes it anew after an
//! hour: a job that waits is always in a queue that is noted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::sync::Notify;
use windlass_core::{Invalid, Kind, QueueName, Timestamp};
use windlass_store::{Counts, Expected, Store, StoreError};

/// The collection of documents that name the queues.
const COLLECTION: &str = "http-queues";

/// HTTP jobs are run in at most so many queues.
pub const HTTP_QUEUES_MAX: usize = 100;

/// So long a note is relied on before it is made anew.
const RELIED_ON: Duration = Duration::from_secs(3600);

/// A note that is older is forgotten once its queue has no jobs.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// The queues that HTTP jobs wait in, as far as this process knows.
#[derive(Debug, Default)]
pub struct HttpQueues {
    /// When each was noted last.
    known: Mutex<BTreeMap<QueueName, Timestamp>>,
    changed: Notify,
}

impl HttpQueues {
    /// Notes that jobs of a kind will wait in a queue, if they are HTTP jobs.
    pub(crate) async fn note(
        &self,
        store: &dyn Store,
        kind: &Kind,
        queue: &QueueName,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        if !kind.is_http() || self.knows(queue, now) {
            return Ok(());
        }
        let (name, any) = (queue.as_str(), Expected::Anything);
        store
            .put_document(COLLECTION, name, &json!({}), any, None, now)
            .await?;
        self.known().insert(queue.clone(), now);
        self.look_again();
        Ok(())
    }

    /// Takes in what other processes, and this one before it was restarted, have noted and forgotten; all that is known then.
    pub async fn learn(
        &self,
        store: &dyn Store,
        now: Timestamp,
    ) -> Result<BTreeSet<QueueName>, StoreError> {
        let noted = store.documents(COLLECTION, now).await?;
        let noted = noted
            .iter()
            .filter_map(|one| Some((one.name.parse().ok()?, one.updated_at)));
        let noted: BTreeMap<QueueName, Timestamp> = noted.collect();
        let mut known = self.known();
        known.retain(|queue, at| noted.contains_key(queue) || is_fresh(*at, now));
        for (queue, at) in noted {
            let kept = known.entry(queue).or_insert(at);
            *kept = at.max(*kept);
        }
        Ok(known.keys().cloned().collect())
    }

    /// Whether a queue is known to have HTTP jobs, so that it need not be noted.
    pub fn knows(&self, queue: &QueueName, now: Timestamp) -> bool {
        let known = self.known();
        known.get(queue).is_some_and(|at| is_fresh(*at, now))
    }

    /// Refuses a further queue where HTTP jobs are run in as many as can be. To be asked after [`HttpQueues::learn`].
    pub fn check_room(&self, kind: &Kind, queue: &QueueName) -> Result<(), Invalid> {
        let known = self.known();
        if !kind.is_http() || known.contains_key(queue) || known.len() < HTTP_QUEUES_MAX {
            return Ok(());
        }
        let rule = format!(
            "must be one of the queues that have HTTP jobs already: there are {HTTP_QUEUES_MAX} of them, and no more are run"
        );
        Err(Invalid::new("queue", rule))
    }

    /// Tells whoever runs HTTP jobs that something about these queues is new.
    pub fn look_again(&self) {
        self.changed.notify_one();
    }

    /// Waits until something about these queues is new.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<QueueName, Timestamp>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_fresh(noted_at: Timestamp, now: Timestamp) -> bool {
    now.saturating_sub(RELIED_ON) < noted_at
}

/// Forgets old notes of queues that have no jobs. One that is made anew meanwhile stays.
pub(crate) async fn forget_queues(
    store: &dyn Store,
    counts: &BTreeMap<QueueName, Counts>,
    now: Timestamp,
) -> Result<(), StoreError> {
    for note in store.documents(COLLECTION, now).await? {
        let empty = !counts.keys().any(|queue| queue.as_str() == note.name);
        if empty && note.updated_at < now.saturating_sub(KEPT) {
            let version = Expected::Version(note.version);
            store
                .remove_document(COLLECTION, &note.name, version)
                .await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use windlass_memory::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn a_queue_is_noted_for_all_processes_and_there_are_only_so_many() {
        let store = MemoryStore::new();
        let (here, there) = (HttpQueues::default(), HttpQueues::default());
        let (now, http) = (Timestamp::UNIX_EPOCH, Kind::http());
        for number in 0..HTTP_QUEUES_MAX {
            let queue = format!("q{number}").parse().unwrap();
            assert_eq!(here.check_room(&http, &queue), Ok(()));
            here.note(&store, &http, &queue, now).await.unwrap();
        }
        let (further, first) = ("further".parse().unwrap(), "q0".parse().unwrap());
        let other = Kind::new("mail").unwrap();
        here.note(&store, &other, &further, now).await.unwrap();
        let noted = there.learn(&store, now).await.unwrap();
        assert_eq!(noted.len(), HTTP_QUEUES_MAX);
        let refused = there.check_room(&http, &further).unwrap_err();
        assert_eq!(refused.field(), "queue");
        assert_eq!(there.check_room(&http, &first), Ok(()));
        assert_eq!(there.check_room(&other, &further), Ok(()));
        here.changed().await;
    }

    #[tokio::test]
    async fn an_old_note_of_a_queue_without_jobs_is_forgotten_and_made_anew() {
        let store = MemoryStore::new();
        let (here, there) = (HttpQueues::default(), HttpQueues::default());
        let (start, http) = (Timestamp::UNIX_EPOCH, Kind::http());
        let queues: [QueueName; 2] = ["empty", "busy"].map(|name| name.parse().unwrap());
        for queue in &queues {
            here.note(&store, &http, queue, start).await.unwrap();
        }
        let jobs = BTreeMap::from([(queues[1].clone(), Counts::default())]);
        forget_queues(&store, &jobs, start.saturating_add(KEPT))
            .await
            .unwrap();
        assert_eq!(
            there.learn(&store, start).await.unwrap().len(),
            2,
            "not old yet"
        );

        let later = start.saturating_add(KEPT + RELIED_ON);
        forget_queues(&store, &jobs, later).await.unwrap();
        for known in [&here, &there] {
            let left = known.learn(&store, later).await.unwrap();
            assert_eq!(left, BTreeSet::from([queues[1].clone()]));
        }
        assert!(
            !here.knows(&queues[0], later),
            "it is noted before it is used again"
        );
        here.note(&store, &http, &queues[0], later).await.unwrap();
        forget_queues(&store, &BTreeMap::new(), later)
            .await
            .unwrap();
        assert_eq!(
            there.learn(&store, later).await.unwrap(),
            BTreeSet::from([queues[0].clone()])
        );
    }
}
