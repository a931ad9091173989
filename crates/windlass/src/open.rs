//! Opens stores by URL. A process opens each store once and shares it.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, PoisonError, Weak};

use tokio::sync::Mutex;
use windlass_core::{Invalid, Timestamp};
use windlass_engine::{Clock, Engine, Ids, Recorder, SystemClock, keep_writing_statistics};
use windlass_memory::MemoryStore;
use windlass_store::Store;

use crate::error::Error;

/// The open stores of this process, by [`store_key`].
static OPEN_STORES: LazyLock<std::sync::Mutex<BTreeMap<String, Arc<OpenStore>>>> =
    LazyLock::new(Default::default);

/// The engine of one open store. The lock is held while the store is being opened, so that
/// concurrent callers wait and share the result.
type OpenStore = Mutex<Weak<Engine>>;

/// Opens the store that a URL names, or returns it if it is open already.
pub(crate) async fn open(
    url: &str,
    recorder: Option<Arc<dyn Recorder>>,
) -> Result<Arc<Engine>, Error> {
    if url == "memory:" {
        return engine(url, recorder).await;
    }
    let open_store = entry(&store_key(url));
    let mut shared_engine = open_store.lock().await;
    if let Some(engine) = shared_engine.upgrade() {
        if recorder.is_some() {
            let rule = "is open in this process already; set the recorder where it is opened first";
            return Err(Invalid::new("url", rule).into());
        }
        return Ok(engine);
    }
    let engine = engine(url, recorder).await?;
    *shared_engine = Arc::downgrade(&engine);
    Ok(engine)
}

/// Returns the key of the store that a URL names: a file has one key, however its path is written.
fn store_key(url: &str) -> String {
    let path = url.strip_prefix("sqlite:");
    let path = path.map(|rest| std::path::Path::new(rest.strip_prefix("//").unwrap_or(rest)));
    let folder = path.and_then(|path| match path.parent()? {
        empty if empty.as_os_str().is_empty() => Some(std::path::Path::new(".")),
        folder => Some(folder),
    });
    let folder = folder.and_then(|folder| folder.canonicalize().ok());
    match (folder, path.and_then(std::path::Path::file_name)) {
        (Some(folder), Some(file)) => format!("sqlite:{}", folder.join(file).display()),
        _ => url.to_owned(),
    }
}

/// Returns the entry of a store, and removes entries of closed stores that no caller waits for.
fn entry(key: &str) -> Arc<OpenStore> {
    let mut stores = OPEN_STORES.lock().unwrap_or_else(PoisonError::into_inner);
    stores.retain(|_, store| {
        let closed = store
            .try_lock()
            .is_ok_and(|engine| engine.strong_count() == 0);
        !closed || Arc::strong_count(store) > 1
    });
    Arc::clone(stores.entry(key.to_owned()).or_default())
}

async fn engine(url: &str, recorder: Option<Arc<dyn Recorder>>) -> Result<Arc<Engine>, Error> {
    let ids = Ids::unpredictable();
    let store = store(url, SystemClock::new().now(), &ids).await?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::of_store(&store).await?);
    let engine = Arc::new(Engine::with_recorder(store, clock, ids, recorder));
    // Not only workers write statistics: a process that only enqueues jobs counts them too.
    tokio::spawn(keep_writing_statistics(Arc::downgrade(&engine)));
    Ok(engine)
}

/// Opens the driver that a URL names. A new driver gets an arm here and a feature in the manifest.
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
            let rule = format!("must be {}, got {scheme:?}", supported_urls().join(" or "));
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
        tracing::warn!(lost, "attempts of the previous process were lost");
    }
    Ok(Arc::new(store))
}

/// Creates the schema of an empty database. An older schema is not migrated: other nodes may still
/// be using it.
#[cfg(feature = "postgres")]
async fn postgres(url: &str) -> Result<Arc<dyn Store>, Error> {
    use windlass_postgres::{Options, PostgresStore};
    let options = Options::parse(url)?;
    if PostgresStore::schema_version(&options).await? == 0 {
        PostgresStore::migrate(&options).await?;
    }
    Ok(Arc::new(PostgresStore::connect(options).await?))
}

/// Returns the forms of URL that this build supports.
fn supported_urls() -> Vec<&'static str> {
    let urls = [
        ("memory:", true),
        ("memory:name", true),
        ("sqlite:path", cfg!(feature = "sqlite")),
        ("postgres://user@host/database", cfg!(feature = "postgres")),
    ];
    let supported = urls.into_iter().filter(|(_, supported)| *supported);
    supported.map(|(url, _)| url).collect()
}
