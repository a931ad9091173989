//! Retry settings of claims, stored once and referenced by number.
//!
//! A claim brings the retry policies and caps of its worker. The node that settles the job, perhaps
//! another one, must decide with the same settings. Writing them to each claimed job would be
//! expensive, so the table `settings` stores each distinct value once, and the job row has its id.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use windlass_core::Kind;
use windlass_core::retry::{AttemptLimit, Cap, RetryPolicy, WorkerRetry};
use windlass_store::ClaimRetry;

use crate::error::{DriverError, DriverResult};
use crate::lock;
use crate::param::params;
use crate::session::Session;

/// The settings that this node has already read or written.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    cache: Mutex<SettingsCache>,
}

/// Settings by number; an error says why this version cannot read them.
pub(crate) type SettingsById = HashMap<i32, Result<Arc<ClaimRetry>, String>>;

#[derive(Debug, Default)]
struct SettingsCache {
    numbers: HashMap<String, i32>,
    settings: HashMap<i32, Arc<ClaimRetry>>,
}

/// Settings as JSON in the table.
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
    /// Returns the number of a claim's settings. Stores them if they are new.
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
        // In a transaction of its own: if the claim fails, an unused row does no harm.
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

    /// Returns the settings with these numbers, or why they cannot be read. Leaves out numbers that
    /// do not exist.
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
        lock(&self.cache)
    }
}

fn to_json(retry: &ClaimRetry) -> String {
    let kinds = retry.kinds.iter();
    let stored = StoredSettings {
        worker: retry.worker.policy.as_deref().cloned(),
        cap: match retry.worker.cap {
            Cap::FromPolicy => StoredCap::OfPolicy,
            Cap::AtMost(limit) => StoredCap::At(limit.get()),
            Cap::Unlimited => StoredCap::Unlimited,
        },
        kinds: kinds
            .map(|(kind, policy)| (kind.clone(), (**policy).clone()))
            .collect(),
        queue: retry.queue.as_deref().cloned(),
    };
    serde_json::to_string(&stored).expect("settings serialize to JSON")
}

fn from_json(json: &str) -> Result<ClaimRetry, String> {
    let stored: StoredSettings = serde_json::from_str(json)
        .map_err(|error| format!("the retry settings of its claim: {error}"))?;
    let cap = match stored.cap {
        StoredCap::OfPolicy => Cap::FromPolicy,
        StoredCap::Unlimited => Cap::Unlimited,
        StoredCap::At(limit) => AttemptLimit::from_max_attempts(limit.into())
            .ok()
            .flatten()
            .map(Cap::AtMost)
            .ok_or("the retry cap of its claim is not valid")?,
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
