//! The drawings of the lab. Both sides share their scales, so that they can be compared.

use std::fmt::Write as _;
use std::time::Duration;

use windlass_api::PolicyExplanation;

use crate::draw::{self, number};
use crate::markup::{Markup, escaped};
use crate::show;

/// The height of the curves and histograms.
const HEIGHT: f64 = 150.0;
/// The height below a plot for labels.
const AXIS: f64 = 20.0;
/// The height of one attempt.
const LANE: f64 = 15.0;
/// The most attempts that are drawn.
const LANES_MAX: usize = 30;
/// The bars of a histogram.
const BARS: u64 = 120;

/// The scales that both sides share.
pub(super) struct Scales {
    delay: draw::Scale,
    horizon_ms: u64,
    failures: usize,
    lanes: usize,
    herd_seconds: u64,
    load: draw::Scale,
    jobs: u64,
}

/// The most retries in one second. The first attempts do not count: no policy delays them.
pub(super) fn peak(explanation: &PolicyExplanation, jobs: u64) -> u64 {
    retries(explanation, jobs)
        .map(|(_, requests)| requests)
        .max()
        .unwrap_or_default()
}

/// The retries in each second.
fn retries(explanation: &PolicyExplanation, jobs: u64) -> impl Iterator<Item = (u64, u64)> {
    explanation.herd.iter().map(move |row| match row.second {
        0 => (0, row.requests.saturating_sub(jobs)),
        second => (second, row.requests),
    })
}

impl Scales {
    pub(super) fn of<'a>(
        explanations: impl Iterator<Item = &'a PolicyExplanation>,
        jobs: u64,
    ) -> Scales {
        let (mut delay, mut horizon, mut failures, mut load, mut last) = (1, 1000, 1, 1, 10);
        for explanation in explanations {
            let longest = explanation
                .attempts
                .iter()
                .map(|one| one.delay_ms.max)
                .max();
            delay = delay.max(longest.unwrap_or_default());
            horizon = horizon.max(explanation.horizon_ms.max);
            failures = failures.max(explanation.attempts.len().saturating_sub(1));
            load = load.max(peak(explanation, jobs));
            last = last.max(explanation.herd.last().map_or(0, |row| row.second + 1));
        }
        Scales {
            delay: draw::nice_scale(delay as f64, 1.0, millis),
            horizon_ms: horizon,
            failures,
            lanes: failures + 1,
            herd_seconds: last,
            load: draw::nice_scale(load as f64, 4.0, load_text),
            jobs,
        }
    }

    /// The delay after each failure, with the range that jitter allows.
    pub(super) fn curve(&self, explanation: &PolicyExplanation, key: &str) -> Markup {
        let delays: Vec<_> = explanation
            .attempts
            .iter()
            .skip(1)
            .map(|one| one.delay_ms)
            .collect();
        let slots = (self.failures.max(2) - 1) as f64;
        let x = |index: usize| index as f64 / slots * 1000.0;
        let y = |value: u64| HEIGHT * (1.0 - self.delay.share(value as f64));
        let mut svg = self.frame("Delay after each failure", &self.delay, HEIGHT);
        let top = draw::path(
            delays
                .iter()
                .enumerate()
                .map(|(index, one)| Some((x(index), y(one.max)))),
        );
        let low: Vec<_> = delays
            .iter()
            .enumerate()
            .rev()
            .map(|(index, one)| Some((x(index), y(one.min))))
            .collect();
        let low = draw::path(low).replacen('M', "L", 1);
        let nominal = draw::path(
            delays
                .iter()
                .enumerate()
                .map(|(index, one)| Some((x(index), y(one.nominal)))),
        );
        let _ = write!(
            svg,
            r#"<svg width="100%" height="{HEIGHT}" viewBox="0 0 1000 {HEIGHT}" preserveAspectRatio="none"><path class="f-{key} wash-2" d="{top}{low}Z"/><path class="ln s-{key}" d="{nominal}"/></svg>"#
        );
        let every = delays.len().div_ceil(8).max(1);
        for (index, one) in delays.iter().enumerate() {
            let position = number(x(index) / 10.0);
            if delays.len() <= LANES_MAX {
                let cy = number(y(one.nominal));
                let _ = write!(
                    svg,
                    r#"<circle class="f-{key}" cx="{position}%" cy="{cy}" r="3"/>"#
                );
            }
            if index % every == 0 {
                let anchor = anchor(x(index) / 10.0);
                let text = if index == 0 {
                    "failure 1".to_owned()
                } else {
                    (index + 1).to_string()
                };
                let _ = write!(
                    svg,
                    r#"<text x="{position}%" y="{}" text-anchor="{anchor}">{text}</text>"#,
                    HEIGHT + 16.0
                );
            }
            let width = 100.0 / slots;
            let title = escaped(&format!(
                "after failure {}: {} to {}, without jitter {}",
                index + 1,
                millis(one.min as f64),
                millis(one.max as f64),
                millis(one.nominal as f64)
            ));
            let left = number((x(index) / 10.0 - width / 2.0).max(0.0));
            let _ = write!(
                svg,
                r#"<rect class="hit" x="{left}%" width="{}%" y="0" height="{HEIGHT}"><title>{title}</title></rect>"#,
                number(width.min(100.0))
            );
        }
        svg.push_str("</svg>");
        Markup(svg)
    }

    /// Every attempt on the time line.
    pub(super) fn lanes(&self, explanation: &PolicyExplanation, key: &str) -> Markup {
        let shown = explanation.attempts.len().min(LANES_MAX);
        let plot = self.lanes.min(LANES_MAX) as f64 * LANE;
        let share = |at: u64| at as f64 / self.horizon_ms.max(1) as f64 * 100.0;
        let label = escaped(&format!(
            "{} attempts; the last starts after {}",
            explanation.attempts.len(),
            millis(explanation.horizon_ms.nominal as f64)
        ));
        let mut svg = format!(
            r#"<svg class="chart" height="{}" role="img" aria-label="{label}">"#,
            number(plot + AXIS)
        );
        for part in 0..=4 {
            let x = part * 25;
            let anchor = anchor(f64::from(x));
            let text = escaped(&millis(self.horizon_ms as f64 * f64::from(part) / 4.0));
            let _ = write!(
                svg,
                r#"<line class="grid" x1="{x}%" x2="{x}%" y1="0" y2="{plot}"/><text x="{x}%" y="{}" text-anchor="{anchor}">{text}</text>"#,
                number(plot + 16.0)
            );
        }
        for (index, one) in explanation.attempts.iter().take(LANES_MAX).enumerate() {
            let y = index as f64 * LANE + 2.0;
            let (from, to) = (share(one.at_ms.min), share(one.at_ms.max));
            let title = escaped(&format!(
                "attempt {}: {} to {} after the first",
                one.attempt,
                millis(one.at_ms.min as f64),
                millis(one.at_ms.max as f64)
            ));
            if to > from {
                let _ = write!(
                    svg,
                    r#"<rect class="f-{key} wash-2" x="{}%" width="{}%" y="{}" height="11" rx="2"/>"#,
                    number(from),
                    number(to - from),
                    number(y)
                );
            }
            let _ = write!(
                svg,
                r#"<rect class="f-{key}" x="{}%" width="4" y="{}" height="11" rx="1.5"><title>{title}</title></rect>"#,
                number(share(one.at_ms.nominal)),
                number(y)
            );
            if shown <= 12 || index % 5 == 4 {
                let _ = write!(
                    svg,
                    r#"<text x="100%" dx="8" y="{}">{}</text>"#,
                    number(y + 9.0),
                    one.attempt
                );
            }
        }
        svg.push_str("</svg>");
        Markup(svg)
    }

    /// How many seconds a bar of the herd has, and the retries in the busiest second of each bar.
    fn busiest(&self, explanation: &PolicyExplanation) -> (u64, Vec<u64>) {
        let per_bar = self.herd_seconds.div_ceil(BARS).max(1);
        let bars = self.herd_seconds.div_ceil(per_bar).max(1);
        let mut busiest = vec![0u64; usize::try_from(bars).unwrap_or(1)];
        for (second, requests) in retries(explanation, self.jobs) {
            let bar = usize::try_from(second / per_bar).unwrap_or(usize::MAX);
            if let Some(value) = busiest.get_mut(bar) {
                *value = (*value).max(requests);
            }
        }
        (per_bar, busiest)
    }

    /// The herd as a table, without the bars in which nothing happens.
    pub(super) fn herd_table(&self, explanation: &PolicyExplanation) -> Markup {
        let (per_bar, busiest) = self.busiest(explanation);
        let bars = (0..)
            .step_by(usize::try_from(per_bar).unwrap_or(1))
            .zip(busiest);
        let rows = bars
            .filter(|(_, retries)| *retries > 0)
            .map(|(from, retries): (u64, u64)| {
                let from = show::duration(Duration::from_secs(from));
                vec![from, show::grouped(retries)]
            });
        draw::table(&["From", "Retries in the busiest second"], rows)
    }

    /// The retries of all jobs in each second. A bar of several seconds shows its busiest one.
    pub(super) fn herd(&self, explanation: &PolicyExplanation, key: &str) -> Markup {
        let (per_bar, busiest) = self.busiest(explanation);
        let bars = busiest.len();
        let top = peak(explanation, self.jobs);
        let label = format!(
            "{} jobs fail together: at most {} retries a second",
            self.jobs, top
        );
        let mut svg = self.frame(&label, &self.load, HEIGHT);
        let slot = 1000.0 / bars.max(1) as f64;
        let mut path = String::new();
        for (index, value) in busiest.iter().enumerate().filter(|(_, value)| **value > 0) {
            let height = (HEIGHT * self.load.share(*value as f64)).max(0.75);
            let _ = write!(
                path,
                "M{} {HEIGHT}v-{}h{}V{HEIGHT}z",
                number(index as f64 * slot),
                number(height),
                number((slot * 0.86).max(1.0))
            );
        }
        let _ = write!(
            svg,
            r#"<svg width="100%" height="{HEIGHT}" viewBox="0 0 1000 {HEIGHT}" preserveAspectRatio="none"><path class="f-{key}" d="{path}"/></svg>"#
        );
        for part in 0..=4u64 {
            let (x, anchor) = (part * 25, anchor((part * 25) as f64));
            let text = escaped(&millis((self.herd_seconds * part * 250) as f64));
            let _ = write!(
                svg,
                r#"<text x="{x}%" y="{}" text-anchor="{anchor}">{text}</text>"#,
                HEIGHT + 16.0
            );
        }
        let y = HEIGHT * (1.0 - self.load.share(top as f64));
        let _ = write!(
            svg,
            r#"<line class="mark" x1="0" x2="100%" y1="{0}" y2="{0}"/><text class="t-ink" x="100%" dx="-2" y="{1}" text-anchor="end">peak {2}/s</text>"#,
            number(y),
            number((y - 5.0).max(8.0)),
            show::grouped(top)
        );
        for (index, value) in busiest.iter().enumerate() {
            let from = index as u64 * per_bar;
            let what = match per_bar {
                1 => format!("second {from}: {value} retries"),
                _ => format!(
                    "seconds {from} to {}: at most {value} retries a second",
                    from + per_bar - 1
                ),
            };
            let _ = write!(
                svg,
                r#"<rect class="hit" x="{}%" width="{}%" y="0" height="{HEIGHT}"><title>{what}</title></rect>"#,
                number(index as f64 * slot / 10.0),
                number(slot / 10.0)
            );
        }
        svg.push_str("</svg>");
        Markup(svg)
    }

    /// Begins a drawing with a vertical scale. The caller ends it.
    fn frame(&self, label: &str, scale: &draw::Scale, height: f64) -> String {
        let label = escaped(label);
        let mut svg = format!(
            r#"<svg class="chart" height="{}" role="img" aria-label="{label}">"#,
            number(height + AXIS)
        );
        for tick in &scale.ticks {
            let y = height * (1.0 - scale.share(tick.at));
            let class = if tick.at <= 0.0 { "base" } else { "grid" };
            let _ = write!(
                svg,
                r#"<line class="{class}" x1="0" x2="100%" y1="{0}" y2="{0}"/><text x="100%" dx="8" y="{1}">{2}</text>"#,
                number(y),
                number(y + 4.0),
                escaped(&tick.text)
            );
        }
        svg
    }
}

/// A number of retries in a second, short enough for an axis: `2.5 k/s`.
fn load_text(value: f64) -> String {
    match value {
        value if value <= 0.0 => "0".to_owned(),
        value if value >= 1e6 => format!("{}\u{a0}M/s", number(value / 1e6)),
        value if value >= 1e3 => format!("{}\u{a0}k/s", number(value / 1e3)),
        value => format!("{}/s", number(value)),
    }
}

fn anchor(percent: f64) -> &'static str {
    match percent {
        percent if percent < 1.0 => "start",
        percent if percent > 99.0 => "end",
        _ => "middle",
    }
}

/// Milliseconds in words, rounded so that a label stays short.
fn millis(millis: f64) -> String {
    if millis <= 0.0 {
        return "0".to_owned();
    }
    show::duration(Duration::from_millis(millis.round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_api::ExplainParams;
    use windlass_core::retry::Preset;

    fn explained(preset: Preset, jobs: i64) -> PolicyExplanation {
        let params = ExplainParams {
            jobs: windlass_api::BoundedInt::new(jobs),
            max_attempts: None,
        };
        params.explain(&preset.policy()).unwrap()
    }

    #[test]
    fn first_attempts_do_not_count_as_load_of_the_policy() {
        let webhook = explained(Preset::Webhook, 100);
        assert_eq!(peak(&webhook, 100), 100);
        let none = explained(Preset::None, 100);
        assert_eq!(peak(&none, 100), 0);
    }

    #[test]
    fn both_sides_share_one_scale() {
        let (one, other) = (
            explained(Preset::Webhook, 100),
            explained(Preset::FullJitter, 100),
        );
        let scales = Scales::of([&one, &other].into_iter(), 100);
        let high = scales.herd(&one, "a").to_string();
        let low = scales.herd(&other, "b").to_string();
        assert!(high.contains("peak 100/s") && !low.contains("peak 100/s"));
        let ticks = |svg: &str| svg.matches("100/s").count();
        assert!(ticks(&low) >= 1, "the scale of A labels B too: {low}");
        for svg in [
            high,
            low,
            scales.curve(&one, "a").to_string(),
            scales.lanes(&other, "b").to_string(),
        ] {
            assert!(
                svg.contains(r#"role="img""#) && svg.contains("<title>"),
                "{svg}"
            );
            assert!(!svg.contains("style=") && !svg.contains("NaN"));
        }
    }

    #[test]
    fn a_policy_with_one_attempt_can_be_drawn() {
        let none = explained(Preset::None, 10);
        let scales = Scales::of(std::iter::once(&none), 10);
        for svg in [
            scales.curve(&none, "a"),
            scales.lanes(&none, "a"),
            scales.herd(&none, "a"),
        ] {
            assert!(!svg.to_string().contains("NaN"));
        }
    }
}
