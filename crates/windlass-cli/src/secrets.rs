//! `windlass secrets`: puts, lists, removes and re-encrypts secrets. Values come from stdin, never from the command line.

use std::io::Read as _;

use clap::{Args, Subcommand};
use serde_json::json;
use windlass_api::{NewSecret, Secret};
use windlass_core::Invalid;
use windlass_http::{SecretHosts, SigningKey};
use windlass_server::secrets::{MasterKey, SECRET_BYTES_MAX};

use crate::backend::{Backend, BackendArgs};
use crate::output::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum SecretsCommand {
    /// Prints a new master key, for `secrets.master_key`.
    NewKey,
    /// Keeps what comes from stdin, without a newline at its end, encrypted under a name.
    Put(PutSecret),
    /// Lists the secrets with the hosts they sign for. Values are not shown.
    List(BackendArgs),
    /// Forgets a secret.
    Remove(SecretArgs),
    /// Encrypts with the current master key what an old one encrypted; after it, the old one can go.
    Rotate(BackendArgs),
}

#[derive(Debug, Args)]
pub(crate) struct PutSecret {
    #[command(flatten)]
    secret: SecretArgs,

    #[command(flatten)]
    hosts: HostArgs,

    /// Make up a secret that webhooks are signed with, instead of reading one, and print it this once.
    #[arg(long)]
    generate: bool,
}

/// Which hosts a secret signs for.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct HostArgs {
    /// Sign requests to this host only: `api.example.com`, or `*.example.com` for every name below it; with `:port` if only that
    /// port is meant. May be given up to 32 times.
    #[arg(long = "host", value_name = "HOST")]
    hosts: Vec<String>,

    /// Sign requests to every host. Whoever may enqueue jobs can then have anything signed.
    #[arg(long)]
    any_host: bool,
}

impl HostArgs {
    fn read(&self) -> Result<SecretHosts, Invalid> {
        match self.any_host {
            true => Ok(SecretHosts::Any),
            false => SecretHosts::parse(&self.hosts),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct SecretArgs {
    #[command(flatten)]
    backend: BackendArgs,

    /// The name of the secret.
    name: String,
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
            SecretsCommand::Put(PutSecret {
                secret,
                hosts,
                generate,
            }) if *generate => {
                let signing_key = SigningKey::generate()?;
                put(secret, &signing_key, &hosts.read()?).await?;
                output.print(
                    &json!({"name": secret.name, "secret": signing_key}),
                    format!("{signing_key}\n"),
                )
            }
            SecretsCommand::Put(PutSecret { secret, hosts, .. }) => {
                let hosts = hosts.read()?;
                put(secret, &read_value()?, &hosts).await?;
                output.print(
                    &json!({"name": secret.name}),
                    format!("{} is kept\n", secret.name),
                )
            }
            SecretsCommand::List(backend) => {
                let rows = list(backend).await?;
                let text: String = rows.iter().map(line_of).collect();
                output.print(&rows, text)
            }
            SecretsCommand::Remove(secret) => {
                remove(secret).await?;
                output.print(
                    &json!({"name": secret.name}),
                    format!("{} is gone\n", secret.name),
                )
            }
            SecretsCommand::Rotate(backend) => {
                let rotated = rotate(backend).await?;
                output.print(
                    &json!({"rotated": rotated}),
                    format!("{rotated} secrets were encrypted anew\n"),
                )
            }
        }
    })
}

async fn put(secret: &SecretArgs, value: &str, hosts: &SecretHosts) -> anyhow::Result<()> {
    let any_host = *hosts == SecretHosts::Any;
    match secret.backend.open_or_create().await? {
        Backend::Server(server) => {
            let new = NewSecret {
                value: Some(value.to_owned()),
                hosts: hosts.names(),
                any_host: any_host.then_some(true),
            };
            server.put_secret(&secret.name, &new).await?;
        }
        Backend::Store(store) => {
            let secrets = store
                .config
                .open_secrets(windlass::admin::engine_of(&store.client))
                .await?;
            secrets.put(&secret.name, value.as_bytes(), hosts).await?;
            let detail = json!({"hosts": hosts.names(), "any_host": any_host});
            store.record("secret.put", &secret.name, detail).await;
        }
    }
    Ok(())
}

/// Names and hosts are not encrypted: they are listed without any key, also after one was lost.
async fn list(backend: &BackendArgs) -> anyhow::Result<Vec<Secret>> {
    match backend.open().await? {
        Backend::Server(server) => Ok(server.secrets().await?),
        Backend::Store(store) => {
            let secrets = store
                .config
                .secrets(windlass::admin::engine_of(&store.client))?;
            Ok(secrets.list().await?)
        }
    }
}

/// A secret on a line: its name and its hosts.
fn line_of(secret: &Secret) -> String {
    match secret.any_host {
        true => format!("{}  any host\n", secret.name),
        false => format!("{}  {}\n", secret.name, secret.hosts.join(" ")),
    }
}

/// What no key opens any more can still be removed: else a lost master key would keep the server from starting for ever.
async fn remove(secret: &SecretArgs) -> anyhow::Result<()> {
    match secret.backend.open().await? {
        Backend::Server(server) => server.remove_secret(&secret.name).await?,
        Backend::Store(store) => {
            let secrets = store
                .config
                .secrets(windlass::admin::engine_of(&store.client))?;
            anyhow::ensure!(
                secrets.remove(&secret.name).await?,
                "there is no secret {}",
                secret.name
            );
            store.record("secret.remove", &secret.name, json!({})).await;
        }
    }
    Ok(())
}

async fn rotate(backend: &BackendArgs) -> anyhow::Result<u64> {
    match backend.open().await? {
        Backend::Server(server) => Ok(server.rotate_secrets().await?),
        Backend::Store(store) => {
            let secrets = store
                .config
                .open_secrets(windlass::admin::engine_of(&store.client))
                .await?;
            let rotated = secrets.rotate().await?;
            let detail = json!({"rotated": rotated});
            store.record("secret.rotate", "secrets", detail).await;
            Ok(rotated)
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
