//! Instants that explain a chart: what operators did, and when a cause was first seen.

use windlass_api::{AuditPage, AuditRecord, FailureGroup, Scope};
use windlass_core::{Timestamp, cause_in_words};

use crate::draw::Mark;
use crate::failure::Failure;
use crate::fields::escaped;
use crate::series::Series;
use crate::show::{self, Zone};
use crate::visit::Visit;

/// The most marks of one chart. More would hide it.
const MARKS_MAX: usize = 4;
/// Texts closer to each other than this share of the chart would overlap.
const TEXT_APART: f64 = 0.3;
/// The most records of the audit log that are read.
const RECORDS_MAX: usize = 50;

/// Puts marks on the charts of a series, of one queue or of all.
///
/// Only people who may read the audit log see what operators did.
pub(crate) async fn add(
    visit: &Visit,
    series: &mut Series,
    queue: Option<&str>,
    groups: &[FailureGroup],
) -> Result<(), Failure> {
    let mut instants: Vec<(Timestamp, String)> = Vec::new();
    if visit.may(Scope::Admin) {
        let target = queue.map(|queue| format!("&target={}", escaped(queue)));
        let path = format!(
            "/api/v1/audit?action=queue.&from={}&limit={RECORDS_MAX}{}",
            escaped(&series.from.to_string()),
            target.unwrap_or_default()
        );
        let page: AuditPage = visit.get(&path).await?;
        instants.extend(page.data.iter().filter_map(of_record));
    }
    instants.extend(groups.iter().filter_map(of_group));
    series.marks = place(instants, series, visit.zone());
    Ok(())
}

fn of_record(record: &AuditRecord) -> Option<(Timestamp, String)> {
    let done = match record.action.as_str() {
        "queue.pause" => "paused",
        "queue.resume" => "resumed",
        "queue.settings" => "has other settings",
        _ => return None,
    };
    let target = show::clipped(&record.target, 24);
    Some((record.at, format!("{target} {done}")))
}

fn of_group(group: &FailureGroup) -> Option<(Timestamp, String)> {
    let error = group.sample.error.as_deref()?;
    let words = show::clipped(&cause_in_words(error), 40);
    Some((group.first_seen_at, format!("first {words}")))
}

/// The newest marks that are inside the chart, oldest first. A text that would overlap the one
/// before is left out; its line stays.
fn place(mut instants: Vec<(Timestamp, String)>, series: &Series, zone: &Zone) -> Vec<Mark> {
    let buckets = series.buckets.len().saturating_sub(1).max(1) as f64;
    let span = series.step.as_secs_f64() * buckets;
    // A cause that was there from the beginning says nothing about the first bucket.
    let begin = series.from.saturating_add(series.step);
    instants.retain(|(at, _)| *at >= begin && at.since(series.from).as_secs_f64() <= span);
    instants.sort();
    let skipped = instants.len().saturating_sub(MARKS_MAX);
    let mut text_at = f64::NEG_INFINITY;
    let mark = |(at, text): (Timestamp, String)| {
        let position = at.since(series.from).as_secs_f64() / span;
        let has_space = position - text_at >= TEXT_APART;
        if has_space {
            text_at = position;
        }
        let text = match has_space {
            true => format!("{} {text}", zone.axis(at, false)),
            false => String::new(),
        };
        Mark { at: position, text }
    };
    instants.into_iter().skip(skipped).map(mark).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn marks_are_placed_to_scale_and_their_texts_do_not_overlap() {
        let series = Series::empty(
            "2026-03-17T12:00:00Z".parse().unwrap(),
            Duration::from_secs(60),
            61,
        );
        let at = |minute: u32, text: &str| {
            let time = format!("2026-03-17T12:{minute:02}:00Z");
            (time.parse().unwrap(), text.to_owned())
        };
        let instants = vec![at(36, "b"), at(30, "a"), at(0, "too early"), at(54, "c")];
        let marks = place(instants, &series, &Zone::default());
        let placed: Vec<_> = marks
            .iter()
            .map(|mark| (mark.at, mark.text.as_str()))
            .collect();
        assert_eq!(placed, [(0.5, "12:30 a"), (0.6, ""), (0.9, "12:54 c")]);
        let many = (1..20).map(|minute| at(minute, "x")).collect();
        assert_eq!(place(many, &series, &Zone::default()).len(), MARKS_MAX);
    }
}
