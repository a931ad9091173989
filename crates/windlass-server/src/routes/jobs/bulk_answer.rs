//! The compact form in which the response of a bulk request is stored with its `Idempotency-Key`.

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use windlass_api::{BulkAnswer, BulkResult, Receipt};
use windlass_core::Timestamp;
use windlass_engine::Ids;

use crate::answer::Answer;
use crate::problem::Problem;

/// The most problems that are stored in full. Of the others, only status and code are stored.
const PROBLEMS_KEPT_MAX: usize = 100;

/// The part of the response that does not follow from the request. A created job takes no space,
/// because its id follows from the seed of the request and its position.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct CompactBulk {
    count: usize,
    /// The other results, by position.
    others: Vec<(usize, CompactResult)>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum CompactResult {
    /// Status and code of a problem.
    Brief(u16, String),
    Full(BulkResult),
}

impl CompactBulk {
    pub(super) fn new(results: &[BulkResult]) -> Self {
        let (mut others, mut problems) = (Vec::new(), 0);
        for (position, result) in results.iter().enumerate() {
            let compact = match result {
                BulkResult::Stored(receipt) if !receipt.duplicate => continue,
                BulkResult::Refused { problem } if problems == PROBLEMS_KEPT_MAX => {
                    CompactResult::Brief(problem.status, problem.code.clone())
                }
                other => {
                    problems += usize::from(matches!(other, BulkResult::Refused { .. }));
                    CompactResult::Full(other.clone())
                }
            };
            others.push((position, compact));
        }
        CompactBulk {
            count: results.len(),
            others,
        }
    }

    /// Restores the response.
    pub(crate) fn answer(self, ids: &Ids, at: Timestamp) -> Result<Answer, Problem> {
        let created = |_| {
            BulkResult::Stored(Receipt {
                id: ids.job(at),
                duplicate: false,
                payload_differs: Some(false),
                replaced: false,
            })
        };
        let mut results: Vec<BulkResult> = (0..self.count).map(created).collect();
        for (position, compact) in self.others {
            let Some(result) = results.get_mut(position) else {
                continue;
            };
            *result = match compact {
                CompactResult::Full(result) => result,
                CompactResult::Brief(status, code) => {
                    let status =
                        StatusCode::from_u16(status).map_err(|error| Problem::internal(&error))?;
                    let detail =
                        format!("jobs[{position}] was refused; the first response has the details");
                    let problem = Problem::new(status, &code, detail).into_json();
                    BulkResult::Refused {
                        problem: Box::new(problem),
                    }
                }
            };
        }
        Answer::ok(&BulkAnswer::new(results))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::AnswerBody;

    fn json(answer: Answer) -> serde_json::Value {
        match answer.body {
            AnswerBody::Json(body) => serde_json::from_slice(&body).unwrap(),
            other => panic!("no JSON: {other:?}"),
        }
    }

    fn refused(detail: &str) -> BulkResult {
        let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail);
        BulkResult::Refused {
            problem: Box::new(problem.into_json()),
        }
    }

    fn again(results: &[BulkResult]) -> (usize, serde_json::Value) {
        let written = serde_json::to_string(&CompactBulk::new(results)).unwrap();
        let compact: CompactBulk = serde_json::from_str(&written).unwrap();
        let answer = compact.answer(&Ids::seeded(7), Timestamp::UNIX_EPOCH);
        (written.len(), json(answer.unwrap()))
    }

    #[test]
    fn a_bulk_response_is_stored_compactly_and_restored_exactly() {
        let (ids, at) = (Ids::seeded(7), Timestamp::UNIX_EPOCH);
        let receipt = |id| Receipt {
            id,
            duplicate: false,
            payload_differs: Some(false),
            replaced: false,
        };
        let results = (0..10_000).map(|position| match position % 5000 {
            1 => BulkResult::Stored(Receipt {
                duplicate: true,
                payload_differs: None,
                ..receipt(ids.job(at))
            }),
            2 => {
                ids.job(at);
                refused("x")
            }
            _ => BulkResult::Stored(receipt(ids.job(at))),
        });
        let results: Vec<BulkResult> = results.collect();
        let (bytes, again) = again(&results);
        assert!(bytes < 1000);
        let first = json(Answer::ok(&BulkAnswer::new(results)).unwrap());
        assert_eq!(again, first);
    }

    #[test]
    fn only_some_of_many_problems_are_stored_in_full() {
        let results = vec![refused(&"x".repeat(500)); 10_000];
        let (bytes, again) = again(&results);
        assert!(bytes < 400_000);
        assert_eq!(again["refused"], 10_000);
        assert_eq!(again["data"][9_999]["problem"]["code"], "invalid");
    }
}
