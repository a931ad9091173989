//! Pages for administrators: the audit log, API keys and the effective configuration.

use askama::Template;
use axum::Router;
use axum::http::Method;
use serde_json::{Map, Value, json};
use windlass_api::{AuditPage, AuditRecord, CreatedKey, Key, Page, ServerSetting, VerifiedAudit};

use crate::failure::Failure;
use crate::fields::{Fields, escaped};
use crate::frame::{Frame, Look, Section};
use crate::show;
use crate::site::{PageResult, Site, action, page};
use crate::visit::{Submit, Visit};

/// The number of audit records on a page.
const RECORDS: usize = 50;

pub(super) fn routes() -> Router<Site> {
    Router::new()
        .route("/audit", page(audit))
        .route("/keys", page(keys).merge(action(create_key)))
        .route("/keys/{id}/revoke", page(revoke_form).merge(action(revoke)))
        .route("/settings", page(settings))
}

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditTemplate {
    frame: Frame,
    filters: Fields,
    records: Vec<RecordRow>,
    older: Option<String>,
    newest: Option<String>,
    /// The result of a verification, if it was asked for.
    verified: Option<(bool, String)>,
    verify_link: String,
    commands: Vec<String>,
}

struct RecordRow {
    record: AuditRecord,
    what: String,
    target: String,
    target_link: Option<String>,
    detail: String,
    reason: Option<String>,
}

async fn audit(visit: Visit) -> PageResult {
    let frame = Frame::new(&visit, "Audit", Section::Audit).await?;
    let names = ["key", "action", "target", "from", "before", "cursor"];
    let given = names
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), visit.query().get(name)?.to_owned())));
    let filters: Fields = given.collect();
    let query = filters.with("limit", &RECORDS.to_string());
    let records: AuditPage = visit
        .get(&format!("/api/v1/audit{}", query.query()))
        .await?;
    let link = |fields: &Fields| format!("{}/audit{}", visit.base(), fields.query());
    let verified = match visit.query().get("verify") {
        Some(_) => Some(verification(visit.get("/api/v1/audit/verify").await?)),
        None => None,
    };
    let conditions = filters.without(&["cursor"]);
    let mut command = "windlass audit list".to_owned();
    for (name, value) in conditions.pairs() {
        command.push_str(&format!(" --{name} '{}'", value.replace('\'', r"'\''")));
    }
    let page = AuditTemplate {
        records: records.data.into_iter().map(record_row).collect(),
        older: records
            .next_cursor
            .map(|cursor| link(&filters.with("cursor", &cursor))),
        newest: filters.get("cursor").map(|_| link(&conditions)),
        verified,
        verify_link: link(&conditions.with("verify", "1")),
        commands: vec![command, "windlass audit verify".to_owned()],
        filters,
        frame,
    };
    visit.page(&page)
}

fn verification(result: VerifiedAudit) -> (bool, String) {
    match result.broken {
        None => (
            true,
            format!(
                "The log is complete: {} records, none changed, removed or inserted. Hash of the last: {}",
                show::grouped(result.records),
                result.hash
            ),
        ),
        Some(broken) => (
            false,
            format!("The log was tampered with: {}", show::visible(&broken)),
        ),
    }
}

/// Turns `queue.pause` into `queue pause`.
fn action_words(action: &str) -> String {
    show::visible(&action.replace(['.', '_'], " "))
}

fn record_row(record: AuditRecord) -> RecordRow {
    let kind = record.action.split('.').next().unwrap_or_default();
    let target = escaped(&record.target);
    let target_link = match kind {
        "job" => Some(format!("/jobs/{target}")),
        "queue" => Some(format!("/queues/{target}")),
        "replay" => Some(format!("/actions/replays/{target}")),
        "bulk" | "bulk_action" => Some(format!("/actions/bulk/{target}")),
        "schedule" => Some(format!("/schedules/{target}")),
        "worker" => Some("/workers".to_owned()),
        _ => None,
    };
    let reason = record
        .detail
        .get("reason")
        .and_then(Value::as_str)
        .map(show::visible);
    let detail = match &record.detail {
        Value::Object(fields) if fields.is_empty() => String::new(),
        detail => show::clipped(&detail.to_string(), 2000),
    };
    RecordRow {
        what: action_words(&record.action),
        target: show::clipped(&record.target, 80),
        target_link,
        detail,
        reason,
        record,
    }
}

#[derive(Template)]
#[template(path = "keys.html")]
struct KeysTemplate {
    frame: Frame,
    keys: Vec<KeyRow>,
    scopes: Vec<(&'static str, &'static str)>,
    /// A key that was just created: its text, shown once.
    created: Option<(String, String)>,
    no_keys: bool,
    commands: Vec<String>,
}

struct KeyRow {
    key: Key,
    name: String,
    look: Look,
    scopes: String,
    active: bool,
}

/// What each scope allows.
const SCOPES: [(&str, &str); 6] = [
    ("read", "see queues, jobs and statistics, without payloads"),
    ("read-payload", "see payloads, results and errors"),
    ("operate", "pause, cancel, revive, replay, change settings"),
    ("enqueue", "create jobs"),
    ("work", "run jobs as a remote worker"),
    ("admin", "everything, and keys, secrets and the audit log"),
];

async fn keys(visit: Visit) -> PageResult {
    keys_page(&visit, None).await
}

async fn keys_page(visit: &Visit, created: Option<(String, String)>) -> PageResult {
    let frame = Frame::new(visit, "Keys", Section::Keys).await?;
    let keys: Page<Key> = visit.get("/api/v1/keys").await?;
    let now = visit.now();
    let row = |key: Key| {
        let expired = key.expires_at.is_some_and(|at| at <= now);
        let look = match (key.revoked_at.is_some(), expired, key.unreadable) {
            (true, ..) => Look::new("revoked", "cancelled", "cancelled"),
            (_, true, _) => Look::new("expired", "cancelled", "cancelled"),
            (.., true) => Look::new("unreadable", "warn", "retrying"),
            _ => Look::new("active", "succeeded", "succeeded"),
        };
        KeyRow {
            name: show::visible(&key.name),
            scopes: key
                .scopes
                .iter()
                .map(|scope| scope.name())
                .collect::<Vec<_>>()
                .join(", "),
            active: look.word == "active",
            look,
            key,
        }
    };
    let keys: Vec<KeyRow> = keys.data.into_iter().rev().map(row).collect();
    let page = KeysTemplate {
        no_keys: keys.is_empty(),
        keys,
        scopes: SCOPES.to_vec(),
        created,
        commands: vec![
            "windlass keys list".to_owned(),
            "windlass keys create --name dashboard --scope read,operate --expires-in 90d"
                .to_owned(),
            "windlass keys revoke ID".to_owned(),
        ],
        frame,
    };
    visit.page(&page)
}

async fn create_key(submit: Submit) -> PageResult {
    let scopes: Vec<&str> = submit.fields.all("scope").collect();
    let mut body = Map::new();
    body.insert("name".to_owned(), json!(submit.required("name")?));
    body.insert("scopes".to_owned(), json!(scopes));
    if let Some(expires_in) = submit.fields.get("expires_in") {
        body.insert("expires_in".to_owned(), json!(expires_in));
    }
    let created: CreatedKey = submit
        .visit
        .send(Method::POST, "/api/v1/keys", &body)
        .await?;
    // The key is in this response alone: a redirect would have to keep it somewhere.
    keys_page(&submit.visit, Some((created.about.name, created.key))).await
}

#[derive(Template)]
#[template(path = "key_revoke.html")]
struct RevokeTemplate {
    frame: Frame,
    key: Key,
    commands: Vec<String>,
}

async fn revoke_form(visit: Visit) -> PageResult {
    let keys: Page<Key> = visit.get("/api/v1/keys").await?;
    let key = keys
        .data
        .into_iter()
        .find(|key| key.id == visit.param("id"));
    let key = key.ok_or_else(Failure::no_page)?;
    let frame = Frame::new(&visit, "Revoke a key", Section::Keys).await?;
    let commands = vec![format!("windlass keys revoke {}", key.id)];
    visit.page(&RevokeTemplate {
        frame,
        key,
        commands,
    })
}

async fn revoke(submit: Submit) -> PageResult {
    let path = format!("/api/v1/keys/{}", escaped(submit.visit.param("id")));
    let key: Key = submit.visit.send(Method::DELETE, &path, &json!({})).await?;
    Ok(submit.visit.done(
        "/keys",
        &format!(
            "Revoked {}. All servers refuse it within a second.",
            key.name
        ),
    ))
}

#[derive(Template)]
#[template(path = "settings.html")]
struct SettingsTemplate {
    frame: Frame,
    /// The sections, each with its settings.
    sections: Vec<(String, Vec<ServerSetting>)>,
    commands: Vec<String>,
}

async fn settings(visit: Visit) -> PageResult {
    let frame = Frame::new(&visit, "Settings", Section::Settings).await?;
    let settings: Page<ServerSetting> = visit.get("/api/v1/settings").await?;
    let mut sections: Vec<(String, Vec<ServerSetting>)> = Vec::new();
    for setting in settings.data {
        let section = setting
            .key
            .split_once('.')
            .map_or("general", |(section, _)| section)
            .to_owned();
        match sections.last_mut() {
            Some((last, settings)) if *last == section => settings.push(setting),
            _ => sections.push((section, vec![setting])),
        }
    }
    let page = SettingsTemplate {
        sections,
        commands: vec!["windlass config print".to_owned()],
        frame,
    };
    visit.page(&page)
}
