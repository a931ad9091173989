//! What claims said about retrying, as small numbers: a running job points at it, and whoever settles it decides the same.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use windlass_core::Kind;
use windlass_core::retry::{AttemptLimit, Cap, RetryPolicy, WorkerRetry};
use windlass_store::ClaimRetry;

use crate::error::{Fault, Step};
use crate::param::params;
use crate::session::Session;

/// The settings that this node has seen.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    seen: Mutex<Seen>,
}

/// Settings by number, or why they cannot be read.
pub(crate) type Known = HashMap<i32, Result<Arc<ClaimRetry>, String>>;

#[derive(Debug, Default)]
struct Seen {
    numbers: HashMap<String, i32>,
    settings: HashMap<i32, Arc<ClaimRetry>>,
}

/// The same as JSON.
#[derive(Serialize, Deserialize)]
struct Kept {
    worker: Option<RetryPolicy>,
    cap: KeptCap,
    kinds: BTreeMap<Kind, RetryPolicy>,
    queue: Option<RetryPolicy>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KeptCap {
    OfPolicy,
    At(u32),
    Unlimited,
}

impl Settings {
    /// The number of what a claim says, which is given one if it has none.
    pub(crate) async fn number(&self, session: &mut Session, retry: &ClaimRetry) -> Step<i32> {
        let json = to_json(retry);
        let known = self.seen().numbers.get(&json).copied();
        if let Some(number) = known {
            return Ok(number);
        }
        // Outside of any transaction: a number that nobody uses does no harm.
        let rows = session
            .aside(include_str!("../sql/insert_settings.sql"), params![json])
            .await?;
        let number: i32 = rows
            .first()
            .map(|row| row.get(0))
            .ok_or_else(|| Fault::damaged("settings were not kept"))?;
        self.remember(number, json, Arc::new(retry.clone()));
        Ok(number)
    }

    /// The settings with these numbers, as far as there are any, or why they cannot be read.
    pub(crate) async fn get(
        &self,
        session: &mut Session,
        numbers: impl Iterator<Item = i32>,
    ) -> Step<Known> {
        let mut found = HashMap::new();
        let mut missing = Vec::new();
        for number in numbers {
            match self.seen().settings.get(&number) {
                Some(settings) => drop(found.insert(number, Ok(Arc::clone(settings)))),
                None => missing.push(number),
            }
        }
        if missing.is_empty() {
            return Ok(found);
        }
        let sql = "select id, json from windlass.settings where id = any($1)";
        for row in session.look(sql, params![missing]).await? {
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
        let mut seen = self.seen();
        seen.numbers.insert(json, number);
        seen.settings.insert(number, settings);
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn to_json(retry: &ClaimRetry) -> String {
    let kinds = retry.kinds.iter();
    let kept = Kept {
        worker: retry.worker.policy.as_deref().cloned(),
        cap: match retry.worker.cap {
            Cap::OfPolicy => KeptCap::OfPolicy,
            Cap::At(limit) => KeptCap::At(limit.get()),
            Cap::Unlimited => KeptCap::Unlimited,
        },
        kinds: kinds
            .map(|(kind, policy)| (kind.clone(), (**policy).clone()))
            .collect(),
        queue: retry.queue.as_deref().cloned(),
    };
    serde_json::to_string(&kept).expect("settings are plain JSON")
}

fn from_json(json: &str) -> Result<ClaimRetry, String> {
    let kept: Kept = serde_json::from_str(json)
        .map_err(|error| format!("the settings of its claim: {error}"))?;
    let cap = match kept.cap {
        KeptCap::OfPolicy => Cap::OfPolicy,
        KeptCap::Unlimited => Cap::Unlimited,
        KeptCap::At(limit) => AttemptLimit::from_max_attempts(limit.into())
            .ok()
            .flatten()
            .map(Cap::At)
            .ok_or("the cap of its claim")?,
    };
    let worker = WorkerRetry {
        policy: kept.worker.map(Arc::new),
        cap,
    };
    let kinds = kept.kinds.into_iter();
    Ok(ClaimRetry {
        worker,
        kinds: kinds
            .map(|(kind, policy)| (kind, Arc::new(policy)))
            .collect(),
        queue: kept.queue.map(Arc::new),
    })
}
