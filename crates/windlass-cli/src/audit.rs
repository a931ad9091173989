//! `windlass audit`: what operators did, and whether the log is whole.

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json};

use crate::output::Output;
use crate::place::{Place, Reached, rows};
use crate::remote::escaped;

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Lists what operators did, the oldest first.
    List(ListAudit),
    /// Checks that no record was changed, removed or slipped in.
    Verify(VerifyAudit),
}

#[derive(Debug, Args)]
pub(crate) struct ListAudit {
    #[command(flatten)]
    place: Place,

    /// Behind the record with this number.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    after: u64,

    /// So many at most.
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
                let records = records(list).await?;
                let text: String = records.iter().map(line).collect();
                output.print(&records, text)
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

async fn records(list: &ListAudit) -> anyhow::Result<Vec<Value>> {
    let limit = usize::try_from(list.limit)?;
    match list.place.find().await? {
        Reached::Server(mut server) => {
            let path = format!("/api/v1/audit?limit={limit}&cursor=p{:016x}", list.after);
            Ok(rows(&server.expect(Method::GET, &path, None).await?))
        }
        Reached::Store(store) => {
            let records = store.audit().list(list.after, limit).await?;
            Ok(records.iter().map(|record| json!(record)).collect())
        }
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
