//! Sparklines and bars.

use super::{number, path};
use crate::markup::{Markup, escaped};

const WIDTH: f64 = 96.0;
const HEIGHT: f64 = 24.0;

/// Draws a small area without axes, from zero to its largest value. `floor` is the least height of
/// the scale, so that a handful of jobs does not look like a mountain. `title` names what it shows.
pub fn spark(values: &[f64], floor: f64, colour: &str, title: &str) -> Markup {
    let max = values
        .iter()
        .copied()
        .fold(floor, f64::max)
        .max(f64::MIN_POSITIVE);
    let step = WIDTH / (values.len().max(2) - 1) as f64;
    let y = |value: f64| HEIGHT - 1.0 - value.max(0.0) / max * (HEIGHT - 4.0);
    let points = values.iter().enumerate();
    let points = points.map(|(index, value)| Some((index as f64 * step, y(*value))));
    let line = path(points);
    let title = escaped(title);
    let colour = escaped(colour);
    let (end, bottom) = (number(WIDTH), number(HEIGHT));
    let drawing = if values.is_empty() {
        String::new()
    } else {
        format!(
            r#"<path class="f-{colour} wash" d="{line}L{end} {bottom}L0 {bottom}Z"/><path class="ln s-{colour}" d="{line}"/>"#
        )
    };
    Markup(format!(
        r#"<svg class="spark" viewBox="0 0 {end} {bottom}" preserveAspectRatio="none" role="img"><title>{title}</title>{drawing}</svg>"#
    ))
}

/// Draws a share of a limit. Text next to it must say the numbers.
pub fn bar(class: &str, share: f64, colour: &str, title: &str) -> Markup {
    let (class, colour, title) = (escaped(class), escaped(colour), escaped(title));
    let width = number(share.clamp(0.0, 1.0) * 100.0);
    Markup(format!(
        r#"<svg class="{class}" role="img"><title>{title}</title><rect class="f-line" width="100%" height="100%"/><rect class="f-{colour}" width="{width}%" height="100%"/></svg>"#
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_starts_at_zero_and_does_not_inflate_small_numbers() {
        let flat = spark(&[1.0, 1.0], 10.0, "ready", "few").to_string();
        assert!(flat.contains("M0 21L96 21"), "{flat}");
        let full = spark(&[0.0, 20.0], 10.0, "ready", "many").to_string();
        assert!(full.contains("M0 23L96 3"), "{full}");
        assert!(
            spark(&[], 1.0, "ready", "<none>")
                .to_string()
                .contains("&lt;none&gt;")
        );
    }

    #[test]
    fn a_bar_stays_within_its_frame() {
        assert!(
            bar("mini", 3.0, "running", "x")
                .to_string()
                .contains(r#"width="100%" height="100%"/></svg>"#)
        );
        assert!(
            bar("mini", 0.344, "running", "x")
                .to_string()
                .contains(r#"width="34.4%""#)
        );
    }
}
