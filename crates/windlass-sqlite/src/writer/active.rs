//! Lists active jobs from the index, so that a list never scans finished jobs.

use windlass_core::{JobId, Timestamp};
use windlass_store::{Filter, ListedState, PAGE_MAX, Page, SCAN_MAX};

use super::Writer;

/// The ids of a page of active jobs, newest first.
#[derive(Debug, Default)]
pub(crate) struct ActivePage {
    pub(crate) ids: Vec<JobId>,
    /// The cursor of the next page.
    pub(crate) next: Option<JobId>,
}

impl Writer<'_> {
    /// Returns a page of active jobs that match the state, queue and kind of the filter. The reader
    /// checks the other conditions when it reads the jobs.
    pub(crate) fn active_page(&self, filter: &Filter, page: Page, now: Timestamp) -> ActivePage {
        let limit = page.limit.min(PAGE_MAX);
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
        // Adds a job if it matches. Returns whether the page has space for more.
        let mut visit = |id: JobId, matches: bool| {
            active.ids.extend(matches.then_some(id));
            active.next = Some(id);
            active.ids.len() < limit
        };
        let reached_end = if filter.state == Some(ListedState::Running) {
            let mut running = self.index.running_before(page.after);
            running.all(|(id, running)| visit(id, matches(running.queue, running.kind)))
        } else {
            let mut waiting = self.index.waiting_before(page.after);
            let mut scanned = 0;
            let scheduled = filter.state == Some(ListedState::Scheduled);
            waiting.all(|(id, waiting)| {
                scanned += 1;
                let in_state = (waiting.run_at > now) == scheduled;
                visit(id, in_state && matches(waiting.queue, waiting.kind)) && scanned < SCAN_MAX
            })
        };
        if reached_end || limit == 0 {
            active.next = None;
        }
        active
    }
}
