//! Whether the store accepts writes, as seen by the calls of this process.
//!
//! A full disk or a lost database must show up in readiness checks, and must disappear from them
//! without a restart. Any write that fails marks the store as refusing writes. Only a successful
//! heartbeat clears the mark: it is the one write that every store does regularly and that none
//! serves from reserved space, so its success proves that ordinary writes work again. A store that
//! has stopped for good (for example after a failed sync) stays stopped.

use tokio::sync::watch;
use windlass_store::StoreError;

/// Whether the store accepts writes. All parts of a process share it.
#[derive(Debug)]
pub struct WriteHealth(watch::Sender<Writes>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Writes {
    Accepted,
    /// The store refuses writes. Holds the message of the last error.
    Refused(String),
    /// The store has stopped for good. Holds the cause.
    Stopped(String),
}

/// The verbs that only read. Their results say nothing about writes.
const READS: [&str; 18] = [
    "due_queues",
    "get",
    "list",
    "attempts",
    "counts",
    "failure_groups",
    "action_tally",
    "queues",
    "schedules",
    "schedule",
    "due",
    "occurrences",
    "nodes",
    "document",
    "documents",
    "document_names",
    "records",
    "time",
];

/// The verb that always writes and that no store serves from a reserve.
const PROBE: &str = "beat";

impl WriteHealth {
    pub(crate) fn new() -> Self {
        WriteHealth(watch::Sender::new(Writes::Accepted))
    }

    /// Returns why the store does not accept writes, or `None` if it does.
    pub fn problem(&self) -> Option<String> {
        match &*self.0.borrow() {
            Writes::Accepted => None,
            Writes::Refused(why) => Some(why.clone()),
            Writes::Stopped(cause) => Some(stopped(cause).to_string()),
        }
    }

    /// Returns the error of a store that has stopped for good.
    pub fn stop_error(&self) -> Option<StoreError> {
        match &*self.0.borrow() {
            Writes::Stopped(cause) => Some(stopped(cause)),
            Writes::Accepted | Writes::Refused(_) => None,
        }
    }

    /// Waits until the store has stopped for good. Only a restart of the process helps then.
    pub async fn stopped(&self) -> StoreError {
        let mut changes = self.0.subscribe();
        loop {
            if let Some(error) = self.stop_error() {
                return error;
            }
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await; // unreachable: `self` keeps the sender
            }
        }
    }

    /// Records the result of a verb.
    pub(crate) fn note<T>(&self, verb: &'static str, answer: &Result<T, StoreError>) {
        self.0.send_if_modified(|writes| {
            let next = writes.after(verb, answer.as_ref().err());
            let changed = next.as_ref().is_some_and(|next| next != writes);
            if let Some(next) = next {
                *writes = next;
            }
            changed
        });
    }
}

impl Writes {
    /// Returns the new health after a verb's result, or `None` if the result says nothing about
    /// writes.
    fn after(&self, verb: &str, error: Option<&StoreError>) -> Option<Writes> {
        match (self, error) {
            (Writes::Stopped(_), _) => None,
            (_, Some(StoreError::Stopped(cause))) => Some(Writes::Stopped(cause.to_string())),
            _ if READS.contains(&verb) => None,
            (Writes::Refused(_), None) if verb == PROBE => Some(Writes::Accepted),
            (_, Some(error)) if verb == PROBE || is_of_writing(error) => {
                Some(Writes::Refused(error.to_string()))
            }
            _ => None,
        }
    }
}

fn stopped(cause: &str) -> StoreError {
    StoreError::Stopped(cause.to_owned().into())
}

/// Whether an error means that writes fail in general, not just this one.
fn is_of_writing(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::StorageFull(_) | StoreError::Unavailable(_) | StoreError::Indeterminate(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Result<(), StoreError> {
        Err(StoreError::StorageFull("no space".into()))
    }

    #[test]
    fn a_failed_write_is_a_problem_until_a_heartbeat_succeeds() {
        let health = WriteHealth::new();
        assert_eq!(health.problem(), None);
        health.note("enqueue", &full());
        assert!(health.problem().is_some());
        health.note("change", &Ok(()));
        health.note("get", &Ok(()));
        assert!(health.problem().is_some(), "purge may use a reserve");
        health.note("beat", &Ok(()));
        assert_eq!(health.problem(), None);
        health.note("beat", &full());
        assert!(health.problem().is_some());
    }

    #[test]
    fn a_failed_read_and_a_refused_write_are_no_problem_of_writing() {
        let health = WriteHealth::new();
        let unavailable: Result<(), _> = Err(StoreError::Unavailable("no connection".into()));
        for read in ["get", "due_queues"] {
            health.note(read, &unavailable);
        }
        let many: Result<(), _> = Err(StoreError::TooMany {
            what: "enqueue",
            got: 2,
            max: 1,
        });
        health.note("enqueue", &many);
        assert_eq!(health.problem(), None);
    }

    #[tokio::test]
    async fn a_stopped_store_stays_stopped() {
        let health = WriteHealth::new();
        let stopped: Result<(), _> = Err(StoreError::Stopped("a sync failed".into()));
        health.note("get", &stopped);
        health.note("beat", &Ok(()));
        assert!(matches!(health.stopped().await, StoreError::Stopped(_)));
        assert!(health.problem().is_some());
    }
}
