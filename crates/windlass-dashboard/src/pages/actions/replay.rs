//! A replay as pages show it: canary, rate, what fails again, and why it stopped.

use std::time::Duration;

use windlass_api::{BoundedInt, Replay};
use windlass_core::{ActionState, Phase, StopReason, Timestamp};

use super::{filter_rows, filter_words, shares, state_look, waiting_words};
use crate::frame::Look;
use crate::markup::{self, Markup};
use crate::show::{self, Zone};

/// A replay with its words and drawings.
pub(crate) struct ReplayView {
    pub(crate) replay: Replay,
    pub(crate) look: Look,
    pub(crate) title: &'static str,
    pub(crate) what: Markup,
    pub(crate) by: String,
    pub(crate) is_patched: bool,
    pub(crate) patch: Option<String>,
    pub(crate) filter: Vec<(String, String)>,
    pub(crate) reason: String,
    pub(crate) canary_started: bool,
    pub(crate) canary_passed: bool,
    pub(crate) canary_text: String,
    pub(crate) canary_bar: Markup,
    pub(crate) canary_note: String,
    pub(crate) rate_text: String,
    pub(crate) rate_bar: Markup,
    pub(crate) rate_note: String,
    pub(crate) failing_text: String,
    pub(crate) failing_bar: Markup,
    pub(crate) failing_note: String,
    pub(crate) stopped: Option<String>,
    pub(crate) waiting: Option<String>,
    pub(crate) left: String,
    pub(crate) skipped: Vec<(String, String)>,
    pub(crate) created: String,
}

impl ReplayView {
    /// `cause` is the error of the jobs, if they are those of one cause that is known.
    pub(crate) fn new(replay: Replay, cause: Option<&str>, now: Timestamp, zone: &Zone) -> Self {
        let canary = replay.canary.jobs.map_or(20, BoundedInt::to::<u64>);
        let canary = canary.min(replay.matched.max(1));
        let settled = replay.recovered + replay.failed_again;
        let in_canary = replay.phase == Phase::Canary;
        let canary_done = replay.revived.min(canary);
        let outcomes = [
            (replay.recovered, "succeeded"),
            (replay.failed_again, "dead"),
            (replay.pending, "running"),
        ];
        let share = (settled > 0).then(|| replay.failed_again as f64 / settled as f64);
        let bound = replay.stop.failed_share.unwrap_or(0.2);
        let count = show::count;
        let seconds = replay.to_do.div_ceil(u64::from(replay.rate.max(1)));
        let time_left = show::duration(Duration::from_secs(seconds));
        let is_running = replay.state == ActionState::Running;
        ReplayView {
            look: state_look(replay.state),
            title: match replay.state {
                ActionState::Running | ActionState::Paused => "Replaying",
                ActionState::Stopped => "Replay stopped itself",
                ActionState::Finished => "Replay finished",
                ActionState::Aborted => "Replay aborted",
            },
            what: cause.map_or_else(
                || Markup::text(&filter_words(&replay.filter)),
                |error| markup::cause(error, 80),
            ),
            by: show::person(&replay.created_by),
            is_patched: replay.payload_patch.is_some(),
            patch: replay
                .payload_patch
                .as_ref()
                .map(|patch| super::super::job::pretty(patch.0.as_str())),
            filter: filter_rows(&replay.filter),
            reason: show::visible(&replay.reason),
            canary_started: replay.revived > 0,
            canary_passed: !in_canary,
            canary_text: format!("{} of {}", count(canary_done), count(canary)),
            canary_bar: match in_canary {
                true => shares("outcomes of the canary", canary, &outcomes),
                false => shares("the canary has passed", 1, &[(1, "succeeded")]),
            },
            canary_note: match in_canary {
                true => canary_note(&replay),
                false => "passed".to_owned(),
            },
            rate_text: match is_running && !in_canary && replay.to_do > 0 {
                true => format!(
                    "{} of {} · {time_left} left",
                    count(replay.revived),
                    count(replay.matched)
                ),
                false => format!("{} of {}", count(replay.revived), count(replay.matched)),
            },
            rate_bar: shares(
                &format!(
                    "{} recovered, {} failed again of {}",
                    replay.recovered, replay.failed_again, replay.matched
                ),
                replay.matched,
                &outcomes,
            ),
            rate_note: format!(
                "{} recovered, {} pending, {} to go",
                count(replay.recovered),
                count(replay.pending),
                count(replay.to_do)
            ),
            failing_text: show::percent(share),
            failing_bar: failing_bar(share.unwrap_or_default(), bound),
            failing_note: format!(
                "{} of {} · stops itself above {}",
                count(replay.failed_again),
                count(settled),
                show::percent(Some(bound))
            ),
            stopped: replay.stop_reason.map(|reason| stop_words(reason, &replay)),
            waiting: match replay.state {
                ActionState::Running => waiting_words(
                    replay.waiting_for,
                    replay.waiting_queue.as_ref().map(|queue| queue.as_str()),
                ),
                _ => None,
            },
            left: count(replay.to_do),
            skipped: replay
                .skipped_by
                .iter()
                .map(|(reason, jobs)| (reason.name().replace('_', " "), count(*jobs)))
                .collect(),
            created: zone.short(replay.created_at, now),
            replay,
        }
    }

    pub(crate) fn may_pause(&self) -> bool {
        self.replay.state == ActionState::Running
    }

    pub(crate) fn may_resume(&self) -> bool {
        self.replay.state == ActionState::Paused
    }

    pub(crate) fn may_continue(&self) -> bool {
        self.replay.state == ActionState::Stopped
    }

    pub(crate) fn may_abort(&self) -> bool {
        matches!(
            self.replay.state,
            ActionState::Running | ActionState::Paused | ActionState::Stopped
        )
    }

    /// The result in a few words.
    pub(crate) fn result(&self) -> String {
        let replay = &self.replay;
        format!(
            "{} of {} recovered, {} failed again",
            show::count(replay.recovered),
            show::count(replay.matched),
            show::count(replay.failed_again)
        )
    }
}

fn canary_note(replay: &Replay) -> String {
    match (replay.revived, replay.pending) {
        (0, _) => "not started".to_owned(),
        (_, 0) => format!(
            "{} recovered, {} failed again",
            replay.recovered, replay.failed_again
        ),
        (_, pending) => format!("{pending} without an outcome yet"),
    }
}

/// The share that fails again, with its bound in the middle of the width.
fn failing_bar(share: f64, bound: f64) -> Markup {
    let whole = (bound * 2.0).max(0.001);
    let width = crate::draw::number((share / whole).clamp(0.0, 1.0) * 100.0);
    let title = markup::escaped(&format!(
        "{} fail again; stops above {}",
        show::percent(Some(share)),
        show::percent(Some(bound))
    ));
    Markup(format!(
        r#"<svg class="bar" role="img"><title>{title}</title><rect class="f-line" width="100%" height="100%"/><rect class="f-dead" width="{width}%" height="100%"/><rect class="f-ink" x="50%" width="2" height="100%"/></svg>"#
    ))
}

/// Why a replay stopped itself, and what it never touched.
fn stop_words(reason: StopReason, replay: &Replay) -> String {
    let bound = show::percent(replay.stop.failed_share.or(Some(0.2)));
    let when = match replay.phase {
        Phase::Canary => "in its canary",
        Phase::Rate => "after its canary",
    };
    let why = match reason {
        StopReason::FailedShare => format!("more than {bound} failed again"),
        StopReason::SameFingerprint => {
            "jobs failed again with the cause that they had died of".to_owned()
        }
        StopReason::CanaryTimeout => {
            "too many jobs of the canary had no outcome in time".to_owned()
        }
    };
    let left = match replay.to_do {
        0 => "No job is left.".to_owned(),
        1 => "1 job was never touched.".to_owned(),
        left => format!("{} jobs were never touched.", show::count(left)),
    };
    format!("It stopped itself {when}: {why}. {left}")
}
