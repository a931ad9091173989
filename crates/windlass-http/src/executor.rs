//! Runs HTTP jobs: the handler of kind `http`.
//!
//! A request takes a task and a socket, never a thread. How often and when it is tried again is not decided here: an attempt
//! ends with a report, as that of any handler.

mod envelope;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use windlass_core::retry::Preset;
use windlass_core::{AttemptError, Delivery, Failure, FailureClass, Invalid, Report};
use windlass_engine::{Handler, Running, RunningAttempt, StopReason, WorkerConfig};

use crate::answer::{Answer, Trouble, Verdict, judge};
use crate::completion::{self, Pending};
use crate::connector::{Connector, Resolve, SystemResolver, TlsError, TlsRoots};
use crate::guard::{Cidr, Guard};
use crate::job::{HTTP_KIND, http_kind, kind_retry};
use crate::phases::Phases;
use crate::request::HttpRequest;
use crate::sender::Sender;
use crate::signature::{NoSigningKeys, SigningKeys};

pub use envelope::{DEADLINE_HEADER, DEPTH_HEADER, DEPTH_MAX, DEPTH_META};

/// How HTTP jobs are run.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Ranges of addresses that are opened beside the public ones. None.
    pub allow: Vec<Cidr>,
    /// Where this process itself listens: never dialled.
    pub own: Vec<SocketAddr>,
    /// Which certificate authorities are believed.
    pub roots: TlsRoots,
    /// Resolving, connecting and the TLS handshake may each take so long. 5 s.
    pub connect_timeout: Duration,
    /// At most so many requests to one host at once; further ones wait, within their timeout. No bound.
    pub per_host: Option<usize>,
    /// Where targets tell how a request ended that they took for later: the token follows it. Not told.
    pub completion_url: Option<String>,
}

impl Default for HttpConfig {
    fn default() -> Self {
        HttpConfig {
            allow: Vec::new(),
            own: Vec::new(),
            roots: TlsRoots::default(),
            connect_timeout: Duration::from_secs(5),
            per_host: None,
            completion_url: None,
        }
    }
}

/// The handler of kind `http`. Clones share connections.
#[derive(Clone)]
pub struct HttpJobs(Arc<Inner>);

struct Inner {
    sender: Sender,
    keys: Arc<dyn SigningKeys>,
    per_host: Option<usize>,
    hosts: Mutex<HashMap<String, Arc<Semaphore>>>,
    completion_url: Option<String>,
}

/// Why HTTP jobs cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum HttpConfigError {
    /// A setting that cannot work.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// How long a request that was told to stop has at most.
const CANCEL_GRACE_MAX: Duration = Duration::from_secs(1);

impl HttpJobs {
    /// Runs HTTP jobs, with the system's resolver and no secrets.
    pub fn new(config: HttpConfig) -> Result<Self, HttpConfigError> {
        HttpJobs::with(config, Arc::new(SystemResolver), Arc::new(NoSigningKeys))
    }

    /// Runs HTTP jobs.
    pub fn with(
        config: HttpConfig,
        resolver: Arc<dyn Resolve>,
        keys: Arc<dyn SigningKeys>,
    ) -> Result<Self, HttpConfigError> {
        if config.connect_timeout.is_zero() {
            return Err(Invalid::new("connect_timeout", "must be longer than nothing").into());
        }
        if config.per_host == Some(0) {
            return Err(Invalid::new("per_host", "must be at least 1").into());
        }
        let tls = config.roots.connector()?;
        let guard = Guard::new(config.allow);
        let connector = Connector::new(guard, config.own, resolver, tls, config.connect_timeout);
        Ok(HttpJobs(Arc::new(Inner {
            sender: Sender::new(connector),
            keys,
            per_host: config.per_host,
            hosts: Mutex::default(),
            completion_url: config.completion_url,
        })))
    }

    /// Makes a worker run HTTP jobs, by the preset `webhook` unless it has a policy for them. A request stops as soon as it is
    /// told to: a worker that runs nothing else needs a cancel grace of 1 s at most, and retries a timeout that much sooner.
    pub fn register(&self, worker: &mut WorkerConfig) {
        worker.handlers.add(http_kind(), Arc::new(self.clone()));
        if worker.handlers.kinds().count() == 1 {
            worker.cancel_grace = worker.cancel_grace.min(CANCEL_GRACE_MAX);
        }
        for (kind, policy) in kind_retry() {
            worker.kind_retry.entry(kind).or_insert(policy);
        }
    }

    /// Makes a worker of a Rust program run HTTP jobs, by the preset `webhook` unless they have a
    /// policy of their own.
    pub fn serve<S: Send + Sync + 'static>(
        &self,
        worker: windlass::Worker<S>,
    ) -> windlass::Worker<S> {
        let handler = Arc::new(self.clone());
        worker
            .handle_attempts(HTTP_KIND, handler)
            .retry_kind(HTTP_KIND, Preset::Webhook)
    }

    /// How many connections were begun so far.
    pub fn connections_opened(&self) -> u64 {
        self.0.sender.opened()
    }
}

impl Handler for HttpJobs {
    fn run(&self, attempt: Arc<RunningAttempt>) -> Running {
        let inner = Arc::clone(&self.0);
        Box::pin(async move { inner.run(&attempt).await })
    }
}

impl Inner {
    async fn run(&self, attempt: &RunningAttempt) -> Report {
        let request = match HttpRequest::from_json(attempt.job().payload.as_str()) {
            Ok(request) => request,
            Err(refusal) => return unrecoverable(&format!("the payload is no request: {refusal}")),
        };
        match self.run_request(attempt, &request).await {
            Ok(report) => report,
            Err(failure) => Report::Failed(failure),
        }
    }

    async fn run_request(
        &self,
        attempt: &RunningAttempt,
        request: &HttpRequest,
    ) -> Result<Report, Failure> {
        let later = match request.complete_within {
            None => None,
            Some(within) => match completion::before_sending(attempt, within).await? {
                Pending::Ended(report) => return Ok(report),
                Pending::Send(ticket) => Some(ticket),
            },
        };
        let token = later.as_ref().map(|ticket| ticket.token());
        let sent =
            envelope::seal(attempt, request, &*self.keys, token, self.completion_url()).await?;
        let phases = Phases::start();
        // A timeout ends the attempt from outside: how far it came is told all the same.
        let watch = Arc::clone(&phases);
        attempt.keep_at_the_end("http", move || watch.so_far().into());
        let work = async {
            let _turn = self.turn(request).await;
            let delivery = attempt.job().delivery;
            self.sender.send(sent, delivery, &phases).await
        };
        let came = tokio::select! {
            biased;
            came = work => came,
            reason = attempt.stop().wait_beside_work() => {
                record(attempt, &phases, stop_label(reason));
                return Ok(stopped(attempt, reason, &phases));
            }
        };
        record(attempt, &phases, result_label(&came));
        let now = attempt.engine().now();
        attempt.keep("http", kept(&came, &phases));
        Ok(match (judge(request, &came, now), later) {
            (Verdict::Later { until }, Some(ticket)) => ticket.wait(attempt, until).await?,
            (Verdict::Later { until }, None) => Report::Snoozed { until },
            (Verdict::Succeeded(result), _) => Report::Succeeded(result),
            (Verdict::Failed(failure), _) => Report::Failed(failure),
        })
    }

    fn completion_url(&self) -> Option<&str> {
        self.completion_url.as_deref()
    }

    /// Waits for the host to have room, where that is bounded.
    async fn turn(&self, request: &HttpRequest) -> Option<OwnedSemaphorePermit> {
        let most = self.per_host?;
        let host = request.url.authority().map_or("", |host| host.as_str());
        let room = {
            let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
            // Only hosts that are being asked are remembered.
            hosts.retain(|_, room| Arc::strong_count(room) > 1);
            let room = hosts
                .entry(host.to_owned())
                .or_insert_with(|| Arc::new(Semaphore::new(most)));
            Arc::clone(room)
        };
        room.acquire_owned().await.ok()
    }
}

/// Counts what a request came to.
fn record(attempt: &RunningAttempt, phases: &Phases, result: &'static str) {
    if let Some(recorder) = attempt.engine().recorder() {
        let target = match (result, phases.target()) {
            (REFUSED, _) => REFUSED, // what it is stays unsaid
            (_, Some(target)) => target.name(),
            (_, None) => "unknown",
        };
        recorder.http_job(target, result);
    }
}

const REFUSED: &str = "refused";

fn result_label(came: &Result<Answer, Trouble>) -> &'static str {
    match came {
        Ok(answer) => match answer.status.as_u16() {
            200..=299 => "2xx",
            300..=399 => "3xx",
            400..=499 => "4xx",
            500..=599 => "5xx",
            _ => "other",
        },
        Err(Trouble::Refused) => REFUSED,
        Err(Trouble::NoAddress(_) | Trouble::NotSent(_)) => "not_sent",
        Err(Trouble::Unknown(_)) => "no_answer",
    }
}

fn stop_label(reason: StopReason) -> &'static str {
    match reason {
        StopReason::TimedOut => "timed_out",
        StopReason::Cancelled | StopReason::LeaseLost | StopReason::Shutdown => "stopped",
    }
}

/// What is told when the attempt is to stop before the answer came.
fn stopped(attempt: &RunningAttempt, reason: StopReason, phases: &Phases) -> Report {
    if attempt.job().delivery == Delivery::AtMostOnce && phases.is_connected() {
        // What may have been sent must not look as if it had not.
        let error = AttemptError::new("stopped while the request was on its way: it may have run");
        return Report::Failed(Failure {
            class: FailureClass::Unknown,
            ..Failure::retryable(error)
        });
    }
    match reason {
        StopReason::Cancelled => Report::Cancelled,
        // Told already; this is not heard.
        StopReason::TimedOut | StopReason::LeaseLost | StopReason::Shutdown => Report::Lost,
    }
}

/// What is kept with the attempt. Of a refused address, and of a name without one, nothing is: not even how long it took to find
/// out.
fn kept(came: &Result<Answer, Trouble>, phases: &Phases) -> Value {
    match came {
        Ok(answer) => {
            let mut kept = answer.to_json();
            kept.insert("timings_ms".to_owned(), phases.to_json());
            Value::Object(kept)
        }
        Err(Trouble::Refused | Trouble::NoAddress(_)) => Value::Object(Map::new()),
        Err(_) => Value::Object(phases.so_far()),
    }
}

fn unrecoverable(text: &str) -> Report {
    Report::Failed(Failure::unrecoverable(AttemptError::new(text)))
}

impl fmt::Debug for HttpJobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpJobs")
            .field("sender", &self.0.sender)
            .field("per_host", &self.0.per_host)
            .finish_non_exhaustive()
    }
}
