//! Exports of jobs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::read::request;
use crate::{Count, Job, plain_body};

request! {
    /// How an export is written.
    pub struct ExportParams {
        /// `ndjson` writes a JSON object for each job on a line of its own, `csv` a table. Default:
        /// `ndjson`.
        pub format: ExportFormat,
    }
}

plain_body!(ExportParams);

/// The format of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum ExportFormat {
    /// A JSON object for each job, each on its own line.
    #[default]
    Ndjson,
    /// A table with a header.
    Csv,
}

/// A line of an export as NDJSON.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ExportLine {
    /// The last line.
    End(ExportEnd),
    /// A job.
    Job(Box<Job>),
}

/// The last line of an export as NDJSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExportEnd {
    /// What was exported.
    pub export: ExportSummary,
}

/// What was exported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExportSummary {
    /// Always true: an export that is not complete does not have this line.
    pub complete: bool,
    /// The number of exported jobs.
    pub jobs: Count,
}
