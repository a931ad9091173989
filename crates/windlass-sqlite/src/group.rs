//! Group commit: what waits is run in one transaction, synced once, and answered together.
//!
//! There is no timer. An idle queue commits at once; a busy one in groups by itself, as requests arrive while the disk
//! syncs.

use tokio::sync::{mpsc, oneshot, watch};
use windlass_store::StoreError;

use crate::error::DriverResult;
use crate::writer::{Answer, Writer};

/// A group takes no more rows than this, so that nobody waits for a bulk insert.
const GROUP_ROWS_MAX: usize = 20_000;

/// Who is served first within a group: a bulk insert never costs a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RequestClass {
    Settle,
    Claim,
    /// Only reads, from memory.
    Read,
    /// Frees space, or is what an operator needs on a full disk: it may use the reserve.
    Relief,
    Other,
    Enqueue,
}

/// A request with its answer.
pub(crate) trait Request: Send {
    fn class(&self) -> RequestClass;
    fn rows(&self) -> usize;
    /// Runs it; it may be run again when its group is taken back.
    fn run(&mut self, writer: &mut Writer<'_>) -> DriverResult<()>;
    /// Answers with what the last run gave, or with the error.
    fn answer(self: Box<Self>, failed: Option<StoreError>);
}

/// A verb on its way to the writer.
pub(crate) struct WriteRequest<T, F> {
    pub(crate) class: RequestClass,
    pub(crate) rows: usize,
    pub(crate) verb: F,
    pub(crate) result: Option<Result<T, StoreError>>,
    /// The verb goes back with its answer: to drop what it holds is not the writer's request.
    pub(crate) reply: oneshot::Sender<(Result<T, StoreError>, F)>,
}

impl<T: Send, F: FnMut(&mut Writer<'_>) -> Answer<T> + Send> Request for WriteRequest<T, F> {
    fn class(&self) -> RequestClass {
        self.class
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
        let _ = self.reply.send((result, self.verb)); // nobody waits for it any more
    }
}

/// Serves requests until nobody can send any more.
pub(crate) fn serve(
    writer: &mut Writer<'_>,
    mut requests: mpsc::Receiver<Box<dyn Request>>,
    changes: &watch::Sender<u64>,
) {
    let mut served = 1;
    while let Some(first) = requests.blocking_recv() {
        let mut group = gather(first, &mut requests, served);
        served = group.len();
        group.sort_by_key(|request| request.class());
        let wakes = |class| !matches!(class, RequestClass::Claim | RequestClass::Read);
        let wakes = group.iter().any(|request| wakes(request.class()));
        commit(writer, group);
        if wakes {
            changes.send_modify(|count| *count = count.wrapping_add(1));
        }
        writer.checkpoint_if_due();
    }
}

/// What waits now. Those who were just answered may be about to ask again: a busy writer listens a moment longer, some
/// microseconds, as long as requests keep coming; a sync costs more than that. An idle one, which served one request,
/// waits for nobody.
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
            // One bad request must not fail the others: each for itself now.
            Err(_) => {}
        }
    }
    for mut request in group {
        let admitted = writer.admit(request.class());
        let done = admitted.and_then(|()| writer.group(|writer| request.run(writer)));
        request.answer(done.err());
    }
}
