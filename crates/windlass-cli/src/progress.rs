//! Progress bars, on stderr and only if it is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const BAR: &str = "{msg} {wide_bar} {human_pos}/{human_len} {eta:>5}";
const COUNT: &str = "{msg} {human_pos} ({per_sec})";

/// Returns a bar for a known number of jobs, or a counter.
pub(crate) fn progress(verb: &'static str, count: Option<usize>) -> ProgressBar {
    let length = count.and_then(|count| u64::try_from(count).ok());
    let target = ProgressDrawTarget::stderr(); // hidden if stderr is not a terminal
    let template = if length.is_some() { BAR } else { COUNT };
    let style = ProgressStyle::with_template(template);
    ProgressBar::with_draw_target(length, target)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(verb)
}
