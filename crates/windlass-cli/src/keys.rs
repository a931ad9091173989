//! `windlass keys`: makes, lists and revokes API keys.

use std::sync::Arc;

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json};
use windlass_core::{Invalid, Timestamp, parse_duration};
use windlass_server::access::{KeyError, KeyInfo, Keys, NewKey, Scopes};

use crate::output::Output;
use crate::place::{Opened, Place, Reached, rows};
use crate::remote::escaped;

#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Makes a key and prints it. It is shown this once, and stored as a hash.
    Create(CreateKey),
    /// Lists keys, revoked ones too, without their secrets.
    List(Place),
    /// Revokes a key for good, by its id. Servers refuse it within a second.
    Revoke(RevokeKey),
}

#[derive(Debug, Args)]
pub(crate) struct CreateKey {
    #[command(flatten)]
    place: Place,

    /// What people call it.
    #[arg(long)]
    name: String,

    /// What it may do: enqueue, work, read, read-payload, operate, admin.
    #[arg(long, value_name = "SCOPE", value_delimiter = ',', required = true)]
    scope: Vec<String>,

    /// After how long it is refused, such as `90d`; never, if not given.
    #[arg(long, value_name = "DURATION")]
    expires_in: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RevokeKey {
    #[command(flatten)]
    place: Place,

    /// The id of the key: the part behind `wl_`.
    id: String,
}

pub(crate) fn run(command: &KeysCommand, output: &Output) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match command {
            KeysCommand::Create(create) => {
                let key = create_key(create).await?;
                let text = format!(
                    "{}\n",
                    key.get("key").and_then(Value::as_str).unwrap_or_default()
                );
                output.print(&key, text)
            }
            KeysCommand::List(place) => {
                let keys = list(place).await?;
                let text: String = keys.iter().map(line).collect();
                output.print(&keys, text)
            }
            KeysCommand::Revoke(revoke) => {
                let key = revoke_key(revoke).await?;
                output.print(&key, format!("revoked {}\n", revoke.id))
            }
        }
    })
}

fn keys_of(store: &Opened) -> Keys {
    Keys::new(Arc::clone(windlass::admin::engine_of(&store.client)))
}

async fn create_key(create: &CreateKey) -> anyhow::Result<Value> {
    let of_flag = |flag: &'static str| move |broken: Invalid| Invalid::new(flag, broken.rule());
    let scopes = Scopes::from_names(&create.scope).map_err(of_flag("--scope"))?;
    let expires_in = create.expires_in.as_deref().map(parse_duration).transpose();
    let expires_in = expires_in.map_err(of_flag("--expires-in"))?;
    match create.place.find_or_make().await? {
        Reached::Server(mut server) => {
            let mut body = json!({"name": create.name, "scopes": scopes.names()});
            if let Some(expires_in) = &create.expires_in {
                add(&mut body, "expires_in", expires_in);
            }
            server
                .expect(Method::POST, "/api/v1/keys", Some(&body))
                .await
        }
        Reached::Store(store) => {
            let now = store.client.now();
            let new = NewKey {
                name: create.name.clone(),
                scopes,
                expires_at: expires_in.map(|span| now.saturating_add(span)),
            };
            let made = keys_of(&store).create(new, now).await;
            let (key, info) = made.map_err(|error| match error {
                KeyError::Invalid(broken) if broken.field() == "scopes" => {
                    of_flag("--scope")(broken).into()
                }
                error => error,
            })?;
            let detail = json!({"name": info.name, "scopes": info.scopes.names(), "expires_at": info.expires_at});
            store.record("key.create", &info.id, detail).await;
            let mut view = view(&info);
            add(&mut view, "key", &key.reveal());
            Ok(view)
        }
    }
}

async fn list(place: &Place) -> anyhow::Result<Vec<Value>> {
    match place.find().await? {
        Reached::Server(mut server) => {
            let listed = server.expect(Method::GET, "/api/v1/keys", None).await?;
            Ok(rows(&listed))
        }
        Reached::Store(store) => Ok(keys_of(&store).list().await?.iter().map(view).collect()),
    }
}

async fn revoke_key(revoke: &RevokeKey) -> anyhow::Result<Value> {
    match revoke.place.find().await? {
        Reached::Server(mut server) => {
            let path = format!("/api/v1/keys/{}", escaped(&revoke.id));
            server.expect(Method::DELETE, &path, None).await
        }
        Reached::Store(store) => {
            let now = store.client.now();
            let info = keys_of(&store).revoke(&revoke.id, now).await?;
            let detail = json!({"name": info.name});
            store.record("key.revoke", &info.id, detail).await;
            Ok(view(&info))
        }
    }
}

fn add(object: &mut Value, name: &str, text: &str) {
    if let Value::Object(fields) = object {
        fields.insert(name.to_owned(), text.into());
    }
}

fn view(key: &KeyInfo) -> Value {
    json!({
        "id": key.id, "name": key.name, "scopes": key.scopes.names(), "created_at": key.created_at,
        "expires_at": key.expires_at, "revoked_at": key.revoked_at, "last_used_at": key.last_used_at,
        "unreadable": key.unreadable,
    })
}

fn line(key: &Value) -> String {
    let text = |name: &str| {
        key.get(name)
            .and_then(Value::as_str)
            .unwrap_or("-")
            .to_owned()
    };
    let scopes: Vec<&str> = key
        .get("scopes")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let state = match (
        text("revoked_at").as_str(),
        text("expires_at").parse::<Timestamp>(),
    ) {
        ("-", _) if key.get("unreadable") == Some(&Value::Bool(true)) => "unreadable".to_owned(),
        ("-", Err(_)) => "valid".to_owned(),
        ("-", Ok(at)) => format!("until {at}"),
        (at, _) => format!("revoked {at}"),
    };
    let used = text("last_used_at");
    format!(
        "{}  {:24} {:32} {state}, last used {used}\n",
        text("id"),
        text("name"),
        scopes.join(",")
    )
}
