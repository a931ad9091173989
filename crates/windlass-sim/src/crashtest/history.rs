//! Turns records and the final read of the store into a history for the checker.

use std::collections::BTreeMap;

use serde_json::Value;
use windlass_core::{Delivery, Job, JobId, Kind, QueueName, Timestamp};
use windlass_store::AttemptId;

use super::record::{Answer, Record, Submission, What};
use crate::history::{EnqueueAnswer, Entry, Event, Final, History, JobFacts, UniqueFacts};

/// Joins what was seen outside with what the store has now.
pub(super) fn join(mut records: Vec<Record>, last: Final) -> History {
    records.sort_by_key(|record| record.at); // stable: lines of one process keep their order
    let mut joining = Joining::new(&records, &last);
    let entries = records.iter().map(|record| joining.entry(record));
    History {
        entries: entries.collect(),
        last: Some(last),
    }
}

struct Joining {
    jobs_by_tag: BTreeMap<String, JobFacts>,
    answers: BTreeMap<(String, u64), Vec<Answer>>,
    nodes: BTreeMap<String, u32>,
    calls: BTreeMap<(String, u64), u64>,
    unknown: u128,
}

impl Joining {
    fn new(records: &[Record], last: &Final) -> Self {
        let mut jobs_by_tag = BTreeMap::new();
        for job in last.jobs.iter().filter(|job| job.occurrence.is_none()) {
            if let Some(tag) = tag(job) {
                // A second job with the tag is one that no one submitted.
                jobs_by_tag.entry(tag).or_insert_with(|| JobFacts::of(job));
            }
        }
        let mut answers = BTreeMap::new();
        for record in records {
            if let What::Answered {
                call,
                answers: Some(found),
            } = &record.what
            {
                answers.insert((record.by.clone(), *call), found.clone());
            }
        }
        Joining {
            jobs_by_tag,
            answers,
            nodes: BTreeMap::new(),
            calls: BTreeMap::new(),
            unknown: 0,
        }
    }

    fn entry(&mut self, record: &Record) -> Entry {
        let event = match &record.what {
            What::Submitted {
                call,
                all_or_none,
                jobs,
            } => {
                let answers = self.answers.get(&(record.by.clone(), *call)).cloned();
                let jobs = jobs.iter().enumerate().map(|(index, job)| {
                    let answer = answers.as_ref().and_then(|answers| answers.get(index));
                    self.facts(job, answer.copied(), record.at)
                });
                Event::Submitted {
                    jobs: jobs.collect(),
                    batch: self.call(record, *call),
                    all_or_none: *all_or_none,
                }
            }
            What::Answered { call, answers } => Event::Answered {
                batch: self.call(record, *call),
                answers: answers.as_ref().map(|answers| {
                    let answer = |answer: &Answer| match answer {
                        Answer::Created(_) => EnqueueAnswer::Created,
                        Answer::Duplicate(id) => EnqueueAnswer::Duplicate(*id),
                        Answer::Refused => EnqueueAnswer::Full,
                    };
                    answers.iter().map(answer).collect()
                }),
            },
            What::Started {
                job,
                attempt,
                payload,
            } => Event::Started {
                attempt: attempt_id(*job, *attempt),
                payload: *payload,
            },
            What::Effect { job, attempt } => Event::Effect {
                attempt: attempt_id(*job, *attempt),
            },
            What::Returned { job, attempt } => Event::Returned {
                attempt: attempt_id(*job, *attempt),
            },
            What::Acknowledged {
                job,
                attempt,
                outcome,
            } => Event::SettleAcknowledged {
                attempt: attempt_id(*job, *attempt),
                outcome: *outcome,
            },
        };
        let next = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        Entry {
            at: record.at,
            node: *self.nodes.entry(record.by.clone()).or_insert(next),
            event,
        }
    }

    /// The number of a call among all processes.
    fn call(&mut self, record: &Record, call: u64) -> u64 {
        let next = self.calls.len() as u64;
        *self.calls.entry((record.by.clone(), call)).or_insert(next)
    }

    /// The facts of a submitted job: its id is the one in the answer, or the one that the store
    /// has, or one that no job has.
    fn facts(&mut self, job: &Submission, answer: Option<Answer>, at: Timestamp) -> JobFacts {
        let stored = self.jobs_by_tag.get(&job.tag);
        let id = match answer {
            Some(Answer::Created(id)) => Some(id),
            Some(Answer::Duplicate(_) | Answer::Refused) => None,
            None => stored.map(|facts| facts.id),
        };
        let id = id.unwrap_or_else(|| {
            self.unknown += 1;
            JobId::from_u128(self.unknown)
        });
        let stored = stored.filter(|facts| facts.id == id).cloned();
        let unique = job.unique_key.clone().map(|key| UniqueFacts {
            key,
            until: None,
            replaces: false,
        });
        JobFacts {
            id,
            payload: job.payload,
            delivery: if job.at_most_once {
                Delivery::AtMostOnce
            } else {
                Delivery::AtLeastOnce
            },
            unique,
            ..stored.unwrap_or_else(|| missing(at))
        }
    }
}

/// The facts of a job that is not in the store.
fn missing(at: Timestamp) -> JobFacts {
    JobFacts {
        id: JobId::from_u128(0),
        queue: QueueName::new("default").expect("a valid name"),
        kind: Kind::new("missing").expect("a valid name"),
        priority: 0,
        run_at: at,
        created_at: at,
        deadline: None,
        delivery: Delivery::AtLeastOnce,
        unique: None,
        concurrency: None,
        payload: 0,
        occurrence: None,
    }
}

/// The tag in the payload of a job, or in the body of its request.
fn tag(job: &Job) -> Option<String> {
    let payload: Value = serde_json::from_str(job.payload.as_str()).ok()?;
    let tag = payload
        .get("tag")
        .or_else(|| payload.get("body")?.get("tag"));
    Some(tag?.as_str()?.to_owned())
}

fn attempt_id(job: JobId, attempt: u32) -> AttemptId {
    AttemptId { job, attempt }
}
