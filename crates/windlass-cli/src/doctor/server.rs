//! Checks a running server through its REST API: is it ready, what may the key do, do the clocks and
//! the configurations agree.

use std::time::Duration;

use serde_json::{Value, json};
use windlass_api::{BulkMode, Scope, Worker};
use windlass_client::{Client, Error, Method};
use windlass_core::{JobId, Timestamp, format_duration};
use windlass_server::standalone::checks::{Check, Verdict};

use crate::clock;

/// A larger difference between the clocks is a warning: relative times and filters would mislead.
const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_secs(2);

/// Asks a running server. Fails if it cannot be reached.
pub(super) async fn check(server: &Client) -> anyhow::Result<Vec<Check>> {
    let mut checks = readiness(server).await?;
    checks.push(version(server).await?);
    let key = match key(server).await? {
        Ok(key) => key,
        Err(refusal) => {
            checks.push(Check::new("key", Verdict::Failure, refusal));
            return Ok(checks);
        }
    };
    let names: Vec<&str> = key.scopes.iter().map(|scope| scope.name()).collect();
    let at_least = if key.is_complete { "" } else { "at least " };
    let found = format!("accepted; it has {at_least}the scopes {}", names.join(", "));
    checks.push(Check::new("key", Verdict::Ok, found));
    if !key.scopes.contains(&Scope::Read) {
        let found = "not checked: the key lacks the scope `read`";
        checks.push(Check::new("servers", Verdict::Warning, found));
        return Ok(checks);
    }
    let before = clock::now();
    let workers = server.workers().limit(1000).all().await?;
    checks.extend(clock_check(&workers, before, clock::now()));
    checks.extend(nodes(&workers));
    let differences = server.server_differences().await?.into_iter();
    checks.extend(differences.map(|text| Check::new("servers", Verdict::Warning, text)));
    Ok(checks)
}

async fn readiness(server: &Client) -> anyhow::Result<Vec<Check>> {
    let problems = server.ready().await?.problems;
    if problems.is_empty() {
        let ready = Check::new("server", Verdict::Ok, "the server is ready");
        return Ok(vec![ready]);
    }
    let check = |problem| Check::new("server", Verdict::Failure, problem);
    Ok(problems.into_iter().map(check).collect())
}

async fn version(server: &Client) -> anyhow::Result<Check> {
    let description: Value = server
        .call(Method::Get, "/openapi.json", None::<&Value>)
        .await?;
    let own = env!("CARGO_PKG_VERSION");
    let version = description.pointer("/info/version");
    let version = version.and_then(Value::as_str).unwrap_or("unknown");
    Ok(if version == own {
        Check::new("version", Verdict::Ok, own)
    } else {
        let found = format!("the server has version {version}, this command {own}");
        Check::new("version", Verdict::Warning, found)
    })
}

/// What the key may do.
struct Key {
    scopes: Vec<Scope>,
    /// Whether the server answered for every scope. One that is not ready may not.
    is_complete: bool,
}

/// Returns the scopes of the key, or why the server refuses the key.
///
/// No route returns the scopes. So this sends one request for each scope that changes nothing: it
/// only reads, names a job that does not exist, or has a body that the server refuses after it
/// checked the scope.
async fn key(server: &Client) -> anyhow::Result<Result<Key, String>> {
    let no_job = JobId::from_u128(0);
    let nothing = json!({});
    let settle = server.call::<Value>(Method::Post, "/api/v1/settle", Some(&nothing));
    let answers = [
        (
            Scope::Enqueue,
            server.create_jobs(&[], BulkMode::Each).await.map(drop),
        ),
        (Scope::Work, settle.await.map(drop)),
        (Scope::Read, server.server_differences().await.map(drop)),
        (
            Scope::ReadPayload,
            server
                .replaced_payload(no_job, &"0".repeat(64))
                .await
                .map(drop),
        ),
        (Scope::Operate, server.cancel_job(no_job).await.map(drop)),
        (Scope::Admin, server.keys().await.map(drop)),
    ];
    let (mut scopes, mut is_complete) = (Vec::new(), true);
    for (scope, answer) in answers {
        match answer {
            Ok(()) => scopes.push(scope),
            Err(Error::Refused(problem)) => match (problem.status, problem.code.as_str()) {
                (401, _) => return Ok(Err(problem.detail)),
                (403, "scope_missing") => {}
                (403, _) => return Err(Error::Refused(problem).into()),
                (429 | 500.., _) => is_complete = false,
                _ => scopes.push(scope),
            },
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Ok(Key {
        scopes,
        is_complete,
    }))
}

/// Compares the clocks: the last heartbeat of a worker and its age give the time of the server.
fn clock_check(workers: &[Worker], before: Timestamp, after: Timestamp) -> Option<Check> {
    let worker = workers.first()?;
    let age = Duration::from_millis(worker.heartbeat_age_ms);
    let server = worker.heartbeat_at.saturating_add(age);
    let (difference, word) = if server > after {
        (server.since(after), "ahead of")
    } else {
        (before.since(server), "behind") // zero if the server answered in between
    };
    let millis = u64::try_from(difference.as_millis()).unwrap_or(u64::MAX);
    let verdict = if difference > CLOCK_DIFFERENCE_MAX {
        Verdict::Warning
    } else {
        Verdict::Ok
    };
    let found = match millis {
        0 => "the clocks of this machine and the server agree".to_owned(),
        millis => {
            let span = format_duration(Duration::from_millis(millis));
            format!("the clock of the server is {span} {word} the clock of this machine")
        }
    };
    Some(Check::new("clock", verdict, found))
}

/// Counts servers and workers that send heartbeats.
fn nodes(workers: &[Worker]) -> Vec<Check> {
    let alive = workers.iter().filter(|worker| worker.alive);
    let (servers, workers): (Vec<&Worker>, Vec<&Worker>) = alive.partition(|worker| {
        worker
            .about
            .get("role")
            .is_some_and(|role| role == "server")
    });
    let names = |nodes: &[&Worker]| {
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        match names.len() {
            0 => "none".to_owned(),
            1..=5 => names.join(", "),
            count => {
                let first: Vec<&str> = names.into_iter().take(5).collect();
                format!("{} and {} more", first.join(", "), count - 5)
            }
        }
    };
    let check = |name, nodes: &[&Worker]| {
        let (count, names) = (nodes.len(), names(nodes));
        Check::new(name, Verdict::Ok, format!("{count} active: {names}"))
    };
    vec![check("nodes", &servers), check("workers", &workers)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::UNIX_EPOCH.saturating_add(Duration::from_secs(seconds))
    }

    #[test]
    fn clocks_that_differ_by_more_than_two_seconds_are_a_warning() {
        let worker = Worker {
            name: "w".to_owned(),
            about: json!({}),
            heartbeat_at: at(100),
            heartbeat_age_ms: 5000,
            alive: true,
            signal: None,
            state: None,
        };
        for (before, after, verdict, text) in [
            (105, 106, Verdict::Ok, "agree"),
            (106, 107, Verdict::Ok, "1s behind"),
            (115, 116, Verdict::Warning, "10s behind"),
            (95, 96, Verdict::Warning, "9s ahead of"),
        ] {
            let check = clock_check(std::slice::from_ref(&worker), at(before), at(after));
            let check = check.unwrap();
            assert_eq!(check.verdict, verdict, "{before}: {}", check.found);
            assert!(check.found.contains(text), "{before}: {}", check.found);
        }
        assert!(clock_check(&[], at(1), at(2)).is_none());
    }
}
