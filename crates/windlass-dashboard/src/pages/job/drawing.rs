//! Draws the attempts of a job and the rest of its plan.

use std::fmt::Write as _;

use serde_json::Value;
use windlass_api::{Attempt, Job, JobState, PlannedAttempt};
use windlass_core::retry::RetryPolicy;
use windlass_core::{Outcome, Timestamp};

use super::outcome_look;
use crate::frame::Look;
use crate::markup::{Markup, escaped};
use crate::show::{self, Zone};
use crate::timeline::{Lane, Planned, Ran, Scale, Tick, Timeline, layout};

/// The most planned attempts that the page lists.
const PLANNED_SHOWN: usize = 12;

/// What the drawings show.
pub(super) struct Facts<'a> {
    pub(super) job: &'a Job,
    /// The attempts that have ended, oldest first.
    pub(super) attempts: &'a [Attempt],
    pub(super) plan: &'a [PlannedAttempt],
    pub(super) policy: Option<&'a RetryPolicy>,
    pub(super) chosen: Option<u32>,
    pub(super) now: Timestamp,
    pub(super) zone: &'a Zone,
}

/// The rows of a timeline and its axis.
pub(super) struct TimelineView {
    pub(super) rows: Vec<RowView>,
    pub(super) axis: Markup,
}

/// The row of one attempt.
pub(super) struct RowView {
    pub(super) attempt: u32,
    pub(super) look: Look,
    /// The word of the outcome, with the status of a request.
    pub(super) label: String,
    pub(super) lane: Markup,
    pub(super) waited: String,
    pub(super) ran: String,
    /// Whether the attempt has ended, so that it can be chosen.
    pub(super) ended: bool,
    pub(super) current: bool,
}

/// The rest of the plan.
pub(super) struct PlanView {
    pub(super) rows: Vec<PlanRow>,
    pub(super) axis: Markup,
    /// How many more attempts the plan has.
    pub(super) more: usize,
}

/// A planned attempt.
pub(super) struct PlanRow {
    pub(super) attempt: u32,
    pub(super) label: String,
    pub(super) lane: Markup,
    pub(super) delay: String,
}

impl Facts<'_> {
    fn ran(&self) -> Vec<Ran> {
        let mut ran: Vec<Ran> = self.attempts.iter().map(ran).collect();
        if self.job.state == JobState::Running
            && let Some(started_at) = self.job.started_at
        {
            ran.push(Ran {
                attempt: self.job.attempt,
                failures_before: self.job.failures,
                started_at,
                finished_at: None,
                has_failed: false,
            });
        }
        ran
    }

    fn planned(&self) -> Vec<Planned> {
        let planned = |one: &PlannedAttempt| Planned {
            attempt: one.attempt,
            earliest_at: one.earliest_at,
            nominal_at: one.nominal_at,
            latest_at: one.latest_at,
        };
        self.plan.iter().map(planned).collect()
    }

    pub(super) fn timeline(&self, scale: Scale) -> TimelineView {
        let plan = self.planned();
        let shown = plan.get(..PLANNED_SHOWN).unwrap_or(&plan);
        let timeline = layout(&self.ran(), shown, self.policy, self.now, scale);
        let rows = timeline
            .lanes
            .iter()
            .map(|lane| self.row(lane, &timeline))
            .collect();
        TimelineView {
            rows,
            axis: self.axis(&timeline),
        }
    }

    fn row(&self, lane: &Lane, timeline: &Timeline) -> RowView {
        let ended = self.attempts.iter().find(|one| one.attempt == lane.attempt);
        let retry_after = ended.and_then(retry_after);
        let (look, label) = match ended {
            Some(attempt) => {
                let look = outcome_look(attempt.outcome);
                (look, outcome_label(attempt, look))
            }
            None if lane.run.is_some() => {
                let look = Look::new("running", "running", "running");
                (look, "running".to_owned())
            }
            None => {
                let look = Look::new("due", "scheduled", "scheduled");
                (look, self.due(lane.attempt))
            }
        };
        let outcome = ended.map(|attempt| attempt.outcome);
        RowView {
            attempt: lane.attempt,
            look,
            lane: lane_svg(lane, timeline, outcome, retry_after.as_deref(), &label),
            label,
            waited: lane.waited.map_or("–".to_owned(), show::duration),
            ran: lane.ran.map_or("–".to_owned(), show::duration),
            ended: ended.is_some(),
            current: ended.is_some() && self.chosen == Some(lane.attempt),
        }
    }

    fn due(&self, attempt: u32) -> String {
        let Some(planned) = self.plan.iter().find(|one| one.attempt == attempt) else {
            return "due".to_owned();
        };
        let at = self.zone.short(planned.nominal_at, self.now);
        match planned.earliest_at == planned.latest_at {
            true if planned.nominal_at <= self.now => "due now".to_owned(),
            true => format!("due\u{a0}{at}"),
            false => format!("about\u{a0}{at}"),
        }
    }

    /// Every attempt that may follow, or `None` if only the next one does.
    pub(super) fn plan(&self) -> Option<PlanView> {
        let plan = self.planned();
        if plan.len() < 2 {
            return None;
        }
        let shown = plan.get(..PLANNED_SHOWN).unwrap_or(&plan);
        let timeline = layout(&[], shown, self.policy, self.now, Scale::Whole);
        let rows = timeline.lanes.iter().zip(shown).map(|(lane, planned)| {
            let label = self.due(planned.attempt);
            let delay = match planned.earliest_at == planned.latest_at {
                true => "fixed".to_owned(),
                false => {
                    let spread = planned.latest_at.since(planned.earliest_at) / 2;
                    format!("±\u{a0}{}", show::duration(spread))
                }
            };
            let lane = lane_svg(lane, &timeline, None, None, &label);
            PlanRow {
                attempt: planned.attempt,
                label,
                lane,
                delay,
            }
        });
        Some(PlanView {
            rows: rows.collect(),
            axis: self.axis(&timeline),
            more: plan.len() - shown.len(),
        })
    }

    fn axis(&self, timeline: &Timeline) -> Markup {
        let mut svg = String::from(r#"<svg class="lane chart axis" aria-hidden="true">"#);
        let last = timeline.ticks.len().saturating_sub(1);
        for (index, tick) in timeline.ticks.iter().enumerate() {
            // The label of now has the space around it for itself.
            if timeline
                .now
                .is_some_and(|now| is_beside(tick.position, now))
            {
                continue;
            }
            let anchor = match tick.position {
                position if position < 4.0 => "start",
                position if position > 96.0 => "end",
                _ => "middle",
            };
            let hidden = if index % 2 == 1 && index != last {
                r#" class="hide-sm""#
            } else {
                ""
            };
            let label = escaped(&self.label(tick, timeline));
            let position = tick.position;
            let _ = write!(
                svg,
                r#"<text{hidden} x="{position:.2}%" y="14" text-anchor="{anchor}">{label}</text>"#
            );
        }
        if let Some(now) = timeline.now {
            let label = escaped(&clock(self.zone, self.now, true));
            let anchor = if now < 10.0 {
                "start"
            } else if now > 90.0 {
                "end"
            } else {
                "middle"
            };
            let _ = write!(
                svg,
                r#"<text class="t-now" x="{now:.2}%" y="14" text-anchor="{anchor}">now {label}</text>"#
            );
        }
        svg.push_str("</svg>");
        Markup(svg)
    }

    fn label(&self, tick: &Tick, timeline: &Timeline) -> String {
        match timeline.has_days {
            true => self.zone.axis(tick.at, true),
            false => clock(self.zone, tick.at, timeline.has_seconds),
        }
    }
}

/// Whether a label would touch that of now, which grows to one side at the ends of the axis.
fn is_beside(position: f64, now: f64) -> bool {
    match now {
        now if now < 10.0 => position < now + 22.0,
        now if now > 90.0 => position > now - 22.0,
        _ => (position - now).abs() < 11.0,
    }
}

/// The time of day: `03:12` or `03:12:44`.
fn clock(zone: &Zone, at: Timestamp, seconds: bool) -> String {
    let full = zone.full(at);
    let range = if seconds { 11..19 } else { 11..16 };
    full.get(range).unwrap_or_default().to_owned()
}

fn ran(attempt: &Attempt) -> Ran {
    Ran {
        attempt: attempt.attempt,
        failures_before: attempt.retry_count,
        started_at: attempt.started_at,
        finished_at: Some(attempt.finished_at),
        has_failed: matches!(
            attempt.outcome,
            Outcome::Failed | Outcome::TimedOut | Outcome::Lost
        ),
    }
}

fn outcome_label(attempt: &Attempt, look: Look) -> String {
    let status = attempt
        .http
        .as_ref()
        .and_then(|http| http.get("status"))
        .and_then(Value::as_u64);
    match status {
        Some(status) if attempt.outcome == Outcome::Failed => format!("{} {status}", look.word),
        _ => look.word.to_owned(),
    }
}

/// What the target asked for, if it asked for a wait.
fn retry_after(attempt: &Attempt) -> Option<String> {
    let header = attempt
        .http
        .as_ref()?
        .get("headers")?
        .get("retry-after")?
        .as_str()?;
    let unit = if header.bytes().all(|byte| byte.is_ascii_digit()) {
        "\u{a0}s"
    } else {
        ""
    };
    Some(format!("Retry-After: {}{unit}", show::clipped(header, 40)))
}

/// Draws a row. A run is at least 3 px wide, so that a short one can be seen.
fn lane_svg(
    lane: &Lane,
    timeline: &Timeline,
    outcome: Option<Outcome>,
    note: Option<&str>,
    label: &str,
) -> Markup {
    let mut svg = String::from(r#"<svg class="lane chart" role="img">"#);
    let title = format!("Attempt {}: {label}", lane.attempt);
    let _ = write!(svg, "<title>{}</title>", escaped(&title));
    for tick in &timeline.ticks {
        let x = tick.position;
        let _ = write!(
            svg,
            r#"<line class="grid" x1="{x:.2}%" x2="{x:.2}%" y1="0" y2="100%"/>"#
        );
    }
    if let Some(band) = lane.band {
        let (x, width) = (band.from, band.width().max(0.2));
        let _ = write!(
            svg,
            r#"<rect class="jit" x="{x:.2}%" width="{width:.2}%" y="9" height="16" rx="2"/>"#
        );
    }
    if let Some(wait) = lane.wait {
        let class = if lane.planned.is_some() {
            "wait-plan"
        } else {
            "wait"
        };
        let (from, to) = (wait.from, wait.to);
        let _ = write!(
            svg,
            r#"<line class="{class}" x1="{from:.2}%" x2="{to:.2}%" y1="17" y2="17"/><circle class="wait-dot" cx="{from:.2}%" cy="17" r="2.5"/>"#
        );
    }
    if let Some(run) = lane.run {
        let class = run_class(outcome);
        let (x, width) = (run.from, run.width());
        let _ = write!(
            svg,
            r#"<rect class="{class}" x="{x:.2}%" width="3" y="7" height="20" rx="1.5"/><rect class="{class}" x="{x:.2}%" width="{width:.2}%" y="7" height="20" rx="2"/>"#
        );
        if let Some(note) = note {
            let note = escaped(note);
            let _ = write!(
                svg,
                r#"<text class="t-ink" x="{:.2}%" dx="8" y="21">{note}</text>"#,
                run.to
            );
        }
    }
    if let Some(planned) = lane.planned {
        let _ = write!(
            svg,
            r#"<rect class="plan" x="{planned:.2}%" width="5" y="7" height="20" rx="2"/>"#
        );
    }
    if let Some(now) = timeline.now {
        let _ = write!(
            svg,
            r#"<line class="now" x1="{now:.2}%" x2="{now:.2}%" y1="0" y2="100%"/>"#
        );
    }
    svg.push_str("</svg>");
    Markup(svg)
}

fn run_class(outcome: Option<Outcome>) -> &'static str {
    match outcome {
        None => "f-running",
        Some(Outcome::Succeeded) => "f-succeeded",
        Some(Outcome::Failed | Outcome::TimedOut) => "f-dead",
        Some(Outcome::Lost) => "f-lost",
        Some(Outcome::Snoozed) => "f-scheduled",
        Some(Outcome::Released) => "f-ready",
        Some(Outcome::Cancelled) => "f-cancelled",
    }
}
