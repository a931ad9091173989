//! The flags that select jobs. They have the names of the query parameters of the REST API.

use clap::Args;
use serde_json::{Map, Value};
use windlass_api::{Content, JobFilter, params, read_query};
use windlass_core::{Invalid, Timestamp, parse_duration};

use crate::clock;

/// The flags that select jobs. A job must match all that are given.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Filters")]
pub(crate) struct FilterArgs {
    /// Only jobs in this state: scheduled, ready, running, succeeded, dead or cancelled.
    #[arg(long, value_name = "STATE")]
    state: Option<String>,

    /// Only jobs in this queue.
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,

    /// Only jobs of this kind.
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,

    /// Only jobs with this tag.
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,

    /// Only jobs with this unique key.
    #[arg(long, value_name = "KEY")]
    unique_key: Option<String>,

    /// Only jobs of the schedule with this id.
    #[arg(long, value_name = "ID")]
    schedule: Option<String>,

    /// Only jobs that were last revived by the replay with this id.
    #[arg(long, value_name = "ID")]
    replay: Option<String>,

    /// Only jobs that are dead for this reason: exhausted, unrecoverable, expired, lost or poison.
    #[arg(long, value_name = "REASON")]
    dead_reason: Option<String>,

    /// Only jobs whose last failure has this cause: a fingerprint of `windlass failures list`.
    #[arg(long, value_name = "FINGERPRINT")]
    fingerprint: Option<String>,

    /// Only jobs that wait or run and have failed before; with `false`, only other jobs.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    retrying: Option<String>,

    /// Only jobs created at this time or later: RFC 3339, or `2h` for two hours ago.
    #[arg(long, value_name = "TIME")]
    created_from: Option<String>,

    /// Only jobs created before this time.
    #[arg(long, value_name = "TIME")]
    created_before: Option<String>,

    /// Only jobs that last failed at this time or later.
    #[arg(long, value_name = "TIME")]
    failed_from: Option<String>,

    /// Only jobs that last failed before this time.
    #[arg(long, value_name = "TIME")]
    failed_before: Option<String>,

    /// Only jobs that finished at this time or later.
    #[arg(long, value_name = "TIME")]
    finished_from: Option<String>,

    /// Only jobs that finished before this time.
    #[arg(long, value_name = "TIME")]
    finished_before: Option<String>,

    /// Only jobs whose last error contains this text. Needs the scope `read-payload`.
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,

    /// Only jobs whose payload has this value at this JSON pointer, such as `/customer/id=17`. Needs
    /// the scope `read-payload`.
    #[arg(long, value_name = "PATH=VALUE")]
    payload: Option<String>,
}

impl FilterArgs {
    /// Returns the filter of the REST API.
    ///
    /// # Errors
    ///
    /// Names the first flag that breaks a rule.
    pub(crate) fn to_filter(&self) -> Result<JobFilter, Invalid> {
        let pairs = self.params()?;
        let now = clock::now();
        let filter = read_query::<JobFilter>(&pairs, &params::<JobFilter>(), now);
        let filter = filter.map_err(|problems| {
            let first = problems.into_iter().next();
            let first = first.unwrap_or_else(|| Invalid::new("", "is not a filter"));
            Invalid::new(flag_of(first.field()), first.rule())
        })?;
        Ok(JobFilter::new(&filter, Content::Shown))
    }

    /// Returns the filter of an action.
    ///
    /// # Errors
    ///
    /// Refuses an empty filter, which would match all jobs.
    pub(crate) fn to_action_filter(&self) -> Result<JobFilter, Invalid> {
        if self.is_empty() {
            let rule = "must be given, or another filter: an action needs at least one";
            return Err(Invalid::new("--queue", rule));
        }
        self.to_filter()
    }

    /// Whether no flag is given.
    pub(crate) fn is_empty(&self) -> bool {
        self.params().is_ok_and(|params| params.is_empty())
    }

    /// The query parameters that the flags stand for.
    fn params(&self) -> Result<Map<String, Value>, Invalid> {
        let now = clock::now();
        let time = |text: &Option<String>| text.as_deref().map(|text| instant(text, now));
        let (path, value) = match &self.payload {
            None => (None, None),
            Some(text) => {
                let parts = text.split_once('=');
                let rule = "must be PATH=VALUE, such as `/customer/id=17`";
                let (path, value) = parts.ok_or_else(|| Invalid::new("--payload", rule))?;
                (Some(path.to_owned()), Some(value.to_owned()))
            }
        };
        let pairs = [
            ("state", self.state.clone()),
            ("queue", self.queue.clone()),
            ("kind", self.kind.clone()),
            ("tag", self.tag.clone()),
            ("unique_key", self.unique_key.clone()),
            ("schedule", self.schedule.clone()),
            ("replay", self.replay.clone()),
            ("reason", self.dead_reason.clone()),
            ("fingerprint", self.fingerprint.clone()),
            ("retrying", self.retrying.clone()),
            ("created_from", time(&self.created_from)),
            ("created_before", time(&self.created_before)),
            ("failed_from", time(&self.failed_from)),
            ("failed_before", time(&self.failed_before)),
            ("finished_from", time(&self.finished_from)),
            ("finished_before", time(&self.finished_before)),
            ("error", self.error.clone()),
            ("payload_path", path),
            ("payload_value", value),
        ];
        let given = pairs.into_iter().filter_map(|(name, value)| {
            let value = Value::String(value?);
            Some((name.to_owned(), value))
        });
        Ok(given.collect())
    }
}

/// Returns a time; a duration such as `2h` is that long ago.
pub(crate) fn instant(text: &str, now: Timestamp) -> String {
    match parse_duration(text) {
        Ok(span) => now.saturating_sub(span).to_string(),
        Err(_) => text.to_owned(),
    }
}

/// Returns the flag of a query parameter.
pub(crate) fn flag_of(param: &str) -> String {
    match param {
        // `--reason` says why an operator acts.
        "reason" => "--dead-reason".to_owned(),
        "payload_path" | "payload_value" => "--payload".to_owned(),
        param => format!("--{}", param.replace('_', "-")),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct List {
        #[command(flatten)]
        filter: FilterArgs,
    }

    fn filter(arguments: &[&str]) -> Result<JobFilter, Invalid> {
        let arguments = [&["list"], arguments].concat();
        let parsed = List::try_parse_from(arguments).unwrap();
        parsed.filter.to_filter()
    }

    #[test]
    fn every_parameter_of_the_rest_api_has_a_flag() {
        let command = List::command();
        let flags: Vec<&str> = command
            .get_arguments()
            .filter_map(clap::Arg::get_long)
            .collect();
        for param in params::<JobFilter>() {
            let flag = flag_of(&param.name);
            assert!(flags.contains(&flag.trim_start_matches('-')), "{flag}");
        }
    }

    #[test]
    fn every_flag_is_a_condition() {
        for (flag, value) in [
            ("--state", "dead"),
            ("--queue", "q"),
            ("--kind", "k"),
            ("--tag", "t"),
            ("--unique-key", "u"),
            ("--schedule", "0199d2a8-2fd0-7000-8000-000000000001"),
            ("--replay", "0199d2a8-2fd0-7000-8000-000000000002"),
            ("--dead-reason", "exhausted"),
            ("--retrying", "false"),
            ("--fingerprint", "0123456789abcdef"),
            ("--created-from", "2026-01-01T00:00:00Z"),
            ("--created-before", "2h"),
            ("--failed-from", "3h"),
            ("--failed-before", "2026-01-01T00:00:00Z"),
            ("--finished-from", "1d"),
            ("--finished-before", "2026-01-01T00:00:00Z"),
            ("--error", "x"),
            ("--payload", "/a=1=2"),
        ] {
            let filter = filter(&[flag, value]).unwrap();
            assert_ne!(filter, JobFilter::default(), "{flag}");
        }
        assert_eq!(filter(&["--retrying"]).unwrap().retrying, Some(true));
        let payload = filter(&["--payload", "/a=1=2"]).unwrap();
        assert_eq!(payload.payload_path.as_deref(), Some("/a"));
        assert_eq!(payload.payload_value.as_deref(), Some("1=2"));
        assert_eq!(filter(&[]).unwrap(), JobFilter::default());
    }

    #[test]
    fn an_invalid_value_names_its_flag() {
        for (flag, value) in [
            ("--state", "failed"),
            ("--created-from", "yesterday"),
            ("--fingerprint", "x"),
            ("--dead-reason", "x"),
            ("--retrying", "maybe"),
            ("--replay", "x"),
            ("--failed-from", "soon"),
            ("--payload", "a"),
            ("--payload", "a=1"),
        ] {
            assert_eq!(filter(&[flag, value]).unwrap_err().field(), flag, "{value}");
        }
    }
}
