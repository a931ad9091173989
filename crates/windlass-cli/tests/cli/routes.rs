//! Every route of the REST API has a verb on the command line, or a reason why not.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::windlass;

/// How the command line reaches a route.
enum Reached {
    /// This command does what the route does.
    By(&'static str),
    /// No command does, for this reason.
    Not(&'static str),
}

use Reached::{By, Not};

const FOR_WORKERS: Reached = Not("only workers call it: use the SDK, windlass-client or REST");

/// All routes in the order of `openapi.json`.
const ROUTES: &[(&str, Reached)] = &[
    ("GET /api/v1/audit", By("audit list")),
    ("GET /api/v1/audit/verify", By("audit verify")),
    ("GET /api/v1/bulk-actions", By("bulk list")),
    ("POST /api/v1/bulk-actions", By("bulk start")),
    ("GET /api/v1/bulk-actions/{id}", By("bulk show")),
    ("POST /api/v1/bulk-actions/{id}/abort", By("bulk abort")),
    ("POST /api/v1/bulk-actions/{id}/pause", By("bulk pause")),
    ("POST /api/v1/bulk-actions/{id}/resume", By("bulk resume")),
    ("POST /api/v1/claim", FOR_WORKERS),
    (
        "POST /api/v1/completions/{token}",
        Not("only the target of an HTTP job has the token"),
    ),
    ("GET /api/v1/dead-letters", By("jobs list")),
    ("GET /api/v1/events", By("tail")),
    ("GET /api/v1/failures", By("failures list")),
    ("GET /api/v1/hooks", By("hooks list")),
    ("DELETE /api/v1/hooks/{name}", By("hooks delete")),
    ("GET /api/v1/hooks/{name}", By("hooks show")),
    ("PUT /api/v1/hooks/{name}", By("hooks put")),
    ("POST /api/v1/hooks/{name}/test", By("hooks test")),
    ("GET /api/v1/jobs", By("jobs list")),
    ("POST /api/v1/jobs", By("enqueue")),
    ("POST /api/v1/jobs/bulk", By("enqueue")),
    ("GET /api/v1/jobs/export", By("jobs export")),
    ("POST /api/v1/jobs/run-now", By("jobs run-now")),
    ("DELETE /api/v1/jobs/{id}", By("jobs delete")),
    ("GET /api/v1/jobs/{id}", By("jobs show")),
    ("PATCH /api/v1/jobs/{id}", By("jobs edit")),
    ("POST /api/v1/jobs/{id}/cancel", By("jobs cancel")),
    ("GET /api/v1/jobs/{id}/history", By("jobs history")),
    ("GET /api/v1/jobs/{id}/logs", By("jobs logs")),
    (
        "GET /api/v1/jobs/{id}/replaced-payloads/{sha256}",
        By("jobs replaced-payload"),
    ),
    ("POST /api/v1/jobs/{id}/resolve", By("jobs resolve")),
    ("POST /api/v1/jobs/{id}/revive", By("jobs revive")),
    ("POST /api/v1/jobs/{id}/run-now", By("jobs run-now")),
    (
        "GET /api/v1/jobs/{id}/schedule",
        Not("only for the scheduler form; `windlass schedules show ID` shows its schedule"),
    ),
    ("GET /api/v1/jobs/{id}/wait", By("jobs wait")),
    ("GET /api/v1/jobs/{id}/why", By("jobs why")),
    ("GET /api/v1/keys", By("keys list")),
    ("POST /api/v1/keys", By("keys create")),
    ("DELETE /api/v1/keys/{id}", By("keys revoke")),
    ("POST /api/v1/login-links", By("open")),
    ("GET /api/v1/policies", By("policy list")),
    ("POST /api/v1/policies/explain", By("policy explain")),
    (
        "GET /api/v1/policies/{preset}/explain",
        By("policy explain"),
    ),
    ("POST /api/v1/progress", FOR_WORKERS),
    ("GET /api/v1/queues", By("queues list")),
    ("GET /api/v1/queues/{queue}", By("queues show")),
    ("POST /api/v1/queues/{queue}/pause", By("queues pause")),
    ("POST /api/v1/queues/{queue}/resume", By("queues resume")),
    ("GET /api/v1/queues/{queue}/settings", By("queues show")),
    ("PUT /api/v1/queues/{queue}/settings", By("queues set")),
    ("POST /api/v1/renew", FOR_WORKERS),
    ("GET /api/v1/replays", By("replay list")),
    ("POST /api/v1/replays", By("replay start")),
    ("GET /api/v1/replays/{id}", By("replay show")),
    ("POST /api/v1/replays/{id}/abort", By("replay abort")),
    ("POST /api/v1/replays/{id}/continue", By("replay continue")),
    ("POST /api/v1/replays/{id}/pause", By("replay pause")),
    ("POST /api/v1/replays/{id}/resume", By("replay resume")),
    ("GET /api/v1/schedules", By("schedules list")),
    ("POST /api/v1/schedules", By("schedules put")),
    (
        "POST /api/v1/schedules/bulk",
        Not("`windlass schedules put` stores one schedule; a script calls it for each file"),
    ),
    ("POST /api/v1/schedules/preview", By("schedules preview")),
    ("DELETE /api/v1/schedules/{name}", By("schedules delete")),
    ("GET /api/v1/schedules/{name}", By("schedules show")),
    ("PATCH /api/v1/schedules/{name}", By("schedules edit")),
    ("PUT /api/v1/schedules/{name}", By("schedules put")),
    (
        "POST /api/v1/schedules/{name}/backfill",
        By("schedules backfill"),
    ),
    (
        "GET /api/v1/schedules/{name}/occurrences",
        By("schedules occurrences"),
    ),
    ("POST /api/v1/schedules/{name}/pause", By("schedules pause")),
    (
        "GET /api/v1/schedules/{name}/preview",
        By("schedules preview"),
    ),
    (
        "GET /api/v1/schedules/{name}/replaced-payloads/{sha256}",
        By("schedules replaced-payload"),
    ),
    (
        "POST /api/v1/schedules/{name}/resume",
        By("schedules resume"),
    ),
    (
        "POST /api/v1/schedules/{name}/run-now",
        By("schedules run-now"),
    ),
    ("GET /api/v1/secrets", By("secrets list")),
    ("POST /api/v1/secrets/rotate", By("secrets rotate")),
    ("DELETE /api/v1/secrets/{name}", By("secrets remove")),
    ("PUT /api/v1/secrets/{name}", By("secrets put")),
    (
        "GET /api/v1/settings",
        Not("for the dashboard; `windlass config print` shows what a server starts with"),
    ),
    ("POST /api/v1/settle", FOR_WORKERS),
    ("GET /api/v1/stats", By("stats")),
    ("GET /api/v1/workers", By("workers list")),
    ("POST /api/v1/workers", FOR_WORKERS),
    ("DELETE /api/v1/workers/{name}", By("workers remove")),
    (
        "POST /api/v1/workers/{name}/pause-claims",
        By("workers pause-claims"),
    ),
    ("POST /api/v1/workers/{name}/resume", By("workers resume")),
    ("POST /api/v1/workers/{name}/stop", By("workers stop")),
    (
        "GET /livez",
        Not("for a supervisor of the process; `windlass doctor` asks `/readyz`"),
    ),
    ("GET /metrics", Not("for Prometheus")),
    ("GET /openapi.json", Not("for generators of clients")),
    ("GET /readyz", By("doctor")),
];

/// Returns the routes of the API description, such as `GET /api/v1/jobs`.
fn described() -> BTreeSet<String> {
    let text = include_str!("../../../../docs/openapi.json");
    let description: Value = serde_json::from_str(text).expect("JSON");
    let paths = description.get("paths").and_then(Value::as_object);
    let paths = paths.expect("an object");
    let routes = paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().expect("an object").keys();
        let methods = methods.filter(|name| *name != "parameters");
        methods.map(move |method| format!("{} {path}", method.to_uppercase()))
    });
    routes.collect()
}

#[test]
fn every_route_has_a_verb_or_a_reason() {
    let listed: BTreeSet<String> = ROUTES
        .iter()
        .map(|(route, _)| (*route).to_owned())
        .collect();
    let described = described();
    let missing: Vec<&String> = described.difference(&listed).collect();
    assert!(
        missing.is_empty(),
        "add a verb for {missing:?}, or the reason why there is none"
    );
    let removed: Vec<&String> = listed.difference(&described).collect();
    assert!(
        removed.is_empty(),
        "these routes no longer exist: {removed:?}"
    );
    assert_eq!(listed.len(), ROUTES.len(), "a route is listed twice");
}

#[test]
fn every_verb_exists() {
    let mut verbs = BTreeSet::new();
    for (route, reached) in ROUTES {
        match reached {
            By(verb) => _ = verbs.insert(*verb),
            Not(reason) => assert!(!reason.is_empty(), "{route}"),
        }
    }
    for verb in verbs {
        let words: Vec<&str> = verb.split(' ').chain(["--help"]).collect();
        let help = windlass(&words);
        assert!(help.status.success(), "windlass {verb}: {help:?}");
    }
}
