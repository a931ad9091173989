//! Exports all jobs that match a filter, as a stream.
//!
//! The stream reads one page of jobs after the other, when the client has taken the previous one. It
//! holds at most one page in memory, and ends when the client disconnects. If it cannot be completed,
//! the server breaks the connection instead of ending the response, so that no client takes a part for
//! the whole.

mod csv;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::http::header::CONTENT_DISPOSITION;
use futures_util::{StreamExt as _, stream};
use tracing::warn;
use windlass_api::{
    Content, ExportEnd, ExportFormat, ExportLine, ExportParams, ExportSummary, Job, JobFilter,
};
use windlass_core::{Filter, Timestamp};
use windlass_store::{ListCursor, PAGE_MAX, Page};

use super::list::allow;
use crate::access::Scope;
use crate::answer::Answer;
use crate::call::Call;
use crate::endpoint::{Params, RawReply};
use crate::permits::Permit;
use crate::problem::Problem;

pub(super) async fn export(
    call: Call,
    Params(filter): Params<JobFilter>,
    Params(params): Params<ExportParams>,
) -> Result<RawReply<ExportLine>, Problem> {
    allow(&call, &filter)?;
    let permit = call.app.exporting.take(&call.caller)?;
    let format = params.format.unwrap_or_default();
    let name = file_name(format, call.now);
    let mut export = Export {
        call,
        filter,
        format,
        jobs: 0,
        next: Next::Jobs(None),
        _permit: permit,
    };
    // Until the first page is read, a failure is an ordinary response.
    let mut first = Vec::from(export.header());
    first.extend(export.page(None).await?);
    let parts = stream::unfold(export, |mut export| async move {
        let part = export.part().await?;
        Some((part, export))
    });
    let parts = stream::iter([Ok(Bytes::from(first))]).chain(parts);
    // hyper would take an empty part for the end.
    let parts = parts.filter(|part| {
        let is_empty = part.as_ref().is_ok_and(Bytes::is_empty);
        std::future::ready(!is_empty)
    });
    let content_type = match format {
        ExportFormat::Ndjson => "application/x-ndjson",
        ExportFormat::Csv => "text/csv; charset=utf-8",
    };
    let disposition = format!("attachment; filename=\"{name}\"");
    let answer = Answer::other(content_type, Body::from_stream(parts));
    Ok(answer.header(CONTENT_DISPOSITION, &disposition).into())
}

/// The name under which a browser stores the export. It has no text from outside.
fn file_name(format: ExportFormat, now: Timestamp) -> String {
    let now = now.to_string();
    let seconds = now.get(..19).unwrap_or(&now);
    let digits = seconds.chars().filter(char::is_ascii_alphanumeric);
    let digits: String = digits.collect();
    match format {
        ExportFormat::Ndjson => format!("jobs-{digits}Z.ndjson"),
        ExportFormat::Csv => format!("jobs-{digits}Z.csv"),
    }
}

struct Export {
    call: Call,
    filter: Filter,
    format: ExportFormat,
    /// How many jobs were written.
    jobs: u64,
    next: Next,
    _permit: Permit,
}

/// What the export does next.
enum Next {
    /// It writes the jobs behind this position.
    Jobs(Option<ListCursor>),
    /// It says that it is complete.
    End,
    /// It has ended.
    Nothing,
}

/// Why the body of a response is broken off.
#[derive(Debug, thiserror::Error)]
#[error("the export is not complete")]
struct Incomplete;

impl Export {
    /// Returns the next part of the body; `None` at its end.
    async fn part(&mut self) -> Option<Result<Bytes, Incomplete>> {
        match self.next {
            Next::Jobs(after) => Some(match self.page(after).await {
                Ok(text) => Ok(text.into()),
                Err(problem) => {
                    self.next = Next::Nothing;
                    let error = problem.into_json().detail;
                    warn!(error, jobs = self.jobs, "export broken off");
                    Err(Incomplete)
                }
            }),
            Next::End => {
                self.next = Next::Nothing;
                Some(Ok(self.end().into()))
            }
            Next::Nothing => None,
        }
    }

    /// Reads the jobs behind a position and writes them. May find none although more follow.
    async fn page(&mut self, after: Option<ListCursor>) -> Result<Vec<u8>, Problem> {
        let content = self.call.content();
        let scope = match content {
            Content::Withheld => Scope::Read,
            _ => Scope::ReadPayload,
        };
        self.call.recheck(scope).await?;
        if self.call.app.stopping.is_cancelled() {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            let detail = "the server stops; repeat the export at another server";
            return Err(Problem::new(status, "busy", detail));
        }
        let page = Page {
            after,
            ..Page::first(PAGE_MAX)
        };
        let found = self.call.app.client.search(&self.filter, page).await?;
        self.next = match found.next {
            Some(next) => Next::Jobs(Some(next)),
            None => Next::End,
        };
        let mut text = Vec::new();
        for job in found.jobs {
            let job = Job::new(job, found.at, content);
            match self.format {
                ExportFormat::Csv => csv::write_job(&job, &mut text),
                ExportFormat::Ndjson => write_line(&job, &mut text)?,
            }
            self.jobs += 1;
        }
        Ok(text)
    }

    fn header(&self) -> String {
        match self.format {
            ExportFormat::Csv => csv::header(),
            ExportFormat::Ndjson => String::new(),
        }
    }

    /// The last line. A table has none: every row is a job.
    fn end(&self) -> Vec<u8> {
        let mut text = Vec::new();
        if self.format == ExportFormat::Ndjson {
            let export = ExportSummary {
                complete: true,
                jobs: self.jobs,
            };
            // Plain data can always be written.
            let _ = write_line(&ExportEnd { export }, &mut text);
        }
        text
    }
}

fn write_line(value: &impl serde::Serialize, text: &mut Vec<u8>) -> Result<(), Problem> {
    let start = text.len();
    serde_json::to_writer(&mut *text, value).map_err(|error| Problem::internal(&error))?;
    // A payload keeps the line breaks that its client sent. In JSON they are only white space: in a
    // string they are escaped.
    let written = text.iter_mut().skip(start);
    let breaks = written.filter(|byte| matches!(byte, b'\n' | b'\r'));
    breaks.for_each(|byte| *byte = b' ');
    text.push(b'\n');
    Ok(())
}
