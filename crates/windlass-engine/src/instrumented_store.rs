//! A store wrapper that measures each call and tracks whether writes succeed.

use std::future::Future;
use std::sync::Arc;

use windlass_store::{Store, StoreError, Wrapper};

use crate::clock::Clock;
use crate::recorder::Recorder;
use crate::write_health::WriteHealth;

/// The store that the engine uses: the real one, with measurements.
#[derive(Debug)]
pub(crate) struct InstrumentedStore {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    recorder: Option<Arc<dyn Recorder>>,
    writes: Arc<WriteHealth>,
}

impl InstrumentedStore {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        recorder: Option<Arc<dyn Recorder>>,
        writes: Arc<WriteHealth>,
    ) -> Self {
        InstrumentedStore {
            store,
            clock,
            recorder,
            writes,
        }
    }
}

impl Wrapper for InstrumentedStore {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    async fn around<T: Send>(
        &self,
        verb: &'static str,
        step: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let Some(recorder) = &self.recorder else {
            let answer = step.await;
            self.writes.note(verb, &answer);
            return answer;
        };
        let started = self.clock.now();
        let answer = step.await;
        let took = self.clock.now().since(started);
        recorder.store_op(verb, took);
        self.writes.note(verb, &answer);
        answer
    }
}
