//! Drawings as SVG, made by pure functions.
//!
//! Geometry is in attributes and colour in classes, so that no inline style is needed and both
//! themes work. Widths are percentages or stretched view boxes, so a drawing fits every width.

mod chart;
mod spark;
mod table;

pub use chart::{
    Bound, Chart, Layer, Line, Mark, Scale, Tick, areas, lines, log_scale, nice_scale,
};
pub use spark::{bar, spark};
pub use table::table;

/// Formats a coordinate with at most two decimals.
pub(crate) fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns the points of a line as path commands, with a break at each missing value.
pub(crate) fn path(points: impl IntoIterator<Item = Option<(f64, f64)>>) -> String {
    let mut path = String::new();
    let mut pen_is_down = false;
    for point in points {
        let Some((x, y)) = point else {
            pen_is_down = false;
            continue;
        };
        path.push(if pen_is_down { 'L' } else { 'M' });
        path.push_str(&number(x));
        path.push(' ');
        path.push_str(&number(y));
        pen_is_down = true;
    }
    path
}
