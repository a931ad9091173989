//! `windlass doctor`: runs the checks that a server runs before it starts, or asks a running server.

mod server;

use clap::Args;
use serde_json::json;
use windlass::Client;
use windlass_server::standalone::checks::{Check, Machine, Verdict, certificate};
use windlass_server::standalone::config::Config;
use windlass_server::standalone::nodes;
use windlass_store::Node;

use crate::backend::block_on;
use crate::clock;
use crate::config::{ServerArgs, open_store, store_exists, store_in_use};
use crate::output::Output;
use crate::server_url::ServerUrlArgs;

#[derive(Debug, Args)]
#[command(
    after_help = "Prints one line for each check: `ok`, `warning` or `failure`. Exits with code 1 if a check failed.
Creates nothing. With --url, asks a running server and ignores the configuration flags: is it ready, which
version and scopes does it see, do the clocks and the configurations of its nodes agree."
)]
pub(crate) struct DoctorCommand {
    #[command(flatten)]
    server: ServerArgs,

    #[command(flatten)]
    server_url: ServerUrlArgs,
}

pub(crate) fn run(command: &DoctorCommand, output: &Output) -> anyhow::Result<()> {
    let checks = block_on(async {
        match command.server_url.client()? {
            Some(server) => server::check(&server).await,
            None => check_here(command).await,
        }
    })?;
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

async fn check_here(command: &DoctorCommand) -> anyhow::Result<Vec<Check>> {
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
    checks.extend(check_store(&config).await);
    Ok(checks)
}

/// Checks the store, the secrets and the other servers. Does not create a store.
async fn check_store(config: &Config) -> Vec<Check> {
    let failed = |error: anyhow::Error| {
        let found = format!("{error:#}");
        vec![Check::new("store", Verdict::Failure, found)]
    };
    match store_exists(config).await {
        Ok(true) => {}
        Ok(false) => {
            let found = format!(
                "{} does not exist yet; `windlass serve` creates it",
                config.store_shown()
            );
            return vec![Check::new("store", Verdict::Ok, found)];
        }
        Err(error) => return failed(error),
    }
    let client = match open_store(config).await {
        Ok(client) => client,
        Err(error) => match in_use_text(&error) {
            Some(found) => return vec![Check::new("store", Verdict::Warning, found)],
            None => return failed(error),
        },
    };
    let mut checks = vec![Check::new("store", Verdict::Ok, config.store_shown())];
    if !config.is_durable() {
        let found = "the store is in memory; all jobs are lost when the server stops";
        checks.push(Check::new("store", Verdict::Warning, found));
    }
    checks.push(
        match config
            .open_secrets(windlass::admin::engine_of(&client))
            .await
        {
            Ok(_) => Check::new("secrets", Verdict::Ok, "all secrets can be decrypted"),
            Err(error) => Check::new("secrets", Verdict::Failure, error.to_string()),
        },
    );
    if !config.keeps_one_server() {
        checks.extend(check_servers(config, &client).await);
    }
    checks
}

/// Returns the text for a store that a running server has open; `None` for another error.
fn in_use_text(error: &anyhow::Error) -> Option<String> {
    let in_use = store_in_use(error)?;
    Some(format!(
        "{in_use}. To check the running server, use `windlass doctor --url http://…`"
    ))
}

/// Compares the configurations of the servers that share the store, including this one.
async fn check_servers(config: &Config, client: &Client) -> Vec<Check> {
    let now = client.now();
    let mut nodes = match windlass::admin::engine_of(client).store().nodes().await {
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
        let found = "all servers that share the store have the same configuration";
        return vec![Check::new("servers", Verdict::Ok, found)];
    }
    let differences = differences.into_iter();
    differences
        .map(|text| Check::new("servers", Verdict::Warning, text))
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
