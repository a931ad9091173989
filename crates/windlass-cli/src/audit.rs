//! `windlass audit`: list and verify the audit log.

use std::str::FromStr as _;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use windlass_api::{AuditParams, AuditPosition, AuditRecord, Page, PageCursor, VerifiedAudit};
use windlass_core::Timestamp;
use windlass_engine::AuditFilter;

use crate::backend::{Backend, BackendArgs, block_on};
use crate::output::{Cell, Column, FormatArgs, Listed, Output, relative, word};

/// The most characters of the details of a record in a table.
const DETAIL_CHARS_MAX: usize = 80;

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// List the actions of operators and the removals of dead jobs, newest first.
    List(ListAudit),
    /// Verify that no record was changed, removed or inserted.
    Verify(VerifyAudit),
}

#[derive(Debug, Args)]
pub(crate) struct ListAudit {
    #[command(flatten)]
    backend: BackendArgs,

    /// Only actions with this API key: its id or its name.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    /// Only this action, such as `job.edit`, or all actions with a prefix that ends in a dot, such as
    /// `job.`.
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,

    /// Only actions on this target, such as the id of a job or the name of a queue.
    #[arg(long, value_name = "TARGET")]
    target: Option<String>,

    /// Only actions at this time or later (RFC 3339), such as `2026-01-01T00:00:00Z`.
    #[arg(long, value_name = "INSTANT")]
    from: Option<Timestamp>,

    /// Only actions before this time (RFC 3339).
    #[arg(long, value_name = "INSTANT")]
    before: Option<Timestamp>,

    /// Continue an earlier list: the cursor that it printed.
    #[arg(long, value_name = "CURSOR", value_parser = PageCursor::<AuditPosition>::from_str)]
    cursor: Option<PageCursor<AuditPosition>>,

    /// The largest number of records to list, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,

    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyAudit {
    #[command(flatten)]
    backend: BackendArgs,

    /// The hash that an earlier verification printed. Its record must still exist.
    #[arg(long, value_name = "HASH")]
    known: Option<String>,
}

pub(crate) fn run(command: &AuditCommand, output: &Output) -> anyhow::Result<()> {
    block_on(async {
        match command {
            AuditCommand::List(list) => {
                let format = output.format(&list.format)?;
                let (data, next_cursor) = records(list).await?;
                output.print_list(format, &Page { data, next_cursor })
            }
            AuditCommand::Verify(verify) => {
                let verified = verify_log(verify).await?;
                if let Some(broken) = &verified.broken {
                    anyhow::bail!("the audit log is broken: {broken}");
                }
                let (count, hash) = (verified.records, &verified.hash);
                let text = format!(
                    "verified {count} records; to detect later changes, keep this hash outside the store: {hash}\n"
                );
                output.print(&verified, text)
            }
        }
    })
}

/// Returns up to `limit` records and the cursor of the next one. Reads several pages, because a page
/// can be short without being the last.
async fn records(list: &ListAudit) -> anyhow::Result<(Vec<AuditRecord>, Option<String>)> {
    let limit = usize::try_from(list.limit)?;
    let backend = list.backend.open().await?;
    let (mut records, mut cursor) = (Vec::new(), list.cursor.clone());
    loop {
        let remaining = limit - records.len();
        cursor = match &backend {
            Backend::Server(server) => {
                let mut pager = server.audit(&list.params()).limit(remaining);
                if let Some(cursor) = &cursor {
                    pager = pager.after(cursor.to_string());
                }
                let page = pager.next_page().await?.context("a list has a page")?;
                records.extend(page.data);
                let next = page.next_cursor.as_deref().map(PageCursor::from_str);
                next.transpose()?
            }
            Backend::Store(store) => {
                let after = cursor.map(|PageCursor(AuditPosition(after))| after);
                let page = store.audit();
                let page = page.list(&list.filter(), after, remaining).await?;
                records.extend(to_api::<Vec<AuditRecord>>(&page.records)?);
                page.next.map(|next| PageCursor(AuditPosition(next)))
            }
        };
        if records.len() >= limit || cursor.is_none() {
            return Ok((records, cursor.map(|cursor| cursor.to_string())));
        }
    }
}

impl ListAudit {
    fn params(&self) -> AuditParams {
        AuditParams {
            key: self.key.clone(),
            action: self.action.clone(),
            target: self.target.clone(),
            from: self.from,
            before: self.before,
        }
    }

    fn filter(&self) -> AuditFilter {
        let params = self.params();
        AuditFilter {
            key: params.key,
            action: params.action,
            target: params.target,
            from: params.from,
            before: params.before,
        }
    }
}

async fn verify_log(verify: &VerifyAudit) -> anyhow::Result<VerifiedAudit> {
    let known = verify.known.as_deref();
    match verify.backend.open().await? {
        Backend::Server(server) => Ok(server.verify_audit(known).await?),
        Backend::Store(store) => to_api(&store.audit().verify(known).await?),
    }
}

/// Converts a value of the engine into the type of the REST API, whose JSON is the same.
fn to_api<T: DeserializeOwned>(value: &impl Serialize) -> anyhow::Result<T> {
    Ok(serde_json::from_value(json!(value))?)
}

impl Listed for AuditRecord {
    const NOUN: &'static str = "records";

    fn columns() -> Vec<Column<AuditRecord>> {
        vec![
            Column::new("number", |record, _| Cell::new(record.number)),
            Column::new("when", |record, now| Cell::new(relative(record.at, now))),
            Column::wide("at", |record, _| Cell::new(record.at)),
            Column::new("by", |record, _| Cell::new(&record.name)),
            Column::wide("key", |record, _| Cell::new(&record.key)),
            Column::new("action", |record, _| Cell::new(&record.action)),
            Column::new("target", |record, _| Cell::new(&record.target)),
            Column::new("detail", |record, _| match &record.detail {
                Value::Object(detail) if detail.is_empty() => Cell::optional(None::<&str>),
                detail => Cell::short(&word(detail), DETAIL_CHARS_MAX),
            }),
            Column::wide("hash", |record, _| Cell::new(&record.hash)),
        ]
    }

    fn id(&self) -> String {
        self.number.to_string()
    }
}
