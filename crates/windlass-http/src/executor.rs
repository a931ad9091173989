//! Runs HTTP jobs: the handler of kind `http`.
//!
//! A request takes a task and a socket, never a thread. This module does not decide about retries:
//! an attempt ends with a report, like that of any handler.

mod outgoing;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use windlass_core::retry::Preset;
use windlass_core::{AttemptError, Delivery, Failure, FailureClass, Invalid, Report};
use windlass_engine::{Handler, Running, RunningAttempt, StopReason, WorkerConfig};

use crate::completion::{self, SendDecision};
use crate::connector::{Connector, Resolve, SystemResolver, TlsError, TlsRoots};
use crate::guard::{Cidr, Guard};
use crate::job::{HTTP_KIND, http_kind, kind_retry};
use crate::lock;
use crate::request::HttpRequest;
use crate::response::{RequestError, RequestVerdict, TargetResponse, judge};
use crate::sender::Sender;
use crate::signature::{NoSigningKeys, SigningKeys};
use crate::timeline::RequestTimeline;

pub use outgoing::{DEADLINE_HEADER, DEPTH_HEADER, DEPTH_MAX, DEPTH_META};

/// The settings of [`HttpJobs`].
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Address ranges that requests may reach in addition to public addresses. Default: none.
    pub allow: Vec<Cidr>,
    /// The addresses that this process listens on. Requests never reach them, even if `allow`
    /// contains them. Default: none.
    pub own: Vec<SocketAddr>,
    /// The certificate authorities that are trusted.
    pub roots: TlsRoots,
    /// The timeout of each of: resolving the host name, connecting, the TLS handshake. Default:
    /// 5 s.
    pub connect_timeout: Duration,
    /// The most concurrent requests to one host. Further requests wait, and their timeout runs
    /// while they do. Default: no limit.
    pub per_host: Option<usize>,
    /// The URL at which targets report the outcome of an async request; the token is appended to
    /// it. Sent with each such request. Default: not sent.
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

/// The handler of kind `http`. Clones share their connections.
///
/// [`HttpJobs::serve`] makes a `Worker` of the SDK run HTTP jobs.
#[derive(Clone)]
pub struct HttpJobs(Arc<HttpExecutor>);

struct HttpExecutor {
    sender: Sender,
    keys: Arc<dyn SigningKeys>,
    per_host: Option<usize>,
    /// The permits of the hosts that have requests, if `per_host` is set.
    host_permits: Mutex<HashMap<String, Arc<Semaphore>>>,
    completion_url: Option<String>,
}

/// Why an [`HttpConfig`] cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HttpConfigError {
    /// A setting is out of range.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The longest cancel grace that a worker of only HTTP jobs needs.
const CANCEL_GRACE_MAX: Duration = Duration::from_secs(1);

impl HttpJobs {
    /// Creates the handler with the resolver of the operating system and no webhook secrets.
    ///
    /// # Errors
    ///
    /// [`HttpConfigError`] if a setting is out of range or the TLS roots cannot be used.
    pub fn new(config: HttpConfig) -> Result<Self, HttpConfigError> {
        HttpJobs::with(config, Arc::new(SystemResolver), Arc::new(NoSigningKeys))
    }

    /// Creates the handler with a resolver and webhook secrets of the caller.
    ///
    /// # Errors
    ///
    /// As [`HttpJobs::new`].
    pub fn with(
        config: HttpConfig,
        resolver: Arc<dyn Resolve>,
        keys: Arc<dyn SigningKeys>,
    ) -> Result<Self, HttpConfigError> {
        if config.connect_timeout.is_zero() {
            return Err(Invalid::new("connect_timeout", "must be longer than 0").into());
        }
        if config.per_host == Some(0) {
            return Err(Invalid::new("per_host", "must be at least 1").into());
        }
        let tls = config.roots.connector()?;
        let guard = Guard::new(config.allow);
        let connector = Connector::new(guard, config.own, resolver, tls, config.connect_timeout);
        Ok(HttpJobs(Arc::new(HttpExecutor {
            sender: Sender::new(connector),
            keys,
            per_host: config.per_host,
            host_permits: Mutex::default(),
            completion_url: config.completion_url,
        })))
    }

    /// Makes a worker of the engine run HTTP jobs. They retry by the preset `webhook`, unless the
    /// worker already has a policy for them.
    ///
    /// If the worker runs nothing else, this also reduces its cancel grace to at most 1 s, because a
    /// request stops immediately when it is cancelled. So a timed-out request is retried sooner.
    pub fn register(&self, worker: &mut WorkerConfig) {
        worker.handlers.add(http_kind(), Arc::new(self.clone()));
        if worker.handlers.kinds().count() == 1 {
            worker.cancel_grace = worker.cancel_grace.min(CANCEL_GRACE_MAX);
        }
        for (kind, policy) in kind_retry() {
            worker.kind_retry.entry(kind).or_insert(policy);
        }
    }

    /// Makes a worker of the SDK run HTTP jobs. They retry by the preset `webhook`, unless a job has
    /// its own policy.
    pub fn serve<S: Send + Sync + 'static>(
        &self,
        worker: windlass::Worker<S>,
    ) -> windlass::Worker<S> {
        let handler = Arc::new(self.clone());
        worker
            .handle_attempts(HTTP_KIND, handler)
            .retry_for_kind(HTTP_KIND, Preset::Webhook)
    }

    /// Returns how many connections it has tried to open so far.
    pub fn connections_opened(&self) -> u64 {
        self.0.sender.opened()
    }
}

impl Handler for HttpJobs {
    fn run(&self, attempt: Arc<RunningAttempt>) -> Running {
        let executor = Arc::clone(&self.0);
        Box::pin(async move { executor.run(&attempt).await })
    }
}

impl HttpExecutor {
    async fn run(&self, attempt: &RunningAttempt) -> Report {
        let request = match HttpRequest::from_json(attempt.job().payload.as_str()) {
            Ok(request) => request,
            Err(invalid) => {
                return unrecoverable(&format!(
                    "the payload is not a valid HTTP request: {invalid}"
                ));
            }
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
        let ticket = match request.complete_within {
            None => None,
            Some(within) => match completion::before_sending(attempt, request, within).await? {
                SendDecision::AlreadyEnded(report) => return Ok(report),
                SendDecision::Send(ticket) => Some(ticket),
            },
        };
        let token = ticket.as_ref().map(|ticket| ticket.token());
        let completion_url = self.completion_url.as_deref();
        let outgoing =
            outgoing::build(attempt, request, &*self.keys, token, completion_url).await?;
        let timeline = RequestTimeline::start();
        // The engine ends a timed-out attempt without asking the handler. The attempt still gets
        // its timeline.
        let partial = Arc::clone(&timeline);
        attempt.keep_at_the_end("http", move || partial.partial_json().into());
        let sending = async {
            let _permit = self.acquire_host_permit(request).await;
            let delivery = attempt.job().delivery;
            self.sender.send(outgoing, delivery, &timeline).await
        };
        let result = tokio::select! {
            biased;
            result = sending => result,
            reason = attempt.stop().wait_while_working() => {
                count_request(attempt, &timeline, stop_label(reason));
                return Ok(stopped(attempt, reason, &timeline));
            }
        };
        count_request(attempt, &timeline, result_label(&result));
        let now = attempt.engine().now();
        attempt.keep("http", detail_json(&result, &timeline));
        Ok(match (judge(request, &result, now), ticket) {
            (RequestVerdict::CompletesLater { until }, Some(ticket)) => {
                ticket.wait(attempt, until).await?
            }
            (RequestVerdict::CompletesLater { until }, None) => Report::Snoozed { until },
            (RequestVerdict::Succeeded(result), _) => Report::Succeeded(result),
            (RequestVerdict::Failed(failure), _) => Report::Failed(failure),
        })
    }

    /// Waits until the host has fewer than `per_host` requests, if that is set.
    async fn acquire_host_permit(&self, request: &HttpRequest) -> Option<OwnedSemaphorePermit> {
        let per_host = self.per_host?;
        let host = request.url.authority().map_or("", |host| host.as_str());
        let permits = {
            let mut hosts = lock(&self.host_permits);
            // Forget hosts without requests, so the map does not grow forever.
            hosts.retain(|_, permits| Arc::strong_count(permits) > 1);
            let permits = hosts
                .entry(host.to_owned())
                .or_insert_with(|| Arc::new(Semaphore::new(per_host)));
            Arc::clone(permits)
        };
        permits.acquire_owned().await.ok()
    }
}

/// Counts the request in the metrics.
fn count_request(attempt: &RunningAttempt, timeline: &RequestTimeline, result: &'static str) {
    if let Some(recorder) = attempt.engine().recorder() {
        let target = match (result, timeline.target()) {
            (REFUSED, _) => REFUSED, // the metric must not show what is behind the address
            (_, Some(target)) => target.name(),
            (_, None) => "unknown",
        };
        recorder.http_job(target, result);
    }
}

const REFUSED: &str = "refused";

fn result_label(result: &Result<TargetResponse, RequestError>) -> &'static str {
    match result {
        Ok(response) => match response.status.as_u16() {
            200..=299 => "2xx",
            300..=399 => "3xx",
            400..=499 => "4xx",
            500..=599 => "5xx",
            _ => "other",
        },
        Err(RequestError::AddressNotAllowed) => REFUSED,
        Err(RequestError::NoAllowedAddress | RequestError::NotSent(_)) => "not_sent",
        Err(RequestError::OutcomeUnknown(_)) => "no_answer",
    }
}

fn stop_label(reason: StopReason) -> &'static str {
    match reason {
        StopReason::TimedOut => "timed_out",
        StopReason::Cancelled | StopReason::LeaseLost | StopReason::Shutdown => "stopped",
    }
}

/// The report of an attempt that must stop before the response arrived.
fn stopped(attempt: &RunningAttempt, reason: StopReason, timeline: &RequestTimeline) -> Report {
    if attempt.job().delivery == Delivery::AtMostOnce && timeline.is_connected() {
        // `Cancelled` would claim that the request was not sent.
        let error = AttemptError::new(
            "stopped while the request was in flight: the target may have processed it",
        );
        return Report::Failed(Failure {
            class: FailureClass::Unknown,
            ..Failure::retryable(error)
        });
    }
    match reason {
        StopReason::Cancelled => Report::Cancelled,
        // The engine has settled the attempt already and ignores this report.
        StopReason::TimedOut | StopReason::LeaseLost | StopReason::Shutdown => Report::Lost,
    }
}

/// Returns what is stored with the attempt. It is empty for a target that is not allowed: even the
/// time that it took to find out would show whether a host name exists.
fn detail_json(result: &Result<TargetResponse, RequestError>, timeline: &RequestTimeline) -> Value {
    match result {
        Ok(response) => {
            let mut detail = response.to_json();
            detail.insert("timings_ms".to_owned(), timeline.timings_json());
            Value::Object(detail)
        }
        Err(RequestError::AddressNotAllowed | RequestError::NoAllowedAddress) => {
            Value::Object(Map::new())
        }
        Err(_) => Value::Object(timeline.partial_json()),
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
