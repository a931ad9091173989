//! The state that all routes share.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use windlass::Client;
use windlass::prometheus::PrometheusRecorder;
use windlass_api::ServerSetting;
use windlass_core::PAYLOAD_BYTES_MAX;
use windlass_core::retry::{Cap, Preset, WorkerRetry};
use windlass_engine::remote::{Remote, RemoteConfig};
use windlass_engine::{Audit, Clock, Engine, Ids};
use windlass_store::Store;

use crate::access::Access;
use crate::body_budget::BodyBudget;
use crate::events::Feed;
use crate::idempotency::{Allowance, NOTES_MAX_DEFAULT};
use crate::permits::Permits;
use crate::problem::Problem;
use crate::rates::Rates;
use crate::secrets::Secrets;
use crate::standalone::log::LogLines;

/// The most requests with changes that run at once. Further requests wait.
const CHANGING_MAX: u32 = 1000;

/// The most exports that are open at once. Each holds a page of jobs, about 16 MiB.
const EXPORTS_MAX: usize = 4;

/// The default of the largest request body: 16 MiB.
pub(crate) const BULK_BYTES_DEFAULT: usize = 16 * 1024 * 1024;

/// Limits and defaults of the REST API.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The largest payload in bytes. Default: 1 MiB.
    pub payload_bytes_max: usize,
    /// The largest body of a request about many jobs, in bytes. Default: 16 MiB.
    pub bulk_bytes_max: usize,
    /// The lease of a claim that does not ask for one. Default: 30 s.
    pub lease: Duration,
    /// The longest lease of a claim or a renewal. Default: 1 h.
    pub lease_max: Duration,
    /// The longest time that a long poll can wait for jobs or for a result. Default: 60 s.
    pub wait_max: Duration,
    /// The most open long polls, and separately the most open event streams. One key can use at
    /// most half of each. Default: 1000.
    pub waiting_max: usize,
    /// The most requests with an `Idempotency-Key` that one caller can send in 24 hours. Default:
    /// 1,000,000.
    pub idempotency_notes_max: u64,
    /// How long to keep a payload after a change replaced it. Zero keeps none. Default: 7 days.
    pub replaced_payload_retention: Duration,
    /// The retry policy of jobs without one of their own or of their queue, and the cap on
    /// attempts. Default: `standard`, no cap.
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

/// The state that all routes share. Clones share it too.
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
    pub(crate) exporting: Permits,
    /// Requests with changes. They run to completion even if their client disconnects.
    pub(crate) changing: Arc<Semaphore>,
    pub(crate) body_budget: BodyBudget,
    pub(crate) allowance: Arc<Allowance>,
    pub(crate) secrets: Option<Secrets>,
    pub(crate) stopping: CancellationToken,
    /// The configuration in effect, for people.
    pub(crate) configuration: Arc<[ServerSetting]>,
}

impl App {
    /// Creates the REST API for a client's store. Call this within a tokio runtime. Event streams
    /// start with the events from now on.
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
            exporting: Permits::new("exports", EXPORTS_MAX),
            changing: Arc::new(Semaphore::new(CHANGING_MAX as usize)),
            body_budget: BodyBudget::new(settings.bulk_bytes_max),
            settings: Arc::new(settings),
            metrics: None,
            log: None,
            secrets: None,
            stopping: CancellationToken::new(),
            configuration: Arc::default(),
            client,
            access,
        }
    }

    /// Sets limits and defaults.
    #[must_use]
    pub fn settings(self, settings: Settings) -> Self {
        App {
            remote: remote(self.engine(), &settings),
            waiting: Permits::new("long polls", settings.waiting_max),
            listening: Permits::new("event streams", settings.waiting_max),
            exporting: Permits::new("exports", EXPORTS_MAX),
            body_budget: BodyBudget::new(settings.bulk_bytes_max),
            settings: Arc::new(settings),
            ..self
        }
    }

    /// Serves the metrics of a recorder at `/metrics`. Use the recorder that the client was opened
    /// with.
    #[must_use]
    pub fn metrics(self, recorder: Arc<PrometheusRecorder>) -> Self {
        App {
            metrics: Some(recorder),
            ..self
        }
    }

    /// Reports the dropped lines of this log at `/metrics`.
    #[must_use]
    pub fn log(self, log: LogLines) -> Self {
        App {
            log: Some(log),
            ..self
        }
    }

    /// Enables the routes that store, list and remove secrets.
    #[must_use]
    pub fn secrets(self, secrets: Secrets) -> Self {
        App {
            secrets: Some(secrets),
            ..self
        }
    }

    /// Shows this configuration to administrators.
    #[must_use]
    pub fn configuration(self, configuration: Vec<ServerSetting>) -> Self {
        App {
            configuration: configuration.into(),
            ..self
        }
    }

    /// Ends open long polls and event streams when this token is cancelled.
    #[must_use]
    pub fn stopping(self, stopping: CancellationToken) -> Self {
        App { stopping, ..self }
    }

    /// Returns the client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Waits until all running requests with changes have ended. Call this after the last request
    /// began.
    pub(crate) async fn all_changed(&self) {
        let _ = self.changing.acquire_many(CHANGING_MAX).await;
    }

    /// Counts a request without a route. Method and path are arbitrary, so they cannot be labels.
    pub(crate) fn count_unrouted(&self, problem: &Problem) {
        if let Some(metrics) = &self.metrics {
            metrics.http_request("other", "other", problem.status(), Duration::ZERO);
        }
    }

    /// Returns the clock that measures requests.
    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        self.engine().clock()
    }

    /// Returns the source of ids for requests and for the jobs that they create.
    pub(crate) fn ids(&self) -> &Ids {
        self.engine().ids()
    }

    /// Returns the engine, for features of the server alone: keys, secrets, idempotency, replaced
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
