//! A sorted map that can undo its changes since the last commit.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

#[derive(Debug)]
pub(crate) struct UndoMap<K, V> {
    values: BTreeMap<K, V>,
    /// The values that changed since the last commit, as they were before.
    before: BTreeMap<K, Option<V>>,
}

impl<K, V> Default for UndoMap<K, V> {
    fn default() -> Self {
        UndoMap {
            values: BTreeMap::new(),
            before: BTreeMap::new(),
        }
    }
}

impl<K: Ord + Clone, V: Clone> UndoMap<K, V> {
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.values.get(key)
    }

    pub(crate) fn range(&self, range: impl RangeBounds<K>) -> impl Iterator<Item = (&K, &V)> {
        self.values.range(range)
    }

    /// Returns a value to change. Inserts `default` if there is none.
    pub(crate) fn change(&mut self, key: &K, default: impl FnOnce() -> V) -> &mut V {
        self.remember(key);
        self.values.entry(key.clone()).or_insert_with(default)
    }

    pub(crate) fn remove(&mut self, key: &K) {
        self.remember(key);
        self.values.remove(key);
    }

    fn remember(&mut self, key: &K) {
        if !self.before.contains_key(key) {
            let value = self.values.get(key).cloned();
            self.before.insert(key.clone(), value);
        }
    }

    /// Returns what changed since the last commit; `None` stands for a removed value.
    pub(crate) fn changed(&self) -> impl Iterator<Item = (&K, Option<&V>)> {
        self.before.keys().map(|key| (key, self.values.get(key)))
    }

    /// Keeps all changes.
    pub(crate) fn commit(&mut self) {
        self.before.clear();
    }

    /// Undoes all changes since the last commit.
    pub(crate) fn roll_back(&mut self) {
        while let Some((key, value)) = self.before.pop_first() {
            match value {
                Some(value) => drop(self.values.insert(key, value)),
                None => drop(self.values.remove(&key)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollback_restores_the_values_of_the_last_commit() {
        let mut map = UndoMap::default();
        *map.change(&"a", || 0) += 1;
        *map.change(&"b", || 0) += 2;
        map.commit();
        *map.change(&"a", || 0) += 10;
        *map.change(&"a", || 0) += 10;
        map.remove(&"b");
        *map.change(&"c", || 0) += 3;
        let changed: Vec<_> = map.changed().collect();
        assert_eq!(changed, [(&"a", Some(&21)), (&"b", None), (&"c", Some(&3))]);
        map.roll_back();
        let values: Vec<_> = map.range(..).collect();
        assert_eq!(values, [(&"a", &1), (&"b", &2)]);
        assert_eq!(map.changed().count(), 0);
    }
}
