//! The API keys in the store: one document per key, named by its public id.
//!
//! A server caches all keys and reads them again at most once per second. So a request needs no
//! read of the store, every node refuses a revoked key within a second, and a flood of unknown ids
//! does not reach the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windlass_core::{Invalid, Timestamp};
use windlass_engine::Engine;
use windlass_store::{Document, Expected, PAGE_MAX, StoreError, Written, compare_and_set};

use super::key::{ApiKey, KeyHash};
use super::{NewKey, Scope, Scopes};
use crate::poison::lock;

/// The collection of the key documents.
pub const KEYS: &str = "api_keys";
/// The collection with the last use of each key. Separate, so that use never conflicts with a
/// change of the key.
const USED: &str = "api_keys_used";
/// The most keys in a store. At the limit, a new key replaces the key that was revoked or expired
/// first.
pub const KEYS_MAX: usize = 10_000;
/// The maximum age of the cached keys.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// The last use of a key is written at most once per minute.
const TOUCH_EVERY: Duration = Duration::from_secs(60);

/// An API key as the store has it, without its secret.
#[derive(Debug, Clone)]
pub struct KeyInfo {
    /// The public id.
    pub id: String,
    /// The name, for people.
    pub name: String,
    /// The scopes of the key.
    pub scopes: Scopes,
    /// When the key was created.
    pub created_at: Timestamp,
    /// When the key expires.
    pub expires_at: Option<Timestamp>,
    /// When the key was revoked.
    pub revoked_at: Option<Timestamp>,
    /// When the key was last used, accurate to a minute.
    pub last_used_at: Option<Timestamp>,
    /// Whether this version cannot read the key, because a newer version wrote it or it is damaged.
    /// The server refuses such a key, but it still counts as a key.
    pub unreadable: bool,
    pub(super) hash: KeyHash,
}

impl KeyInfo {
    /// Returns an unreadable key, of which only the id is known.
    fn unreadable(id: &str, created_at: Timestamp) -> Self {
        KeyInfo {
            id: id.to_owned(),
            name: String::new(),
            scopes: Scopes::NONE,
            created_at,
            expires_at: None,
            revoked_at: None,
            last_used_at: None,
            unreadable: true,
            hash: KeyHash::of_no_key(),
        }
    }

    /// Returns when the key was revoked or expired, if it was.
    fn ended_at(&self, now: Timestamp) -> Option<Timestamp> {
        let expired_at = self.expires_at.filter(|at| *at <= now);
        self.revoked_at.into_iter().chain(expired_at).min()
    }
}

impl From<&KeyInfo> for windlass_api::Key {
    fn from(key: &KeyInfo) -> Self {
        windlass_api::Key {
            id: key.id.clone(),
            name: key.name.clone(),
            scopes: key.scopes.given(),
            created_at: key.created_at,
            expires_at: key.expires_at,
            revoked_at: key.revoked_at,
            last_used_at: key.last_used_at,
            unreadable: key.unreadable,
        }
    }
}

/// Why a key could not be created or changed.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The request is invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The key does not exist.
    #[error("the key {0} does not exist: `windlass keys list` shows all keys")]
    NotFound(String),
    /// Another key has the same id. This is extremely unlikely.
    #[error("the id of the new key is already in use: try again")]
    Taken,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The operating system returned no random bytes.
    #[error("the operating system returned no random bytes")]
    Random(#[source] getrandom::Error),
}

/// The field of a key document with the time of its revocation.
const REVOKED_AT: &str = "revoked_at";

/// The document of a key.
#[derive(Debug, Serialize, Deserialize)]
struct KeyDocument {
    name: String,
    scopes: Vec<String>,
    hash: String,
    created_at: Timestamp,
    expires_at: Option<Timestamp>,
    revoked_at: Option<Timestamp>,
}

impl KeyDocument {
    /// Reads the key of a document. An unexpected document gives an unreadable key with the fields
    /// that are known.
    fn read(document: &Document) -> KeyInfo {
        let unreadable = KeyInfo::unreadable(&document.name, document.updated_at);
        let Ok(stored) = KeyDocument::deserialize(&document.value) else {
            let revoked_at = document.value.get(REVOKED_AT).filter(|at| !at.is_null());
            return KeyInfo {
                revoked_at: revoked_at.map(|_| document.updated_at),
                ..unreadable
            };
        };
        let scopes = Scopes::from_names(&stored.scopes).ok();
        let (scopes, hash, unreadable) = match (scopes, KeyHash::from_hex(&stored.hash)) {
            (Some(scopes), Some(hash)) => (scopes, hash, false),
            _ => (unreadable.scopes, unreadable.hash, true),
        };
        KeyInfo {
            id: document.name.clone(),
            name: stored.name,
            scopes,
            created_at: stored.created_at,
            expires_at: stored.expires_at,
            revoked_at: stored.revoked_at,
            last_used_at: None,
            unreadable,
            hash,
        }
    }
}

/// The keys of one store.
pub struct Keys {
    engine: Arc<Engine>,
    keys_max: usize,
    cache: Mutex<KeyCache>,
    reading: tokio::sync::Mutex<()>,
    touched: Mutex<BTreeMap<String, Timestamp>>,
}

/// All keys as the store had them at one time.
#[derive(Debug, Default)]
struct KeyCache {
    keys: Option<(Timestamp, Arc<BTreeMap<String, KeyInfo>>)>,
    /// How often this node changed a key. A read that began before a change is not cached after it.
    changes: u64,
    /// The unreadable keys of the last read, so that each is logged only once.
    unreadable: BTreeSet<String>,
}

impl Keys {
    /// Returns the keys of an engine's store.
    pub fn new(engine: Arc<Engine>) -> Self {
        Keys {
            engine,
            keys_max: KEYS_MAX,
            cache: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
            touched: Mutex::default(),
        }
    }

    /// Returns the keys with another limit.
    #[cfg(test)]
    pub(super) fn with_max(engine: Arc<Engine>, keys_max: usize) -> Self {
        Keys {
            keys_max,
            ..Keys::new(engine)
        }
    }

    /// Creates a key. Returns it with its secret, which the store does not keep.
    ///
    /// The first key must have the scope `admin`: the server then requires keys, and only an admin
    /// can create more of them.
    pub async fn create(&self, new: NewKey, now: Timestamp) -> Result<(ApiKey, KeyInfo), KeyError> {
        new.check(now)?;
        let all = self.read().await?;
        let scopes: Scopes = new.scopes.iter().copied().collect();
        if all.is_empty() && !scopes.include(Scope::Admin) {
            let rule = "must include `admin`: this is the first key, and only an admin can create more keys";
            return Err(Invalid::new("scopes", rule).into());
        }
        self.make_room(&all, now).await?;
        let key = ApiKey::generate().map_err(KeyError::Random)?;
        let stored = KeyDocument {
            name: new.name,
            scopes: new.scopes.iter().map(Scope::to_string).collect(),
            hash: key.hash().to_hex(),
            created_at: now,
            expires_at: new.expires_at,
            revoked_at: None,
        };
        let value = serde_json::to_value(&stored).unwrap_or_default();
        match self.write(key.id(), &value, Expected::Absent, now).await? {
            Written::Version(_) => {}
            Written::Conflict(_) => return Err(KeyError::Taken),
        }
        let info = KeyInfo {
            id: key.id().to_owned(),
            name: stored.name,
            scopes,
            created_at: now,
            expires_at: new.expires_at,
            revoked_at: None,
            last_used_at: None,
            unreadable: false,
            hash: key.hash(),
        };
        Ok((key, info))
    }

    /// Makes room for a new key if the store has the most allowed: removes the key that was revoked
    /// or expired first, or fails if no key was.
    async fn make_room(
        &self,
        all: &BTreeMap<String, KeyInfo>,
        now: Timestamp,
    ) -> Result<(), KeyError> {
        if all.len() < self.keys_max {
            return Ok(());
        }
        let ended = all
            .values()
            .filter_map(|key| Some((key.ended_at(now)?, &key.id)));
        let Some((_, oldest)) = ended.min() else {
            let rule = format!("must be at most {} in total: revoke some", self.keys_max);
            return Err(Invalid::new("keys", rule).into());
        };
        let store = self.engine.store();
        for collection in [KEYS, USED] {
            store
                .remove_document(collection, oldest, Expected::Any)
                .await?;
        }
        Ok(())
    }

    /// Returns all keys, oldest first, with their last use.
    pub async fn list(&self) -> Result<Vec<KeyInfo>, StoreError> {
        let mut keys = self.read().await?;
        self.add_damaged(&mut keys).await?;
        for used in self
            .engine
            .store()
            .documents(USED, self.engine.now())
            .await?
        {
            if let Some(key) = keys.get_mut(&used.name) {
                key.last_used_at = Some(used.updated_at);
            }
        }
        let mut keys: Vec<KeyInfo> = keys.into_values().collect();
        keys.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        Ok(keys)
    }

    /// Revokes a key permanently. The list still shows it. Revoking it again changes nothing.
    pub async fn revoke(&self, id: &str, now: Timestamp) -> Result<KeyInfo, KeyError> {
        if !ApiKey::is_id(id) {
            return Err(
                Invalid::new("id", "must be the 12 characters of a key after `wl_`").into(),
            );
        }
        let contended = || {
            KeyError::Store(StoreError::Unavailable(
                "others are changing this key".into(),
            ))
        };
        compare_and_set(contended, || async {
            let found = self.engine.store().document(KEYS, id, now).await?;
            let mut found = found.ok_or_else(|| KeyError::NotFound(id.to_owned()))?;
            let mut info = KeyDocument::read(&found);
            if info.revoked_at.is_some() {
                return Ok(Some(info));
            }
            info.revoked_at = Some(now);
            // Preserves the fields that a newer version wrote.
            match &mut found.value {
                Value::Object(fields) => {
                    fields.insert(REVOKED_AT.to_owned(), now.to_string().into());
                }
                damaged => *damaged = json!({REVOKED_AT: now}),
            }
            let expected = Expected::Version(found.version);
            let written = self.write(id, &found.value, expected, now).await?;
            Ok(written.version().map(|_| info))
        })
        .await
    }

    /// Returns the key with this public id, at most one second old.
    pub(super) async fn find(
        &self,
        id: &str,
        now: Timestamp,
    ) -> Result<Option<KeyInfo>, StoreError> {
        Ok(self.fresh(now).await?.get(id).cloned())
    }

    /// Whether the store has no key at all. Revoked, expired and unreadable keys count.
    pub(super) async fn is_empty(&self, now: Timestamp) -> Result<bool, StoreError> {
        Ok(self.fresh(now).await?.is_empty())
    }

    /// Writes the last use of a key in the background, at most once per minute.
    pub(super) fn touch(&self, id: &str, now: Timestamp) {
        let mut touched = lock(&self.touched);
        let recent = touched
            .get(id)
            .is_some_and(|at| now.since(*at) < TOUCH_EVERY);
        if recent {
            return;
        }
        touched.insert(id.to_owned(), now); // bounded by the number of keys
        let (engine, id) = (Arc::clone(&self.engine), id.to_owned());
        tokio::spawn(async move {
            let used = Value::Null;
            let written = engine
                .store()
                .put_document(USED, &id, &used, Expected::Any, None, now);
            if let Err(error) = written.await {
                tracing::warn!(key = id, %error, "failed to write the last use of a key");
            }
        });
    }

    async fn fresh(&self, now: Timestamp) -> Result<Arc<BTreeMap<String, KeyInfo>>, StoreError> {
        if let Some(keys) = self.cached(now) {
            return Ok(keys);
        }
        // Only one request reads; the others wait and use its result.
        let _reading = self.reading.lock().await;
        if let Some(keys) = self.cached(now) {
            return Ok(keys);
        }
        let changes = self.cache().changes;
        let mut keys = self.read().await?;
        if keys.is_empty() {
            // Damaged keys keep the server closed too.
            self.add_damaged(&mut keys).await?;
        }
        let keys = Arc::new(keys);
        let mut cache = self.cache();
        let unreadable = keys.values().filter(|key| key.unreadable);
        let unreadable: BTreeSet<String> = unreadable.map(|key| key.id.clone()).collect();
        for key in unreadable.difference(&cache.unreadable) {
            tracing::warn!(key, "an API key is unreadable and is refused");
        }
        cache.unreadable = unreadable;
        if cache.changes == changes {
            cache.keys = Some((now, Arc::clone(&keys)));
        }
        Ok(keys)
    }

    fn cached(&self, now: Timestamp) -> Option<Arc<BTreeMap<String, KeyInfo>>> {
        let cache = self.cache();
        let (at, keys) = cache.keys.as_ref()?;
        let fresh = now.since(*at) < FRESH_FOR && at.since(now) < FRESH_FOR;
        fresh.then(|| Arc::clone(keys))
    }

    fn cache(&self) -> MutexGuard<'_, KeyCache> {
        lock(&self.cache)
    }

    async fn read(&self) -> Result<BTreeMap<String, KeyInfo>, StoreError> {
        let documents = self
            .engine
            .store()
            .documents(KEYS, self.engine.now())
            .await?;
        let keys = documents.iter().map(KeyDocument::read);
        Ok(keys.map(|key| (key.id.clone(), key)).collect())
    }

    /// Adds the keys whose documents the store lists but cannot read.
    async fn add_damaged(&self, keys: &mut BTreeMap<String, KeyInfo>) -> Result<(), StoreError> {
        let (store, now) = (self.engine.store(), self.engine.now());
        let mut after = String::new();
        loop {
            let names = store.document_names(KEYS, &after, PAGE_MAX, now).await?;
            let Some(last) = names.last() else {
                return Ok(());
            };
            after.clone_from(last);
            for id in names {
                let damaged = KeyInfo::unreadable(&id, now);
                keys.entry(id).or_insert(damaged);
            }
        }
    }

    async fn write(
        &self,
        id: &str,
        value: &Value,
        expected: Expected,
        now: Timestamp,
    ) -> Result<Written, StoreError> {
        let store = self.engine.store();
        let written = store
            .put_document(KEYS, id, value, expected, None, now)
            .await?;
        // Changes of this node apply here at once.
        let mut cache = self.cache();
        (cache.keys, cache.changes) = (None, cache.changes + 1);
        Ok(written)
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys")
    }
}
