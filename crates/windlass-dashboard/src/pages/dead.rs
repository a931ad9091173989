//! Dead letters: causes of failures with their jobs, or the dead jobs one by one.

mod causes;
pub(super) mod export;
mod jobs;
mod purge;
mod wizard;

use axum::Router;
use windlass_api::FailureGroup;

use crate::fields::{Fields, escaped};
use crate::show;
use crate::site::{PageResult, Site, action, page};
use crate::visit::Visit;

/// How many causes or jobs a page has.
const PAGE_ROWS: usize = 50;
/// The filters of the list of dead jobs.
const FILTERS: [&str; 10] = [
    "queue",
    "kind",
    "reason",
    "fingerprint",
    "tag",
    "error",
    "finished_from",
    "finished_before",
    "payload_path",
    "payload_value",
];

pub(super) fn routes() -> Router<Site> {
    Router::new()
        .route("/dead", page(show))
        .route("/dead/export", page(export::export))
        .route(
            "/dead/replay",
            page(wizard::form).merge(action(wizard::start)),
        )
        .route("/dead/purge", page(purge::form).merge(action(purge::purge)))
}

async fn show(visit: Visit) -> PageResult {
    match visit.query().get("as") {
        Some("jobs") => jobs::page(visit).await,
        _ => causes::page(visit).await,
    }
}

/// The URL of this page with one parameter replaced, or removed if `value` is empty. The page
/// starts again at its first row.
pub(super) fn with(visit: &Visit, name: &str, value: &str) -> String {
    let query = visit.query().without(&["cursor"]).with(name, value).query();
    let here = visit.here();
    let path = here.split('?').next().unwrap_or_default();
    format!("{}{path}{query}", visit.base())
}

/// The query that names one cause: its filter for lists, replays and purges.
pub(super) fn group_query(group: &FailureGroup) -> String {
    let (queue, kind) = (escaped(group.queue.as_str()), escaped(group.kind.as_str()));
    format!(
        "?queue={queue}&kind={kind}&fingerprint={}",
        escaped(&group.fingerprint.to_string())
    )
}

/// The filters in force, each with a link that removes it.
pub(super) struct FilterBar {
    pub(super) chips: Vec<(String, String, String)>,
    /// Filters that can be added.
    pub(super) missing: Vec<&'static str>,
    pub(super) by_job: bool,
    pub(super) cause_link: String,
    pub(super) job_link: String,
    pub(super) query: String,
    pub(super) hidden: Vec<(String, String)>,
}

impl FilterBar {
    fn new(visit: &Visit) -> Self {
        let query = visit.query();
        let by_job = query.get("as") == Some("jobs");
        let chips = FILTERS.into_iter().filter_map(|name| {
            let value = query.get(name)?;
            Some((
                name.replace('_', " "),
                show::clipped(value, 60),
                with(visit, name, ""),
            ))
        });
        let addable: &[&'static str] = if by_job {
            &["queue", "kind", "reason", "error"]
        } else {
            &["queue", "kind"]
        };
        let filters = filters_of(query);
        FilterBar {
            chips: chips.collect(),
            missing: addable
                .iter()
                .copied()
                .filter(|name| query.get(name).is_none())
                .collect(),
            cause_link: with(visit, "as", ""),
            job_link: with(visit, "as", "jobs"),
            query: filters.query(),
            hidden: query
                .without(&["cursor"])
                .pairs()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            by_job,
        }
    }
}

/// The filters among the parameters of a page.
pub(super) fn filters_of(query: &Fields) -> Fields {
    let filters = query
        .pairs()
        .filter(|(name, value)| FILTERS.contains(name) && !value.is_empty());
    filters
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// The filters as flags of the command line.
pub(super) fn flags(query: &Fields) -> String {
    let mut flags = String::new();
    let filters = filters_of(query);
    for (name, value) in filters.pairs() {
        let name = match name {
            "reason" => "dead-reason".to_owned(),
            "payload_path" => {
                let wanted = filters.get("payload_value").unwrap_or_default();
                flags.push_str(&format!(
                    " --payload {}",
                    quoted(&format!("{value}={wanted}"))
                ));
                continue;
            }
            "payload_value" => continue,
            name => name.replace('_', "-"),
        };
        flags.push_str(&format!(" --{name} {}", quoted(value)));
    }
    flags
}

/// Text as one word of a shell.
pub(super) fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@%+=,".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", show::visible(text).replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_become_flags_that_a_shell_reads_as_one_word() {
        let query = Fields::parse("queue=mail&reason=exhausted&error=it%27s+down&as=jobs&cursor=x");
        assert_eq!(
            flags(&query),
            r" --queue mail --dead-reason exhausted --error 'it'\''s down'"
        );
        let payload = Fields::parse("payload_path=/a&payload_value=1");
        assert_eq!(flags(&payload), " --payload /a=1");
    }
}
