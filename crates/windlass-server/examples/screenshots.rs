//! Makes the pictures of the dashboard: `.ci/screenshots docs/images`.
//!
//! A story of one hour runs in seconds, in memory, on a clock of its own: after half an hour, a
//! service that payments need begins to answer 503. Then a browser opens the pages.
#![expect(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    reason = "a program for pictures has its own clock, and a failure may end it"
)]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use windlass_core::Timestamp;
use windlass_dashboard::{About, Colour};
use windlass_engine::{
    Clock, Engine, Ids, MaintenanceConfig, StatisticsWriter, Wait, run_maintenance,
};
use windlass_memory::MemoryStore;
use windlass_server::access::{Access, NewKey, Scope, WithoutKeys};
use windlass_server::{App, DashboardSettings, with_dashboard};
use windlass_testkit::browser::Browser;

/// A clock that a story sets, and that runs on by itself once the story is over.
#[derive(Debug)]
struct StoryClock {
    micros: AtomicI64,
    over: OnceLock<Instant>,
    begun: Instant,
}

impl StoryClock {
    fn set(&self, at: Timestamp) {
        self.micros.store(at.as_micros(), Ordering::SeqCst);
    }

    fn advance(&self, time: Duration) {
        let micros = i64::try_from(time.as_micros()).expect("a story is short");
        self.micros.fetch_add(micros, Ordering::SeqCst);
    }
}

impl Clock for StoryClock {
    fn now(&self) -> Timestamp {
        let since = self.over.get().map(Instant::elapsed).unwrap_or_default();
        let at = Timestamp::from_micros(self.micros.load(Ordering::SeqCst));
        at.expect("a story plays in our time").saturating_add(since)
    }

    fn sleep_until(&self, at: Timestamp) -> Wait {
        let left = at.since(self.now());
        Box::pin(tokio::time::sleep(left))
    }

    fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    fn sleep(&self, time: Duration) -> Wait {
        Box::pin(tokio::time::sleep(time))
    }
}

/// A queue of the story: name, kind, limit, jobs per step.
const QUEUES: [(&str, &str, u32, usize); 5] = [
    ("payments", "payment:capture", 40, 34),
    ("mail", "email:send", 50, 56),
    ("webhooks", "order:notify", 64, 22),
    ("search", "index:update", 24, 30),
    ("default", "cleanup", 32, 8),
];
const STEPS: usize = 180;
const STEP: Duration = Duration::from_secs(20);
/// The step in which the patient job is enqueued.
const PATIENT_FROM: usize = STEPS * 11 / 18;

struct Story {
    begin: Timestamp,
    clock: Arc<StoryClock>,
    api: Router,
    statistics: StatisticsWriter,
    /// The job whose page is shown: it fails again and again, with longer and longer waits.
    patient: Option<String>,
    /// The state of a small random generator, so that every run gives the same pictures.
    random: u64,
}

impl Story {
    async fn call(&self, method: &str, path: &str, body: Value) -> Value {
        let request = Request::builder().method(method).uri(path);
        let request = request.header("host", "localhost");
        let request = request.header("content-type", "application/json");
        let request = request
            .body(if body.is_null() {
                Body::empty()
            } else {
                Body::from(body.to_string())
            })
            .expect("a valid request");
        let response = self
            .api
            .clone()
            .oneshot(request)
            .await
            .expect("a router always answers");
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX)
            .await
            .expect("a whole body");
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        assert!(status.is_success(), "{method} {path}: {body}");
        body
    }

    fn chance(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// How an attempt ends: with an error, or well.
    fn ends(&mut self, queue: &str, step: usize) -> Option<(&'static str, bool)> {
        let broken = step > STEPS / 2;
        let chance = self.chance();
        match queue {
            "payments" if broken && chance < 0.52 => {
                Some(("ledger.acme.io answered 503 Service Unavailable", false))
            }
            "payments" if broken && chance < 0.66 => {
                Some(("connect to ledger.acme.io: timed out after 5 s", false))
            }
            "payments" if chance > 0.995 => Some(("card declined: insufficient funds", true)),
            "webhooks" if chance < 0.05 => {
                Some(("hooks.example.org answered 410 Gone", chance < 0.02))
            }
            "mail" if chance < 0.004 => Some((r#"template "welcome" not found"#, true)),
            _ => None,
        }
    }

    async fn step(&mut self, step: usize) {
        for (queue, kind, limit, count) in QUEUES {
            let count = (count as f64 * (0.85 + self.chance() * 0.3)) as usize;
            let mut jobs = Vec::new();
            for _ in 0..count {
                let late = self.chance() < 0.02;
                let customer = (self.chance() * 900.0) as u64;
                let mut job = json!({
                    "kind": kind, "queue": queue, "max_attempts": 8, "tags": ["eu"],
                    "payload": {"customer": {"id": customer}, "amount": customer * 7 + 40},
                });
                if late {
                    job["delay"] = json!("2h");
                }
                jobs.push(job);
            }
            self.call("POST", "/api/v1/jobs/bulk", json!({"jobs": jobs}))
                .await;
            // While payments fail, its slots are taken for longer.
            let rounds = if queue == "payments" && step > STEPS / 2 {
                1
            } else {
                3
            };
            for _ in 0..rounds {
                let wait = 2 + (self.chance() * 6.0) as u64;
                self.clock.advance(Duration::from_millis(wait));
                let claim = json!({"queue": queue, "kinds": [kind], "limit": limit, "worker": "node-a", "slots": limit});
                let claimed = self.call("POST", "/api/v1/claim", claim).await;
                let slow = if self.chance() < 0.15 { 900.0 } else { 60.0 };
                let run = 20 + (self.chance() * slow) as u64;
                self.clock.advance(Duration::from_millis(run));
                self.settle(queue, step, &claimed["data"]).await;
            }
        }
        self.try_patiently(step).await;
        self.clock.set(
            self.begin
                .saturating_add(STEP * u32::try_from(step + 1).expect("few steps")),
        );
        let now = self.clock.now();
        self.statistics
            .flush(now)
            .await
            .expect("memory always accepts");
    }

    /// Runs the patient job when it is due.
    async fn try_patiently(&mut self, step: usize) {
        if step == PATIENT_FROM {
            let job = json!({
                "kind": "payment:settle", "queue": "payments", "priority": 10, "tags": ["order-88213", "eu"],
                "payload": {"order": 88213, "amount": 12900, "currency": "EUR", "capture": "final"},
                "unique_key": "capture:88213", "timeout": "30s",
                "retry": {"max_attempts": 8, "backoff": {"type": "exponential", "base": "40s", "multiplier": 2, "max": "30m"},
                    "jitter": {"type": "proportional", "ratio": 0.2}},
            });
            let job = self.call("POST", "/api/v1/jobs", job).await;
            self.patient = job["id"].as_str().map(str::to_owned);
        }
        let Some(id) = &self.patient else { return };
        let claim = json!({"ids": [id], "worker": "node-b"});
        let claimed = self.call("POST", "/api/v1/claim", claim).await;
        let Some(job) = claimed["data"].get(0) else {
            return;
        };
        self.clock.advance(Duration::from_millis(2_100));
        let mut outcome = json!({
            "id": id, "attempt": job["attempt"], "outcome": "failed",
            "error": {"message": "ledger.acme.io answered 503 Service Unavailable", "causes": [
                "captures_unavailable: primary writer is read-only",
                "upstream connect error or disconnect before headers, reset reason: connection termination"]},
            "log": ["capturing 129.00 EUR for order 88213", "asking ledger.acme.io for a capture"],
        });
        if job["attempt"] == 3 {
            outcome["retry_after"] = json!("4m");
        }
        let settle = json!({"worker": "node-b", "outcomes": [outcome]});
        self.call("POST", "/api/v1/settle", settle).await;
    }

    async fn settle(&mut self, queue: &str, step: usize, jobs: &Value) {
        let mut outcomes = Vec::new();
        for job in jobs.as_array().into_iter().flatten() {
            let mut outcome =
                json!({"id": job["id"], "attempt": job["attempt"], "outcome": "succeeded"});
            if let Some((error, unrecoverable)) = self.ends(queue, step) {
                outcome["outcome"] = json!("failed");
                outcome["error"] = json!(error);
                if unrecoverable {
                    outcome["unrecoverable"] = json!(true);
                }
            }
            outcomes.push(outcome);
        }
        if !outcomes.is_empty() {
            self.call(
                "POST",
                "/api/v1/settle",
                json!({"worker": "node-a", "outcomes": outcomes}),
            )
            .await;
        }
    }

    async fn tell(&mut self) {
        for (queue, _, limit, _) in QUEUES {
            let path = format!("/api/v1/queues/{queue}/settings?create=true");
            self.call(
                "PUT",
                &path,
                json!({"concurrency": limit, "max_depth": 50_000}),
            )
            .await;
        }
        for step in 0..STEPS {
            self.step(step).await;
        }
        let reports = vec![json!({"kind": "report:monthly", "queue": "reports"}); 17];
        self.call("POST", "/api/v1/jobs/bulk", json!({"jobs": reports}))
            .await;
        let pause = json!({"reason": "monthly export kills the worker"});
        self.call("POST", "/api/v1/queues/reports/pause", pause)
            .await;
        let flushed = self.statistics.flush(self.clock.now()).await;
        flushed.expect("memory always accepts");
        for (worker, slots) in [
            ("node-a", 70),
            ("node-b", 70),
            ("node-c", 60),
            ("mail-7f9c", 14),
        ] {
            let queues: Vec<&str> = QUEUES.iter().map(|(queue, ..)| *queue).collect();
            let about =
                json!({"name": worker, "queues": queues, "slots": slots, "version": "0.1.0"});
            self.call("POST", "/api/v1/workers", about).await;
            for (queue, kind, limit, _) in QUEUES {
                let claim = json!({"queue": queue, "kinds": [kind], "limit": limit / 3, "worker": worker, "slots": slots, "lease": "10m"});
                self.call("POST", "/api/v1/claim", claim).await;
            }
        }
    }
}

/// The schedules of the story: name, expression, kind.
const SCHEDULES: [(&str, &str, &str); 8] = [
    ("nightly-ledger", "30 2 * * *", "ledger:close"),
    ("sync-stock", "*/15 * * * *", "stock:sync"),
    ("invoices", "0 6 1W * *", "invoice:send"),
    ("warm-cache", "5 * * * *", "cache:warm"),
    ("weekly-digest", "0 8 * * MON", "email:digest"),
    ("month-report", "0 23 * * FRIL", "report:monthly"),
    ("payouts", "30 7 * * MON,THU", "payout:batch"),
    ("fx-rates", "*/10 6-21 * * MON-FRI", "fx:read"),
];
/// How many past occurrences each schedule gets.
const OCCURRENCES: usize = 14;

impl Story {
    /// What operators do after the outage began: schedules exist, someone replays a cause.
    async fn repair(&self) -> Vec<(String, String)> {
        for (name, cron, kind) in SCHEDULES {
            let body = json!({"cron": cron, "timezone": "Europe/Berlin", "job": {"kind": kind, "queue": "default"}});
            self.call("PUT", &format!("/api/v1/schedules/{name}"), body)
                .await;
        }
        for (name, cron, kind) in SCHEDULES {
            self.look_back(name, cron, kind).await;
        }
        let pause = "/api/v1/schedules/month-report/pause";
        self.call("POST", pause, json!({})).await;
        let groups = self.call("GET", "/api/v1/failures", Value::Null).await;
        let named = |words: &str| {
            let groups = groups["data"].as_array().into_iter().flatten();
            let mut groups = groups.filter(|group| {
                group["sample"]["error"]
                    .as_str()
                    .is_some_and(|error| error.contains(words))
            });
            groups.next().expect("the story has this cause").clone()
        };
        let cause = |group: &Value| {
            let text = |name: &str| group[name].as_str().unwrap_or_default().to_owned();
            format!(
                "queue={}&kind={}&fingerprint={}",
                text("queue"),
                text("kind"),
                text("fingerprint")
            )
        };
        let (template, gone) = (named("template"), named("410"));
        let replay = json!({
            "filter": {"queue": "mail", "fingerprint": template["fingerprint"]}, "rate": 1,
            "canary": {"jobs": 5}, "reason": "the template is back",
        });
        let replay = self.call("POST", "/api/v1/replays", replay).await;
        let replay = format!(
            "/api/v1/replays/{}",
            replay["id"].as_str().unwrap_or_default()
        );
        self.recover(&replay).await;
        let job = self.patient.as_deref().expect("it was enqueued");
        let page = |name: &str, path: String| (name.to_owned(), path);
        vec![
            page("job", format!("/jobs/{job}")),
            page("job-edit", format!("/jobs/{job}/edit")),
            page("dead-cause", format!("/dead?{}", cause(&gone))),
            page("replay-jobs", format!("/dead/replay?{}", cause(&gone))),
            page(
                "replay-pace",
                format!("/dead/replay?{}&step=pace", cause(&gone)),
            ),
            page(
                "replay-review",
                format!("/dead/replay?{}&step=review", cause(&gone)),
            ),
            page("purge", format!("/dead/purge?{}", cause(&gone))),
            page("replay", replay.replace("/api/v1", "/actions")),
        ]
    }

    /// Fires what a schedule would have fired before it existed, and lets the jobs end.
    async fn look_back(&self, name: &str, cron: &str, kind: &str) {
        let schedule = format!("/api/v1/schedules/{name}");
        let now = self.clock.now();
        let mut days = 1;
        let from = loop {
            let from = now.saturating_sub(Duration::from_secs(86_400 * days));
            let rule =
                json!({"cron": cron, "timezone": "Europe/Berlin", "after": from, "count": 1000});
            let shown = self.call("POST", "/api/v1/schedules/preview", rule).await;
            let times = shown["data"].as_array().into_iter().flatten();
            let times = times.filter_map(|one| one["at"].as_str()?.parse::<Timestamp>().ok());
            let past: Vec<_> = times.filter(|at| *at < now).collect();
            if past.len() >= OCCURRENCES || days > 500 {
                break past
                    .iter()
                    .rev()
                    .nth(OCCURRENCES - 1)
                    .copied()
                    .unwrap_or(from);
            }
            days *= 3;
        };
        let range = json!({"from": from, "to": now});
        self.call("POST", &format!("{schedule}/backfill"), range)
            .await;
        let claim = json!({"queue": "default", "kinds": [kind], "limit": 100, "worker": "node-c"});
        let claimed = self.call("POST", "/api/v1/claim", claim).await;
        let jobs = claimed["data"].as_array().cloned().unwrap_or_default();
        let count = jobs.len();
        let outcomes: Vec<_> = jobs
            .iter()
            .enumerate()
            .map(|(index, job)| {
                let mut outcome =
                    json!({"id": job["id"], "attempt": job["attempt"], "outcome": "succeeded"});
                if name.len().is_multiple_of(3) && index + 4 == count {
                    outcome["outcome"] = json!("failed");
                    outcome["error"] = json!("the archive has no space left");
                    outcome["unrecoverable"] = json!(true);
                }
                outcome
            })
            .collect();
        if !outcomes.is_empty() {
            let settle = json!({"worker": "node-c", "outcomes": outcomes});
            self.call("POST", "/api/v1/settle", settle).await;
        }
    }

    /// Lets the canary of a replay succeed, and a few jobs after it.
    async fn recover(&self, replay: &str) {
        let mut left = 600;
        while self.call("GET", replay, Value::Null).await["recovered"].as_u64() < Some(8) {
            assert!(left > 0, "the replay never went on");
            left -= 1;
            let claim = json!({"queue": "mail", "limit": 5, "worker": "mail-7f9c"});
            let claimed = self.call("POST", "/api/v1/claim", claim).await;
            let jobs = claimed["data"].as_array().into_iter().flatten();
            let outcomes: Vec<_> = jobs
                .map(|job| json!({"id": job["id"], "attempt": job["attempt"], "outcome": "succeeded"}))
                .collect();
            if !outcomes.is_empty() {
                let settle = json!({"worker": "mail-7f9c", "outcomes": outcomes});
                self.call("POST", "/api/v1/settle", settle).await;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// A server without any job, and one that asks for a key.
async fn other_sites() -> Vec<(String, String)> {
    let mut pages = Vec::new();
    for (name, path) in [("empty", "/"), ("sign-in", "/login")] {
        let engine = Arc::new(Engine::new(
            Arc::new(MemoryStore::new()),
            Arc::new(windlass_engine::SystemClock::default()),
            Ids::seeded(8),
        ));
        let access = Access::by_keys(Arc::clone(&engine), WithoutKeys::Open);
        if name == "sign-in" {
            let key = NewKey {
                name: "mara".to_owned(),
                scopes: vec![Scope::Admin],
                expires_at: None,
            };
            let keys = access.keys().expect("it has keys");
            keys.create(key, engine.now()).await.expect("a key");
        }
        let app = App::new(windlass::admin::client_of(engine), access);
        let url = serve(with_dashboard(app, settings())).await;
        pages.push((name.to_owned(), format!("{url}{path}")));
    }
    pages
}

fn settings() -> DashboardSettings {
    let about = About {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        store: "PostgreSQL".to_owned(),
        environment: Some("production".to_owned()),
        colour: Colour::Red,
        url: "http://127.0.0.1:8080".to_owned(),
        ..About::default()
    };
    DashboardSettings {
        about,
        ..DashboardSettings::default()
    }
}

/// Serves a router on a port of this machine. Returns its URL.
async fn serve(site: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let service = site.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    url
}

/// The pages that need no object, with the names of their pictures.
const PAGES: [(&str, &str); 19] = [
    ("overview", "/"),
    ("jobs", "/jobs?retrying=true&queue=payments"),
    ("queue", "/queues/payments"),
    ("queues", "/queues"),
    ("queues-pause", "/all-queues/pause"),
    ("queues-resume", "/all-queues/resume"),
    ("dead", "/dead"),
    ("schedules", "/schedules"),
    (
        "lab",
        "/lab?a_type=exponential&a_base=1s&a_growth=2&a_max=5m&a_attempts=6&a_jitter=none&b_type=exponential&b_base=8s&b_growth=2&b_max=2m&b_attempts=6&b_jitter=full",
    ),
    ("actions", "/actions"),
    ("workers", "/workers"),
    ("audit", "/audit"),
    ("keys", "/keys"),
    ("settings", "/settings"),
    ("schedule", "/schedules/nightly-ledger"),
    ("schedule-new", "/new/schedule?rule=30+2+*+*+*"),
    ("reference", "/reference"),
    ("job-new", "/new/job"),
    ("bulk", "/jobs/all?state=dead&queue=webhooks"),
];

#[tokio::main]
async fn main() {
    let directory = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "docs/images".to_owned());
    let begin: Timestamp = "2026-03-17T01:12:00Z".parse().expect("an instant");
    let clock = Arc::new(StoryClock {
        micros: AtomicI64::new(begin.as_micros()),
        over: OnceLock::new(),
        begun: Instant::now(),
    });
    let store = Arc::new(MemoryStore::new());
    let engine = Arc::new(Engine::new(
        store,
        Arc::clone(&clock) as Arc<dyn Clock>,
        Ids::seeded(7),
    ));
    let statistics = StatisticsWriter::new(Arc::clone(&engine));
    let app = App::new(
        windlass::admin::client_of(Arc::clone(&engine)),
        Access::by_keys(Arc::clone(&engine), WithoutKeys::Open),
    );
    let site = with_dashboard(app, settings());
    let mut story = Story {
        begin,
        clock: Arc::clone(&clock),
        api: site.clone(),
        statistics,
        patient: None,
        random: 88_172_645_463_325_252,
    };
    story.tell().await;
    clock.over.set(Instant::now()).expect("it ends once");
    let stop = CancellationToken::new();
    let loops = MaintenanceConfig::new("server-a".to_owned());
    tokio::spawn(run_maintenance(engine, loops, stop.clone()));
    let more = story.repair().await;
    let url = serve(site).await;
    let plain = PAGES.map(|(name, path)| (name.to_owned(), path.to_owned()));
    let own = plain.into_iter().chain(more);
    let mut pages: Vec<_> = own
        .map(|(name, path)| (name, format!("{url}{path}")))
        .collect();
    pages.extend(other_sites().await);
    let taken = tokio::task::spawn_blocking(move || take(&pages, &directory));
    taken.await.expect("every picture is taken");
    stop.cancel();
}

fn take(pages: &[(String, String)], directory: &str) {
    std::fs::create_dir_all(directory).expect("the directory can be made");
    let browser = Browser::start();
    browser.live_in("Europe/Berlin");
    // The script reports the zone to the server, which uses it from the next page on.
    for (_, url) in pages {
        browser.open(url);
    }
    for scheme in ["light", "dark"] {
        for width in [1440, 390] {
            browser.prefer_scheme(scheme);
            for (name, url) in pages {
                browser.resize(width, 900);
                browser.open(url);
                browser.run("scrollTo(0, 0)");
                let height =
                    browser.run("return Math.max(document.documentElement.scrollHeight, 700)");
                browser.resize(
                    width,
                    u32::try_from(height.as_u64().unwrap_or(900).min(4000)).unwrap_or(900),
                );
                let png = data_encoding::BASE64.decode(browser.screenshot().as_bytes());
                let png = png.expect("the driver encodes pictures");
                let file = format!("{directory}/{name}-{scheme}-{width}.png");
                std::fs::write(&file, png).expect("the picture can be written");
            }
        }
    }
}
