//! A bulk action as pages show it.

use windlass_api::{BulkAction, BulkActionName};
use windlass_core::ActionState;

use super::{filter_rows, filter_words, shares, state_look, waiting_words};
use crate::frame::Look;
use crate::markup::Markup;
use crate::show;

/// A bulk action with its words and drawings.
pub(crate) struct BulkView {
    pub(crate) bulk: BulkAction,
    pub(crate) look: Look,
    pub(crate) title: String,
    pub(crate) what: String,
    pub(crate) by: String,
    pub(crate) reason: String,
    pub(crate) filter: Vec<(String, String)>,
    pub(crate) fields: Option<String>,
    pub(crate) bar: Markup,
    pub(crate) waiting: Option<String>,
    pub(crate) skipped: Vec<(String, String)>,
}

impl BulkView {
    pub(crate) fn new(bulk: BulkAction) -> Self {
        let fields = serde_json::to_value(&bulk.fields).unwrap_or_default();
        let has_fields = fields.as_object().is_some_and(|fields| !fields.is_empty());
        BulkView {
            look: state_look(bulk.state),
            title: verb(bulk.action).to_owned(),
            what: filter_words(&bulk.filter),
            by: show::person(&bulk.created_by),
            reason: show::visible(&bulk.reason),
            filter: filter_rows(&bulk.filter),
            fields: has_fields.then(|| super::super::job::pretty(&fields.to_string())),
            bar: shares(
                &format!(
                    "{} done, {} skipped of {}",
                    bulk.done, bulk.skipped, bulk.matched
                ),
                bulk.matched,
                &[(bulk.done, "running"), (bulk.skipped, "cancelled")],
            ),
            waiting: match bulk.state {
                ActionState::Running => waiting_words(
                    bulk.waiting_for,
                    bulk.waiting_queue.as_ref().map(|queue| queue.as_str()),
                ),
                _ => None,
            },
            skipped: bulk
                .skipped_by
                .iter()
                .map(|(reason, jobs)| (reason.name().replace('_', " "), show::count(*jobs)))
                .collect(),
            bulk,
        }
    }

    pub(crate) fn may_pause(&self) -> bool {
        self.bulk.state == ActionState::Running
    }

    pub(crate) fn may_resume(&self) -> bool {
        self.bulk.state == ActionState::Paused
    }

    pub(crate) fn may_abort(&self) -> bool {
        matches!(self.bulk.state, ActionState::Running | ActionState::Paused)
    }

    /// The result in a few words.
    pub(crate) fn result(&self) -> String {
        let (done, matched) = (show::count(self.bulk.done), show::count(self.bulk.matched));
        match self.bulk.skipped {
            0 => format!("{done} of {matched}"),
            skipped => format!("{done} of {matched}, {} left alone", show::count(skipped)),
        }
    }
}

fn verb(action: BulkActionName) -> &'static str {
    match action {
        BulkActionName::Revive => "Revive",
        BulkActionName::RunNow => "Run now",
        BulkActionName::Cancel => "Cancel",
        BulkActionName::Delete => "Delete",
        BulkActionName::Move => "Move",
        BulkActionName::Reprioritise => "Change the priority",
        BulkActionName::Resolve => "Mark as succeeded",
        BulkActionName::Patch => "Patch",
    }
}
