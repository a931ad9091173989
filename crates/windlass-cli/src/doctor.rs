//! `windlass doctor`: everything that a server looks at before it starts.

use clap::Args;
use serde_json::json;
use windlass::Client;
use windlass_server::checks::{Check, Machine, Verdict, certificate};
use windlass_server::config::Config;
use windlass_server::nodes;
use windlass_store::Node;

use crate::clock;
use crate::output::Output;
use crate::settings::{ServerArgs, open, store_exists};

/// Looks at the machine, the configuration, the store and the secrets, and says what to do about what is wrong.
#[derive(Debug, Args)]
pub(crate) struct DoctorCommand {
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(command: &DoctorCommand, output: &Output) -> anyhow::Result<()> {
    let config = command.server.load()?;
    let machine = Machine::measure(&config, clock::now());
    let mut checks = machine.judge(config.connections, &config.data);
    checks.extend(certificate(&config, machine.now));
    for warning in &config.warnings {
        checks.push(Check::new(
            "configuration",
            Verdict::Warning,
            warning.clone(),
        ));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    checks.extend(runtime.block_on(look_at_store(&config)));
    let failed = checks
        .iter()
        .filter(|check| check.verdict == Verdict::Failure)
        .count();
    let text: String = checks.iter().map(line).collect();
    let rows = checks.iter().map(
        |check| json!({"name": check.name, "verdict": word(check.verdict), "found": check.found}),
    );
    output.print(&rows.collect::<Vec<_>>(), text)?;
    anyhow::ensure!(failed == 0, "{failed} of {} checks failed", checks.len());
    Ok(())
}

/// Looks into the store, and makes none.
async fn look_at_store(config: &Config) -> Vec<Check> {
    let failed = |error: anyhow::Error| {
        let found = format!("{error:#}");
        vec![Check::new("store", Verdict::Failure, found)]
    };
    match store_exists(config).await {
        Ok(true) => {}
        Ok(false) => {
            let found = format!("{}: not there yet, a start makes it", config.store_shown());
            return vec![Check::new("store", Verdict::Ok, found)];
        }
        Err(error) => return failed(error),
    }
    let client = match open(config).await {
        Ok(client) => client,
        Err(error) => return failed(error),
    };
    let mut checks = vec![Check::new("store", Verdict::Ok, config.store_shown())];
    if !config.is_durable() {
        let found = "it is in memory: nothing is durable";
        checks.push(Check::new("store", Verdict::Warning, found));
    }
    checks.push(match config.open_secrets(client.engine()).await {
        Ok(_) => Check::new("secrets", Verdict::Ok, "all of them open"),
        Err(error) => Check::new("secrets", Verdict::Failure, error.to_string()),
    });
    if !config.keeps_one_server() {
        checks.extend(look_at_servers(config, &client).await);
    }
    checks
}

/// Whether the servers that share the store are configured alike, and as this one would be.
async fn look_at_servers(config: &Config, client: &Client) -> Vec<Check> {
    let now = client.now();
    let mut nodes = match client.engine().store().nodes().await {
        Ok(nodes) => nodes,
        Err(error) => return vec![Check::new("servers", Verdict::Failure, error.to_string())],
    };
    nodes.push(Node {
        name: "a server with this configuration".to_owned(),
        about: nodes::about(config).into(),
        beat_at: now,
    });
    let differences = nodes::differences(&nodes, now);
    if differences.is_empty() {
        let found = "all that share the store are configured alike";
        return vec![Check::new("servers", Verdict::Ok, found)];
    }
    let told = differences.into_iter();
    told.map(|told| Check::new("servers", Verdict::Warning, told))
        .collect()
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "ok",
        Verdict::Warning => "warning",
        Verdict::Failure => "failure",
    }
}

fn line(check: &Check) -> String {
    format!(
        "{:8} {:16} {}\n",
        word(check.verdict),
        check.name,
        check.found
    )
}
