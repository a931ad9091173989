//! Numbers for names: queues, kinds, workers and retry policies.
//!
//! Job rows hold a small number instead of a name or policy, which keeps rows short. The tables
//! `names` and `policies` map numbers to texts, and this module keeps both in memory.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use rusqlite::Connection;
use windlass_core::retry::RetryPolicy;
use windlass_core::{Kind, QueueName, WorkerName};

use crate::error::{DriverError, DriverResult};

/// The content of the tables `names` and `policies`.
#[derive(Debug, Default)]
pub(crate) struct Names {
    numbers: HashMap<Arc<str>, u32>,
    kinds: HashMap<u32, Kind>,
    queues: HashMap<u32, QueueName>,
    workers: HashMap<u32, WorkerName>,
    texts: HashMap<u32, Arc<str>>,
    policies: HashMap<i64, Arc<RetryPolicy>>,
    policy_numbers: HashMap<String, i64>,
    /// The policy of the last claim: most claims have the same one, so this saves making its JSON.
    last_policy: Option<(Arc<RetryPolicy>, i64)>,
}

impl Names {
    pub(crate) fn load(connection: &Connection) -> DriverResult<Self> {
        let mut names = Names::default();
        names.refresh(connection)?;
        Ok(names)
    }

    /// Reads both tables again, and so forgets numbers whose transaction was rolled back.
    pub(crate) fn refresh(&mut self, connection: &Connection) -> DriverResult<()> {
        let mut fresh = Names::default();
        let mut statement = connection.prepare_cached("select id, text from names")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            fresh.remember(row.get(0)?, row.get::<_, String>(1)?.into());
        }
        let mut statement = connection.prepare_cached("select id, json from policies")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let json: String = row.get(1)?;
            // A policy that only a newer version can read makes only its own jobs unreadable.
            if let Ok(policy) = serde_json::from_str(&json) {
                fresh.remember_policy(row.get(0)?, json, &Arc::new(policy));
            }
        }
        *self = fresh;
        Ok(())
    }

    /// Returns the number of a name. Assigns one if it has none.
    pub(crate) fn number(&mut self, connection: &Connection, text: &str) -> DriverResult<u32> {
        if let Some(number) = self.numbers.get(text) {
            return Ok(*number);
        }
        let mut statement = connection.prepare_cached("insert into names (text) values (?1)")?;
        let number = statement.insert([text])?;
        let number = u32::try_from(number).map_err(|_| DriverError::damaged("too many names"))?;
        self.remember(number, text.into());
        Ok(number)
    }

    /// Returns the number of a name, if it has one.
    pub(crate) fn known(&self, text: &str) -> Option<u32> {
        self.numbers.get(text).copied()
    }

    fn remember(&mut self, number: u32, text: Arc<str>) {
        self.numbers.insert(Arc::clone(&text), number);
        self.texts.insert(number, text);
    }

    pub(crate) fn kind(&mut self, number: u32) -> DriverResult<Kind> {
        typed(&self.texts, &mut self.kinds, number, Kind::new)
    }

    pub(crate) fn queue(&mut self, number: u32) -> DriverResult<QueueName> {
        typed(&self.texts, &mut self.queues, number, QueueName::new)
    }

    pub(crate) fn worker(&mut self, number: u32) -> DriverResult<WorkerName> {
        typed(&self.texts, &mut self.workers, number, WorkerName::new)
    }

    /// Returns the number of a policy. Assigns one if it has none.
    pub(crate) fn policy_number(
        &mut self,
        connection: &Connection,
        policy: &Arc<RetryPolicy>,
    ) -> DriverResult<i64> {
        if let Some((known, number)) = &self.last_policy
            && (Arc::ptr_eq(known, policy) || known == policy)
        {
            return Ok(*number);
        }
        let json = policy.to_json().to_string();
        let number = match self.policy_numbers.get(&json) {
            Some(number) => *number,
            None => {
                let mut statement =
                    connection.prepare_cached("insert into policies (json) values (?1)")?;
                let number = statement.insert([&json])?;
                self.remember_policy(number, json, policy);
                number
            }
        };
        self.last_policy = Some((Arc::clone(policy), number));
        Ok(number)
    }

    fn remember_policy(&mut self, number: i64, json: String, policy: &Arc<RetryPolicy>) {
        self.policy_numbers.insert(json, number);
        self.policies.insert(number, Arc::clone(policy));
    }

    /// Deletes all policies except those that running jobs use.
    pub(crate) fn keep_policies(
        &mut self,
        connection: &Connection,
        kept: &BTreeSet<i64>,
    ) -> DriverResult<()> {
        let mut statement = connection.prepare_cached("delete from policies where id = ?1")?;
        for number in self.policies.keys().filter(|number| !kept.contains(number)) {
            statement.execute([number])?;
        }
        self.policies.retain(|number, _| kept.contains(number));
        self.policy_numbers
            .retain(|_, number| kept.contains(number));
        self.last_policy = None;
        Ok(())
    }

    pub(crate) fn policy(&self, number: i64) -> DriverResult<Arc<RetryPolicy>> {
        let policy = self.policies.get(&number).cloned();
        policy.ok_or_else(|| DriverError::damaged(format!("retry policy {number} is unknown")))
    }
}

/// Returns the name with this number as its checked type, from `cache` if it was parsed before.
fn typed<T: Clone>(
    texts: &HashMap<u32, Arc<str>>,
    cache: &mut HashMap<u32, T>,
    number: u32,
    make: impl FnOnce(&str) -> Result<T, windlass_core::Invalid>,
) -> DriverResult<T> {
    if let Some(value) = cache.get(&number) {
        return Ok(value.clone());
    }
    let text = texts.get(&number);
    let text = text.ok_or_else(|| DriverError::damaged(format!("name {number} is missing")))?;
    let value =
        make(text).map_err(|error| DriverError::damaged(format!("name {number}: {error}")))?;
    cache.insert(number, value.clone());
    Ok(value)
}
