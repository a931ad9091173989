//! What operators do to a queue: pause, resume, set limits and guards, purge.

use askama::Template;
use axum::http::Method;
use serde_json::{Map, Value, json};
use windlass_api::{BulkAction, BulkActionAnswer, Queue, QueueSettings, Retry};
use windlass_core::retry::RetryPolicy;

use super::read;
use crate::failure::Failure;
use crate::fields::{Fields, escaped};
use crate::frame::{Frame, Section};
use crate::pages::dead::quoted;
use crate::pages::job::policy_words;
use crate::show;
use crate::site::PageResult;
use crate::visit::{Submit, Visit};

/// The retry policy of a queue in words.
pub(super) fn policy_in_words(queue: &Queue) -> String {
    let Some(retry) = &queue.settings.retry else {
        return "not set: the default of the kind or of the server".to_owned();
    };
    match serde_json::to_value(retry) {
        Ok(policy) if policy.is_object() => RetryPolicy::from_json(&policy)
            .map_or_else(|_| policy_text(retry), |policy| policy_words(&policy)),
        _ => policy_text(retry),
    }
}

fn policy_text(retry: &Retry) -> String {
    match serde_json::to_value(retry) {
        Ok(Value::String(preset)) => preset,
        Ok(policy) => policy.to_string(),
        Err(_) => String::new(),
    }
}

pub(super) async fn pause(submit: Submit) -> PageResult {
    let name = submit.visit.param("queue").to_owned();
    let reason = submit.fields.get("reason");
    let body = reason.map_or_else(|| json!({}), |reason| json!({"reason": reason}));
    let path = format!("/api/v1/queues/{}/pause", escaped(&name));
    let _: Queue = submit.visit.send(Method::POST, &path, &body).await?;
    let page = format!("/queues/{}", escaped(&name));
    Ok(submit.visit.undoable(
        &page,
        &format!("{page}/resume"),
        &format!("Paused {name}. Running jobs continue."),
    ))
}

pub(super) async fn resume(submit: Submit) -> PageResult {
    let name = submit.visit.param("queue").to_owned();
    let path = format!("/api/v1/queues/{}/resume", escaped(&name));
    let _: Queue = submit.visit.send(Method::POST, &path, &json!({})).await?;
    let back = submit
        .fields
        .get("from")
        .filter(|from| *from == "/")
        .map(str::to_owned);
    let page = format!("/queues/{}", escaped(&name));
    let back = back.unwrap_or_else(|| page.clone());
    Ok(submit
        .visit
        .undoable(&back, &format!("{page}/pause"), &format!("Resumed {name}.")))
}

/// A field of the settings form.
struct SettingField {
    name: &'static str,
    label: &'static str,
    value: String,
    hint: &'static str,
}

#[derive(Template)]
#[template(path = "queue_settings.html")]
struct SettingsPage {
    frame: Frame,
    name: String,
    path: String,
    groups: [(&'static str, Vec<SettingField>); 2],
    /// Whether the retry policy is a draft that nothing uses yet.
    has_draft: bool,
    commands: Vec<String>,
}

pub(super) async fn settings_form(visit: Visit) -> PageResult {
    let queue = read(&visit).await?;
    let name = queue.name.to_string();
    let frame = Frame::new(&visit, format!("Settings of {name}"), Section::Queues).await?;
    let draft = visit.query().get("retry");
    let retry = draft.map_or_else(|| "standard".to_owned(), quoted);
    let page = SettingsPage {
        path: format!("/queues/{}", escaped(&name)),
        groups: setting_fields(&queue.settings, draft),
        has_draft: draft.is_some(),
        commands: vec![match draft {
            Some(_) => format!("windlass queues set {name} --retry {retry}"),
            None => {
                format!("windlass queues set {name} --concurrency 40 --rate 100/1m --retry {retry}")
            }
        }],
        name,
        frame,
    };
    visit.page(&page)
}

/// The fields of the form, in groups with a title. A draft of the retry policy replaces the one in
/// force.
fn setting_fields(
    settings: &QueueSettings,
    draft: Option<&str>,
) -> [(&'static str, Vec<SettingField>); 2] {
    let text = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
    let field = |name, label, value, hint| SettingField {
        name,
        label,
        value,
        hint,
    };
    let rate = settings.rate.as_ref().and_then(|rate| {
        let period = windlass_core::format_duration(rate.period.as_ref()?.0);
        Some(format!("{}/{period}", rate.count?.to::<u64>()))
    });
    let ratio = settings
        .retry_fetch_ratio
        .as_ref()
        .map(|ratio| match ratio.0 {
            Some(ratio) => ratio.get().to_string(),
            None => "off".to_owned(),
        });
    let limits = vec![
        field(
            "concurrency",
            "Running at once",
            text(settings.concurrency.map(|limit| limit.to())),
            "over all nodes; empty for no limit",
        ),
        field(
            "rate",
            "Rate",
            rate.unwrap_or_default(),
            "jobs that start in a period, such as 100/1m; empty for no limit",
        ),
        field(
            "max_depth",
            "Depth",
            text(settings.max_depth.map(|limit| limit.to())),
            "jobs that may wait; empty for no limit",
        ),
        field(
            "weight",
            "Weight",
            text(settings.weight.map(|weight| weight.to())),
            "share of a worker's slots next to its other queues; default 1",
        ),
    ];
    let guards = vec![
        field(
            "retry",
            "Retry policy",
            draft
                .map(str::to_owned)
                .or_else(|| settings.retry.as_ref().map(policy_text))
                .unwrap_or_default(),
            "a preset such as standard, or a policy as JSON; empty for that of the kind or the server",
        ),
        field(
            "retry_fetch_ratio",
            "Retry share",
            ratio.unwrap_or_default(),
            "0 to 1 while new jobs wait too, or off; default 0.2",
        ),
        field(
            "fresh_reserve",
            "Fresh reserve",
            text(settings.fresh_reserve.map(|slots| slots.to())),
            "slots of each worker that never run a retry",
        ),
        field(
            "max_inflight_retries",
            "Retries at once",
            text(settings.max_inflight_retries.map(|limit| limit.to())),
            "over all nodes; empty for no limit",
        ),
        field(
            "retry_lane",
            "Retry lane",
            text(settings.retry_lane.map(|slots| slots.to())),
            "retries that each worker runs in a separate pool; empty for none",
        ),
    ];
    [("Limits", limits), ("Guards for fresh work", guards)]
}

pub(super) async fn settings(submit: Submit) -> PageResult {
    let name = submit.visit.param("queue").to_owned();
    let body = settings_body(&submit.fields)?;
    let path = format!("/api/v1/queues/{}/settings", escaped(&name));
    let _: QueueSettings = submit.visit.send(Method::PUT, &path, &body).await?;
    Ok(submit.visit.done(
        &format!("/queues/{}", escaped(&name)),
        &format!("Saved the settings of {name}."),
    ))
}

/// Turns the fields of the form into the body of the route, which checks them.
fn settings_body(fields: &Fields) -> Result<Value, Failure> {
    let mut body = Map::new();
    let numbers = [
        "concurrency",
        "max_depth",
        "weight",
        "fresh_reserve",
        "max_inflight_retries",
        "retry_lane",
    ];
    for name in numbers {
        if let Some(text) = fields.get(name) {
            let number: u64 = text.trim().replace([',', '_'], "").parse().map_err(|_| {
                Failure::invalid(format!(
                    "{name} must be a whole number, got “{}”",
                    show::clipped(text, 40)
                ))
            })?;
            body.insert(name.to_owned(), number.into());
        }
    }
    if let Some(rate) = fields.get("rate") {
        let Some((count, period)) = rate.split_once('/') else {
            return Err(Failure::invalid(
                "the rate must be a count and a period, such as 100/1m",
            ));
        };
        let count: u64 = count.trim().parse().map_err(|_| {
            Failure::invalid("the rate must start with a whole number, such as 100/1m")
        })?;
        body.insert(
            "rate".to_owned(),
            json!({"count": count, "period": period.trim()}),
        );
    }
    if let Some(ratio) = fields.get("retry_fetch_ratio") {
        let ratio = ratio
            .trim()
            .parse::<f64>()
            .map_or_else(|_| json!(ratio.trim()), |ratio| json!(ratio));
        body.insert("retry_fetch_ratio".to_owned(), ratio);
    }
    if let Some(retry) = fields.get("retry") {
        let policy = if retry.trim_start().starts_with('{') {
            serde_json::from_str(retry).map_err(|error| {
                Failure::invalid(format!("the retry policy must be JSON: {error}"))
            })?
        } else {
            json!(retry.trim())
        };
        body.insert("retry".to_owned(), policy);
    }
    Ok(Value::Object(body))
}

#[derive(Template)]
#[template(path = "queue_purge.html")]
struct PurgePage {
    frame: Frame,
    name: String,
    path: String,
    /// The states with their numbers of jobs.
    states: Vec<(&'static str, u64)>,
    commands: Vec<String>,
}

pub(super) async fn purge_form(visit: Visit) -> PageResult {
    let queue = read(&visit).await?;
    let name = queue.name.to_string();
    let frame = Frame::new(&visit, format!("Purge {name}"), Section::Queues).await?;
    let counts = &queue.counts;
    let page = PurgePage {
        states: vec![
            ("dead", counts.dead),
            ("succeeded", counts.succeeded),
            ("cancelled", counts.cancelled),
        ],
        path: format!("/queues/{}", escaped(&name)),
        commands: vec![format!("windlass queues purge {name} --state dead")],
        name,
        frame,
    };
    visit.page(&page)
}

pub(super) async fn purge(submit: Submit) -> PageResult {
    let name = submit.visit.param("queue").to_owned();
    if submit.fields.get("name") != Some(name.as_str()) {
        return Err(Failure::invalid(format!(
            "type {name} to confirm; nothing was deleted"
        )));
    }
    let body = json!({
        "action": "delete",
        "filter": {"queue": name, "state": submit.required("state")?},
        "reason": submit.required("reason")?,
    });
    let answer: BulkActionAnswer = submit
        .visit
        .send(Method::POST, "/api/v1/bulk-actions", &body)
        .await?;
    let to = match answer {
        BulkActionAnswer::Created(created) => created_path(&created),
        BulkActionAnswer::Preview(_) => "/actions".to_owned(),
    };
    Ok(submit.visit.done(
        &to,
        "The bulk action is running. This page shows its progress.",
    ))
}

/// The page of a bulk action.
pub(crate) fn created_path(action: &BulkAction) -> String {
    format!("/actions/bulk/{}", action.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_becomes_the_body_of_the_route() {
        let fields = Fields::parse(
            "concurrency=1%2C000&rate=100%2F1m&retry_fetch_ratio=off&retry=patient&weight=",
        );
        assert_eq!(
            settings_body(&fields).unwrap(),
            json!({"concurrency": 1000, "rate": {"count": 100, "period": "1m"}, "retry_fetch_ratio": "off", "retry": "patient"})
        );
        for bad in ["concurrency=many", "rate=100", "rate=x%2F1m", "retry=%7B"] {
            assert!(settings_body(&Fields::parse(bad)).is_err(), "{bad}");
        }
    }
}
