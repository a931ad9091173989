//! Documents and records.

use std::ops::Bound;

use serde_json::Value;
use windlass_core::Timestamp;
use windlass_store::{Document, Expected, PAGE_MAX, RECORDS_MAX, Record, Written};

use crate::state::State;

impl State {
    pub(crate) fn put_document(
        &mut self,
        collection: &str,
        name: &str,
        value: &Value,
        expected: Expected,
        now: Timestamp,
    ) -> Written {
        let found = self
            .document(collection, name)
            .map(|document| document.version);
        if !expected.allows(found) {
            return Written::Conflict(found);
        }
        let document = Document {
            name: name.to_owned(),
            version: found.unwrap_or(0) + 1,
            value: value.clone(),
            updated_at: now,
        };
        let version = document.version;
        self.documents
            .insert((collection.to_owned(), name.to_owned()), document);
        Written::Version(version)
    }

    pub(crate) fn document(&self, collection: &str, name: &str) -> Option<Document> {
        self.documents
            .get(&(collection.to_owned(), name.to_owned()))
            .cloned()
    }

    pub(crate) fn documents(&self, collection: &str) -> Vec<Document> {
        let from = (collection.to_owned(), String::new());
        let documents = self
            .documents
            .range(from..)
            .take_while(|((of, _), _)| of == collection);
        documents.map(|(_, document)| document.clone()).collect()
    }

    pub(crate) fn document_names(
        &self,
        collection: &str,
        after: &str,
        limit: usize,
    ) -> Vec<String> {
        let from = Bound::Excluded((collection.to_owned(), after.to_owned()));
        let behind = self.documents.range((from, Bound::Unbounded));
        let names = behind.take_while(|((of, _), _)| of == collection);
        names
            .map(|((_, name), _)| name.clone())
            .take(limit.min(PAGE_MAX))
            .collect()
    }

    pub(crate) fn remove_document(
        &mut self,
        collection: &str,
        name: &str,
        expected: Expected,
    ) -> Written {
        let found = self
            .document(collection, name)
            .map(|document| document.version);
        match found {
            Some(version) if expected.allows(found) => {
                self.documents
                    .remove(&(collection.to_owned(), name.to_owned()));
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

    pub(crate) fn records(&self, topic: &str, after: u64, limit: usize) -> Vec<Record> {
        let from = Bound::Excluded((topic.to_owned(), after));
        let rows = self
            .records
            .range((from, Bound::Unbounded))
            .take_while(|((of, _), _)| of == topic);
        rows.map(|(_, record)| record.clone())
            .take(limit.min(RECORDS_MAX))
            .collect()
    }

    pub(crate) fn newest_records(
        &self,
        topic: &str,
        before: Option<u64>,
        limit: usize,
    ) -> Vec<Record> {
        let until = (topic.to_owned(), before.unwrap_or(u64::MAX));
        let rows = self.records.range((topic.to_owned(), 0)..until);
        rows.rev()
            .map(|(_, record)| record.clone())
            .take(limit.min(RECORDS_MAX))
            .collect()
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
