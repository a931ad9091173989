//! How many jobs match a filter: from the counts of the store, from a page, or from a dry run.

use axum::http::Method;
use serde_json::json;
use windlass_api::{ActionPreview, JobPage, QueueCounts};

use super::filter;
use crate::fields::Fields;
use crate::show;
use crate::snapshot::Snapshot;
use crate::visit::Visit;

/// The number of jobs that match a filter, as far as it is known without counting for long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Matching {
    Exactly(u64),
    AtLeast(u64),
}

impl Matching {
    /// What a page of the list knows. `is_first` says that no page comes before it.
    pub(super) fn listed(
        filters: &Fields,
        snapshot: &Snapshot,
        jobs: &JobPage,
        is_first: bool,
    ) -> Matching {
        let shown = jobs.data.len() as u64;
        match counted(filters, snapshot) {
            Some(count) => Matching::Exactly(count),
            None if is_first && jobs.next_cursor.is_none() => Matching::Exactly(shown),
            None => Matching::AtLeast(shown),
        }
    }

    /// What a dry run found. It examines about 10,000 jobs.
    pub(super) fn previewed(preview: &ActionPreview) -> Matching {
        match preview.complete {
            true => Matching::Exactly(preview.matched),
            false => Matching::AtLeast(preview.matched),
        }
    }

    /// Counts the jobs with a dry run, which changes nothing. `None` if the person may not do that,
    /// or if there is no condition.
    pub(super) async fn count(visit: &Visit, filters: &Fields) -> Option<Matching> {
        let body = json!({
            "action": "run_now", "filter": filter::to_json(filters), "reason": "count",
            "dry_run": true,
        });
        let preview = visit.send(Method::POST, "/api/v1/bulk-actions", &body);
        let preview: ActionPreview = preview.await.ok()?;
        Some(Matching::previewed(&preview))
    }

    /// The jobs in words: `1,580 jobs`, `at least 50 jobs`.
    pub(super) fn jobs(self) -> String {
        match self {
            Matching::Exactly(1) => "1 job".to_owned(),
            Matching::Exactly(count) => format!("{} jobs", show::grouped(count)),
            Matching::AtLeast(count) => format!("at least {} jobs", show::grouped(count)),
        }
    }

    /// The jobs after a verb: `all 1,580 that match`.
    pub(super) fn all(self) -> String {
        match self {
            Matching::Exactly(1) => "the only one that matches".to_owned(),
            Matching::Exactly(count) => format!("all {} that match", show::grouped(count)),
            Matching::AtLeast(count) => {
                format!("all that match, at least {}", show::grouped(count))
            }
        }
    }
}

/// The number of jobs of a state, in all queues or in one, if these are the only conditions.
pub(super) fn counted(filters: &Fields, snapshot: &Snapshot) -> Option<u64> {
    if filters
        .pairs()
        .any(|(name, _)| !matches!(name, "state" | "queue" | "retrying"))
    {
        return None;
    }
    let count: fn(&QueueCounts) -> u64 = match (filters.get("state"), filters.get("retrying")) {
        (None, Some("true")) => |counts| counts.retrying,
        (Some(_), Some(_)) | (None, Some(_)) => return None,
        (None, None) => |counts| {
            counts.scheduled
                + counts.ready
                + counts.running
                + counts.succeeded
                + counts.dead
                + counts.cancelled
        },
        (Some("scheduled"), None) => |counts| counts.scheduled,
        (Some("ready"), None) => |counts| counts.ready,
        (Some("running"), None) => |counts| counts.running,
        (Some("succeeded"), None) => |counts| counts.succeeded,
        (Some("dead"), None) => |counts| counts.dead,
        (Some("cancelled"), None) => |counts| counts.cancelled,
        _ => return None,
    };
    let queue = filters.get("queue");
    let queues = snapshot
        .queues
        .iter()
        .filter(|known| queue.is_none_or(|queue| known.name.as_str() == queue));
    Some(queues.map(|queue| count(&queue.counts)).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_jobs_says_whether_it_is_exact() {
        let (one, many) = (Matching::Exactly(1), Matching::Exactly(12_345));
        let more = Matching::AtLeast(10_000);
        assert_eq!(one.jobs(), "1 job");
        assert_eq!(one.all(), "the only one that matches");
        assert_eq!(many.jobs(), "12,345 jobs");
        assert_eq!(many.all(), "all 12,345 that match");
        assert_eq!(more.jobs(), "at least 10,000 jobs");
        assert_eq!(more.all(), "all that match, at least 10,000");
    }
}
