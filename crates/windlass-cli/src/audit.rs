//! `windlass audit`: list and verify the audit log.

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use windlass_api::{After, AuditParams, AuditRecord, Cursor, VerifiedAudit};
use windlass_core::Timestamp;
use windlass_engine::AuditFilter;

use crate::backend::{Backend, BackendArgs};
use crate::output::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Lists what operators did and which dead jobs were removed, newest first.
    List(ListAudit),
    /// Checks that no record was changed, removed or slipped in.
    Verify(VerifyAudit),
}

#[derive(Debug, Args)]
pub(crate) struct ListAudit {
    #[command(flatten)]
    backend: BackendArgs,

    /// Only what this key did: its id or its name.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    /// Only this action, such as `job.edit`; with a dot at its end, all that begin with it, such as
    /// `job.`.
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,

    /// Only what was done to this target.
    #[arg(long, value_name = "TARGET")]
    target: Option<String>,

    /// Only at this instant or later, such as `2026-01-01T00:00:00Z`.
    #[arg(long, value_name = "INSTANT")]
    from: Option<Timestamp>,

    /// Only before this instant.
    #[arg(long, value_name = "INSTANT")]
    before: Option<Timestamp>,

    /// Where the list before ended, as it was printed there.
    #[arg(long, value_name = "CURSOR", value_parser = Cursor::place)]
    cursor: Option<u64>,

    /// At most this many records.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyAudit {
    #[command(flatten)]
    backend: BackendArgs,

    /// A hash that an earlier check printed: its record must still be there.
    #[arg(long, value_name = "HASH")]
    known: Option<String>,
}

pub(crate) fn run(command: &AuditCommand, output: &Output) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match command {
            AuditCommand::List(list) => {
                let (records, next) = records(list).await?;
                let mut text: String = records.iter().map(line).collect();
                if let Some(next) = &next {
                    text.push_str(&format!("more: --cursor {next}\n"));
                }
                output.print(&json!({"data": records, "next_cursor": next}), text)
            }
            AuditCommand::Verify(verify) => {
                let found = verified(verify).await?;
                if let Some(broken) = &found.broken {
                    anyhow::bail!("the audit log is broken: {broken}");
                }
                let (count, hash) = (found.records, &found.hash);
                let text =
                    format!("{count} records, none changed; keep this hash elsewhere: {hash}\n");
                output.print(&found, text)
            }
        }
    })
}

/// Up to the limit of records, and where the next ones begin. A page may be short and not the last
/// one.
async fn records(list: &ListAudit) -> anyhow::Result<(Vec<AuditRecord>, Option<String>)> {
    let limit = usize::try_from(list.limit)?;
    let backend = list.backend.open().await?;
    let (mut records, mut cursor) = (Vec::new(), list.cursor);
    loop {
        let left = limit - records.len();
        cursor = match &backend {
            Backend::Server(server) => {
                let mut pager = server.audit(&list.params()).limit(left);
                if let Some(cursor) = cursor {
                    pager = pager.after(After(cursor).to_string());
                }
                let page = pager.next_page().await?.context("a list has a page")?;
                records.extend(page.data);
                let next = page.next_cursor.as_deref().map(Cursor::place);
                next.transpose()?
            }
            Backend::Store(store) => {
                let page = store.audit().list(&list.filter(), cursor, left).await?;
                records.extend(as_answered::<Vec<AuditRecord>>(&page.records)?);
                page.next
            }
        };
        if records.len() >= limit || cursor.is_none() {
            return Ok((records, cursor.map(|cursor| After(cursor).to_string())));
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

async fn verified(verify: &VerifyAudit) -> anyhow::Result<VerifiedAudit> {
    let known = verify.known.as_deref();
    match verify.backend.open().await? {
        Backend::Server(server) => Ok(server.verify_audit(known).await?),
        Backend::Store(store) => as_answered(&store.audit().verify(known).await?),
    }
}

/// What the engine keeps, as a server answers it: the JSON is the same.
fn as_answered<T: DeserializeOwned>(kept: &impl Serialize) -> anyhow::Result<T> {
    Ok(serde_json::from_value(json!(kept))?)
}

fn line(record: &AuditRecord) -> String {
    let AuditRecord {
        number,
        at,
        name,
        action,
        target,
        detail,
        ..
    } = record;
    format!("{number:>6} {at} {name}: {action} {target} {detail}\n")
}
