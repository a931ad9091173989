//! The keys in the store: one document each, found by its public id.
//!
//! A server keeps all of them in memory, read anew at most once a second: a request costs no read of the store, a key that
//! was revoked on any node is refused everywhere a second later, and a flood of unknown ids reaches no store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windlass_core::{Invalid, Timestamp};
use windlass_engine::Engine;
use windlass_store::{Document, Expected, PAGE_MAX, StoreError, Written, compare_and_set};

use super::key::{ApiKey, KeyHash};
use super::{NewKey, Scope, Scopes};

/// The collection of the keys.
pub const KEYS: &str = "api_keys";
/// The collection of when they were last used: apart, so that use never races with a change of the key.
const USED: &str = "api_keys_used";
/// So many keys at most. When there are as many, one that was revoked or has expired makes room for a new one.
pub const KEYS_MAX: usize = 10_000;
/// What is known of the keys is never older.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// That a key was used is written at most so often.
const TOUCH_EVERY: Duration = Duration::from_secs(60);

/// What is stored of a key.
#[derive(Debug, Clone)]
pub struct KeyInfo {
    /// Its public id.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// What it may do.
    pub scopes: Scopes,
    /// When it was made.
    pub created_at: Timestamp,
    /// From when on it is refused.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
    /// When it was last used, to the minute.
    pub last_used_at: Option<Timestamp>,
    /// This version cannot read it, because a newer one wrote it or it is damaged: it opens
    /// nothing, and counts as a key.
    pub unreadable: bool,
    pub(super) hash: KeyHash,
}

impl KeyInfo {
    /// A key of which only its id is known for sure.
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
            hash: KeyHash::of_nobody(),
        }
    }

    /// Since when it opens nothing any more, if that is so.
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

/// A key could not be made or changed.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// What was asked breaks a rule.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// There is no such key.
    #[error("there is no key {0}: `windlass keys list` names them")]
    NotFound(String),
    /// Another key has its id, which chance hardly ever does.
    #[error("the id of the new key is taken: try again")]
    Taken,
    /// The store did not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The operating system gave no randomness.
    #[error("the operating system gives no randomness")]
    Random(#[source] getrandom::Error),
}

/// The field of a stored key that says when it was revoked.
const REVOKED_AT: &str = "revoked_at";

#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    name: String,
    scopes: Vec<String>,
    hash: String,
    created_at: Timestamp,
    expires_at: Option<Timestamp>,
    revoked_at: Option<Timestamp>,
}

impl Stored {
    /// The key of a document. One that was not written like this is unreadable, with what is known
    /// of it.
    fn read(document: &Document) -> KeyInfo {
        let unreadable = KeyInfo::unreadable(&document.name, document.updated_at);
        let Ok(stored) = Stored::deserialize(&document.value) else {
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
    most: usize,
    known: Mutex<Known>,
    reading: tokio::sync::Mutex<()>,
    touched: Mutex<BTreeMap<String, Timestamp>>,
}

/// All keys as they were at one moment.
#[derive(Debug, Default)]
struct Known {
    keys: Option<(Timestamp, Arc<BTreeMap<String, KeyInfo>>)>,
    /// How often this node itself changed a key: what was read before a change is not kept after it.
    changes: u64,
    /// Which could not be read at the last look, so that each is logged once.
    unreadable: BTreeSet<String>,
}

impl Keys {
    /// The keys of an engine's store.
    pub fn new(engine: Arc<Engine>) -> Self {
        Keys {
            engine,
            most: KEYS_MAX,
            known: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
            touched: Mutex::default(),
        }
    }

    /// As many keys at most.
    #[cfg(test)]
    pub(super) fn with_most(engine: Arc<Engine>, most: usize) -> Self {
        Keys {
            most,
            ..Keys::new(engine)
        }
    }

    /// Makes a key. Its text is answered once and stored nowhere.
    ///
    /// The first one must be an admin's: it closes the server to everybody without a key, and another could make no further one.
    pub async fn create(&self, new: NewKey, now: Timestamp) -> Result<(ApiKey, KeyInfo), KeyError> {
        new.check(now)?;
        let all = self.read().await?;
        let scopes: Scopes = new.scopes.iter().copied().collect();
        if all.is_empty() && !scopes.include(Scope::Admin) {
            let rule = "must have `admin` among them: it is the first key, and only an admin makes further ones";
            return Err(Invalid::new("scopes", rule).into());
        }
        self.make_room(&all, now).await?;
        let key = ApiKey::generate().map_err(KeyError::Random)?;
        let stored = Stored {
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

    /// Forgets the key that ended longest ago, if there are as many as may be; refuses where none has ended.
    async fn make_room(
        &self,
        all: &BTreeMap<String, KeyInfo>,
        now: Timestamp,
    ) -> Result<(), KeyError> {
        if all.len() < self.most {
            return Ok(());
        }
        let ended = all
            .values()
            .filter_map(|key| Some((key.ended_at(now)?, &key.id)));
        let Some((_, oldest)) = ended.min() else {
            let rule = format!("must be at most {} in all: revoke some", self.most);
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

    /// All keys by age, with when they were last used.
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

    /// Revokes a key for good. It stays listed; a second time changes nothing.
    pub async fn revoke(&self, id: &str, now: Timestamp) -> Result<KeyInfo, KeyError> {
        if !ApiKey::is_id(id) {
            return Err(Invalid::new("id", "must be the part of a key behind `wl_`").into());
        }
        let contended =
            || KeyError::Store(StoreError::Unavailable("others change this key".into()));
        compare_and_set(contended, || async {
            let found = self.engine.store().document(KEYS, id, now).await?;
            let mut found = found.ok_or_else(|| KeyError::NotFound(id.to_owned()))?;
            let mut info = Stored::read(&found);
            if info.revoked_at.is_some() {
                return Ok(Some(info));
            }
            info.revoked_at = Some(now);
            // What a newer version stored with the key stays.
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

    /// The key with this public id, as it was within the last second.
    pub(super) async fn find(
        &self,
        id: &str,
        now: Timestamp,
    ) -> Result<Option<KeyInfo>, StoreError> {
        Ok(self.fresh(now).await?.get(id).cloned())
    }

    /// Whether there is any key, revoked, expired and unreadable ones included.
    pub(super) async fn is_empty(&self, now: Timestamp) -> Result<bool, StoreError> {
        Ok(self.fresh(now).await?.is_empty())
    }

    /// Writes that a key was used, aside and not more often than once a minute.
    pub(super) fn touch(&self, id: &str, now: Timestamp) {
        let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = touched
            .get(id)
            .is_some_and(|at| now.since(*at) < TOUCH_EVERY);
        if recent {
            return;
        }
        touched.insert(id.to_owned(), now); // at most as many as there are keys
        let (engine, id) = (Arc::clone(&self.engine), id.to_owned());
        tokio::spawn(async move {
            let used = Value::Null;
            let written = engine
                .store()
                .put_document(USED, &id, &used, Expected::Any, None, now);
            if let Err(error) = written.await {
                tracing::warn!(key = id, %error, "the last use of a key was not written");
            }
        });
    }

    async fn fresh(&self, now: Timestamp) -> Result<Arc<BTreeMap<String, KeyInfo>>, StoreError> {
        if let Some(keys) = self.known(now) {
            return Ok(keys);
        }
        // One reads, those that come meanwhile take what it read.
        let _reading = self.reading.lock().await;
        if let Some(keys) = self.known(now) {
            return Ok(keys);
        }
        let changes = self.known_keys().changes;
        let mut keys = self.read().await?;
        if keys.is_empty() {
            // Keys that are damaged keep the server closed too.
            self.add_damaged(&mut keys).await?;
        }
        let keys = Arc::new(keys);
        let mut known = self.known_keys();
        let unreadable = keys.values().filter(|key| key.unreadable);
        let unreadable: BTreeSet<String> = unreadable.map(|key| key.id.clone()).collect();
        for key in unreadable.difference(&known.unreadable) {
            tracing::warn!(key, "a key cannot be read and opens nothing");
        }
        known.unreadable = unreadable;
        if known.changes == changes {
            known.keys = Some((now, Arc::clone(&keys)));
        }
        Ok(keys)
    }

    fn known(&self, now: Timestamp) -> Option<Arc<BTreeMap<String, KeyInfo>>> {
        let known = self.known_keys();
        let (at, keys) = known.keys.as_ref()?;
        let fresh = now.since(*at) < FRESH_FOR && at.since(now) < FRESH_FOR;
        fresh.then(|| Arc::clone(keys))
    }

    fn known_keys(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read(&self) -> Result<BTreeMap<String, KeyInfo>, StoreError> {
        let documents = self
            .engine
            .store()
            .documents(KEYS, self.engine.now())
            .await?;
        let keys = documents.iter().map(Stored::read);
        Ok(keys.map(|key| (key.id.clone(), key)).collect())
    }

    /// Adds keys whose documents the store names but cannot read.
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
        // What this node itself changed holds here at once.
        let mut known = self.known_keys();
        (known.keys, known.changes) = (None, known.changes + 1);
        Ok(written)
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys")
    }
}
