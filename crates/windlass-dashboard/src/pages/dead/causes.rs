//! Causes of failures with their jobs; one of them open.

use askama::Template;
use windlass_api::{FailureGroup, Job, JobPage, Page, Replay};
use windlass_core::ActionState;

use super::super::actions::{self, ReplayView};
use super::{FilterBar, PAGE_ROWS, flags, group_query, with};
use crate::draw;
use crate::failure::Failure;
use crate::fields::{Fields, escaped};
use crate::frame::{Frame, Section};
use crate::in_common::{Trait, in_common};
use crate::markup::{self, Markup};
use crate::show;
use crate::site::PageResult;
use crate::visit::Visit;

/// How many jobs of an open cause are compared.
const SAMPLE_JOBS: usize = 100;

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

pub(super) async fn page(visit: Visit) -> PageResult {
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
    let named = actions::groups(&visit, &replays).await?;
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
                let cause = actions::cause_of(&replay, &named);
                ReplayView::new(replay, cause, visit.now(), visit.zone())
            })
            .collect(),
        causes,
        open,
        frame,
    };
    visit.page(&page)
}

/// Names a cause in the URL of the page that shows it open.
fn open_key(group: &FailureGroup) -> String {
    format!("{}/{}/{}", group.fingerprint, group.queue, group.kind)
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
pub(super) fn recent(hours: &[u64]) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

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
