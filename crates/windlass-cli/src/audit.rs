//! `windlass audit`: list and verify the audit log.

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json};
use windlass_api::Cursor;
use windlass_core::Timestamp;
use windlass_engine::AuditFilter;

use crate::output::Output;
use crate::place::{Place, Reached, rows};
use crate::remote::escaped;

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
    place: Place,

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
    place: Place,

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
                let next = next.map(|next| Cursor::Place(next).to_string());
                if let Some(next) = &next {
                    text.push_str(&format!("more: --cursor {next}\n"));
                }
                output.print(&json!({"data": records, "next_cursor": next}), text)
            }
            AuditCommand::Verify(verify) => {
                let found = verified(verify).await?;
                let broken = found.get("broken").and_then(Value::as_str);
                if let Some(broken) = broken {
                    anyhow::bail!("the audit log is broken: {broken}");
                }
                let count = found.get("records").and_then(Value::as_u64).unwrap_or(0);
                let hash = found
                    .get("hash")
                    .and_then(Value::as_str)
                    .unwrap_or_default();
                let text =
                    format!("{count} records, none changed; keep this hash elsewhere: {hash}\n");
                output.print(&found, text)
            }
        }
    })
}

/// Up to the limit of records, and where the next ones begin. A page may be short and not the last
/// one.
async fn records(list: &ListAudit) -> anyhow::Result<(Vec<Value>, Option<u64>)> {
    let limit = usize::try_from(list.limit)?;
    let mut reached = list.place.find().await?;
    let (mut records, mut cursor) = (Vec::new(), list.cursor);
    loop {
        let left = limit - records.len();
        let (page, next) = match &mut reached {
            Reached::Server(server) => {
                let path = list.path(cursor, left);
                read_page(&server.expect(Method::GET, &path, None).await?)?
            }
            Reached::Store(store) => {
                let page = store.audit().list(&list.filter(), cursor, left).await?;
                let records = page.records.iter().map(|record| json!(record));
                (records.collect(), page.next)
            }
        };
        records.extend(page);
        cursor = next;
        if records.len() >= limit || cursor.is_none() {
            return Ok((records, cursor));
        }
    }
}

fn read_page(listed: &Value) -> anyhow::Result<(Vec<Value>, Option<u64>)> {
    let next = listed.get("next_cursor").and_then(Value::as_str);
    Ok((rows(listed), next.map(Cursor::place).transpose()?))
}

impl ListAudit {
    fn filter(&self) -> AuditFilter {
        AuditFilter {
            key: self.key.clone(),
            action: self.action.clone(),
            target: self.target.clone(),
            from: self.from,
            before: self.before,
        }
    }

    fn path(&self, cursor: Option<u64>, limit: usize) -> String {
        let filter = self.filter();
        let mut path = format!("/api/v1/audit?limit={limit}");
        for (name, value) in [
            ("key", filter.key),
            ("action", filter.action),
            ("target", filter.target),
            ("from", filter.from.map(|at| at.to_string())),
            ("before", filter.before.map(|at| at.to_string())),
            (
                "cursor",
                cursor.map(|cursor| Cursor::Place(cursor).to_string()),
            ),
        ] {
            if let Some(value) = value {
                path.push_str(&format!("&{name}={}", escaped(&value)));
            }
        }
        path
    }
}

async fn verified(verify: &VerifyAudit) -> anyhow::Result<Value> {
    let known = verify.known.as_deref();
    match verify.place.find().await? {
        Reached::Server(mut server) => {
            let known = known.map(|known| format!("?known={}", escaped(known)));
            let path = format!("/api/v1/audit/verify{}", known.unwrap_or_default());
            server.expect(Method::GET, &path, None).await
        }
        Reached::Store(store) => Ok(json!(store.audit().verify(known).await?)),
    }
}

fn line(record: &Value) -> String {
    let text = |name: &str| {
        record
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let number = record.get("number").and_then(Value::as_u64).unwrap_or(0);
    let (at, name, action, target) = (text("at"), text("name"), text("action"), text("target"));
    let detail = record.get("detail").cloned().unwrap_or_default();
    format!("{number:>6} {at} {name}: {action} {target} {detail}\n")
}
