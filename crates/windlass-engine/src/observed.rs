//! A store that tells how long each verb took.

use std::future::Future;
use std::sync::Arc;

use windlass_store::{Store, StoreError};

use crate::clock::Clock;
use crate::recorder::Recorder;

#[derive(Debug)]
pub(crate) struct Observed {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    recorder: Arc<dyn Recorder>,
}

impl Observed {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        recorder: Arc<dyn Recorder>,
    ) -> Self {
        Observed {
            store,
            clock,
            recorder,
        }
    }

    async fn around<T>(
        &self,
        verb: &'static str,
        step: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let started = self.clock.now();
        let answer = step.await;
        let took = self.clock.now().since(started);
        self.recorder.store_op(verb, took);
        answer
    }
}

windlass_store::wrap_store!(Observed);
