//! `windlass secrets`: puts, lists, removes and re-encrypts secrets. Values come from stdin, never from the command line.

use std::io::Read as _;

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json};
use windlass_core::Invalid;
use windlass_http::SigningKey;
use windlass_server::secrets::{MasterKey, SECRET_BYTES_MAX};

use crate::output::Output;
use crate::place::{Place, Reached, rows};
use crate::remote::escaped;

#[derive(Debug, Subcommand)]
pub(crate) enum SecretsCommand {
    /// Prints a new master key, for `secrets.master_key`.
    NewKey,
    /// Keeps what comes from stdin, without a newline at its end, encrypted under a name.
    Put(PutSecret),
    /// Lists the names of secrets.
    List(Place),
    /// Forgets a secret.
    Remove(Named),
    /// Encrypts with the current master key what an old one encrypted; after it, the old one can go.
    Rotate(Place),
}

#[derive(Debug, Args)]
pub(crate) struct PutSecret {
    #[command(flatten)]
    named: Named,

    /// Make up a secret that webhooks are signed with, instead of reading one, and print it this once.
    #[arg(long)]
    generate: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Named {
    #[command(flatten)]
    place: Place,

    /// The name of the secret.
    name: String,
}

impl Named {
    fn path(&self) -> String {
        format!("/api/v1/secrets/{}", escaped(&self.name))
    }
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
            SecretsCommand::Put(PutSecret { named, generate }) if *generate => {
                let secret = SigningKey::generate()?;
                put(named, &secret).await?;
                output.print(
                    &json!({"name": named.name, "secret": secret}),
                    format!("{secret}\n"),
                )
            }
            SecretsCommand::Put(PutSecret { named, .. }) => {
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

async fn put(named: &Named, value: &str) -> anyhow::Result<()> {
    match named.place.find_or_make().await? {
        Reached::Server(mut server) => {
            let body = json!({"value": value});
            server
                .expect(Method::PUT, &named.path(), Some(&body))
                .await?;
        }
        Reached::Store(store) => {
            let secrets = store.config.open_secrets(store.client.engine()).await?;
            secrets.put(&named.name, value.as_bytes()).await?;
            store.record("secret.put", &named.name, json!({})).await;
        }
    }
    Ok(())
}

/// Names are not encrypted: they are listed without any key, and after one was lost.
async fn list(place: &Place) -> anyhow::Result<Vec<String>> {
    match place.find().await? {
        Reached::Server(mut server) => {
            let listed = server.expect(Method::GET, "/api/v1/secrets", None).await?;
            let rows = rows(&listed);
            let names = rows.iter().filter_map(|row| row.get("name")?.as_str());
            Ok(names.map(str::to_owned).collect())
        }
        Reached::Store(store) => {
            let secrets = store.config.secrets(store.client.engine())?;
            Ok(secrets.names().await?)
        }
    }
}

/// What no key opens any more can still be removed: else a lost master key would keep the server from starting for ever.
async fn remove(named: &Named) -> anyhow::Result<()> {
    match named.place.find().await? {
        Reached::Server(mut server) => {
            server.expect(Method::DELETE, &named.path(), None).await?;
        }
        Reached::Store(store) => {
            let secrets = store.config.secrets(store.client.engine())?;
            anyhow::ensure!(
                secrets.remove(&named.name).await?,
                "there is no secret {}",
                named.name
            );
            store.record("secret.remove", &named.name, json!({})).await;
        }
    }
    Ok(())
}

async fn rotate(place: &Place) -> anyhow::Result<u64> {
    match place.find().await? {
        Reached::Server(mut server) => {
            let path = "/api/v1/secrets/rotate";
            let answer = server.expect(Method::POST, path, None).await?;
            Ok(answer.get("rotated").and_then(Value::as_u64).unwrap_or(0))
        }
        Reached::Store(store) => {
            let secrets = store.config.open_secrets(store.client.engine()).await?;
            let rotated = secrets.rotate().await?;
            let detail = json!({"rotated": rotated});
            store.record("secret.rotate", "secrets", detail).await;
            Ok(u64::try_from(rotated)?)
        }
    }
}

/// What stands on stdin, without a newline at its end; more than a secret may have is refused, not cut.
fn read_value() -> anyhow::Result<String> {
    // One byte more than the largest secret and its newline: what is longer is seen to be.
    let most = u64::try_from(SECRET_BYTES_MAX + "\r\n".len() + 1)?;
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(most).read_to_end(&mut bytes)?;
    let value = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let value = value.strip_suffix(b"\r").unwrap_or(value);
    if value.is_empty() || value.len() > SECRET_BYTES_MAX {
        let rule = format!("must have 1 to {SECRET_BYTES_MAX} bytes");
        return Err(Invalid::new("secret", rule).into());
    }
    let text = std::str::from_utf8(value).map_err(|_| Invalid::new("secret", "must be UTF-8"))?;
    Ok(text.to_owned())
}
