//! What clients, workers and the HTTP target saw, in files that no store knows about.
//!
//! Each record is one line, and one write in append mode: a process that is killed leaves whole
//! lines, and the order of the lines is the order in which things happened.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use windlass_core::{JobId, Key, Outcome, Timestamp};

use super::error::{CrashTestError, During as _};

/// One line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    /// When it happened.
    pub(super) at: Timestamp,
    /// The process that saw it. Every start of a process has another name.
    pub(super) by: String,
    pub(super) what: What,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum What {
    /// A client is about to send jobs.
    Submitted {
        /// The number of the call in its process.
        call: u64,
        all_or_none: bool,
        jobs: Vec<Submission>,
    },
    /// The answer. `None` if the client does not know whether the jobs are stored.
    Answered {
        call: u64,
        answers: Option<Vec<Answer>>,
    },
    /// A handler got a job.
    Started {
        job: JobId,
        attempt: u32,
        payload: u64,
    },
    /// A handler did its work.
    Effect { job: JobId, attempt: u32 },
    /// A handler returned.
    Returned { job: JobId, attempt: u32 },
    /// The store or the server confirmed the end of an attempt.
    Acknowledged {
        job: JobId,
        attempt: u32,
        outcome: Outcome,
    },
}

/// A job that a client sends.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Submission {
    /// The part of the payload by which it is found in the store.
    pub(super) tag: String,
    /// The digest of the payload.
    pub(super) payload: u64,
    pub(super) at_most_once: bool,
    pub(super) unique_key: Option<Key>,
}

/// The answer about one job.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Created(JobId),
    Duplicate(JobId),
    Refused,
}

/// The end of a log file to which one process appends.
#[derive(Debug)]
pub(super) struct Log {
    file: File,
    by: String,
}

impl Log {
    pub(super) fn open(path: &Path, by: &str) -> Result<Self, CrashTestError> {
        let file = OpenOptions::new().append(true).create(true).open(path);
        Ok(Log {
            file: file.during("open the log of effects")?,
            by: by.to_owned(),
        })
    }

    /// Returns the log of one attempt of a remote worker, with a name of its own.
    ///
    /// If such a worker was paused, the lease of an attempt that it still runs may be lost, and it may
    /// get the next attempt of that job.
    pub(super) fn of_attempt(&self, job: JobId, attempt: u32) -> Result<Self, CrashTestError> {
        Ok(Log {
            file: self.file.try_clone().during("open the log of effects")?,
            by: format!("{}.{job}.{attempt}", self.by),
        })
    }

    /// Appends a record. When this returns, the record survives the end of the process.
    pub(super) fn write(&self, what: What) -> Result<(), CrashTestError> {
        self.write_as(&self.by, what)
    }

    /// Appends a record of another name.
    pub(super) fn write_as(&self, by: &str, what: What) -> Result<(), CrashTestError> {
        let record = Record {
            at: super::now(),
            by: by.to_owned(),
            what,
        };
        let line = serde_json::to_string(&record).during("write a record")? + "\n";
        let mut file = &self.file;
        file.write_all(line.as_bytes())
            .during("write to the log of effects")
    }
}

/// Reads all records.
pub(super) fn read(path: &Path) -> Result<Vec<Record>, CrashTestError> {
    let text = std::fs::read_to_string(path).during("read the log of effects")?;
    let parse = |line| serde_json::from_str(line).during("parse the log of effects");
    text.lines().map(parse).collect()
}
