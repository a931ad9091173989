//! The flags that describe a schedule. They have the names of the fields of the REST API.

use clap::Args;
use serde_json::{Map, Value};

use crate::body::{flag_of_field, word_or_json};
use crate::job_args::flag_of_job_field;

/// The value that resets a field.
const DEFAULT: &str = "default";

/// When a schedule fires.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Rule")]
pub(super) struct RuleArgs {
    /// Fire by this cron expression: 5 to 7 fields, or a nickname such as `@daily`.
    #[arg(long, value_name = "EXPRESSION")]
    pub(super) cron: Option<String>,

    /// Fire in this interval, such as `90s`: at least 1s.
    #[arg(long, value_name = "DURATION", conflicts_with = "cron")]
    pub(super) every: Option<String>,

    /// Fire once, at this time.
    #[arg(long, value_name = "TIME", conflicts_with_all = ["cron", "every"])]
    pub(super) at: Option<String>,

    /// The IANA time zone of `--cron`, such as Europe/Berlin [default: UTC].
    #[arg(long, visible_alias = "tz", value_name = "ZONE")]
    pub(super) timezone: Option<String>,

    /// Do not fire before this time.
    #[arg(long, value_name = "TIME")]
    pub(super) starts_at: Option<String>,

    /// Do not fire after this time.
    #[arg(long, value_name = "TIME")]
    pub(super) ends_at: Option<String>,
}

/// How a schedule treats its occurrences.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Occurrences")]
pub(super) struct OccurrenceArgs {
    /// What happens to occurrences that were missed while no server ran: `skip`, `once` (fire the
    /// last one) or `all` [default: once; skip for at-most-once jobs].
    #[arg(long, value_name = "WHAT")]
    missed: Option<String>,

    /// An occurrence that is later than this counts as missed [default: 5s].
    #[arg(long, value_name = "DURATION")]
    missed_after: Option<String>,

    /// Most missed occurrences that fire together [default: 100].
    #[arg(long, value_name = "N")]
    catch_up_max: Option<String>,

    /// What happens while the job of an earlier occurrence has not finished: `skip`, `queue`,
    /// `allow` or `cancel_running` [default: skip].
    #[arg(long, value_name = "WHAT")]
    overlap: Option<String>,

    /// Delay each occurrence by a fixed part of this duration, so that schedules with the same rule
    /// do not all start at once [default: 0s].
    #[arg(long, value_name = "DURATION")]
    splay: Option<String>,
}

impl RuleArgs {
    /// Returns the fields that are given. The value `default` is null.
    pub(super) fn fields(&self) -> Map<String, Value> {
        fields([
            ("cron", &self.cron),
            ("every", &self.every),
            ("at", &self.at),
            ("timezone", &self.timezone),
            ("starts_at", &self.starts_at),
            ("ends_at", &self.ends_at),
        ])
    }
}

impl OccurrenceArgs {
    /// Returns the fields that are given. The value `default` is null.
    pub(super) fn fields(&self) -> Map<String, Value> {
        fields([
            ("missed", &self.missed),
            ("missed_after", &self.missed_after),
            ("catch_up_max", &self.catch_up_max),
            ("overlap", &self.overlap),
            ("splay", &self.splay),
        ])
    }
}

fn fields<const N: usize>(flags: [(&str, &Option<String>); N]) -> Map<String, Value> {
    let given = flags.into_iter().filter_map(|(name, value)| {
        let value = match (name, value.as_deref()?) {
            (_, DEFAULT) => Value::Null,
            ("catch_up_max", text) => word_or_json(text),
            (_, text) => text.into(),
        };
        Some((name.to_owned(), value))
    });
    given.collect()
}

/// Returns the flag of a field of a schedule or its job.
pub(super) fn flag(field: &str) -> String {
    match field.strip_prefix("job.") {
        Some("kind") => "--kind".to_owned(),
        Some(field) => flag_of_job_field(field),
        None if field == "job" => "--kind".to_owned(),
        None if field == "name" => "NAME".to_owned(),
        None => flag_of_field(field),
    }
}
