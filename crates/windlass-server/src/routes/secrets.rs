//! Secrets. The value of a secret goes in and never comes out.

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
            .summary(TAG, "Lists the secrets, without their values.")
            .status(200, "All of them."),
        Route::put("/api/v1/secrets/{name}", Scope::Admin, put).summary(
            TAG,
            "Keeps a secret, encrypted, under a name, for the hosts it may sign requests to.",
        ),
        Route::delete("/api/v1/secrets/{name}", Scope::Admin, remove)
            .summary(TAG, "Removes a secret."),
        Route::post("/api/v1/secrets/rotate", Scope::Admin, rotate)
            .summary(
                TAG,
                "Encrypts with the current master key what an old one encrypted.",
            )
            .status(200, "How many secrets were encrypted again."),
    ]
}

async fn list(call: Call) -> Result<Reply<Page<Secret>>, Problem> {
    let listed = secrets(&call)?.list().await?;
    Ok(Reply::ok(Page::single(listed)))
}

/// A secret with its hosts, whose rules belong to HTTP jobs.
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
            let rule = format!("must have 1 to {SECRET_BYTES_MAX} bytes");
            checks.refuse("value", rule);
        }
        let hosts = match (new.hosts, new.any_host.unwrap_or(false)) {
            (None, true) => Ok(SecretHosts::Any),
            (Some(_), true) => Err(Invalid::new("any_host", "must not be given with `hosts`")),
            (None, false) => {
                let rule = "is required: the hosts that requests may be signed for, or `any_host`";
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
