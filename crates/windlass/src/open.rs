//! Stores by URL, each opened once in a process.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use windlass_core::Invalid;
use windlass_engine::{Clock, Engine, Ids, Recorder, SystemClock};
use windlass_memory::MemoryStore;
use windlass_store::Store;

use crate::error::Error;

/// The stores that are open, by URL: those who open the same one share it.
static OPEN: LazyLock<Mutex<BTreeMap<String, Weak<Engine>>>> = LazyLock::new(Mutex::default);

/// Opens what a URL names, or finds it open.
pub(crate) fn open(url: &str, recorder: Option<Arc<dyn Recorder>>) -> Result<Arc<Engine>, Error> {
    let mut stores = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    stores.retain(|_, engine| engine.strong_count() > 0);
    let shared = url != "memory:";
    if let Some(engine) = stores.get(url).and_then(Weak::upgrade) {
        if recorder.is_some() {
            let rule =
                "is open in this process already: give its recorder where it is opened first";
            return Err(Invalid::new("url", rule).into());
        }
        return Ok(engine);
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let ids = Ids::unpredictable();
    let store = store(url, &*clock, &ids)?;
    let engine = Arc::new(Engine::with_recorder(store, clock, ids, recorder));
    if shared {
        stores.insert(url.to_owned(), Arc::downgrade(&engine));
    }
    Ok(engine)
}

/// The driver that a URL names. A new driver gets its arm here, and its feature in the manifest.
pub(crate) fn store(url: &str, clock: &dyn Clock, ids: &Ids) -> Result<Arc<dyn Store>, Error> {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    match scheme {
        "memory" => Ok(Arc::new(MemoryStore::new())),
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            let path = rest.strip_prefix("//").unwrap_or(rest);
            if path.is_empty() {
                return Err(Invalid::new("url", "must name a file: sqlite:path").into());
            }
            let store = windlass_sqlite::SqliteStore::open(path, clock.now(), ids.bits())?;
            let lost = store.lost_at_opening();
            if lost > 0 {
                tracing::warn!(lost, "attempts of a former process were lost");
            }
            Ok(Arc::new(store))
        }
        _ => {
            let _ = (rest, clock, ids);
            let rule = format!("must be {KNOWN}, got {url:?}");
            Err(Invalid::new("url", rule).into())
        }
    }
}

#[cfg(feature = "sqlite")]
const KNOWN: &str = "`memory:`, `memory:name` or `sqlite:path`";
#[cfg(not(feature = "sqlite"))]
const KNOWN: &str = "`memory:` or `memory:name` (the feature `sqlite` is off)";
