//! Records throttled clients in the log and in the audit log.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::Semaphore;
use tracing::warn;
use windlass_engine::{Audit, Engine};

use super::{Caller, OnThrottle};

/// The most audit records about throttled clients that the server writes at once.
const RECORDS_MAX: usize = 4;

/// Returns a callback that records throttled clients.
pub(crate) fn audit_throttled(engine: &Arc<Engine>) -> OnThrottle {
    let audit = Audit::new(Arc::clone(engine));
    let record_permits = Arc::new(Semaphore::new(RECORDS_MAX));
    Arc::new(move |id, peer, wait| {
        let peer = peer.map(|peer| peer.to_string());
        warn!(
            key = id,
            peer,
            ?wait,
            "throttled a client after failed authentication"
        );
        let Ok(permit) = Arc::clone(&record_permits).try_acquire_owned() else {
            return; // the log has the event; a flood must not become a flood of writes
        };
        let (audit, target) = (audit.clone(), id.unwrap_or("-").to_owned());
        let detail =
            json!({"peer": peer, "wait_ms": u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)});
        tokio::spawn(async move {
            audit
                .record(
                    &Caller::unauthenticated().actor(),
                    "access.throttled",
                    &target,
                    detail,
                )
                .await;
            drop(permit);
        });
    })
}
