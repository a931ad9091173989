//! What claims said about retrying, as small numbers: a running job points at it, and whoever settles it decides the same.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use windlass_core::Kind;
use windlass_core::retry::{AttemptLimit, Cap, RetryPolicy, WorkerRetry};
use windlass_store::ClaimRetry;

use crate::error::{DriverError, DriverResult};
use crate::param::params;
use crate::session::Session;

/// The settings that this node has cache.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    cache: Mutex<SettingsCache>,
}

/// Settings by number, or why they cannot be read.
pub(crate) type SettingsById = HashMap<i32, Result<Arc<ClaimRetry>, String>>;

#[derive(Debug, Default)]
struct SettingsCache {
    numbers: HashMap<String, i32>,
    settings: HashMap<i32, Arc<ClaimRetry>>,
}

/// The same as JSON.
#[derive(Serialize, Deserialize)]
struct StoredSettings {
    worker: Option<RetryPolicy>,
    cap: StoredCap,
    kinds: BTreeMap<Kind, RetryPolicy>,
    queue: Option<RetryPolicy>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredCap {
    OfPolicy,
    At(u32),
    Unlimited,
}

impl Settings {
    /// The number of what a claim says, which is given one if it has none.
    pub(crate) async fn number(
        &self,
        session: &mut Session,
        retry: &ClaimRetry,
    ) -> DriverResult<i32> {
        let json = to_json(retry);
        let known = self.cache().numbers.get(&json).copied();
        if let Some(number) = known {
            return Ok(number);
        }
        // Outside of any transaction: a number that nobody uses does no harm.
        let rows = session
            .before_transaction(include_str!("../sql/insert_settings.sql"), params![json])
            .await?;
        let number: i32 = rows
            .first()
            .map(|row| row.get(0))
            .ok_or_else(|| DriverError::damaged("settings were not stored"))?;
        self.remember(number, json, Arc::new(retry.clone()));
        Ok(number)
    }

    /// The settings with these numbers, as far as there are any, or why they cannot be read.
    pub(crate) async fn get(
        &self,
        session: &mut Session,
        numbers: impl Iterator<Item = i32>,
    ) -> DriverResult<SettingsById> {
        let mut found = HashMap::new();
        let mut missing = Vec::new();
        for number in numbers {
            match self.cache().settings.get(&number) {
                Some(settings) => drop(found.insert(number, Ok(Arc::clone(settings)))),
                None => missing.push(number),
            }
        }
        if missing.is_empty() {
            return Ok(found);
        }
        let sql = "select id, json from windlass.settings where id = any($1)";
        for row in session.read(sql, params![missing]).await? {
            let (number, json): (i32, String) = (row.get(0), row.get(1));
            let settings = from_json(&json).map(Arc::new);
            if let Ok(settings) = &settings {
                self.remember(number, json, Arc::clone(settings));
            }
            found.insert(number, settings);
        }
        Ok(found)
    }

    fn remember(&self, number: i32, json: String, settings: Arc<ClaimRetry>) {
        let mut cache = self.cache();
        cache.numbers.insert(json, number);
        cache.settings.insert(number, settings);
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, SettingsCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn to_json(retry: &ClaimRetry) -> String {
    let kinds = retry.kinds.iter();
    let stored = StoredSettings {
        worker: retry.worker.policy.as_deref().cloned(),
        cap: match retry.worker.cap {
            Cap::OfPolicy => StoredCap::OfPolicy,
            Cap::At(limit) => StoredCap::At(limit.get()),
            Cap::Unlimited => StoredCap::Unlimited,
        },
        kinds: kinds
            .map(|(kind, policy)| (kind.clone(), (**policy).clone()))
            .collect(),
        queue: retry.queue.as_deref().cloned(),
    };
    serde_json::to_string(&stored).expect("settings are plain JSON")
}

fn from_json(json: &str) -> Result<ClaimRetry, String> {
    let stored: StoredSettings = serde_json::from_str(json)
        .map_err(|error| format!("the settings of its claim: {error}"))?;
    let cap = match stored.cap {
        StoredCap::OfPolicy => Cap::OfPolicy,
        StoredCap::Unlimited => Cap::Unlimited,
        StoredCap::At(limit) => AttemptLimit::from_max_attempts(limit.into())
            .ok()
            .flatten()
            .map(Cap::At)
            .ok_or("the cap of its claim")?,
    };
    let worker = WorkerRetry {
        policy: stored.worker.map(Arc::new),
        cap,
    };
    let kinds = stored.kinds.into_iter();
    Ok(ClaimRetry {
        worker,
        kinds: kinds
            .map(|(kind, policy)| (kind, Arc::new(policy)))
            .collect(),
        queue: stored.queue.map(Arc::new),
    })
}
