//! Opens stores by URL. A process opens each store once and shares it.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, PoisonError, Weak};

use tokio::sync::Mutex;
use windlass_core::{Invalid, Timestamp};
use windlass_engine::{Clock, Engine, Ids, Recorder, SystemClock, keep_writing_statistics};
use windlass_memory::MemoryStore;
use windlass_store::Store;

use crate::client::Client;
use crate::error::Error;

/// The open stores of this process, by [`store_key`].
static OPEN_STORES: LazyLock<std::sync::Mutex<BTreeMap<String, Arc<OpenStore>>>> =
    LazyLock::new(Default::default);

/// One open store. The lock is held while the store is being opened, so that concurrent callers
/// wait and share the result.
type OpenStore = Mutex<SharedStore>;

#[derive(Default)]
struct SharedStore {
    engine: Weak<Engine>,
    owner_note: Option<OwnerNote>,
}

/// How other processes reach the owner of a store in a file.
#[cfg(feature = "sqlite")]
pub(crate) type OwnerNote = windlass_sqlite::OwnerNote;
/// No store of this build has an owner.
#[cfg(not(feature = "sqlite"))]
#[derive(Clone)]
pub(crate) enum OwnerNote {}

/// Opens the store that a URL names, or returns it if it is open already.
pub(crate) async fn open(url: &str, recorder: Option<Arc<dyn Recorder>>) -> Result<Client, Error> {
    if url == "memory:" {
        return client(url, recorder).await;
    }
    let open_store = entry(&store_key(url));
    let mut shared = open_store.lock().await;
    if let Some(engine) = shared.engine.upgrade() {
        if recorder.is_some() {
            let rule = "is open in this process already; set the recorder where it is opened first";
            return Err(Invalid::new("url", rule).into());
        }
        let owner_note = shared.owner_note.clone();
        return Ok(Client { engine, owner_note });
    }
    let client = client(url, recorder).await?;
    *shared = SharedStore {
        engine: Arc::downgrade(&client.engine),
        owner_note: client.owner_note.clone(),
    };
    Ok(client)
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
            .is_ok_and(|shared| shared.engine.strong_count() == 0);
        !closed || Arc::strong_count(store) > 1
    });
    Arc::clone(stores.entry(key.to_owned()).or_default())
}

async fn client(url: &str, recorder: Option<Arc<dyn Recorder>>) -> Result<Client, Error> {
    let ids = Ids::unpredictable();
    let (store, owner_note) = store(url, SystemClock::new().now(), &ids).await?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::of_store(&store).await?);
    let engine = Arc::new(Engine::with_recorder(store, clock, ids, recorder));
    // Not only workers write statistics: a process that only enqueues jobs counts them too.
    tokio::spawn(keep_writing_statistics(Arc::downgrade(&engine)));
    Ok(Client { engine, owner_note })
}

/// A store, and the note of its owner if it is a file.
pub(crate) type OpenedStore = (Arc<dyn Store>, Option<OwnerNote>);

/// Opens the driver that a URL names. A new driver gets an arm here and a feature in the manifest.
pub(crate) async fn store(url: &str, now: Timestamp, ids: &Ids) -> Result<OpenedStore, Error> {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    match scheme {
        "memory" => Ok((Arc::new(MemoryStore::new()), None)),
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
fn sqlite(rest: &str, now: Timestamp, ids: &Ids) -> Result<OpenedStore, Error> {
    let path = rest.strip_prefix("//").unwrap_or(rest);
    if path.is_empty() {
        return Err(Invalid::new("url", "must name a file: sqlite:path").into());
    }
    let store = windlass_sqlite::SqliteStore::open(path, now, ids.bits())?;
    let lost = store.lost_at_opening();
    if lost > 0 {
        tracing::warn!(lost, "attempts of the previous process were lost");
    }
    let owner_note = store.owner_note().clone();
    Ok((Arc::new(store), Some(owner_note)))
}

/// Creates the schema of an empty database. An older schema is not migrated: other nodes may still
/// be using it.
#[cfg(feature = "postgres")]
async fn postgres(url: &str) -> Result<OpenedStore, Error> {
    use windlass_postgres::{Options, PostgresStore};
    let options = Options::parse(url)?;
    if PostgresStore::schema_version(&options).await? == 0 {
        PostgresStore::migrate(&options).await?;
    }
    Ok((Arc::new(PostgresStore::connect(options).await?), None))
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
