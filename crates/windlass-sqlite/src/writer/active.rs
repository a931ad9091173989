//! Lists active jobs from the index, so that a list never scans finished jobs.

use windlass_core::{JobId, Timestamp};
use windlass_store::{Filter, ListedState, PAGE_MAX, Page, SCAN_MAX};

use super::Writer;

/// The ids of active jobs that may be on a page, newest first.
#[derive(Debug, Default)]
pub(crate) struct ActivePage {
    pub(crate) ids: Vec<JobId>,
    /// Where the next page starts if all of them are on this one; `None` at the end of the list.
    pub(crate) next: Option<JobId>,
    pub(crate) examined: usize,
}

impl Writer<'_> {
    /// Returns active jobs that match the state, queue and kind of the filter. The reader checks
    /// the other conditions when it reads the jobs, so if there are any, this returns more jobs
    /// than fit on the page.
    pub(crate) fn active_page(&self, filter: &Filter, page: Page, now: Timestamp) -> ActivePage {
        let limit = page.limit.min(PAGE_MAX);
        let ids_max = if is_answered_by_index(filter) {
            limit
        } else {
            SCAN_MAX
        };
        let queue = filter
            .queue
            .as_ref()
            .map(|queue| self.names.known(queue.as_str()));
        let kind = filter
            .kind
            .as_ref()
            .map(|kind| self.names.known(kind.as_str()));
        let matches = |job_queue: u32, job_kind: u32| {
            queue.is_none_or(|queue| queue == Some(job_queue))
                && kind.is_none_or(|kind| kind == Some(job_kind))
        };
        let mut active = ActivePage::default();
        // Adds a job if it matches. Returns whether to look at more jobs.
        let mut visit = |id: JobId, matches: bool| {
            active.ids.extend(matches.then_some(id));
            active.next = Some(id);
            active.examined += 1;
            active.ids.len() < ids_max && active.examined < SCAN_MAX
        };
        let after = page.after.map(|after| after.id);
        let reached_end = if filter.state == Some(ListedState::Running) {
            let mut running = self.index.running_before(after);
            running.all(|(id, running)| visit(id, matches(running.queue, running.kind)))
        } else {
            let mut waiting = self.index.waiting_before(after);
            let scheduled = filter.state == Some(ListedState::Scheduled);
            waiting.all(|(id, waiting)| {
                let in_state = (waiting.run_at > now) == scheduled;
                visit(id, in_state && matches(waiting.queue, waiting.kind))
            })
        };
        if reached_end || limit == 0 {
            active.next = None;
        }
        active
    }
}

/// Whether the index knows all that the filter asks for.
fn is_answered_by_index(filter: &Filter) -> bool {
    let indexed = Filter {
        state: filter.state,
        queue: filter.queue.clone(),
        kind: filter.kind.clone(),
        ..Filter::default()
    };
    *filter == indexed
}
