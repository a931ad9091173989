//! Who did what: a record of every operator's action.

use std::sync::Arc;

use serde_json::{Value, json};
use tracing::warn;
use windlass_engine::Engine;

use crate::access::Caller;

/// The topic of the records.
pub const AUDIT_TOPIC: &str = "audit";

/// Keeps records of what operators do.
#[derive(Debug, Clone)]
pub struct Audit(Arc<Engine>);

impl Audit {
    /// In the engine's store.
    pub fn new(engine: Arc<Engine>) -> Self {
        Audit(engine)
    }

    /// Records an action. What was done stays done if the record cannot be kept; the log says so.
    pub async fn record(&self, caller: &Caller, action: &str, target: &str, detail: Value) {
        let record = json!({
            "key": caller.id, "name": caller.name, "action": action, "target": target, "detail": detail,
        });
        let kept = self
            .0
            .store()
            .append(AUDIT_TOPIC, &[record], self.0.now())
            .await;
        if let Err(error) = kept {
            warn!(%error, action, target, key = caller.id, "an action could not be recorded");
        }
    }
}
