//! The policy lab: what a retry policy does before it does it, two side by side.

mod drawing;
mod policy;

use std::time::Duration;

use askama::Template;
use axum::Router;
use axum::http::Method;
use serde_json::{Value, json};
use windlass_api::{NamedPolicy, Page, PolicyExplanation};
use windlass_core::retry::RetryPolicy;

use self::drawing::Scales;
use self::policy::PolicyFields;
use crate::failure::Failure;
use crate::fields::{Fields, escaped};
use crate::frame::{Frame, Section};
use crate::markup::Markup;
use crate::show;
use crate::site::{PageResult, Site, page};
use crate::visit::Visit;

/// How many jobs fail together if the URL does not say.
const JOBS_DEFAULT: u64 = 10_000;
/// The most queues that a policy can be tried on.
const QUEUES_MAX: usize = 200;
/// The most attempts that the table lists.
const TABLE_ROWS: usize = 50;

pub(super) fn routes() -> Router<Site> {
    Router::new()
        .route("/lab", page(show))
        .route("/lab/use", page(use_policy))
}

/// One of the two policies.
struct Side {
    letter: &'static str,
    /// The letter in names of fields: `a` or `b`.
    key: &'static str,
    fields: PolicyFields,
    preset: Option<String>,
    summary: String,
    failure: Option<String>,
    peak: u64,
    gives_up: String,
    gives_up_note: &'static str,
    latest: String,
    attempts: usize,
    jitter_words: String,
    curve: Markup,
    lanes: Markup,
    herd: Markup,
    herd_table: Markup,
    rows: Vec<[String; 4]>,
    more_rows: usize,
    /// The name of the preset, or the policy as JSON.
    name: String,
    json: String,
    rust: String,
    cli: String,
    explanation: Option<PolicyExplanation>,
}

#[derive(Template)]
#[template(path = "lab.html")]
struct LabTemplate {
    frame: Frame,
    jobs: String,
    jobs_field: u64,
    verdict: Option<Markup>,
    sides: Vec<Side>,
    presets: Vec<(String, String)>,
    /// All parameters, for forms that change only some of them.
    hidden: Vec<(String, String)>,
    /// The queues that can use one of the policies.
    queues: Vec<String>,
    commands: Vec<String>,
}

impl LabTemplate {
    /// The parameters that a form does not set itself.
    fn others<'a>(&'a self, own: &'a str) -> impl Iterator<Item = &'a (String, String)> {
        let prefix = format!("{own}_");
        self.hidden
            .iter()
            .filter(move |(name, _)| name != own && !name.starts_with(&prefix))
    }
}

async fn show(visit: Visit) -> PageResult {
    let query = visit.query();
    let jobs: u64 = query
        .get("jobs")
        .and_then(|text| text.replace(',', "").trim().parse().ok())
        .filter(|jobs| *jobs > 0)
        .unwrap_or(JOBS_DEFAULT);
    let presets: Page<NamedPolicy> = visit.get("/api/v1/policies").await?;
    let mut sides = vec![
        side(&visit, "A", "a", "webhook", jobs).await?,
        side(&visit, "B", "b", "full-jitter", jobs).await?,
    ];
    let scales = Scales::of(
        sides.iter().filter_map(|side| side.explanation.as_ref()),
        jobs,
    );
    for side in &mut sides {
        if let Some(explanation) = &side.explanation {
            side.curve = scales.curve(explanation, side.key);
            side.lanes = scales.lanes(explanation, side.key);
            side.herd = scales.herd(explanation, side.key);
            side.herd_table = scales.herd_table(explanation);
        }
    }
    let frame = Frame::new(&visit, "Policy lab", Section::Lab).await?;
    let snapshot = visit.snapshot().await?;
    let queues = snapshot.queues.iter().take(QUEUES_MAX);
    let queues = queues.map(|queue| queue.name.to_string()).collect();
    let verdict = match sides.as_slice() {
        [a, b] => verdict(a, b),
        _ => None,
    };
    let page = LabTemplate {
        jobs: show::grouped(jobs),
        jobs_field: jobs,
        verdict,
        presets: presets
            .data
            .iter()
            .map(|preset| (preset.name.name().to_owned(), preset.purpose.clone()))
            .collect(),
        hidden: shared(query),
        commands: sides.iter().map(|side| side.cli.clone()).collect(),
        queues,
        sides,
        frame,
    };
    visit.page(&page)
}

/// Leads to the settings of a queue, with a policy of the lab as a draft. Nothing changes yet.
async fn use_policy(visit: Visit) -> PageResult {
    let query = visit.query();
    let (Some(queue), Some(policy)) = (query.get("queue"), query.get("policy")) else {
        return Err(Failure::invalid("choose a queue and a policy"));
    };
    let path = format!(
        "/queues/{}/settings?retry={}",
        escaped(queue),
        escaped(policy)
    );
    Ok(visit.redirect(&path, None))
}

/// The parameters of the lab.
fn shared(query: &Fields) -> Vec<(String, String)> {
    let known = |name: &str| {
        name == "jobs"
            || name == "a"
            || name == "b"
            || name.starts_with("a_")
            || name.starts_with("b_")
    };
    let pairs = query
        .pairs()
        .filter(|(name, value)| known(name) && !value.is_empty());
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

async fn side(
    visit: &Visit,
    letter: &'static str,
    key: &'static str,
    default: &str,
    jobs: u64,
) -> Result<Side, Failure> {
    let (chosen, preset) = policy::chosen(visit.query(), key, default);
    let explained = match &chosen {
        Ok(policy) => explain(visit, policy, jobs).await,
        Err(failure) => Err(failure.clone()),
    };
    let rules = chosen
        .as_ref()
        .ok()
        .and_then(|json| RetryPolicy::from_json(json).ok());
    let fields = match &rules {
        Some(rules) if visit.query().get(&format!("{key}_type")).is_none() => {
            PolicyFields::of(rules)
        }
        _ => PolicyFields::typed(visit.query(), key),
    };
    let (explanation, failure) = match explained {
        Ok(explanation) => (Some(explanation), None),
        Err(failure) if failure.status.is_client_error() => (None, Some(failure.detail)),
        Err(failure) => return Err(failure),
    };
    let name = rules
        .as_ref()
        .map_or(String::new(), |rules| compact(rules, preset.as_deref()));
    Ok(Side {
        letter,
        key,
        summary: rules
            .as_ref()
            .map_or(String::new(), |rules| rules.backoff().words()),
        jitter_words: rules
            .as_ref()
            .map_or(String::new(), |rules| rules.jitter().words()),
        rust: rules.as_ref().map_or(String::new(), |rules| {
            policy::rust(rules, preset.as_deref())
        }),
        cli: format!(
            "windlass policy explain {} --jobs {jobs}",
            super::dead::quoted(&name)
        ),
        peak: explanation
            .as_ref()
            .map_or(0, |one| drawing::peak(one, jobs)),
        gives_up: explanation
            .as_ref()
            .map_or("–".to_owned(), |one| millis(one.horizon_ms.nominal)),
        gives_up_note: match &explanation {
            Some(one) if one.horizon_ms.min != one.horizon_ms.max => "without jitter",
            _ => "",
        },
        latest: explanation
            .as_ref()
            .map_or("–".to_owned(), |one| millis(one.horizon_ms.max)),
        attempts: explanation.as_ref().map_or(0, |one| one.attempts.len()),
        rows: explanation.as_ref().map(table).unwrap_or_default(),
        more_rows: explanation
            .as_ref()
            .map_or(0, |one| one.attempts.len().saturating_sub(TABLE_ROWS)),
        json: rules
            .as_ref()
            .map_or(String::new(), |rules| rules.to_json().to_string()),
        name,
        fields,
        preset,
        failure,
        curve: Markup::default(),
        lanes: Markup::default(),
        herd: Markup::default(),
        herd_table: Markup::default(),
        explanation,
    })
}

async fn explain(visit: &Visit, policy: &Value, jobs: u64) -> Result<PolicyExplanation, Failure> {
    let body = json!({"policy": policy, "jobs": jobs});
    visit
        .send(Method::POST, "/api/v1/policies/explain", &body)
        .await
}

/// The name of the preset, or the policy as JSON on one line.
fn compact(rules: &RetryPolicy, preset: Option<&str>) -> String {
    match preset {
        Some(preset) => preset.to_owned(),
        None => rules.to_json().to_string(),
    }
}

fn millis(millis: u64) -> String {
    show::duration(Duration::from_millis(millis))
}

fn table(explanation: &PolicyExplanation) -> Vec<[String; 4]> {
    let range = |range: &windlass_api::Range| match range.min == range.max {
        true => millis(range.nominal),
        false => format!("{} to {}", millis(range.min), millis(range.max)),
    };
    let row = |attempt: &windlass_api::AttemptForecast| {
        [
            attempt.attempt.to_string(),
            range(&attempt.delay_ms),
            millis(attempt.at_ms.nominal),
            range(&attempt.at_ms),
        ]
    };
    explanation
        .attempts
        .iter()
        .take(TABLE_ROWS)
        .map(row)
        .collect()
}

/// What the difference between the two policies is, in one sentence.
fn verdict(a: &Side, b: &Side) -> Option<Markup> {
    let (one, other) = (a.explanation.as_ref()?, b.explanation.as_ref()?);
    let strong = |text: &str| {
        format!(
            "<strong class=\"mid\">{}</strong>",
            crate::markup::escaped(text)
        )
    };
    let (low, high) = if b.peak <= a.peak { (b, a) } else { (a, b) };
    let load = if low.peak == high.peak {
        format!(
            "Both send at most {} retries a second.",
            strong(&show::grouped(low.peak))
        )
    } else {
        format!(
            "{} hits the target with at most {} where {} sends {}.",
            low.letter,
            strong(&format!("{} retries a second", show::grouped(low.peak))),
            high.letter,
            show::grouped(high.peak)
        )
    };
    let (first, second) = (one.horizon_ms.nominal, other.horizon_ms.nominal);
    let patience = if first == second {
        format!("Both give up after {}.", strong(&a.gives_up))
    } else {
        format!(
            "A gives up after {}, B after {}.",
            strong(&a.gives_up),
            strong(&b.gives_up)
        )
    };
    Some(Markup(format!("{load} {patience}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_parameters_of_the_lab_are_kept() {
        let query = Fields::parse("a=webhook&b_type=constant&jobs=5&cursor=x&b_base=");
        let names: Vec<String> = shared(&query).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a", "b_type", "jobs"]);
    }
}
