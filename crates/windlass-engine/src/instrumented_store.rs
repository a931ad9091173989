//! A store that notes whether writes succeed, and how long each verb took.

use std::future::Future;
use std::sync::Arc;

use windlass_store::{Store, StoreError, Wrapper};

use crate::clock::Clock;
use crate::recorder::Recorder;
use crate::write_health::WriteHealth;

#[derive(Debug)]
pub(crate) struct Observed {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    recorder: Option<Arc<dyn Recorder>>,
    writes: Arc<WriteHealth>,
}

impl Observed {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        recorder: Option<Arc<dyn Recorder>>,
        writes: Arc<WriteHealth>,
    ) -> Self {
        Observed {
            store,
            clock,
            recorder,
            writes,
        }
    }
}

impl Wrapper for Observed {
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
