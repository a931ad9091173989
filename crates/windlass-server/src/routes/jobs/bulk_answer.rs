//! What is answered about many jobs, and how little of it is kept for the case that the request is sent again.

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use windlass_api::Problem as ProblemJson;
use windlass_core::{JobId, Timestamp};
use windlass_engine::Ids;

use super::create::ReceiptView;
use crate::answer::Answer;
use crate::problem::Problem;

/// The most problems that are kept in full; of the others, status and code.
const PROBLEMS_KEPT_MAX: usize = 100;

/// What became of one of many.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum BulkResult {
    /// It is stored, or was.
    Stored(ReceiptView),
    /// It is not.
    Refused { problem: Box<ProblemJson> },
}

#[derive(Serialize)]
struct BulkAnswer {
    data: Vec<BulkResult>,
    created: usize,
    duplicates: usize,
    refused: usize,
}

/// The answer about many jobs.
pub(super) fn told(results: Vec<BulkResult>) -> Result<Answer, Problem> {
    let count = |wanted: fn(&BulkResult) -> bool| results.iter().filter(|one| wanted(one)).count();
    let created = count(|one| matches!(one, BulkResult::Stored(receipt) if !receipt.duplicate));
    let duplicates = count(|one| matches!(one, BulkResult::Stored(receipt) if receipt.duplicate));
    let refused = count(|one| matches!(one, BulkResult::Refused { .. }));
    Answer::ok(&BulkAnswer {
        data: results,
        created,
        duplicates,
        refused,
    })
}

/// What cannot be worked out again of an answer about many jobs. A created job takes no room: its id follows from the seed of
/// the request and its position.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct CompactBulk {
    count: usize,
    /// By position: the job that was there first, whether its payload differs, whether it was replaced.
    duplicates: Vec<(usize, JobId, Option<bool>, bool)>,
    /// By position, the first of them in full.
    refused: Vec<(usize, ProblemJson)>,
    /// By position: status and code.
    refused_briefly: Vec<(usize, u16, String)>,
}

impl CompactBulk {
    pub(super) fn of(results: &[BulkResult]) -> Self {
        let mut compact = CompactBulk {
            count: results.len(),
            ..CompactBulk::default()
        };
        for (position, result) in results.iter().enumerate() {
            match result {
                BulkResult::Stored(receipt) if receipt.duplicate => {
                    let differs = receipt.payload_differs;
                    let duplicate = (position, receipt.id, differs, receipt.replaced);
                    compact.duplicates.push(duplicate);
                }
                BulkResult::Stored(_) => {}
                BulkResult::Refused { problem } => {
                    if compact.refused.len() < PROBLEMS_KEPT_MAX {
                        compact.refused.push((position, (**problem).clone()));
                    } else {
                        let brief = (position, problem.status, problem.code.clone());
                        compact.refused_briefly.push(brief);
                    }
                }
            }
        }
        compact
    }

    /// The answer again.
    pub(crate) fn answer(self, ids: &Ids, at: Timestamp) -> Result<Answer, Problem> {
        let receipt = |id| ReceiptView {
            id,
            duplicate: false,
            payload_differs: Some(false),
            replaced: false,
        };
        let created = (0..self.count).map(|_| BulkResult::Stored(receipt(ids.job(at))));
        let mut results: Vec<BulkResult> = created.collect();
        let mut put = |position: usize, result: BulkResult| {
            if let Some(place) = results.get_mut(position) {
                *place = result;
            }
        };
        for (position, id, payload_differs, replaced) in self.duplicates {
            let duplicate = ReceiptView {
                id,
                duplicate: true,
                payload_differs,
                replaced,
            };
            put(position, BulkResult::Stored(duplicate));
        }
        for (position, problem) in self.refused {
            let problem = Box::new(problem);
            put(position, BulkResult::Refused { problem });
        }
        for (position, status, code) in self.refused_briefly {
            let status = StatusCode::from_u16(status).map_err(|error| Problem::internal(&error))?;
            let detail = format!("the first answer said what was wrong with jobs[{position}]");
            let problem = Problem::new(status, &code, detail).into_json();
            let problem = Box::new(problem);
            put(position, BulkResult::Refused { problem });
        }
        told(results)
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

    #[test]
    fn an_answer_about_many_is_kept_small_and_told_again_as_it_was() {
        let (ids, at) = (Ids::seeded(7), Timestamp::UNIX_EPOCH);
        let receipt = |id| ReceiptView {
            id,
            duplicate: false,
            payload_differs: Some(false),
            replaced: false,
        };
        let results = (0..10_000).map(|position| match position % 5000 {
            1 => BulkResult::Stored(ReceiptView {
                duplicate: true,
                payload_differs: None,
                ..receipt(ids.job(at))
            }),
            2 => {
                ids.job(at);
                let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", "x");
                let problem = Box::new(problem.into_json());
                BulkResult::Refused { problem }
            }
            _ => BulkResult::Stored(receipt(ids.job(at))),
        });
        let results: Vec<BulkResult> = results.collect();
        let compact = CompactBulk::of(&results);
        assert!(serde_json::to_string(&compact).unwrap().len() < 1000);
        let first = json(told(results).unwrap());
        let again = json(compact.answer(&Ids::seeded(7), at).unwrap());
        assert_eq!(again, first);
    }

    #[test]
    fn of_many_problems_only_some_are_kept_in_full() {
        let refused = |_| {
            let problem =
                Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", "x".repeat(500));
            BulkResult::Refused {
                problem: Box::new(problem.into_json()),
            }
        };
        let results: Vec<BulkResult> = (0..10_000).map(refused).collect();
        let compact = CompactBulk::of(&results);
        assert!(serde_json::to_string(&compact).unwrap().len() < 400_000);
        let again = json(
            compact
                .answer(&Ids::seeded(7), Timestamp::UNIX_EPOCH)
                .unwrap(),
        );
        assert_eq!(again["refused"], 10_000);
        assert_eq!(again["data"][9_999]["problem"]["code"], "invalid");
    }
}
