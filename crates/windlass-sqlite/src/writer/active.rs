//! Jobs that wait or run, by id, from memory: however many have ended, none of them is looked at.

use windlass_core::{JobId, Timestamp};
use windlass_store::{Filter, ListedState, PAGE_MAX, Page, SCAN_MAX};

use super::Writer;

/// A page of active jobs, newest first.
#[derive(Debug, Default)]
pub(crate) struct ActivePage {
    pub(crate) ids: Vec<JobId>,
    /// The cursor of the next page.
    pub(crate) next: Option<JobId>,
}

impl Writer<'_> {
    /// The jobs in the state of the filter, and in its queue and of its kind. The rest of it is asked of their bodies.
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
        let of = |found: (u32, u32)| {
            queue.is_none_or(|queue| queue == Some(found.0))
                && kind.is_none_or(|kind| kind == Some(found.1))
        };
        let mut active = ActivePage::default();
        let mut look = |id: JobId, matches: bool| {
            active.ids.extend(matches.then_some(id));
            active.next = Some(id);
            active.ids.len() < limit
        };
        let went_through = if filter.state == Some(ListedState::Running) {
            let mut running = self.index.running_before(page.after);
            running.all(|(id, running)| look(id, of((running.queue, running.kind))))
        } else {
            let mut waiting = self.index.waiting_before(page.after);
            let mut looked_at = 0;
            let scheduled = filter.state == Some(ListedState::Scheduled);
            waiting.all(|(id, waiting)| {
                looked_at += 1;
                let in_state = (waiting.run_at > now) == scheduled;
                look(id, in_state && of((waiting.queue, waiting.kind))) && looked_at < SCAN_MAX
            })
        };
        if went_through || limit == 0 {
            active.next = None;
        }
        active
    }
}
