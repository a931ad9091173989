//! Stores by URL, each opened once in a process.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, PoisonError, Weak};

use tokio::sync::Mutex;
use windlass_core::{Invalid, Timestamp};
use windlass_engine::{Clock, Engine, Ids, Recorder, SystemClock};
use windlass_memory::MemoryStore;
use windlass_store::Store;

use crate::error::Error;

/// The stores that are open, by URL: those who open the same one share it.
static OPEN: LazyLock<std::sync::Mutex<BTreeMap<String, Arc<Slot>>>> =
    LazyLock::new(Default::default);

/// Where the engine of one URL is, or is about to be: those who come meanwhile wait.
type Slot = Mutex<Weak<Engine>>;

/// Opens what a URL names, or finds it open.
pub(crate) async fn open(
    url: &str,
    recorder: Option<Arc<dyn Recorder>>,
) -> Result<Arc<Engine>, Error> {
    if url == "memory:" {
        return engine(url, recorder).await;
    }
    let slot = slot(&place(url));
    let mut open = slot.lock().await;
    if let Some(engine) = open.upgrade() {
        if recorder.is_some() {
            let rule =
                "is open in this process already: give its recorder where it is opened first";
            return Err(Invalid::new("url", rule).into());
        }
        return Ok(engine);
    }
    let engine = engine(url, recorder).await?;
    *open = Arc::downgrade(&engine);
    Ok(engine)
}

/// What a URL stands for: a file is the same file however its path is written.
fn place(url: &str) -> String {
    let path = url.strip_prefix("sqlite:");
    let path = path.map(|rest| std::path::Path::new(rest.strip_prefix("//").unwrap_or(rest)));
    let folder = path.and_then(|path| match path.parent()? {
        here if here.as_os_str().is_empty() => Some(std::path::Path::new(".")),
        folder => Some(folder),
    });
    let folder = folder.and_then(|folder| folder.canonicalize().ok());
    match (folder, path.and_then(std::path::Path::file_name)) {
        (Some(folder), Some(file)) => format!("sqlite:{}", folder.join(file).display()),
        _ => url.to_owned(),
    }
}

/// The slot of a URL; those of stores that are closed, and that nobody waits for, are forgotten.
fn slot(url: &str) -> Arc<Slot> {
    let mut slots = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    slots.retain(|_, slot| {
        let closed = slot.try_lock().is_ok_and(|open| open.strong_count() == 0);
        !closed || Arc::strong_count(slot) > 1
    });
    Arc::clone(slots.entry(url.to_owned()).or_default())
}

async fn engine(url: &str, recorder: Option<Arc<dyn Recorder>>) -> Result<Arc<Engine>, Error> {
    let ids = Ids::unpredictable();
    let store = store(url, SystemClock::new().now(), &ids).await?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::of_store(&store).await?);
    Ok(Arc::new(Engine::with_recorder(store, clock, ids, recorder)))
}

/// The driver that a URL names. A new driver gets its arm here, and its feature in the manifest.
pub(crate) async fn store(url: &str, now: Timestamp, ids: &Ids) -> Result<Arc<dyn Store>, Error> {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    match scheme {
        "memory" => Ok(Arc::new(MemoryStore::new())),
        #[cfg(feature = "sqlite")]
        "sqlite" => sqlite(rest, now, ids),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => postgres(url).await,
        _ => {
            let _ = (rest, now, ids);
            let rule = format!("must be {}, got {scheme:?}", known().join(" or "));
            Err(Invalid::new("url", rule).into())
        }
    }
}

#[cfg(feature = "sqlite")]
fn sqlite(rest: &str, now: Timestamp, ids: &Ids) -> Result<Arc<dyn Store>, Error> {
    let path = rest.strip_prefix("//").unwrap_or(rest);
    if path.is_empty() {
        return Err(Invalid::new("url", "must name a file: sqlite:path").into());
    }
    let store = windlass_sqlite::SqliteStore::open(path, now, ids.bits())?;
    let lost = store.lost_at_opening();
    if lost > 0 {
        tracing::warn!(lost, "attempts of a former process were lost");
    }
    Ok(Arc::new(store))
}

/// An empty database gets its schema; one that has an older schema is left alone, for other nodes may be using it.
#[cfg(feature = "postgres")]
async fn postgres(url: &str) -> Result<Arc<dyn Store>, Error> {
    use windlass_postgres::{Options, PostgresStore};
    let options = Options::parse(url)?;
    if PostgresStore::schema_version(&options).await? == 0 {
        PostgresStore::migrate(&options).await?;
    }
    Ok(Arc::new(PostgresStore::connect(options).await?))
}

/// What a URL may be, as this program is built.
fn known() -> Vec<&'static str> {
    let known = [
        ("memory:", true),
        ("memory:name", true),
        ("sqlite:path", cfg!(feature = "sqlite")),
        ("postgres://user@host/database", cfg!(feature = "postgres")),
    ];
    let built = known.into_iter().filter(|(_, built)| *built);
    built.map(|(url, _)| url).collect()
}
