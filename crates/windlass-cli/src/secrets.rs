//! `windlass secrets`: stores, lists, deletes and re-encrypts secrets.
//!
//! Values come from stdin: other users of the machine can read the arguments of a command.

use std::io::Read as _;

use clap::{Args, Subcommand};
use serde_json::json;
use windlass_api::{NewSecret, Page, Secret};
use windlass_core::Invalid;
use windlass_http::{SecretHosts, SigningKey};
use windlass_server::secrets::{MasterKey, SECRET_BYTES_MAX};

use crate::backend::{Backend, BackendArgs, block_on};
use crate::output::{Cell, Column, FormatArgs, Listed, Output};

#[derive(Debug, Subcommand)]
pub(crate) enum SecretsCommand {
    /// Generate a master key for the setting `secrets.master_key` and print it.
    NewKey,
    /// Read a secret from stdin and store it encrypted under a name. A newline at the end is removed.
    Put(PutSecret),
    /// List the names of all secrets and the hosts that they sign for.
    List(ListSecrets),
    /// Delete a secret.
    Remove(SecretArgs),
    /// Re-encrypt secrets that use a key in `secrets.old_keys` with the current master key. Then you
    /// can delete the old key.
    Rotate(BackendArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ListSecrets {
    #[command(flatten)]
    backend: BackendArgs,

    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PutSecret {
    #[command(flatten)]
    secret: SecretArgs,

    #[command(flatten)]
    hosts: HostArgs,

    /// Generate a signing secret for webhooks instead of reading one from stdin, and print it. It is
    /// shown only once.
    #[arg(long)]
    generate: bool,
}

/// The hosts that a secret may sign requests to.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct HostArgs {
    /// Sign only requests to this host: `api.example.com`, or `*.example.com` for all its subdomains.
    /// Add `:port` to allow only that port. Can be given up to 32 times.
    #[arg(long = "host", value_name = "HOST")]
    hosts: Vec<String>,

    /// Sign requests to every host. Anyone who may enqueue jobs can then get any request signed.
    #[arg(long)]
    any_host: bool,
}

impl HostArgs {
    fn parse(&self) -> Result<SecretHosts, Invalid> {
        if self.any_host {
            Ok(SecretHosts::Any)
        } else {
            SecretHosts::parse(&self.hosts)
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
    block_on(async {
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
                put(secret, &signing_key, &hosts.parse()?).await?;
                output.print(
                    &json!({"name": secret.name, "secret": signing_key}),
                    format!("{signing_key}\n"),
                )
            }
            SecretsCommand::Put(PutSecret { secret, hosts, .. }) => {
                let hosts = hosts.parse()?;
                put(secret, &read_value()?, &hosts).await?;
                output.print(
                    &json!({"name": secret.name}),
                    format!("stored {}\n", secret.name),
                )
            }
            SecretsCommand::List(args) => {
                let format = output.format(&args.format)?;
                let secrets = list(&args.backend).await?;
                output.print_list(format, &Page::single(secrets))
            }
            SecretsCommand::Remove(secret) => {
                remove(secret).await?;
                output.print(
                    &json!({"name": secret.name}),
                    format!("deleted {}\n", secret.name),
                )
            }
            SecretsCommand::Rotate(backend) => {
                let rotated = rotate(backend).await?;
                output.print(
                    &json!({"rotated": rotated}),
                    format!("re-encrypted {rotated} secrets\n"),
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

/// Lists secrets without a master key: their names and hosts are not encrypted, so this works even
/// if the key is lost.
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

impl Listed for Secret {
    const NOUN: &'static str = "secrets";

    fn columns() -> Vec<Column<Secret>> {
        vec![
            Column::new("name", |secret, _| Cell::new(&secret.name)),
            Column::new("hosts", |secret, _| {
                if secret.any_host {
                    return Cell::new("any host");
                }
                Cell::new(secret.hosts.join(" "))
            }),
        ]
    }

    fn id(&self) -> String {
        self.name.clone()
    }
}

/// Deletes a secret without a master key. The server does not start with a secret that it cannot
/// decrypt, so an operator who lost the key must be able to delete such a secret.
async fn remove(secret: &SecretArgs) -> anyhow::Result<()> {
    match secret.backend.open().await? {
        Backend::Server(server) => server.remove_secret(&secret.name).await?,
        Backend::Store(store) => {
            let secrets = store
                .config
                .secrets(windlass::admin::engine_of(&store.client))?;
            anyhow::ensure!(
                secrets.remove(&secret.name).await?,
                "no secret is named {}; list all with `windlass secrets list`",
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

/// Reads a secret from stdin and removes one newline at its end. Refuses a secret that is too long
/// instead of truncating it.
fn read_value() -> anyhow::Result<String> {
    // One byte more than the longest valid input, to detect input that is longer.
    let bytes_max = u64::try_from(SECRET_BYTES_MAX + "\r\n".len() + 1)?;
    let mut bytes = Vec::new();
    std::io::stdin()
        .lock()
        .take(bytes_max)
        .read_to_end(&mut bytes)?;
    let value = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let value = value.strip_suffix(b"\r").unwrap_or(value);
    if value.is_empty() || value.len() > SECRET_BYTES_MAX {
        let rule = format!("must have 1 to {SECRET_BYTES_MAX} bytes");
        return Err(Invalid::new("secret", rule).into());
    }
    let text = std::str::from_utf8(value).map_err(|_| Invalid::new("secret", "must be UTF-8"))?;
    Ok(text.to_owned())
}
