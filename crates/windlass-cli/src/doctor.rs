//! `windlass doctor`: everything that a server looks at before it starts.

use clap::Args;
use serde_json::json;
use windlass_server::checks::{Check, Machine, Verdict};

use crate::clock;
use crate::output::Output;
use crate::settings::SettingsArgs;

/// Looks at the machine, the configuration, the store and the secrets, and says what to do about what is wrong.
#[derive(Debug, Args)]
pub(crate) struct DoctorCommand {
    #[command(flatten)]
    settings: SettingsArgs,
}

pub(crate) fn run(command: &DoctorCommand, output: &Output) -> anyhow::Result<()> {
    let config = command.settings.load()?;
    let machine = Machine::measure(&config, clock::now());
    let mut checks = machine.judge(config.connections, &config.data);
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
    checks.extend(runtime.block_on(look_at_store(&command.settings)));
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

async fn look_at_store(settings: &SettingsArgs) -> Vec<Check> {
    let opened = settings.open().await;
    let (config, client) = match opened {
        Ok(opened) => opened,
        Err(error) => return vec![Check::new("store", Verdict::Failure, format!("{error:#}"))],
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
    checks
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
