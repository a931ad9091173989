//! `windlass open`: log in to the dashboard of a running server.

use clap::Args;
use serde_json::json;

use crate::backend::{ApiArgs, Runner, run_on_api};
use crate::output::Output;

#[derive(Debug, Args)]
pub(crate) struct OpenCommand {
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) fn run(command: &OpenCommand, output: &Output) -> anyhow::Result<()> {
    let (url, expires_at) = run_on_api(&command.api, async |api| {
        if !matches!(api.runner(), Runner::Server) {
            anyhow::bail!(
                "no process serves the dashboard of this store; start `windlass serve`, or add an admin listener to your program"
            );
        }
        let client = api.client();
        let link = client.create_login_link().await?;
        Ok((format!("{}{}", client.origin(), link.path), link.expires_at))
    })?;
    let text = format!("{url}\n");
    output.print(&json!({"url": url, "expires_at": expires_at}), text)
}
