//! `windlass keys`: creates, lists and revokes API keys.

use std::sync::Arc;

use clap::{Args, Subcommand};
use serde_json::json;
use windlass_api::{CreatedKey, DurationText, Key, Page};
use windlass_core::{Invalid, Timestamp, parse_duration};
use windlass_server::access::{KeyError, Keys, NewKey, Scopes};

use crate::backend::{Backend, BackendArgs, OpenedStore, block_on};
use crate::output::{Cell, Column, FormatArgs, Listed, Output, Tone, relative};

#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Create an API key and print it. The key is shown only once; the store keeps only its hash.
    Create(CreateKey),
    /// List all keys, including revoked ones. The secret part of a key is not shown.
    List(ListKeys),
    /// Revoke a key permanently. All servers refuse it within 1 s.
    Revoke(RevokeKey),
}

#[derive(Debug, Args)]
pub(crate) struct ListKeys {
    #[command(flatten)]
    backend: BackendArgs,

    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CreateKey {
    #[command(flatten)]
    backend: BackendArgs,

    /// A name for the key, for lists and the audit log.
    #[arg(long)]
    name: String,

    /// What the key may do: enqueue, work, read, read-payload, operate, admin. Separate several with
    /// commas.
    #[arg(long, value_name = "SCOPE", value_delimiter = ',', required = true)]
    scope: Vec<String>,

    /// How long the key is valid, such as `90d` [default: until it is revoked].
    #[arg(long, value_name = "DURATION")]
    expires_in: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RevokeKey {
    #[command(flatten)]
    backend: BackendArgs,

    /// The id of the key, as `windlass keys list` shows it: `<id>` in `wl_<id>_…`.
    id: String,
}

pub(crate) fn run(command: &KeysCommand, output: &Output) -> anyhow::Result<()> {
    block_on(async {
        match command {
            KeysCommand::Create(create) => {
                let created = create_key(create).await?;
                output.print(&created, format!("{}\n", created.key))
            }
            KeysCommand::List(args) => {
                let format = output.format(&args.format)?;
                let keys = list(&args.backend).await?;
                output.print_list(format, &Page::single(keys))
            }
            KeysCommand::Revoke(revoke) => {
                let key = revoke_key(revoke).await?;
                output.print(&key, format!("revoked {}\n", revoke.id))
            }
        }
    })
}

fn keys_of(store: &OpenedStore) -> Keys {
    Keys::new(Arc::clone(windlass::admin::engine_of(&store.client)))
}

async fn create_key(create: &CreateKey) -> anyhow::Result<CreatedKey> {
    let name_flag = |flag: &'static str| move |invalid: Invalid| Invalid::new(flag, invalid.rule());
    let scopes = Scopes::from_names(&create.scope).map_err(name_flag("--scope"))?;
    let expires_in = create.expires_in.as_deref().map(parse_duration).transpose();
    let expires_in = expires_in.map_err(name_flag("--expires-in"))?;
    match create.backend.open_or_create().await? {
        Backend::Server(server) => {
            let new = windlass_api::NewKey {
                name: Some(create.name.clone()),
                scopes: Some(scopes.given()),
                expires_in: expires_in.map(DurationText),
                ..Default::default()
            };
            Ok(server.create_key(&new).await?)
        }
        Backend::Store(store) => {
            let now = store.client.now();
            let new = NewKey {
                name: create.name.clone(),
                scopes: scopes.given(),
                expires_at: expires_in.map(|span| now.saturating_add(span)),
            };
            let created = keys_of(&store).create(new, now).await;
            let (key, info) = created.map_err(|error| match error {
                KeyError::Invalid(invalid) if invalid.field() == "scopes" => {
                    name_flag("--scope")(invalid).into()
                }
                error => error,
            })?;
            let about = Key::from(&info);
            let detail =
                json!({"name": about.name, "scopes": about.scopes, "expires_at": about.expires_at});
            store.record("key.create", &info.id, detail).await;
            let key = key.reveal();
            Ok(CreatedKey { key, about })
        }
    }
}

async fn list(backend: &BackendArgs) -> anyhow::Result<Vec<Key>> {
    match backend.open().await? {
        Backend::Server(server) => Ok(server.keys().await?),
        Backend::Store(store) => Ok(keys_of(&store)
            .list()
            .await?
            .iter()
            .map(Key::from)
            .collect()),
    }
}

async fn revoke_key(revoke: &RevokeKey) -> anyhow::Result<Key> {
    match revoke.backend.open().await? {
        Backend::Server(server) => Ok(server.revoke_key(&revoke.id).await?),
        Backend::Store(store) => {
            let now = store.client.now();
            let info = keys_of(&store).revoke(&revoke.id, now).await?;
            let detail = json!({"name": info.name});
            store.record("key.revoke", &info.id, detail).await;
            Ok(Key::from(&info))
        }
    }
}

impl Listed for Key {
    const NOUN: &'static str = "keys";

    fn columns() -> Vec<Column<Key>> {
        vec![
            Column::new("id", |key, _| Cell::new(&key.id)),
            Column::new("name", |key, _| Cell::new(&key.name)),
            Column::new("scopes", |key, _| {
                let scopes: Vec<&str> = key.scopes.iter().map(|scope| scope.name()).collect();
                Cell::new(scopes.join(","))
            }),
            Column::new("state", state),
            Column::new("created", |key, now| {
                Cell::new(relative(key.created_at, now))
            }),
            Column::new("last used", |key, now| {
                let used = key.last_used_at.map(|at| relative(at, now));
                Cell::new(used.unwrap_or_else(|| "never".to_owned()))
            }),
            Column::wide("expires at", |key, _| Cell::optional(key.expires_at)),
            Column::wide("revoked at", |key, _| Cell::optional(key.revoked_at)),
        ]
    }

    fn id(&self) -> String {
        self.id.clone()
    }
}

fn state(key: &Key, now: Timestamp) -> Cell {
    match (key.revoked_at, key.expires_at) {
        (Some(at), _) => Cell::new(format!("revoked {}", relative(at, now))).tone(Tone::Faint),
        (None, _) if key.unreadable => Cell::new("unreadable").tone(Tone::Bad),
        (None, Some(at)) if at <= now => {
            Cell::new(format!("expired {}", relative(at, now))).tone(Tone::Bad)
        }
        (None, Some(at)) => Cell::new(format!("expires {}", relative(at, now))).tone(Tone::Good),
        (None, None) => Cell::new("valid").tone(Tone::Good),
    }
}
