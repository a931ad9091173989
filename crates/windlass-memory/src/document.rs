//! Documents and records.

use std::ops::Bound;

use serde_json::Value;
use windlass_core::Timestamp;
use windlass_store::{Document, Expected, Record, RecordRange, Written};

use crate::state::State;

impl State {
    /// Writes a document and sets its version.
    pub(crate) fn put_document(
        &mut self,
        collection: &str,
        document: Document,
        expected: Expected,
    ) -> Written {
        let now = document.updated_at;
        let existing = self.document(collection, &document.name, now);
        let existing = existing.map(|document| document.version);
        if !expected.allows(existing) {
            return Written::Conflict(existing);
        }
        let version = existing.unwrap_or(0) + 1;
        let key = (collection.to_owned(), document.name.clone());
        self.drop_document(&key);
        if let Some(expires_at) = document.expires_at {
            self.expiring.insert((expires_at, key.clone()));
        }
        self.documents.insert(
            key,
            Document {
                version,
                ..document
            },
        );
        Written::Version(version)
    }

    fn drop_document(&mut self, key: &(String, String)) {
        let removed = self.documents.remove(key);
        if let Some(expires_at) = removed.and_then(|document| document.expires_at) {
            self.expiring.remove(&(expires_at, key.clone()));
        }
    }

    pub(crate) fn document(
        &self,
        collection: &str,
        name: &str,
        now: Timestamp,
    ) -> Option<&Document> {
        let key = (collection.to_owned(), name.to_owned());
        let document = self.documents.get(&key);
        document.filter(|document| !document.has_expired(now))
    }

    pub(crate) fn documents(&self, collection: &str, now: Timestamp) -> Vec<Document> {
        self.documents_after(collection, "", now).cloned().collect()
    }

    pub(crate) fn document_names(
        &self,
        collection: &str,
        after: &str,
        limit: usize,
        now: Timestamp,
    ) -> Vec<String> {
        let names = self.documents_after(collection, after, now);
        names
            .map(|document| document.name.clone())
            .take(limit)
            .collect()
    }

    /// The unexpired documents of a collection whose name sorts after `after`.
    fn documents_after(
        &self,
        collection: &str,
        after: &str,
        now: Timestamp,
    ) -> impl Iterator<Item = &Document> {
        let from = (collection.to_owned(), after.to_owned());
        let from = match after {
            "" => Bound::Included(from),
            _ => Bound::Excluded(from),
        };
        self.documents
            .range((from, Bound::Unbounded))
            .take_while(move |((document_collection, _), _)| document_collection == collection)
            .map(|(_, document)| document)
            .filter(move |document| !document.has_expired(now))
    }

    pub(crate) fn remove_expired(&mut self, limit: usize, now: Timestamp) -> usize {
        let expired = self.expiring.iter().take_while(|(at, _)| *at <= now);
        let expired: Vec<_> = expired.take(limit).map(|(_, key)| key.clone()).collect();
        for key in &expired {
            self.drop_document(key);
        }
        expired.len()
    }

    pub(crate) fn remove_document(
        &mut self,
        collection: &str,
        name: &str,
        expected: Expected,
    ) -> Written {
        let key = (collection.to_owned(), name.to_owned());
        let existing = self.documents.get(&key).map(|document| document.version);
        match existing {
            Some(version) if expected.allows(existing) => {
                self.drop_document(&key);
                Written::Version(version)
            }
            _ => Written::Conflict(existing),
        }
    }

    pub(crate) fn append(&mut self, topic: &str, values: &[Value], now: Timestamp) {
        for value in values {
            self.last_cursor += 1;
            let record = Record {
                cursor: self.last_cursor,
                at: now,
                value: value.clone(),
            };
            self.records
                .insert((topic.to_owned(), self.last_cursor), record);
        }
    }

    pub(crate) fn records(&self, topic: &str, range: RecordRange, limit: usize) -> Vec<Record> {
        let key = |cursor| (topic.to_owned(), cursor);
        let copy = |(_, record): (_, &Record)| record.clone();
        match range {
            RecordRange::After(after) => {
                let newer = (Bound::Excluded(key(after)), Bound::Included(key(u64::MAX)));
                self.records.range(newer).take(limit).map(copy).collect()
            }
            RecordRange::Before(before) => {
                let older = self.records.range(key(0)..key(before)).rev();
                older.take(limit).map(copy).collect()
            }
        }
    }

    pub(crate) fn trim(&mut self, topic: &str, before: Timestamp, limit: usize) -> usize {
        let from = (topic.to_owned(), 0);
        let rows = self
            .records
            .range(from..)
            .take_while(|((record_topic, _), _)| record_topic == topic);
        let old = rows
            .take_while(|(_, record)| record.at < before)
            .take(limit);
        let old: Vec<(String, u64)> = old.map(|(key, _)| key.clone()).collect();
        for key in &old {
            self.records.remove(key);
        }
        old.len()
    }
}
