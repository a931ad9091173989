//! The keys in the store: one document each, found by its public id.
//!
//! A server keeps all of them in memory, read anew at most once a second: a request costs no read of the store, a key that
//! was revoked on any node is refused everywhere a second later, and a flood of unknown ids reaches no store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_core::{Invalid, Timestamp};
use windlass_engine::Engine;
use windlass_store::{Expected, StoreError, Written};

use super::key::{ApiKey, KeyHash};
use super::scope::{Scope, Scopes};

/// The collection of the keys.
pub const KEYS: &str = "api_keys";
/// The collection of when they were last used: apart, so that use never races with a change of the key.
const USED: &str = "api_keys_used";
/// So many keys at most. When there are as many, one that was revoked or has expired makes room for a new one.
pub const KEYS_MAX: usize = 10_000;
/// The longest name of a key.
const NAME_CHARS_MAX: usize = 100;
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
    pub(super) hash: KeyHash,
}

impl KeyInfo {
    /// Since when it opens nothing any more, if that is so.
    fn ended_at(&self, now: Timestamp) -> Option<Timestamp> {
        let expired_at = self.expires_at.filter(|at| *at <= now);
        self.revoked_at.into_iter().chain(expired_at).min()
    }
}

/// A key to be made.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// What people call it.
    pub name: String,
    /// What it may do.
    pub scopes: Scopes,
    /// From when on it is refused.
    pub expires_at: Option<Timestamp>,
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
    fn read(id: &str, value: &Value) -> Result<(KeyInfo, Self), StoreError> {
        let damaged = |cause: Option<serde_json::Error>| StoreError::Damaged {
            what: format!("key {id}"),
            cause: cause.map(Into::into),
        };
        let stored = Stored::deserialize(value).map_err(|error| damaged(Some(error)))?;
        let scopes = Scopes::from_names(&stored.scopes).map_err(|_| damaged(None))?;
        let info = KeyInfo {
            id: id.to_owned(),
            name: stored.name.clone(),
            scopes,
            created_at: stored.created_at,
            expires_at: stored.expires_at,
            revoked_at: stored.revoked_at,
            last_used_at: None,
            hash: KeyHash::from_hex(&stored.hash).ok_or_else(|| damaged(None))?,
        };
        Ok((info, stored))
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
        if all.is_empty() && !new.scopes.include(Scope::Admin) {
            let rule = "must have `admin` among them: it is the first key, and only an admin makes further ones";
            return Err(Invalid::new("scopes", rule).into());
        }
        self.make_room(&all, now).await?;
        let key = ApiKey::generate().map_err(KeyError::Random)?;
        let stored = Stored {
            name: new.name,
            scopes: new.scopes.names().into_iter().map(Into::into).collect(),
            hash: key.hash().to_hex(),
            created_at: now,
            expires_at: new.expires_at,
            revoked_at: None,
        };
        match self.write(key.id(), &stored, Expected::Absent, now).await? {
            Written::Version(_) => {}
            Written::Conflict(_) => return Err(KeyError::Taken),
        }
        let value = serde_json::to_value(&stored).unwrap_or_default();
        let (info, _) = Stored::read(key.id(), &value)?;
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
                .remove_document(collection, oldest, Expected::Anything)
                .await?;
        }
        Ok(())
    }

    /// All keys by age, with when they were last used.
    pub async fn list(&self) -> Result<Vec<KeyInfo>, StoreError> {
        let mut keys = self.read().await?;
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
        loop {
            let found = self.engine.store().document(KEYS, id, now).await?;
            let found = found.ok_or_else(|| KeyError::NotFound(id.to_owned()))?;
            let (mut info, mut stored) = Stored::read(id, &found.value)?;
            if info.revoked_at.is_some() {
                return Ok(info);
            }
            (stored.revoked_at, info.revoked_at) = (Some(now), Some(now));
            let expected = Expected::Version(found.version);
            if let Written::Version(_) = self.write(id, &stored, expected, now).await? {
                return Ok(info);
            }
        }
    }

    /// The key with this public id, as it was within the last second.
    pub(super) async fn find(
        &self,
        id: &str,
        now: Timestamp,
    ) -> Result<Option<KeyInfo>, StoreError> {
        Ok(self.fresh(now).await?.get(id).cloned())
    }

    /// Whether there is any key, revoked and expired ones included.
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
            let written =
                engine
                    .store()
                    .put_document(USED, &id, &used, Expected::Anything, None, now);
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
        let keys = Arc::new(self.read().await?);
        let mut known = self.known_keys();
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
        let mut keys = BTreeMap::new();
        for document in documents {
            let (info, _) = Stored::read(&document.name, &document.value)?;
            keys.insert(document.name, info);
        }
        Ok(keys)
    }

    async fn write(
        &self,
        id: &str,
        stored: &Stored,
        expected: Expected,
        now: Timestamp,
    ) -> Result<Written, StoreError> {
        let value = serde_json::to_value(stored).unwrap_or_default();
        let store = self.engine.store();
        let written = store
            .put_document(KEYS, id, &value, expected, None, now)
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

impl NewKey {
    /// Refuses what no key may be.
    pub(crate) fn check(&self, now: Timestamp) -> Result<(), Invalid> {
        check_name(&self.name)?;
        match self.expires_at {
            Some(at) if at <= now => Err(Invalid::new("expires_at", "must lie ahead")),
            _ => Ok(()),
        }
    }
}

fn check_name(name: &str) -> Result<(), Invalid> {
    let sized = !name.trim().is_empty() && name.chars().count() <= NAME_CHARS_MAX;
    if !sized || name.contains(char::is_control) {
        let rule = format!("must be 1 to {NAME_CHARS_MAX} characters, none of them a control one");
        return Err(Invalid::new("name", rule));
    }
    Ok(())
}
