//! Schedules that a program declares: created, changed and removed with the program.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use windlass_store::{Document, Expected};

use super::until_written;
use crate::client::Client;
use crate::error::Error;
use crate::schedule::Schedule;

/// The collection of documents that record which schedules each set declares.
const SETS: &str = "schedule-sets";

impl Client {
    /// Brings the schedules of some sets in line with what the program declares.
    ///
    /// Creates and changes schedules by name, and removes those that one of these sets declared
    /// before and that no set declares now.
    pub(crate) async fn declare(&self, sets: &[(String, Vec<Schedule>)]) -> Result<(), Error> {
        let store = self.engine.store();
        let before = store.documents(SETS, self.now()).await?;
        let mut declared: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for (set, schedules) in sets {
            let names = declared.entry(set).or_default();
            for schedule in schedules {
                self.declare_one(schedule).await?;
                names.extend(schedule.name().map(ToString::to_string));
            }
        }
        let is_declared = |set: &&Document| declared.contains_key(set.name.as_str());
        let (own_sets, other_sets): (Vec<_>, Vec<_>) = before.iter().partition(is_declared);
        let mut kept: BTreeSet<&str> = other_sets.into_iter().flat_map(names_in).collect();
        kept.extend(declared.values().flatten().map(String::as_str));
        for name in own_sets.into_iter().flat_map(names_in) {
            if !kept.contains(name) {
                self.remove_schedule(name).await?;
            }
        }
        for (set, names) in &declared {
            let value = json!(names);
            let stored = before.iter().find(|document| document.name == *set);
            if stored.is_none_or(|document| document.value != value) {
                store
                    .put_document(SETS, set, &value, Expected::Any, None, self.now())
                    .await?;
            }
        }
        Ok(())
    }

    /// Creates or changes one declared schedule.
    ///
    /// Code may still declare a schedule that has ended: it is not created, and an existing one ends.
    async fn declare_one(&self, schedule: &Schedule) -> Result<(), Error> {
        if !schedule.has_ended(self.now()) {
            self.put_schedule(schedule).await?;
            return Ok(());
        }
        let Some(name) = schedule.name() else {
            return Ok(());
        };
        until_written(name, || async {
            let found = self.find(name).await?;
            let Some(mut found) = found.filter(|found| found.next_at.is_some()) else {
                return Ok(());
            };
            let expected = Expected::Version(found.version);
            found.next_at = None;
            self.write(found, expected).await.map(|_| ())
        })
        .await
    }
}

/// Returns the names of the schedules that a set declares.
fn names_in(set: &Document) -> impl Iterator<Item = &str> {
    let names = set.value.as_array();
    names.into_iter().flatten().filter_map(Value::as_str)
}
