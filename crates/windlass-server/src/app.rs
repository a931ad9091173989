//! What all routes share.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use windlass::Client;
use windlass::prometheus::PrometheusRecorder;
use windlass_core::PAYLOAD_BYTES_MAX;
use windlass_core::retry::{Cap, Preset, WorkerRetry};
use windlass_engine::remote::{Remote, RemoteConfig};
use windlass_engine::{Audit, Clock, Engine, Ids};
use windlass_store::Store;

use crate::access::Access;
use crate::bodies::Bodies;
use crate::events::Feed;
use crate::idempotency::{Allowance, NOTES_MAX_DEFAULT};
use crate::permits::Permits;
use crate::problem::Problem;
use crate::rates::Rates;
use crate::secrets::Secrets;
use crate::standalone::log::LogLines;

/// So many requests that change something are worked on at once; others wait for their turn.
const CHANGING_MAX: u32 = 1000;

/// The largest body of a request about many jobs, unless it is set. 16 MiB.
pub(crate) const BULK_BYTES_DEFAULT: usize = 16 * 1024 * 1024;

/// What the interface is held to.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The largest payload. 1 MiB.
    pub payload_bytes_max: usize,
    /// The largest body of a bulk, of outcomes and of other requests about many jobs. 16 MiB.
    pub bulk_bytes_max: usize,
    /// The lease of a claim that names none. 30 s.
    pub lease: Duration,
    /// The longest lease that a claim or a renewal gets. 1 h.
    pub lease_max: Duration,
    /// The longest that a request may wait for jobs, or for the end of one. 60 s.
    pub wait_max: Duration,
    /// At most this many requests wait at once, and at most this many listen to events; one key gets half of them. 1000.
    pub waiting_max: usize,
    /// The most requests with an `Idempotency-Key` that one caller sends within a day. 1,000,000.
    pub idempotency_notes_max: u64,
    /// How long a payload that an edit or a revival replaced is kept; zero keeps none. 7 days.
    pub replaced_payload_retention: Duration,
    /// The policy of jobs that nobody else has one for, and the cap on what they ask for. `standard`, no cap.
    pub retry: WorkerRetry,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            payload_bytes_max: PAYLOAD_BYTES_MAX,
            bulk_bytes_max: BULK_BYTES_DEFAULT,
            lease: Duration::from_secs(30),
            lease_max: Duration::from_secs(3600),
            wait_max: Duration::from_secs(60),
            waiting_max: 1000,
            idempotency_notes_max: NOTES_MAX_DEFAULT,
            replaced_payload_retention: Duration::from_secs(7 * 24 * 3600),
            retry: WorkerRetry {
                policy: Some(Arc::new(Preset::default().policy())),
                cap: Cap::Unlimited,
            },
        }
    }
}

/// What all routes share. Clones are the same.
#[derive(Clone)]
pub struct App {
    pub(crate) client: Client,
    pub(crate) access: Access,
    pub(crate) audit: Audit,
    pub(crate) settings: Arc<Settings>,
    pub(crate) metrics: Option<Arc<PrometheusRecorder>>,
    pub(crate) log: Option<LogLines>,
    pub(crate) feed: Arc<Feed>,
    pub(crate) rates: Arc<Rates>,
    pub(crate) remote: Arc<Remote>,
    pub(crate) waiting: Permits,
    pub(crate) listening: Permits,
    /// Requests that change something: they run to their end, with or without their client.
    pub(crate) changing: Arc<Semaphore>,
    pub(crate) bodies: Bodies,
    pub(crate) allowance: Arc<Allowance>,
    pub(crate) secrets: Option<Secrets>,
    pub(crate) stopping: CancellationToken,
}

impl App {
    /// The interface to a client's store. To be made within a tokio runtime: it listens to what happens from now on.
    pub fn new(client: Client, access: Access) -> Self {
        let settings = Settings::default();
        let rates = Arc::new(Rates::default());
        App {
            audit: Audit::new(Arc::clone(windlass::admin::engine_of(&client))),
            feed: Feed::start(windlass::admin::engine_of(&client), Arc::clone(&rates)),
            rates,
            remote: remote(windlass::admin::engine_of(&client), &settings),
            allowance: Arc::default(),
            waiting: Permits::new("long polls", settings.waiting_max),
            listening: Permits::new("event streams", settings.waiting_max),
            changing: Arc::new(Semaphore::new(CHANGING_MAX as usize)),
            bodies: Bodies::new(settings.bulk_bytes_max),
            settings: Arc::new(settings),
            metrics: None,
            log: None,
            secrets: None,
            stopping: CancellationToken::new(),
            client,
            access,
        }
    }

    /// With other settings.
    #[must_use]
    pub fn settings(self, settings: Settings) -> Self {
        App {
            remote: remote(self.engine(), &settings),
            waiting: Permits::new("long polls", settings.waiting_max),
            listening: Permits::new("event streams", settings.waiting_max),
            bodies: Bodies::new(settings.bulk_bytes_max),
            settings: Arc::new(settings),
            ..self
        }
    }

    /// With the figures of a recorder at `/metrics`: that which the client was opened with.
    #[must_use]
    pub fn metrics(self, recorder: Arc<PrometheusRecorder>) -> Self {
        App {
            metrics: Some(recorder),
            ..self
        }
    }

    /// With a log whose lines are counted at `/metrics` where they were left out.
    #[must_use]
    pub fn log(self, log: LogLines) -> Self {
        App {
            log: Some(log),
            ..self
        }
    }

    /// With secrets that may be put, listed and removed.
    #[must_use]
    pub fn secrets(self, secrets: Secrets) -> Self {
        App {
            secrets: Some(secrets),
            ..self
        }
    }

    /// What waits (claims, results, streams of events) ends when this is cancelled.
    #[must_use]
    pub fn stopping(self, stopping: CancellationToken) -> Self {
        App { stopping, ..self }
    }

    /// The client whose store it is.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Waits until every request that changes something has ended. Where none begins any more, that is the end.
    pub(crate) async fn all_changed(&self) {
        let _ = self.changing.acquire_many(CHANGING_MAX).await;
    }

    /// Counts a request that no route answers. Its method and path may be anything, and are no labels.
    pub(crate) fn count_unrouted(&self, problem: &Problem) {
        if let Some(metrics) = &self.metrics {
            metrics.http_request("other", "other", problem.status(), Duration::ZERO);
        }
    }

    /// The clock that the requests are timed by.
    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        self.engine().clock()
    }

    /// Where the ids of requests and of the jobs that they create come from.
    pub(crate) fn ids(&self) -> &Ids {
        self.engine().ids()
    }

    /// The engine, for what only the server has: keys, secrets, idempotency notes, replaced
    /// payloads, metrics and health. Routes use [`App::client`].
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        windlass::admin::engine_of(&self.client)
    }

    pub(crate) fn store(&self) -> &dyn Store {
        windlass::admin::engine_of(&self.client).store()
    }
}

fn remote(engine: &Arc<Engine>, settings: &Settings) -> Arc<Remote> {
    let config = RemoteConfig {
        lease: settings.lease,
        lease_max: settings.lease_max,
        retry: settings.retry.clone(),
        reserved: [windlass_http::http_kind()].into(),
    };
    Arc::new(Remote::new(engine, config))
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App")
            .field("client", &self.client)
            .field("access", &self.access)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
