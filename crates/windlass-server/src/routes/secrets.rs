//! Secrets. No response contains the value of a secret.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use windlass_api::{Body, Checks, NewSecret, Page, Rotated, Secret};
use windlass_core::Invalid;
use windlass_http::SecretHosts;
use zeroize::Zeroizing;

use super::Route;
use crate::access::Scope;
use crate::call::Call;
use crate::endpoint::{JsonBody, Reply};
use crate::preconditions::exists;
use crate::problem::Problem;
use crate::secrets::{SECRET_BYTES_MAX, SecretError, Secrets};

const TAG: &str = "secrets";

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/api/v1/secrets", Scope::Admin, list)
            .summary(TAG, "Lists secrets without their values.")
            .status(200, "All secrets."),
        Route::put("/api/v1/secrets/{name}", Scope::Admin, put).summary(
            TAG,
            "Stores a secret, encrypted, that signs requests to the given hosts.",
        ),
        Route::delete("/api/v1/secrets/{name}", Scope::Admin, remove)
            .summary(TAG, "Removes a secret."),
        Route::post("/api/v1/secrets/rotate", Scope::Admin, rotate)
            .summary(
                TAG,
                "Encrypts all secrets again that an old master key encrypted, with the current one.",
            )
            .status(200, "The number of secrets that were encrypted again."),
    ]
}

async fn list(call: Call) -> Result<Reply<Page<Secret>>, Problem> {
    let listed = secrets(&call)?.list().await?;
    Ok(Reply::ok(Page::single(listed)))
}

/// A secret to store. `windlass-http` knows the rules of its hosts.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
struct PutSecret(NewSecret);

impl Body for PutSecret {
    type Checked = (Zeroizing<String>, SecretHosts);

    fn check(self, checks: &mut Checks) -> Option<Self::Checked> {
        let PutSecret(new) = self;
        let value = checks.required("value", new.value).map(Zeroizing::new);
        let sized = |value: &Zeroizing<String>| (1..=SECRET_BYTES_MAX).contains(&value.len());
        if !value.as_ref().is_none_or(sized) {
            let rule = format!("must be 1 to {SECRET_BYTES_MAX} bytes");
            checks.refuse("value", rule);
        }
        let hosts = match (new.hosts, new.any_host.unwrap_or(false)) {
            (None, true) => Ok(SecretHosts::Any),
            (Some(_), true) => Err(Invalid::new(
                "any_host",
                "and `hosts` exclude each other: give one of them",
            )),
            (None, false) => {
                let rule = "is required, unless `any_host` is true";
                Err(Invalid::new("hosts", rule))
            }
            (Some(hosts), false) => SecretHosts::parse(&hosts),
        };
        Some((value?, checks.keep(hosts)?))
    }
}

async fn put(
    call: Call,
    JsonBody((value, hosts)): JsonBody<PutSecret>,
) -> Result<Reply<()>, Problem> {
    let name = call.param("name");
    let (secrets, value) = (secrets(&call)?, value.as_bytes());
    if !call.only_creates() {
        secrets.put(name, value, &hosts).await?;
    } else if !secrets.create(name, value, &hosts).await? {
        return Err(exists(&format!("secret {name}")));
    }
    let detail = json!({"hosts": hosts.names(), "any_host": hosts == SecretHosts::Any});
    call.audit("secret.put", name, detail).await;
    Ok(Reply::empty())
}

async fn remove(call: Call) -> Result<Reply<()>, Problem> {
    let name = call.param("name");
    if !secrets(&call)?.remove(name).await? {
        return Err(Problem::not_found("such secret"));
    }
    call.audit_plain("secret.remove", name).await;
    Ok(Reply::empty())
}

async fn rotate(call: Call) -> Result<Reply<Rotated>, Problem> {
    let rotated = Rotated {
        rotated: secrets(&call)?.rotate().await?,
    };
    call.audit("secret.rotate", "secrets", json!(rotated)).await;
    Ok(Reply::ok(rotated))
}

fn secrets(call: &Call) -> Result<&Secrets, Problem> {
    let secrets = call.app.secrets.as_ref();
    secrets.ok_or_else(|| Problem::not_found("secret store: this server does not store secrets"))
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
