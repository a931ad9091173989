//! Dead letters: causes of failures with their jobs, or the dead jobs one by one.

pub(super) mod export;
mod purge;
mod wizard;

use askama::Template;
use axum::Router;
use windlass_api::{FailureGroup, Job, JobPage, Page, Replay};
use windlass_core::{ActionState, DeadReason, Timestamp};

use super::actions::ReplayView;
use super::job;
use crate::draw;
use crate::failure::Failure;
use crate::fields::{Fields, escaped};
use crate::frame::{Frame, Section};
use crate::in_common::{Trait, in_common};
use crate::markup::{self, Markup};
use crate::show;
use crate::site::{PageResult, Site, action, page};
use crate::visit::Visit;

/// How many causes or jobs a page has.
const PAGE_ROWS: usize = 50;
/// How many jobs of an open cause are compared.
const SAMPLE_JOBS: usize = 100;
/// The filters of the list of dead jobs.
const FILTERS: [&str; 10] = [
    "queue",
    "kind",
    "reason",
    "fingerprint",
    "tag",
    "error",
    "finished_from",
    "finished_before",
    "payload_path",
    "payload_value",
];

pub(super) fn routes() -> Router<Site> {
    Router::new()
        .route("/dead", page(show))
        .route("/dead/export", page(export::export))
        .route(
            "/dead/replay",
            page(wizard::form).merge(action(wizard::start)),
        )
        .route("/dead/purge", page(purge::form).merge(action(purge::purge)))
}

async fn show(visit: Visit) -> PageResult {
    match visit.query().get("as") {
        Some("jobs") => by_job(visit).await,
        _ => by_cause(visit).await,
    }
}

/// The URL of this page with one parameter replaced, or removed if `value` is empty. The page starts
/// again at its first row.
pub(super) fn with(visit: &Visit, name: &str, value: &str) -> String {
    let query = visit.query().without(&["cursor"]).with(name, value).query();
    let here = visit.here();
    let path = here.split('?').next().unwrap_or_default();
    format!("{}{path}{query}", visit.base())
}

/// The query that names one cause: its filter for lists, replays and purges.
pub(super) fn group_query(group: &FailureGroup) -> String {
    let (queue, kind) = (escaped(group.queue.as_str()), escaped(group.kind.as_str()));
    format!(
        "?queue={queue}&kind={kind}&fingerprint={}",
        escaped(&group.fingerprint.to_string())
    )
}

/// Names a cause in the URL of the page that shows it open.
fn open_key(group: &FailureGroup) -> String {
    format!("{}/{}/{}", group.fingerprint, group.queue, group.kind)
}

/// A cause as a row of the page.
struct CauseRow {
    group: FailureGroup,
    /// What the errors of the cause have in common.
    error: Markup,
    jobs: String,
    exact: String,
    share: String,
    /// How often the cause failed lately.
    recent: String,
    spark: Markup,
    is_open: bool,
    open_link: String,
    query: String,
    /// The replay that works on this cause.
    replay: Option<String>,
}

/// The open cause: its newest job, and what its jobs have in common.
struct OpenCause {
    job: Option<Box<Job>>,
    chain: Vec<String>,
    traits: Vec<Trait>,
    sampled: usize,
}

#[derive(Template)]
#[template(path = "dead.html")]
struct CausesTemplate {
    frame: Frame,
    filters: FilterBar,
    dead: String,
    this_hour: u64,
    causes: Vec<CauseRow>,
    open: Option<OpenCause>,
    replays: Vec<ReplayView>,
    next: Option<String>,
    commands: Vec<String>,
}

async fn by_cause(visit: Visit) -> PageResult {
    let frame = Frame::new(&visit, "Dead letters", Section::Dead).await?;
    let filters = visit.query();
    let cursor = filters
        .get("cursor")
        .map(|cursor| format!("&cursor={}", escaped(cursor)));
    let narrow: Fields = ["queue", "kind", "fingerprint"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), filters.get(name)?.to_owned())))
        .collect();
    let path = format!(
        "/api/v1/failures{}limit={PAGE_ROWS}{}",
        match narrow.query() {
            query if query.is_empty() => "?".to_owned(),
            query => format!("{query}&"),
        },
        cursor.unwrap_or_default()
    );
    let groups: Page<FailureGroup> = visit.get(&path).await?;
    let groups_left: Vec<FailureGroup> = groups
        .data
        .into_iter()
        .filter(|group| group.dead + group.retrying > 0)
        .collect();
    let replays = running_replays(&visit).await?;
    let all_dead = visit.snapshot().await?.total(|counts| counts.dead);
    // With filters, the page counts what it lists.
    let dead = match narrow.query().is_empty() || groups.next_cursor.is_some() {
        true => all_dead,
        false => groups_left.iter().map(|group| group.dead).sum(),
    };
    let named = super::actions::groups(&visit, &replays).await?;
    let causes: Vec<CauseRow> = groups_left
        .into_iter()
        .map(|group| cause(&visit, group, all_dead, &replays))
        .collect();
    let open = match causes.iter().find(|cause| cause.is_open) {
        Some(cause) => Some(open(&visit, &cause.group).await?),
        None => None,
    };
    let page = CausesTemplate {
        filters: FilterBar::new(&visit),
        dead: show::count(dead),
        this_hour: causes
            .iter()
            .filter_map(|cause| cause.group.hours.last())
            .sum(),
        next: groups.next_cursor.map(|cursor| {
            let query = visit.query().with("cursor", &cursor).query();
            format!("{}/dead{query}", visit.base())
        }),
        commands: vec![
            "windlass failures list".to_owned(),
            format!(
                "windlass replay start{} --reason '…' --dry-run",
                flags(visit.query())
            ),
            format!(
                "windlass jobs export --state dead{} --output dead.ndjson",
                flags(visit.query())
            ),
        ],
        replays: replays
            .into_iter()
            .map(|replay| {
                let cause = super::actions::cause_of(&replay, &named);
                ReplayView::new(replay, cause, visit.now(), visit.zone())
            })
            .collect(),
        causes,
        open,
        frame,
    };
    visit.page(&page)
}

fn cause(visit: &Visit, group: FailureGroup, dead: u64, replays: &[Replay]) -> CauseRow {
    let key = open_key(&group);
    let open = visit.query().get("open") == Some(key.as_str())
        || visit.query().get("fingerprint") == Some(group.fingerprint.to_string().as_str());
    let hours: Vec<u64> = group.hours.clone();
    // One that stopped itself does not keep anyone from another try.
    let replay = replays.iter().find(|replay| {
        matches!(replay.state, ActionState::Running | ActionState::Paused)
            && replay.filter.fingerprint.as_ref() == Some(&group.fingerprint)
            && replay
                .filter
                .queue
                .as_ref()
                .is_none_or(|queue| *queue == group.queue)
    });
    let error = group
        .sample
        .error
        .as_deref()
        .filter(|error| !error.is_empty());
    CauseRow {
        error: match (error, group.sample.error_withheld) {
            (Some(error), _) => markup::cause(error, 140),
            (None, true) => Markup::text("error withheld, needs read-payload"),
            (None, false) => Markup::text("no error: lost, expired or killed its worker"),
        },
        jobs: show::count(group.dead),
        exact: show::grouped(group.dead),
        share: match dead {
            _ if group.dead == 0 => String::new(),
            0 => String::new(),
            _ => share_text(group.dead as f64 / dead as f64),
        },
        recent: recent(&hours),
        spark: hour_bars(&hours, &recent(&hours)),
        is_open: open,
        open_link: with(visit, "open", if open { "" } else { &key }),
        query: group_query(&group),
        replay: replay.map(|replay| replay.id.to_string()),
        group,
    }
}

/// The failures of the last 24 hours in words. The last of `hours` is the current one.
fn recent(hours: &[u64]) -> String {
    let (total, this_hour) = (
        hours.iter().sum(),
        hours.last().copied().unwrap_or_default(),
    );
    let failures = |count: u64| match count {
        1 => "1 failure".to_owned(),
        _ => format!("{} failures", show::count(count)),
    };
    match (total, this_hour) {
        (0, _) => "no failure in the last 24 h".to_owned(),
        (_, 0) => format!("{} in the last 24 h, none this hour", failures(total)),
        _ if total == this_hour => format!("{} this hour", failures(this_hour)),
        _ => format!(
            "{} this hour, {} in the last 24 h",
            failures(this_hour),
            show::count(total)
        ),
    }
}

fn share_text(share: f64) -> String {
    if share > 0.0 && share < 0.01 {
        return "<\u{a0}1\u{a0}%".to_owned();
    }
    format!("{:.0}\u{a0}%", share * 100.0)
}

/// Bars for each of the last 24 hours. The scale begins at zero; few failures stay low.
fn hour_bars(hours: &[u64], title: &str) -> Markup {
    const HEIGHT: f64 = 32.0;
    const WIDTH: f64 = 144.0;
    let title = crate::markup::escaped(title);
    let top = hours.iter().copied().max().unwrap_or_default().max(4) as f64;
    let slot = WIDTH / hours.len().max(1) as f64;
    let mut bars = String::new();
    for (index, count) in hours.iter().enumerate().filter(|(_, count)| **count > 0) {
        let height = (*count as f64 / top * (HEIGHT - 2.0)).max(1.0);
        let (x, width) = (draw::number(index as f64 * slot), draw::number(slot - 2.0));
        let height = draw::number(height);
        bars.push_str(&format!("M{x} {HEIGHT}v-{height}h{width}V{HEIGHT}z"));
    }
    Markup(format!(
        r#"<svg class="spark" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img"><title>{title}</title><path class="base" d="M0 {HEIGHT}h{WIDTH}"/><path class="f-dead" d="{bars}"/></svg>"#
    ))
}

/// Reads the newest job of a cause and compares a sample of its jobs.
async fn open(visit: &Visit, group: &FailureGroup) -> Result<OpenCause, Failure> {
    let state = if group.dead > 0 { "" } else { "&retrying=true" };
    let list = if group.dead > 0 {
        "dead-letters"
    } else {
        "jobs"
    };
    let query = group_query(group);
    let path = format!("/api/v1/{list}{query}{state}&limit={SAMPLE_JOBS}");
    let sample: JobPage = visit.get(&path).await?;
    let newest = match group.sample.job_id {
        Some(id) => visit.get::<Job>(&format!("/api/v1/jobs/{id}")).await.ok(),
        None => None,
    };
    let error = group.sample.error.as_deref().unwrap_or_default();
    let chain = error
        .split(": ")
        .map(show::visible)
        .filter(|part| !part.is_empty());
    Ok(OpenCause {
        chain: match newest.as_ref().and_then(|job| job.last_error.as_ref()) {
            Some(error) => vec![show::visible(error)],
            None => chain.take(1).collect(),
        },
        job: newest.map(Box::new),
        traits: in_common(&sample.data),
        sampled: sample.data.len(),
    })
}

/// The replays that have not ended.
async fn running_replays(visit: &Visit) -> Result<Vec<Replay>, Failure> {
    let replays: Page<Replay> = visit.get("/api/v1/replays?limit=20").await?;
    let active = |replay: &Replay| {
        matches!(
            replay.state,
            ActionState::Running | ActionState::Paused | ActionState::Stopped
        )
    };
    Ok(replays.data.into_iter().filter(active).take(3).collect())
}

/// The filters in force, each with a link that removes it.
pub(super) struct FilterBar {
    pub(super) chips: Vec<(String, String, String)>,
    /// Filters that can be added.
    pub(super) missing: Vec<&'static str>,
    pub(super) by_job: bool,
    pub(super) cause_link: String,
    pub(super) job_link: String,
    pub(super) query: String,
    pub(super) hidden: Vec<(String, String)>,
}

impl FilterBar {
    fn new(visit: &Visit) -> Self {
        let query = visit.query();
        let by_job = query.get("as") == Some("jobs");
        let chips = FILTERS.into_iter().filter_map(|name| {
            let value = query.get(name)?;
            Some((
                name.replace('_', " "),
                show::clipped(value, 60),
                with(visit, name, ""),
            ))
        });
        let addable: &[&'static str] = if by_job {
            &["queue", "kind", "reason", "error"]
        } else {
            &["queue", "kind"]
        };
        let filters = filters_of(query);
        FilterBar {
            chips: chips.collect(),
            missing: addable
                .iter()
                .copied()
                .filter(|name| query.get(name).is_none())
                .collect(),
            cause_link: with(visit, "as", ""),
            job_link: with(visit, "as", "jobs"),
            query: filters.query(),
            hidden: query
                .without(&["cursor"])
                .pairs()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            by_job,
        }
    }
}

/// The filters among the parameters of a page.
pub(super) fn filters_of(query: &Fields) -> Fields {
    let filters = query
        .pairs()
        .filter(|(name, value)| FILTERS.contains(name) && !value.is_empty());
    filters
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// The filters as flags of the command line.
pub(super) fn flags(query: &Fields) -> String {
    let mut flags = String::new();
    let filters = filters_of(query);
    for (name, value) in filters.pairs() {
        let name = match name {
            "reason" => "dead-reason".to_owned(),
            "payload_path" => {
                let wanted = filters.get("payload_value").unwrap_or_default();
                flags.push_str(&format!(
                    " --payload {}",
                    quoted(&format!("{value}={wanted}"))
                ));
                continue;
            }
            "payload_value" => continue,
            name => name.replace('_', "-"),
        };
        flags.push_str(&format!(" --{name} {}", quoted(value)));
    }
    flags
}

/// Text as one word of a shell.
pub(super) fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@%+=,".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", show::visible(text).replace('\'', r"'\''"))
}

/// A dead job as a row.
struct DeadRow {
    id: String,
    title: String,
    queue: String,
    reason: Option<DeadReason>,
    error: String,
    died_at: Option<Timestamp>,
    attempts: u32,
}

#[derive(Template)]
#[template(path = "dead_jobs.html")]
struct JobsTemplate {
    frame: Frame,
    filters: FilterBar,
    dead: String,
    rows: Vec<DeadRow>,
    scanned: Option<String>,
    next: Option<String>,
    commands: Vec<String>,
}

async fn by_job(visit: Visit) -> PageResult {
    let frame = Frame::new(&visit, "Dead letters", Section::Dead).await?;
    let mut query = filters_of(visit.query()).with("limit", &PAGE_ROWS.to_string());
    if let Some(cursor) = visit.query().get("cursor") {
        query = query.with("cursor", cursor);
    }
    let jobs: JobPage = visit
        .get(&format!("/api/v1/dead-letters{}", query.query()))
        .await?;
    let row = |one: Job| DeadRow {
        id: one.id.to_string(),
        title: job::title(&one),
        queue: show::visible(one.queue.as_str()),
        reason: one.dead_reason,
        error: match (&one.last_error, one.error_withheld) {
            (Some(error), _) => show::clipped(error, 160),
            (None, true) => "withheld".to_owned(),
            (None, false) => "–".to_owned(),
        },
        died_at: one.finished_at,
        attempts: one.attempt,
    };
    let page = JobsTemplate {
        filters: FilterBar::new(&visit),
        dead: show::count(visit.snapshot().await?.total(|counts| counts.dead)),
        scanned: jobs.scanned.map(|scanned| show::count(scanned as u64)),
        next: jobs.next_cursor.map(|cursor| {
            format!(
                "{}/dead{}",
                visit.base(),
                visit.query().with("cursor", &cursor).query()
            )
        }),
        commands: vec![
            format!("windlass jobs list --state dead{}", flags(visit.query())),
            format!(
                "windlass jobs export --state dead{} --output dead.ndjson",
                flags(visit.query())
            ),
        ],
        rows: jobs.data.into_iter().map(row).collect(),
        frame,
    };
    visit.page(&page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_become_flags_that_a_shell_reads_as_one_word() {
        let query = Fields::parse("queue=mail&reason=exhausted&error=it%27s+down&as=jobs&cursor=x");
        assert_eq!(
            flags(&query),
            r" --queue mail --dead-reason exhausted --error 'it'\''s down'"
        );
        let payload = Fields::parse("payload_path=/a&payload_value=1");
        assert_eq!(flags(&payload), " --payload /a=1");
    }

    #[test]
    fn recent_failures_are_counted_for_this_hour_and_the_day() {
        for (hours, words) in [
            (vec![0, 0, 0], "no failure in the last 24 h"),
            (vec![1, 0, 0], "1 failure in the last 24 h, none this hour"),
            (vec![0, 0, 312], "312 failures this hour"),
            (
                vec![900, 100, 1],
                "1 failure this hour, 1,001 in the last 24 h",
            ),
        ] {
            assert_eq!(recent(&hours), words);
        }
    }

    #[test]
    fn few_failures_stay_low() {
        let one = hour_bars(&[0, 1], "x").to_string();
        assert!(one.contains("v-7.5"), "{one}");
        assert!(hour_bars(&[0, 100], "x").to_string().contains("v-30"));
        assert_eq!(share_text(0.004), "<\u{a0}1\u{a0}%");
        assert_eq!(share_text(0.33), "33\u{a0}%");
    }
}
