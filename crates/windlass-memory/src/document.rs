//! Documents and records.

use std::ops::Bound;

use serde_json::Value;
use windlass_core::Timestamp;
use windlass_store::{Document, Expected, Record, RecordRange, Written};

use crate::state::State;

impl State {
    /// Writes a document; its version is set here.
    pub(crate) fn put_document(
        &mut self,
        collection: &str,
        document: Document,
        expected: Expected,
    ) -> Written {
        let now = document.updated_at;
        let found = self.document(collection, &document.name, now);
        let found = found.map(|document| document.version);
        if !expected.allows(found) {
            return Written::Conflict(found);
        }
        let version = found.unwrap_or(0) + 1;
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
        let gone = self.documents.remove(key);
        if let Some(expires_at) = gone.and_then(|document| document.expires_at) {
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
        let found = self.documents.get(&key);
        found.filter(|document| !document.has_expired(now))
    }

    pub(crate) fn documents(&self, collection: &str, now: Timestamp) -> Vec<Document> {
        self.behind(collection, "", now).cloned().collect()
    }

    pub(crate) fn document_names(
        &self,
        collection: &str,
        after: &str,
        limit: usize,
        now: Timestamp,
    ) -> Vec<String> {
        let names = self.behind(collection, after, now);
        names
            .map(|document| document.name.clone())
            .take(limit)
            .collect()
    }

    /// The documents of a collection behind a name.
    fn behind(
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
            .take_while(move |((of, _), _)| of == collection)
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
        let found = self.documents.get(&key).map(|document| document.version);
        match found {
            Some(version) if expected.allows(found) => {
                self.drop_document(&key);
                Written::Version(version)
            }
            _ => Written::Conflict(found),
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
        let place = |cursor| (topic.to_owned(), cursor);
        let copy = |(_, record): (_, &Record)| record.clone();
        match range {
            RecordRange::After(after) => {
                let behind = (
                    Bound::Excluded(place(after)),
                    Bound::Included(place(u64::MAX)),
                );
                self.records.range(behind).take(limit).map(copy).collect()
            }
            RecordRange::Before(before) => {
                let ahead = self.records.range(place(0)..place(before)).rev();
                ahead.take(limit).map(copy).collect()
            }
        }
    }

    pub(crate) fn trim(&mut self, topic: &str, before: Timestamp, limit: usize) -> usize {
        let from = (topic.to_owned(), 0);
        let rows = self
            .records
            .range(from..)
            .take_while(|((of, _), _)| of == topic);
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
