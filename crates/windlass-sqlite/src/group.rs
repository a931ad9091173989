//! Group commit: the writer runs all waiting requests in one transaction, syncs once, and then
//! answers all of them.
//!
//! A sync takes as long for a thousand rows as for one, so one sync for many requests is what makes
//! a durable store fast. There is no timer: an idle writer commits a request at once, and while the
//! disk syncs, the next group collects in the channel.
//!
//! Failures: a group runs without savepoints. A savepoint for each request would slow down every
//! request to help the rare one that fails. Instead, a request that must be refused is refused
//! before it writes anything (the inner `Result` of [`Answer`]), and only an error of the database
//! fails the transaction. Then the whole group is rolled back, on disk and in memory, and each of
//! its requests runs again in a transaction of its own, so that a bad request fails alone. No
//! caller has seen an answer before that, so running a request twice is safe.
//!
//! The exception is a failed sync. The kernel may have dropped the pages, so no one knows what is
//! on disk. All requests of the group get `Indeterminate`, and the store stops for good.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use windlass_store::StoreError;

use crate::error::DriverResult;
use crate::writer::{Answer, Writer};

/// A group takes no further request once it has this many rows, so that a bulk insert does not
/// delay other requests for long.
const GROUP_ROWS_MAX: usize = 20_000;

/// How often the writer looks for new requests while it holds others back for a checkpoint.
const HELD_POLL: Duration = Duration::from_micros(200);

/// What a request is for. Requests of a group run in this order, so that a settle or renewal does
/// not wait for a large enqueue until the lease has expired. On a full disk, the class also decides
/// what may still run (`writer/full_disk.rs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RequestClass {
    Settle,
    Claim,
    /// Only reads, and only from memory.
    Read,
    /// Frees space, or is what an operator needs on a full disk. May use the reserved space.
    Relief,
    Other,
    Enqueue,
}

/// Whether requests may wait for each other in one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// A caller waits for the answer.
    Foreground,
    /// A step of a bulk action. It gets a transaction after that of the others, so that they do
    /// not wait for it, and it waits while a checkpoint ends.
    Background,
}

/// A request of any type, on its way to the writer.
pub(crate) trait Request: Send {
    fn class(&self) -> RequestClass;
    fn urgency(&self) -> Urgency;
    fn rows(&self) -> usize;
    /// Runs the request. May be called again after its group was rolled back.
    fn run(&mut self, writer: &mut Writer<'_>) -> DriverResult<()>;
    /// Answers the caller with the result of the last run, or with the error.
    fn answer(self: Box<Self>, failed: Option<StoreError>);
}

/// A verb of the store, and where its result goes.
pub(crate) struct WriteRequest<T, F> {
    pub(crate) class: RequestClass,
    pub(crate) urgency: Urgency,
    pub(crate) rows: usize,
    pub(crate) verb: F,
    pub(crate) result: Option<Result<T, StoreError>>,
    /// The verb is sent back with its result, so that the caller drops the verb's data and the
    /// writer thread loses no time.
    pub(crate) reply: oneshot::Sender<(Result<T, StoreError>, F)>,
}

impl<T: Send, F: FnMut(&mut Writer<'_>) -> Answer<T> + Send> Request for WriteRequest<T, F> {
    fn class(&self) -> RequestClass {
        self.class
    }

    fn urgency(&self) -> Urgency {
        self.urgency
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn run(&mut self, writer: &mut Writer<'_>) -> DriverResult<()> {
        self.result = Some((self.verb)(writer)?);
        Ok(())
    }

    fn answer(self: Box<Self>, failed: Option<StoreError>) {
        let result = match (failed, self.result) {
            (Some(error), _) => Err(error),
            (None, Some(result)) => result,
            (None, None) => Err(StoreError::Unavailable("the request was not run".into())),
        };
        let _ = self.reply.send((result, self.verb)); // fails if the caller no longer waits
    }
}

/// Serves requests until all senders are dropped.
pub(crate) fn serve(
    writer: &mut Writer<'_>,
    mut requests: mpsc::Receiver<Box<dyn Request>>,
    changes: &watch::Sender<u64>,
) {
    let mut served = 1;
    let mut held = Vec::new();
    while let Some(first) = next(writer, &mut requests, &mut held) {
        let mut group = gather(first, &mut requests, served);
        served = group.len();
        group.sort_by_key(|request| request.class());
        let wakes = |class| !matches!(class, RequestClass::Claim | RequestClass::Read);
        let (foreground, mut background): (Vec<_>, Vec<_>) = group
            .into_iter()
            .partition(|request| request.urgency() == Urgency::Foreground);
        background.append(&mut held);
        if writer.holds_background() {
            held = std::mem::take(&mut background);
        }
        for group in [foreground, background] {
            if group.is_empty() {
                continue;
            }
            let wakes = group.iter().any(|request| wakes(request.class()));
            commit(writer, group);
            if wakes {
                changes.send_modify(|count| *count = count.wrapping_add(1));
            }
        }
        writer.checkpoint_if_due();
    }
}

/// Waits for the next request, or for the end of the checkpoint that requests are held back for.
fn next(
    writer: &mut Writer<'_>,
    requests: &mut mpsc::Receiver<Box<dyn Request>>,
    held: &mut Vec<Box<dyn Request>>,
) -> Option<Box<dyn Request>> {
    if held.is_empty() {
        return requests.blocking_recv();
    }
    while writer.holds_background() {
        if let Ok(request) = requests.try_recv() {
            return Some(request);
        }
        writer.wait_for_checkpoint(HELD_POLL);
    }
    held.pop()
}

/// Collects the requests that wait now.
///
/// Callers that were just answered often send their next request within microseconds. After a group
/// of more than one request the writer therefore spins for some microseconds, as long as requests
/// keep arriving; that halves the number of syncs. An idle writer does not wait.
fn gather(
    first: Box<dyn Request>,
    requests: &mut mpsc::Receiver<Box<dyn Request>>,
    served: usize,
) -> Vec<Box<dyn Request>> {
    const SPINS: usize = 1000;
    let patience = if served > 1 { SPINS } else { 0 };
    let mut rows = first.rows();
    let mut group = vec![first];
    let mut spins = 0;
    while rows < GROUP_ROWS_MAX {
        match requests.try_recv() {
            Ok(next) => {
                rows = rows.saturating_add(next.rows());
                group.push(next);
                spins = 0;
            }
            Err(_) if spins < patience => {
                spins += 1;
                std::hint::spin_loop();
            }
            Err(_) => break,
        }
    }
    group
}

pub(crate) fn commit(writer: &mut Writer<'_>, mut group: Vec<Box<dyn Request>>) {
    if writer.has_space() {
        let done =
            writer.group(|writer| group.iter_mut().try_for_each(|request| request.run(writer)));
        match done {
            Ok(()) => return group.into_iter().for_each(|request| request.answer(None)),
            Err(StoreError::Indeterminate(cause)) => {
                let text = cause.to_string();
                let same = || StoreError::Indeterminate(text.clone().into());
                return group
                    .into_iter()
                    .for_each(|request| request.answer(Some(same())));
            }
            // One bad request must not fail the others: run each in its own transaction.
            Err(_) => {}
        }
    }
    for mut request in group {
        let admitted = writer.admit(request.class());
        let done = admitted.and_then(|()| writer.group(|writer| request.run(writer)));
        request.answer(done.err());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::schema;

    type Log = Arc<Mutex<Vec<(Urgency, bool)>>>;

    /// Records in which order requests ran, and whether a checkpoint was still catching up.
    struct Probe(Urgency, Log);

    impl Request for Probe {
        fn class(&self) -> RequestClass {
            RequestClass::Other
        }

        fn urgency(&self) -> Urgency {
            self.0
        }

        fn rows(&self) -> usize {
            1
        }

        fn run(&mut self, writer: &mut Writer<'_>) -> DriverResult<()> {
            let entry = (self.0, writer.holds_background());
            self.1.lock().unwrap().push(entry);
            Ok(())
        }

        fn answer(self: Box<Self>, failed: Option<StoreError>) {
            assert!(failed.is_none(), "{failed:?}");
        }
    }

    #[test]
    fn steps_of_bulk_actions_wait_until_a_checkpoint_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.db");
        let connection = schema::open_writer(&path).unwrap();
        let mut writer = Writer::open(&connection, &path).unwrap();
        let log = Log::default();
        let (sender, requests) = mpsc::channel(9);
        for urgency in [
            Urgency::Background,
            Urgency::Foreground,
            Urgency::Background,
        ] {
            let probe: Box<dyn Request> = Box::new(Probe(urgency, Arc::clone(&log)));
            assert!(sender.try_send(probe).is_ok());
        }
        drop(sender);
        writer.begin_to_catch_up();
        serve(&mut writer, requests, &watch::Sender::new(0));
        let (now, later) = ((Urgency::Foreground, true), (Urgency::Background, false));
        assert_eq!(*log.lock().unwrap(), [now, later, later]);
    }
}
