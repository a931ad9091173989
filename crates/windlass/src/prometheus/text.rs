//! The two text formats that Prometheus reads, and the choice between them.

/// A text format of metrics, for [`PrometheusRecorder::text_in`](super::PrometheusRecorder::text_in).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsFormat {
    /// The classic text format of Prometheus, version 0.0.4. Every scraper reads it.
    Classic,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl MetricsFormat {
    /// Returns the format that an `Accept` header prefers. Without a preference, this is the classic
    /// one.
    pub fn accepted(accept: &str) -> Self {
        let (mut open_metrics, mut classic, mut any) = (0.0, None, 0.0);
        for item in accept.split(',') {
            let mut parts = item.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
            let mut quality = parts.filter_map(|part| part.strip_prefix("q="));
            let quality = quality.next().map_or(Some(1.0), |text| text.parse().ok());
            let quality: f64 = quality.unwrap_or(0.0);
            match media_type.as_str() {
                "application/openmetrics-text" => open_metrics = quality.max(open_metrics),
                "text/plain" => classic = Some(quality.max(classic.unwrap_or(0.0))),
                "*/*" | "text/*" => any = quality.max(any),
                _ => {}
            }
        }
        if open_metrics > classic.unwrap_or(any) {
            MetricsFormat::OpenMetrics
        } else {
            MetricsFormat::Classic
        }
    }

    /// Returns the `Content-Type` of the format.
    pub fn content_type(self) -> &'static str {
        match self {
            MetricsFormat::Classic => "text/plain; version=0.0.4; charset=utf-8",
            MetricsFormat::OpenMetrics => {
                "application/openmetrics-text; version=1.0.0; charset=utf-8"
            }
        }
    }
}

/// Converts OpenMetrics text to the classic format, which has the suffix `_total` of counters in
/// `HELP` and `TYPE` too, and no `# EOF` line.
pub(super) fn classic(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, "untyped"));
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, help)) = help.take().filter(|(metric, _)| *metric == name) {
                text.push_str(&format!("# HELP {name}{suffix} {help}\n"));
            }
            text.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accept_header_chooses() {
        use MetricsFormat::{Classic, OpenMetrics};
        for (accept, format) in [
            ("", Classic),
            ("*/*", Classic),
            ("text/plain", Classic),
            ("text/html, application/json", Classic),
            ("application/openmetrics-text", OpenMetrics),
            ("application/openmetrics-text; version=1.0.0", OpenMetrics),
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                OpenMetrics,
            ),
            (
                "text/plain;version=0.0.4;q=0.5, application/openmetrics-text;q=0.4",
                Classic,
            ),
            ("application/openmetrics-text;q=0", Classic),
            ("application/openmetrics-text;q=x", Classic),
            ("Application/OpenMetrics-Text, */*;q=0.1", OpenMetrics),
            ("application/openmetrics-text,text/plain", Classic),
        ] {
            assert_eq!(MetricsFormat::accepted(accept), format, "{accept}");
        }
    }

    #[test]
    fn classic_text_names_counters_whole_and_has_no_end_line() {
        let open = "# HELP a_b Things.\n# TYPE a_b counter\n# UNIT a_b seconds\na_b_total{x=\"#\"} 1\n\
                    # HELP c Now.\n# TYPE c gauge\nc 2\n# EOF\n";
        let expected = "# HELP a_b_total Things.\n# TYPE a_b_total counter\na_b_total{x=\"#\"} 1\n\
                        # HELP c Now.\n# TYPE c gauge\nc 2\n";
        assert_eq!(classic(open), expected);
    }
}
