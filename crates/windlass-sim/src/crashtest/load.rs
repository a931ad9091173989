//! The clients: they enqueue jobs of all sorts, through the REST API or the SDK, and log what they
//! sent and which answers they got.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use windlass::retry::RetryPolicy;
use windlass_client::Client;
use windlass_client::api::{
    BoundedInt, BulkMode, BulkResult, DurationText, Json, NewJob, Receipt, Retry,
};
use windlass_core::{Delivery, Key, Payload, Random};

use super::record::{Answer, Log, Submission, What};
use super::target::http_payload;
use super::work::{KIND, QUEUE, Work};
use crate::history::digest_of;

/// How long a job holds its unique key: longer than a test runs.
const UNIQUE_FOR: Duration = Duration::from_secs(24 * 3600);
/// The most jobs of a batch.
const BATCH_MAX: u64 = 20;
/// How often a client repeats a request with an idempotency key until it has an answer.
const REPEATS_MAX: u64 = 10;

/// The retries of all jobs: soon, and enough of them for attempts that faults fail.
fn policy() -> RetryPolicy {
    serde_json::from_str(POLICY).expect("the policy is valid")
}

const POLICY: &str = r#"{"max_attempts": 20, "backoff": {"type": "constant", "delay": "200ms"}, "jitter": {"type": "none"}}"#;

/// The file that ends the load of worker processes. It is next to the log of effects.
pub(super) fn end_of_load(log: &Path) -> PathBuf {
    log.with_file_name("load-ended")
}

/// Enqueues jobs at a steady rate.
pub(super) struct Enqueuer {
    name: String,
    random: Random,
    rate: u32,
    log: Arc<Log>,
    calls: u64,
    tags: u64,
}

/// A job before it is sent.
struct Planned {
    work: Work,
    at_most_once: bool,
    unique_key: Option<Key>,
    delay: Duration,
    priority: i16,
    is_http: bool,
}

impl Enqueuer {
    /// `rate` is the number of jobs per second.
    pub(super) fn new(name: &str, seed: u64, rate: u32, log: &Arc<Log>) -> Self {
        Enqueuer {
            name: name.to_owned(),
            random: Random::new(seed),
            rate,
            log: Arc::clone(log),
            calls: 0,
            tags: 0,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.bits() % bound.max(1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn plan(&mut self) -> Planned {
        self.tags += 1;
        let at_most_once = self.chance(25);
        let fails = self.chance(15);
        let work_ms = match self.below(20) {
            0 => 500 + self.below(2000), // some work longer than a lease
            1..4 => self.below(200),
            _ => self.below(20),
        };
        let filler = if self.chance(5) { 20_000 } else { 20 };
        let is_unique = self.chance(10);
        Planned {
            work: Work {
                tag: format!("{}-{}", self.name, self.tags),
                work_ms,
                failing_attempts: u32::from(fails) * (1 + u32::from(self.chance(50))),
                is_fatal: self.chance(2),
                filler: "x".repeat(filler),
            },
            at_most_once,
            // A few jobs in a row have the same key.
            unique_key: is_unique
                .then(|| Key::new(&format!("{}-{}", self.name, self.tags / 20)).ok())
                .flatten(),
            delay: Duration::from_millis(if self.chance(20) { self.below(1500) } else { 0 }),
            priority: i16::try_from(self.below(5)).unwrap_or(0),
            is_http: false,
        }
    }

    fn plan_batch(&mut self) -> Vec<Planned> {
        let count = if self.chance(15) {
            2 + self.below(BATCH_MAX)
        } else {
            1
        };
        (0..count).map(|_| self.plan()).collect()
    }

    async fn pause(&mut self, sent: usize) {
        let mean = 1_000_000 * sent as u64 / u64::from(self.rate.max(1));
        let pause = Duration::from_micros(self.below(2 * mean));
        tokio::time::sleep(pause).await;
    }

    /// Logs a call. Returns its number.
    fn submit(&mut self, jobs: Vec<Submission>, all_or_none: bool) -> Option<u64> {
        self.calls += 1;
        let submitted = What::Submitted {
            call: self.calls,
            all_or_none,
            jobs,
        };
        self.log.write(submitted).ok()?; // what is not logged is not sent
        Some(self.calls)
    }

    fn answered(&self, call: u64, answers: Option<Vec<Answer>>) {
        let _ = self.log.write(What::Answered { call, answers }); // one answer less to check
    }

    /// Enqueues through the REST API of servers, in turn, until `stop`.
    pub(super) async fn run_with_rest(
        mut self,
        servers: Vec<Client>,
        target: String,
        stop: CancellationToken,
    ) {
        while !stop.is_cancelled() {
            let server = self.below(servers.len() as u64);
            let server = servers.get(usize::try_from(server).unwrap_or(0));
            let Some(server) = server else { return };
            let mut planned = self.plan_batch();
            for job in &mut planned {
                job.is_http = self.chance(15);
            }
            let count = planned.len();
            self.send(server, &target, planned).await;
            self.pause(count).await;
        }
    }

    async fn send(&mut self, server: &Client, target: &str, planned: Vec<Planned>) {
        let payload = |job: &Planned| {
            let body = serde_json::to_string(&job.work).expect("work is JSON");
            if job.is_http {
                http_payload(target, &body)
            } else {
                body
            }
        };
        let payloads: Vec<String> = planned.iter().map(payload).collect();
        let submissions = planned.iter().zip(&payloads);
        let submissions = submissions
            .map(|(job, payload)| job.submission(payload))
            .collect();
        let is_single = planned.len() == 1;
        let mode = if self.chance(50) {
            BulkMode::AllOrNone
        } else {
            BulkMode::Each
        };
        let all_or_none = is_single || mode == BulkMode::AllOrNone;
        let Some(call) = self.submit(submissions, all_or_none) else {
            return;
        };
        let jobs: Vec<NewJob> = planned.iter().zip(&payloads).map(new_job).collect();
        let repeats = if self.chance(40) { REPEATS_MAX } else { 1 };
        let key = format!("{}-{call}", self.name);
        let client = if repeats > 1 {
            server.idempotency_key(key)
        } else {
            server.clone()
        };
        for _ in 0..repeats {
            let answers = match (&*jobs, is_single) {
                ([job], true) => client
                    .create_job(job)
                    .await
                    .map(|receipt| vec![receipt.into()]),
                _ => {
                    let answer = client.create_jobs(&jobs, mode).await;
                    answer.map(|answer| answer.data.into_iter().map(Answer::from).collect())
                }
            };
            match answers {
                Ok(answers) => return self.answered(call, Some(answers)),
                Err(error) => tracing::debug!(%error, "an enqueue failed"),
            }
            if repeats > 1 {
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
        }
        self.answered(call, None);
    }

    /// Enqueues through the SDK until `stop`, or until the file `ended` exists.
    pub(super) async fn run_with_sdk(
        mut self,
        client: windlass::Client,
        ended: PathBuf,
        stop: CancellationToken,
    ) {
        while !stop.is_cancelled() && !ended.exists() && self.rate > 0 {
            let job = self.plan();
            let payload = serde_json::to_string(&job.work).expect("work is JSON");
            let Some(call) = self.submit(vec![job.submission(&payload)], true) else {
                return;
            };
            let mut enqueue = client
                .enqueue(job.work)
                .queue(QUEUE)
                .priority(job.priority)
                .delay(job.delay)
                .retry(policy());
            if job.at_most_once {
                enqueue = enqueue.at_most_once();
            }
            if let Some(key) = &job.unique_key {
                enqueue = enqueue.unique_key(key.as_str()).unique_for(UNIQUE_FOR);
            }
            let answer = enqueue.await.ok().map(|receipt| {
                if receipt.duplicate {
                    Answer::Duplicate(receipt.id)
                } else {
                    Answer::Created(receipt.id)
                }
            });
            self.answered(call, answer.map(|answer| vec![answer]));
            self.pause(1).await;
        }
    }
}

impl Planned {
    fn submission(&self, payload: &str) -> Submission {
        Submission {
            tag: self.work.tag.clone(),
            payload: digest_of(payload),
            at_most_once: self.at_most_once,
            unique_key: self.unique_key.clone(),
        }
    }
}

fn new_job((job, payload): (&Planned, &String)) -> NewJob {
    let kind = if job.is_http { "http" } else { KIND };
    let retry: Option<Retry> = serde_json::from_str(POLICY).ok();
    NewJob {
        kind: kind.parse().ok(),
        payload: Some(Json(Payload::from_stored(payload))),
        queue: QUEUE.parse().ok(),
        priority: Some(job.priority),
        delay: Some(DurationText(job.delay)),
        delivery: job.at_most_once.then_some(Delivery::AtMostOnce),
        max_attempts: BoundedInt::new(20),
        retry,
        unique_for: job.unique_key.as_ref().map(|_| DurationText(UNIQUE_FOR)),
        unique_key: job.unique_key.clone(),
        ..NewJob::default()
    }
}

impl From<Receipt> for Answer {
    fn from(receipt: Receipt) -> Self {
        if receipt.duplicate {
            Answer::Duplicate(receipt.id)
        } else {
            Answer::Created(receipt.id)
        }
    }
}

impl From<BulkResult> for Answer {
    fn from(result: BulkResult) -> Self {
        match result {
            BulkResult::Stored(receipt) => receipt.into(),
            BulkResult::Refused { .. } => Answer::Refused,
        }
    }
}
