//! Secrets. The value of a secret goes in and never comes out.

use axum::http::Method;
use serde_json::{Value, json};
use windlass_api::ListPage;
use windlass_api::schema::{Field, Schema};
use windlass_core::Invalid;
use windlass_core::fields::{Fields, RawFields};
use windlass_http::SecretHosts;
use zeroize::Zeroizing;

use super::Route;
use crate::access::Scope;
use crate::answer::Answer;
use crate::call::Call;
use crate::preconditions::exists;
use crate::problem::Problem;
use crate::secrets::{SECRET_BYTES_MAX, SecretError, Secrets};

pub(super) fn routes() -> Vec<Route> {
    let rotated = || Schema::object(vec![Field::always("rotated", Schema::count())]);
    vec![
        Route::new(Method::GET, "/api/v1/secrets", Scope::Admin, names)
            .says("secrets", "Lists the secrets, without their values.")
            .answers(
                200,
                "All of them.",
                Schema::page(Schema::named("Secret"), vec![]),
            ),
        Route::new(Method::PUT, "/api/v1/secrets/{name}", Scope::Admin, put)
            .says(
                "secrets",
                "Keeps a secret, encrypted, under a name, for the hosts it may sign requests to.",
            )
            .takes("NewSecret")
            .answers_nothing(),
        Route::new(
            Method::DELETE,
            "/api/v1/secrets/{name}",
            Scope::Admin,
            remove,
        )
        .says("secrets", "Forgets a secret.")
        .answers_nothing(),
        Route::new(Method::POST, "/api/v1/secrets/rotate", Scope::Admin, rotate)
            .says(
                "secrets",
                "Encrypts with the current master key what an old one encrypted.",
            )
            .answers(200, "How many that were.", rotated()),
    ]
}

async fn names(call: Call) -> Result<Answer, Problem> {
    let listed = secrets(&call)?.list().await?;
    let row = |(name, hosts): (String, SecretHosts)| {
        let any_host = hosts == SecretHosts::Any;
        json!({"name": name, "hosts": hosts.names().unwrap_or_default(), "any_host": any_host})
    };
    let rows: Vec<Value> = listed.into_iter().map(row).collect();
    Answer::ok(&ListPage::whole(rows))
}

async fn put(call: Call) -> Result<Answer, Problem> {
    let (value, hosts) = call.read(read_secret)?;
    let name = call.param("name");
    let (secrets, value) = (secrets(&call)?, value.as_bytes());
    if !call.only_creates() {
        secrets.put(name, value, &hosts).await?;
    } else if !secrets.create(name, value, &hosts).await? {
        return Err(exists(&format!("secret {name}")));
    }
    let detail = json!({"hosts": hosts.names(), "any_host": hosts == SecretHosts::Any});
    call.audit("secret.put", name, detail).await;
    Ok(Answer::empty())
}

fn read_secret(parts: RawFields) -> Result<(Zeroizing<String>, SecretHosts), Invalid> {
    let map = parts.values()?;
    let mut fields = Fields::of(&map);
    let value = fields.text("value")?;
    let value = value.ok_or_else(|| Invalid::new("value", "is required"))?;
    if value.is_empty() || value.len() > SECRET_BYTES_MAX {
        let rule = format!("must have 1 to {SECRET_BYTES_MAX} bytes");
        return Err(Invalid::new("value", rule));
    }
    let value = Zeroizing::new(value.to_owned());
    let hosts = read_hosts(&mut fields)?;
    fields.finish()?;
    Ok((value, hosts))
}

/// The hosts a secret signs for: named, or every host where that is said.
fn read_hosts(fields: &mut Fields<'_>) -> Result<SecretHosts, Invalid> {
    let any_host = fields.flag("any_host")?.unwrap_or(false);
    match (fields.list("hosts")?, any_host) {
        (None, true) => Ok(SecretHosts::Any),
        (Some(_), true) => Err(Invalid::new("any_host", "must not be given with `hosts`")),
        (None, false) => {
            let rule = "is required: the hosts that requests may be signed for, or `any_host`";
            Err(Invalid::new("hosts", rule))
        }
        (Some(hosts), false) => {
            let text = |host: &Value| host.as_str().map(str::to_owned);
            let hosts: Option<Vec<String>> = hosts.iter().map(text).collect();
            let hosts = hosts.ok_or_else(|| Invalid::new("hosts", "must be a list of texts"))?;
            SecretHosts::parse(&hosts)
        }
    }
}

async fn remove(call: Call) -> Result<Answer, Problem> {
    let name = call.param("name");
    if !secrets(&call)?.remove(name).await? {
        return Err(Problem::not_found("such secret"));
    }
    call.audit("secret.remove", name, json!({})).await;
    Ok(Answer::empty())
}

async fn rotate(call: Call) -> Result<Answer, Problem> {
    let rotated = secrets(&call)?.rotate().await?;
    call.audit("secret.rotate", "secrets", json!({"rotated": rotated}))
        .await;
    Answer::ok(&json!({"rotated": rotated}))
}

fn secrets(call: &Call) -> Result<&Secrets, Problem> {
    let secrets = call.app.secrets.as_ref();
    secrets.ok_or_else(|| Problem::not_found("secrets here: this server keeps none"))
}

impl From<SecretError> for Problem {
    fn from(error: SecretError) -> Self {
        match error {
            SecretError::Invalid(invalid) => invalid.into(),
            SecretError::Store(error) => error.into(),
            SecretError::Random(error) => Problem::internal(&error),
            other => Problem::conflict("master_key", other.to_string()),
        }
    }
}
