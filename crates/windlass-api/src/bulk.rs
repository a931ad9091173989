//! Creating many jobs in one request.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use windlass_core::{Invalid, Timestamp};

use crate::read::{check_body, first_problem, request};
use crate::{Body, BodyRefused, Checks, List, NewJob, PROBLEMS_MAX, read_body};

request! {
    /// Jobs to create in one request.
    pub struct Bulk {
        /// What happens to the other jobs if the server refuses one. Default: `all_or_none`.
        pub mode: BulkMode,
        /// The jobs: 1 to 10,000.
        #[schemars(required)]
        pub jobs: List<NewJob, 1, 10_000>,
    }
}

/// What happens to the other jobs of a bulk request if the server refuses one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum BulkMode {
    /// The server creates none of them.
    #[default]
    AllOrNone,
    /// The server creates them.
    Each,
}

/// A checked bulk request: each job is either valid or has a list of problems.
#[derive(Debug)]
pub struct CheckedBulk {
    /// What happens to the other jobs if one is refused.
    pub mode: BulkMode,
    /// The jobs.
    pub jobs: Vec<Result<windlass_core::NewJob, Vec<Invalid>>>,
}

/// The same request with the text of each job, so that each job can be read separately.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct BulkTexts {
    mode: Option<BulkMode>,
    jobs: Option<List<JobText, 1, 10_000>>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
struct JobText(#[schemars(with = "NewJob")] Box<RawValue>);

impl Body for BulkTexts {
    type Checked = (BulkMode, Vec<JobText>);

    fn check(self, checks: &mut Checks) -> Option<Self::Checked> {
        let jobs = checks.required("jobs", self.jobs)?;
        Some((self.mode.unwrap_or_default(), jobs.0))
    }
}

impl Bulk {
    /// Reads a bulk request. A problem in one job does not affect the others.
    pub fn read(text: &str, now: Timestamp) -> Result<CheckedBulk, BodyRefused> {
        if let Ok(Bulk {
            mode,
            jobs: Some(jobs),
        }) = serde_json::from_str(text)
        {
            let jobs = jobs.0.into_iter().enumerate().map(|(index, job)| {
                let within = |problem: Invalid| problem.within(&format!("jobs[{index}]"));
                let checked = check_body(job, now, NewJob::check);
                checked.map_err(|problems| problems.into_iter().map(within).collect())
            });
            return Ok(CheckedBulk {
                mode: mode.unwrap_or_default(),
                jobs: jobs.collect(),
            });
        }
        let (mode, texts) = read_body::<BulkTexts>(text, now)?;
        let mut problem_count = 0;
        let jobs = texts.iter().enumerate().map(|(index, JobText(text))| {
            let read = read_job(text.get(), now, problem_count < PROBLEMS_MAX);
            let within = |problem: Invalid| problem.within(&format!("jobs[{index}]"));
            let read =
                read.map_err(|problems| problems.into_iter().map(within).collect::<Vec<_>>());
            problem_count += read.as_ref().err().map_or(0, Vec::len);
            read
        });
        let jobs = jobs.collect();
        Ok(CheckedBulk { mode, jobs })
    }
}

/// Reads one job. With `all_problems` unset, reports only its first problem, which is cheaper.
fn read_job(
    text: &str,
    now: Timestamp,
    all_problems: bool,
) -> Result<windlass_core::NewJob, Vec<Invalid>> {
    let read = if all_problems {
        read_body::<NewJob>(text, now)
    } else {
        match serde_json::from_str(text) {
            Ok(job) => return check_body(job, now, NewJob::check),
            Err(_) => Err(first_problem::<NewJob>(text)),
        }
    };
    read.map_err(|refused| match refused {
        BodyRefused::Invalid(problems) => problems,
        BodyRefused::Malformed(malformed) => vec![Invalid::new("", malformed.to_string())],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<CheckedBulk, BodyRefused> {
        Bulk::read(text, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn each_job_is_read_on_its_own() {
        let text = r#"{"mode":"each","jobs":[{"kind":"a"},{"kind":"b c","x":1},5,{"limit":1}]}"#;
        let bulk = read(text).unwrap();
        assert_eq!(bulk.mode, BulkMode::Each);
        let fields = |job: &Result<_, Vec<Invalid>>| {
            let problems = job.as_ref().err().into_iter().flatten();
            let mut fields: Vec<_> = problems.map(|problem| problem.field().to_owned()).collect();
            fields.sort();
            fields
        };
        let fields: Vec<_> = bulk.jobs.iter().map(fields).collect();
        assert!(fields[0].is_empty());
        assert_eq!(fields[1], ["jobs[1].kind", "jobs[1].x"]);
        assert_eq!(fields[2], ["jobs[2]"]);
        assert_eq!(fields[3], ["jobs[3].kind", "jobs[3].limit"]);
        let bulk = read(r#"{"jobs":[{"kind":"a"},{"kind":"a","limit":1}]}"#).unwrap();
        assert_eq!(
            bulk.jobs[1].as_ref().unwrap_err()[0].field(),
            "jobs[1].limit"
        );
    }

    #[test]
    fn a_request_with_an_invalid_envelope_is_refused() {
        for (text, field) in [
            (r#"{"jobs":[]}"#, "jobs"),
            (&format!(r#"{{"jobs":[{}0]}}"#, "0,".repeat(10_000)), "jobs"),
            (r#"{"jobs":5}"#, "jobs"),
            ("{}", "jobs"),
            (r#"{"jobs":[{"kind":"a"}],"mode":"some"}"#, "mode"),
            (r#"{"jobs":[{"kind":"a"}],"more":1}"#, "more"),
        ] {
            let Err(BodyRefused::Invalid(problems)) = read(text) else {
                panic!("not refused");
            };
            assert_eq!(problems[0].field(), field);
        }
        let many = vec![r#"{"kind":"a"}"#; 10_001].join(",");
        let Err(BodyRefused::Invalid(problems)) = read(&format!("{{\"jobs\":[{many}]}}")) else {
            panic!("not refused");
        };
        assert!(problems[0].rule().contains("10001"));
    }
}
