//! Charts over time: stacked areas and lines, with axes, a bound, marks and a title per bucket.

use super::{number, path};
use crate::markup::{Markup, escaped};

/// The width of the stretched plot, in its own units.
const WIDTH: f64 = 1000.0;
/// The height below the plot for the labels of the time axis.
const AXIS: f64 = 20.0;

/// What every chart has.
#[derive(Debug, Clone)]
pub struct Chart<'a> {
    /// The finding in words, for people who do not see the drawing.
    pub label: &'a str,
    /// The height of the plot in pixels.
    pub height: f64,
    /// The vertical scale.
    pub scale: Scale,
    /// Labels of the time axis: where from 0 to 1, and the text.
    pub times: Vec<Tick>,
    /// A title for each bucket.
    pub titles: Vec<String>,
    /// A bound that should not be passed.
    pub bound: Option<Bound>,
    /// Instants with a meaning.
    pub marks: Vec<Mark>,
}

/// A label of an axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Tick {
    /// The position from 0 to 1 on the time axis, or the value on the vertical axis.
    pub at: f64,
    /// The text.
    pub text: String,
}

/// A bound, drawn as a dashed line with its text.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// The value.
    pub value: f64,
    /// What it means: `alert above`.
    pub text: String,
    /// The value in words: `10 %`.
    pub tick: String,
}

/// An instant with a meaning.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// The position from 0 to 1.
    pub at: f64,
    /// What happened. Empty for a line alone.
    pub text: String,
}

/// A vertical scale.
#[derive(Debug, Clone, PartialEq)]
pub struct Scale {
    /// The value at the bottom. Zero, unless the scale is logarithmic.
    pub min: f64,
    /// The value at the top.
    pub max: f64,
    /// Whether equal distances are equal factors.
    pub log: bool,
    /// The labels.
    pub ticks: Vec<Tick>,
}

impl Scale {
    /// Returns the height of a value from 0 (bottom) to 1 (top).
    pub fn share(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(self.min) / self.min).ln() / (self.max / self.min).ln()
        } else {
            (value - self.min) / (self.max - self.min)
        };
        share.clamp(0.0, 1.0)
    }
}

/// Returns a scale from zero to a round number that is at least `max`, with three or four labels.
pub fn nice_scale(max: f64, least: f64, text: impl Fn(f64) -> String) -> Scale {
    let max = max.max(least).max(f64::MIN_POSITIVE);
    let unit = 10f64.powf(max.log10().floor());
    // The steps of a scale with round labels: its top, and into how many parts it is divided.
    let tops = [
        (1.0, 4),
        (1.2, 3),
        (1.5, 3),
        (2.0, 4),
        (3.0, 3),
        (4.0, 4),
        (6.0, 3),
        (8.0, 4),
        (10.0, 4),
    ];
    let (top, parts) = tops
        .into_iter()
        .find(|(top, _)| top * unit >= max * 0.999_999)
        .unwrap_or((10.0, 4));
    let top = top * unit;
    let ticks = (0..=parts).map(|part| {
        let value = top * f64::from(part) / f64::from(parts);
        Tick {
            at: value,
            text: text(value),
        }
    });
    Scale {
        min: 0.0,
        max: top,
        log: false,
        ticks: ticks.collect(),
    }
}

/// Returns a logarithmic scale around values, with a label per power of ten. At least three powers.
pub fn log_scale(smallest: f64, largest: f64, text: impl Fn(f64) -> String) -> Scale {
    let low = smallest.max(0.1).log10().floor() as i32;
    let high = (largest.max(0.1).log10().ceil() as i32).max(low + 3);
    let every = if high - low > 5 { 2 } else { 1 };
    let powers = (low..=high).filter(|power| (power - low) % every == 0);
    let ticks = powers.map(|power| {
        let value = 10f64.powi(power);
        Tick {
            at: value,
            text: text(value),
        }
    });
    Scale {
        min: 10f64.powi(low),
        max: 10f64.powi(high),
        log: true,
        ticks: ticks.collect(),
    }
}

/// A layer of a stacked area chart.
#[derive(Debug, Clone)]
pub struct Layer<'a> {
    /// The state that gives its colour.
    pub colour: &'a str,
    /// The value of each bucket.
    pub values: &'a [f64],
}

/// A line of a line chart.
#[derive(Debug, Clone)]
pub struct Line<'a> {
    /// The classes of its stroke.
    pub class: &'a str,
    /// The colour of the area below it, if it has one.
    pub fill: Option<&'a str>,
    /// The value of each bucket. A bucket without one interrupts the line.
    pub values: &'a [Option<f64>],
}

/// Draws layers on top of each other.
pub fn areas(chart: &Chart<'_>, layers: &[Layer<'_>]) -> Markup {
    let buckets = layers
        .iter()
        .map(|layer| layer.values.len())
        .max()
        .unwrap_or(0);
    let mut below = vec![0.0; buckets];
    let mut drawing = String::new();
    for layer in layers {
        let above: Vec<f64> = below
            .iter()
            .zip(layer.values)
            .map(|(low, value)| low + value)
            .collect();
        let top = path(chart.points(above.iter().map(|value| Some(*value)), buckets));
        let back = chart.points(below.iter().map(|value| Some(*value)), buckets);
        let back: Vec<_> = back.into_iter().rev().collect();
        let back = path(back).replacen('M', "L", 1);
        let colour = escaped(layer.colour);
        drawing.push_str(&format!(
            r#"<path class="f-{colour} wash-3" d="{top}{back}Z"/>"#
        ));
        if layer.values.iter().any(|value| *value > 0.0) {
            drawing.push_str(&format!(r#"<path class="ln s-{colour}" d="{top}"/>"#));
        }
        below = above;
    }
    chart.framed(&drawing)
}

/// Draws lines.
pub fn lines(chart: &Chart<'_>, lines: &[Line<'_>]) -> Markup {
    let mut drawing = String::new();
    for line in lines {
        let points = chart.points(line.values.iter().copied(), line.values.len());
        let bottom = number(chart.height);
        if let Some(fill) = line.fill {
            for piece in points
                .split(Option::is_none)
                .filter(|piece| piece.len() > 1)
            {
                let ends = piece.first().zip(piece.last());
                let Some((Some((first, _)), Some((last, _)))) = ends else {
                    continue;
                };
                let (first, last) = (number(*first), number(*last));
                let (fill, piece) = (escaped(fill), path(piece.iter().copied()));
                drawing.push_str(&format!(
                    r#"<path class="f-{fill} wash" d="{piece}L{last} {bottom}L{first} {bottom}Z"/>"#
                ));
            }
        }
        let class = escaped(line.class);
        drawing.push_str(&format!(
            r#"<path class="ln {class}" d="{}"/>"#,
            path(points)
        ));
    }
    chart.framed(&drawing)
}

impl Chart<'_> {
    fn y(&self, value: f64) -> f64 {
        self.height * (1.0 - self.scale.share(value))
    }

    fn points(
        &self,
        values: impl IntoIterator<Item = Option<f64>>,
        buckets: usize,
    ) -> Vec<Option<(f64, f64)>> {
        let step = WIDTH / (buckets.max(2) - 1) as f64;
        let points = values.into_iter().enumerate();
        points
            .map(|(index, value)| Some((index as f64 * step, self.y(value?))))
            .collect()
    }

    /// Puts axes, bound, marks and titles around a drawing.
    fn framed(&self, drawing: &str) -> Markup {
        let (height, total) = (number(self.height), number(self.height + AXIS));
        let label = escaped(self.label);
        let mut svg =
            format!(r#"<svg class="chart" height="{total}" role="img" aria-label="{label}">"#);
        for tick in &self.scale.ticks {
            let y = number(self.y(tick.at));
            let class = if tick.at <= self.scale.min {
                "base"
            } else {
                "grid"
            };
            svg.push_str(&format!(
                r#"<line class="{class}" x1="0" x2="100%" y1="{y}" y2="{y}"/>"#
            ));
        }
        svg.push_str(&format!(
            r#"<svg width="100%" height="{height}" viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none">{drawing}</svg>"#
        ));
        let near_bound = |y: f64| {
            self.bound
                .as_ref()
                .is_some_and(|bound| (self.y(bound.value) - y).abs() < 10.0)
        };
        for tick in self
            .scale
            .ticks
            .iter()
            .filter(|tick| !near_bound(self.y(tick.at)))
        {
            let (y, text) = (number(self.y(tick.at) + 4.0), escaped(&tick.text));
            svg.push_str(&format!(r#"<text x="100%" dx="8" y="{y}">{text}</text>"#));
        }
        self.write_times(&mut svg);
        if let Some(bound) = &self.bound {
            let y = self.y(bound.value);
            let (at, above, beside) = (number(y), number(y - 5.0), number(y + 4.0));
            let (text, tick) = (escaped(&bound.text), escaped(&bound.tick));
            svg.push_str(&format!(
                r#"<line class="bound" x1="0" x2="100%" y1="{at}" y2="{at}"/><text class="t-bound" x="0" y="{above}">{text}</text><text class="t-bound" x="100%" dx="8" y="{beside}">{tick}</text>"#
            ));
        }
        for mark in &self.marks {
            let (x, text) = (number(mark.at * 100.0), escaped(&mark.text));
            let (anchor, dx) = if mark.at > 0.6 {
                ("end", -6)
            } else {
                ("start", 6)
            };
            svg.push_str(&format!(
                r#"<line class="mark" x1="{x}%" x2="{x}%" y1="0" y2="{height}"/>"#
            ));
            if !text.is_empty() {
                svg.push_str(&format!(
                    r#"<text class="t-ink hide-sm" x="{x}%" dx="{dx}" y="10" text-anchor="{anchor}">{text}</text>"#
                ));
            }
        }
        // One group has the class: a chart has many buckets.
        svg.push_str(r#"<g class="hits">"#);
        let width = 100.0 / self.titles.len().max(1) as f64;
        for (index, title) in self.titles.iter().enumerate() {
            let (x, width, title) = (number(index as f64 * width), number(width), escaped(title));
            svg.push_str(&format!(
                r#"<rect x="{x}%" width="{width}%" height="{height}"><title>{title}</title></rect>"#
            ));
        }
        svg.push_str("</g></svg>");
        Markup(svg)
    }

    fn write_times(&self, svg: &mut String) {
        let (y, last) = (
            number(self.height + 16.0),
            self.times.len().saturating_sub(1),
        );
        for (index, tick) in self.times.iter().enumerate() {
            let anchor = match index {
                0 => "start",
                _ if index == last => "end",
                _ => "middle",
            };
            let class = if index == 0 || index == last || index * 2 == last {
                ""
            } else {
                r#" class="hide-sm""#
            };
            let (x, text) = (number(tick.at * 100.0), escaped(&tick.text));
            svg.push_str(&format!(
                r#"<text{class} x="{x}%" y="{y}" text-anchor="{anchor}">{text}</text>"#
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale) -> Chart<'static> {
        Chart {
            label: "a <b>",
            height: 100.0,
            scale,
            times: vec![Tick {
                at: 0.0,
                text: "02:12".into(),
            }],
            titles: vec!["one".into(), "two".into()],
            bound: None,
            marks: Vec::new(),
        }
    }

    #[test]
    fn a_scale_starts_at_zero_and_ends_at_a_round_number() {
        for (max, top) in [
            (0.0, 1.0),
            (7.0, 8.0),
            (532.0, 600.0),
            (1001.0, 1200.0),
            (100.0, 100.0),
        ] {
            let scale = nice_scale(max, 1.0, |value| value.to_string());
            assert_eq!((scale.min, scale.max), (0.0, top), "{max}");
            assert!((4..=5).contains(&scale.ticks.len()));
        }
    }

    #[test]
    fn a_log_scale_has_powers_of_ten() {
        let scale = log_scale(4.0, 18_000.0, |value| value.to_string());
        assert_eq!((scale.min, scale.max), (1.0, 100_000.0));
        assert_eq!(scale.share(1.0), 0.0);
        assert!((scale.share(1000.0) - 0.6).abs() < 1e-9);
    }

    #[test]
    fn layers_lie_on_top_of_each_other() {
        let scale = nice_scale(10.0, 1.0, |value| value.to_string());
        let svg = areas(
            &chart(scale),
            &[
                Layer {
                    colour: "succeeded",
                    values: &[5.0, 5.0],
                },
                Layer {
                    colour: "dead",
                    values: &[0.0, 5.0],
                },
            ],
        );
        let svg = svg.to_string();
        assert!(
            svg.contains(r#"<path class="ln s-succeeded" d="M0 50L1000 50"/>"#),
            "{svg}"
        );
        assert!(
            svg.contains(r#"<path class="ln s-dead" d="M0 50L1000 0"/>"#),
            "{svg}"
        );
        assert!(svg.contains("a &lt;b&gt;"));
    }

    #[test]
    fn a_line_is_interrupted_where_there_is_no_value() {
        let scale = nice_scale(10.0, 1.0, |value| value.to_string());
        let values = [Some(0.0), None, Some(10.0)];
        let svg = lines(
            &chart(scale),
            &[Line {
                class: "ln-1",
                fill: None,
                values: &values,
            }],
        );
        assert!(svg.to_string().contains(r#"d="M0 100M1000 0""#), "{svg}");
    }
}
