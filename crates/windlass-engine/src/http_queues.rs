//! The queues that HTTP jobs wait in: noted before the first of them does, so that whoever runs HTTP jobs finds them.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::json;
use tokio::sync::Notify;
use windlass_core::{Invalid, Kind, QueueName, Timestamp};
use windlass_store::{Expected, Store, StoreError};

/// The collection of documents that name the queues.
const COLLECTION: &str = "http-queues";

/// HTTP jobs are run in at most so many queues.
pub const HTTP_QUEUES_MAX: usize = 100;

/// The queues that HTTP jobs wait in, as far as this process knows.
#[derive(Debug, Default)]
pub struct HttpQueues {
    known: Mutex<BTreeSet<QueueName>>,
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
        if !kind.is_http() || self.knows(queue) {
            return Ok(());
        }
        let (name, any) = (queue.as_str(), Expected::Anything);
        store
            .put_document(COLLECTION, name, &json!({}), any, now)
            .await?;
        self.known().insert(queue.clone());
        self.look_again();
        Ok(())
    }

    /// Takes in what other processes, and this one before it was restarted, have noted; all that is known then.
    pub async fn learn(&self, store: &dyn Store) -> Result<BTreeSet<QueueName>, StoreError> {
        let noted = store.documents(COLLECTION).await?;
        let noted = noted.iter().filter_map(|one| one.name.parse().ok());
        let mut known = self.known();
        known.extend(noted);
        Ok(known.clone())
    }

    /// Whether a queue is known to have HTTP jobs.
    pub fn knows(&self, queue: &QueueName) -> bool {
        self.known().contains(queue)
    }

    /// Refuses a further queue where HTTP jobs are run in as many as can be. To be asked after [`HttpQueues::learn`].
    pub fn check_room(&self, kind: &Kind, queue: &QueueName) -> Result<(), Invalid> {
        let known = self.known();
        if !kind.is_http() || known.contains(queue) || known.len() < HTTP_QUEUES_MAX {
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

    fn known(&self) -> MutexGuard<'_, BTreeSet<QueueName>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        let noted = there.learn(&store).await.unwrap();
        assert_eq!(noted.len(), HTTP_QUEUES_MAX);
        let refused = there.check_room(&http, &further).unwrap_err();
        assert_eq!(refused.field(), "queue");
        assert_eq!(there.check_room(&http, &first), Ok(()));
        assert_eq!(there.check_room(&other, &further), Ok(()));
        here.changed().await;
    }
}
