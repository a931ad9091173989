//! `windlass secrets`: puts, lists, removes and re-encrypts secrets. Values come from stdin, never from the command line.

use std::io::Read as _;
use std::sync::Arc;

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json};
use windlass::Client;
use windlass_server::access::Caller;
use windlass_server::audit::Audit;
use windlass_server::secrets::{MasterKey, SECRET_BYTES_MAX, Secrets};

use crate::output::Output;
use crate::remote::{Remote, RemoteArgs};
use crate::settings::SettingsArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum SecretsCommand {
    /// Prints a new master key, for `secrets.master_key`.
    NewKey,
    /// Keeps what comes from stdin, without a newline at its end, encrypted under a name.
    Put(Named),
    /// Lists the names of secrets.
    List(Place),
    /// Forgets a secret.
    Remove(Named),
    /// Encrypts with the current master key what an old one encrypted; after it, the old one can go.
    Rotate(Place),
}

#[derive(Debug, Args)]
pub(crate) struct Named {
    #[command(flatten)]
    place: Place,

    /// The name of the secret.
    name: String,
}

/// Where the secrets are.
#[derive(Debug, Args)]
pub(crate) struct Place {
    #[command(flatten)]
    settings: SettingsArgs,

    #[command(flatten)]
    remote: RemoteArgs,
}

pub(crate) fn run(command: &SecretsCommand, output: &Output) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match command {
            SecretsCommand::NewKey => {
                let key = MasterKey::generate()?;
                let (text, fingerprint) = (key.reveal(), key.fingerprint());
                output.print(
                    &json!({"key": text, "fingerprint": fingerprint}),
                    format!("{text}\n"),
                )
            }
            SecretsCommand::Put(named) => {
                put(named, &read_value()?).await?;
                output.print(
                    &json!({"name": named.name}),
                    format!("{} is kept\n", named.name),
                )
            }
            SecretsCommand::List(place) => {
                let names = list(place).await?;
                let text: String = names.iter().map(|name| format!("{name}\n")).collect();
                output.print(&names, text)
            }
            SecretsCommand::Remove(named) => {
                remove(named).await?;
                output.print(
                    &json!({"name": named.name}),
                    format!("{} is gone\n", named.name),
                )
            }
            SecretsCommand::Rotate(place) => {
                let rotated = rotate(place).await?;
                output.print(
                    &json!({"rotated": rotated}),
                    format!("{rotated} secrets were encrypted anew\n"),
                )
            }
        }
    })
}

/// Either a server or the store itself.
enum Reached {
    Server(Remote),
    Store(Client, Secrets),
}

impl Place {
    async fn reach(&self) -> anyhow::Result<Reached> {
        if let Some(remote) = self.remote.connect().await? {
            return Ok(Reached::Server(remote));
        }
        let (config, client) = self.settings.open().await?;
        let secrets = config.open_secrets(client.engine()).await?;
        Ok(Reached::Store(client, secrets))
    }
}

async fn record(client: &Client, action: &str, target: &str, detail: Value) {
    let audit = Audit::new(Arc::clone(client.engine()));
    audit.record(&Caller::local(), action, target, detail).await;
}

async fn put(named: &Named, value: &str) -> anyhow::Result<()> {
    match named.place.reach().await? {
        Reached::Server(mut server) => {
            let path = format!("/api/v1/secrets/{}", named.name);
            server
                .expect(Method::PUT, &path, Some(&json!({"value": value})))
                .await?;
        }
        Reached::Store(client, secrets) => {
            secrets.put(&named.name, value.as_bytes()).await?;
            record(&client, "secret.put", &named.name, json!({})).await;
        }
    }
    Ok(())
}

async fn list(place: &Place) -> anyhow::Result<Vec<String>> {
    match place.reach().await? {
        Reached::Server(mut server) => {
            let listed = server.expect(Method::GET, "/api/v1/secrets", None).await?;
            let rows = listed
                .get("data")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default();
            let names = rows.iter().filter_map(|row| row.get("name")?.as_str());
            Ok(names.map(str::to_owned).collect())
        }
        Reached::Store(_, secrets) => Ok(secrets.names().await?),
    }
}

async fn remove(named: &Named) -> anyhow::Result<()> {
    match named.place.reach().await? {
        Reached::Server(mut server) => {
            let path = format!("/api/v1/secrets/{}", named.name);
            server.expect(Method::DELETE, &path, None).await?;
        }
        Reached::Store(client, secrets) => {
            anyhow::ensure!(
                secrets.remove(&named.name).await?,
                "there is no secret {}",
                named.name
            );
            record(&client, "secret.remove", &named.name, json!({})).await;
        }
    }
    Ok(())
}

async fn rotate(place: &Place) -> anyhow::Result<u64> {
    match place.reach().await? {
        Reached::Server(mut server) => {
            let answer = server
                .expect(Method::POST, "/api/v1/secrets/rotate", None)
                .await?;
            Ok(answer.get("rotated").and_then(Value::as_u64).unwrap_or(0))
        }
        Reached::Store(client, secrets) => {
            let rotated = secrets.rotate().await?;
            record(
                &client,
                "secret.rotate",
                "secrets",
                json!({"rotated": rotated}),
            )
            .await;
            Ok(u64::try_from(rotated)?)
        }
    }
}

fn read_value() -> anyhow::Result<String> {
    let mut value = String::new();
    let most = u64::try_from(SECRET_BYTES_MAX)? + 2;
    std::io::stdin()
        .lock()
        .take(most)
        .read_to_string(&mut value)?;
    let value = value.strip_suffix('\n').unwrap_or(&value);
    Ok(value.strip_suffix('\r').unwrap_or(value).to_owned())
}
