//! A server with the dashboard, and a visitor who keeps cookies.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use windlass::Client;
use windlass_engine::Engine;
use windlass_server::access::{Access, NewKey, Scope, WithoutKeys};
use windlass_server::{App, DashboardSettings, with_dashboard};
use windlass_testkit::client::{self, Answer, PATIENCE};

pub(crate) struct Site {
    pub(crate) address: SocketAddr,
    pub(crate) client: Client,
    pub(crate) access: Access,
    serving: JoinHandle<()>,
    _directory: TempDir,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Site {
    /// A server without keys.
    pub(crate) async fn open() -> Site {
        Site::with("", DashboardSettings::default()).await
    }

    /// A server whose dashboard is below a path and has these settings.
    pub(crate) async fn with(path: &str, settings: DashboardSettings) -> Site {
        let directory = tempfile::tempdir().expect("a directory for a store");
        let url = format!("sqlite:{}", directory.path().join("jobs.db").display());
        let client = Client::open(&url).await.expect("a fresh store opens");
        let engine: &Arc<Engine> = windlass::admin::engine_of(&client);
        let access = Access::by_keys(Arc::clone(engine), WithoutKeys::Open);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        Site::serve(path, settings, directory, client, access, listener)
    }

    fn serve(
        path: &str,
        settings: DashboardSettings,
        directory: TempDir,
        client: Client,
        access: Access,
        listener: TcpListener,
    ) -> Site {
        let app = App::new(client.clone(), access.clone());
        let pages = with_dashboard(app, settings);
        let routes = match path {
            "" => pages,
            path => Router::new().nest(path, pages),
        };
        let address = listener.local_addr().expect("it is bound");
        let service = routes.into_make_service_with_connect_info::<SocketAddr>();
        let serving = tokio::spawn(async move {
            let _ = axum::serve(listener, service).await;
        });
        Site {
            address,
            client,
            access,
            serving,
            _directory: directory,
        }
    }

    /// Serves the same store again at the same address, after it was stopped.
    pub(crate) async fn restart(&mut self) {
        let app = App::new(self.client.clone(), self.access.clone());
        let pages = with_dashboard(app, DashboardSettings::default());
        let listener = TcpListener::bind(self.address)
            .await
            .expect("the port is free again");
        let service = pages.into_make_service_with_connect_info::<SocketAddr>();
        self.serving = tokio::spawn(async move {
            let _ = axum::serve(listener, service).await;
        });
    }

    /// Stops the server: every connection ends.
    pub(crate) async fn stop(&mut self) {
        self.serving.abort();
        let _ = (&mut self.serving).await;
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Creates a key with these scopes.
    pub(crate) async fn key(&self, scopes: &[Scope]) -> (String, String) {
        let new = NewKey {
            name: "test".to_owned(),
            scopes: scopes.to_vec(),
            expires_at: None,
        };
        let keys = self.access.keys().expect("it has keys");
        let (key, info) = keys.create(new, self.client.now()).await.expect("a key");
        (key.reveal(), info.id)
    }

    /// Sends a request of the REST API.
    pub(crate) async fn api(&self, method: &str, path: &str, body: &Value) -> Answer {
        let body = body.to_string();
        let request = client::request(self.address, method, path, &[], Some(body.as_bytes()));
        let answered = tokio::time::timeout(PATIENCE, client::exchange(self.address, &request));
        answered.await.expect("every request is answered in time")
    }

    /// Creates jobs of a kind in a queue.
    pub(crate) async fn enqueue(&self, queue: &str, count: usize) {
        let job = json!({"kind": "email:send", "queue": queue, "payload": {"to": "ann"}});
        let jobs = vec![job; count];
        let created = self
            .api("POST", "/api/v1/jobs/bulk", &json!({"jobs": jobs}))
            .await;
        assert_eq!(created.status, 200, "{created:?}");
    }

    /// Claims jobs of a queue and lets all of them end like this.
    pub(crate) async fn settle_all(&self, queue: &str, outcome: &Value) {
        let claim = json!({"queue": queue, "limit": 100});
        let claimed = self.api("POST", "/api/v1/claim", &claim).await;
        let jobs = claimed.json["data"].as_array().cloned().unwrap_or_default();
        let outcomes: Vec<Value> = jobs
            .iter()
            .map(|job| {
                let mut outcome = outcome.clone();
                outcome["id"] = job["id"].clone();
                outcome["attempt"] = job["attempt"].clone();
                outcome
            })
            .collect();
        let settled = self
            .api("POST", "/api/v1/settle", &json!({"outcomes": outcomes}))
            .await;
        assert_eq!(settled.status, 200, "{}", settled.text());
    }

    pub(crate) fn visitor(&self) -> Visitor {
        Visitor {
            address: self.address,
            cookies: Vec::new(),
            csrf: String::new(),
            extra: Vec::new(),
        }
    }
}

/// A browser without scripts: it keeps cookies and the token of the last page.
pub(crate) struct Visitor {
    address: SocketAddr,
    pub(crate) cookies: Vec<(String, String)>,
    pub(crate) csrf: String,
    /// Headers that it sends with every request.
    pub(crate) extra: Vec<(&'static str, String)>,
}

impl Visitor {
    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.send("GET", path, None).await
    }

    /// Submits a form with the token of the last page.
    pub(crate) async fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let csrf = self.csrf.clone();
        let mut all = vec![("csrf", csrf.as_str())];
        all.extend(fields);
        self.post_fields(path, &all).await
    }

    pub(crate) async fn post_fields(&mut self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let escape = |text: &str| {
            let bytes = text.bytes().map(|byte| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
                _ => format!("%{byte:02X}"),
            });
            bytes.collect::<String>()
        };
        let body: Vec<String> = fields
            .iter()
            .map(|(name, value)| format!("{}={}", escape(name), escape(value)))
            .collect();
        self.send("POST", path, Some(body.join("&"))).await
    }

    async fn send(&mut self, method: &str, path: &str, body: Option<String>) -> Answer {
        let cookies: Vec<String> = self
            .cookies
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let cookies = cookies.join("; ");
        let mut headers = vec![("Accept", "text/html"), ("Cookie", cookies.as_str())];
        if body.is_some() {
            headers.push(("Content-Type", "application/x-www-form-urlencoded"));
        }
        headers.extend(
            self.extra
                .iter()
                .map(|(name, value)| (*name, value.as_str())),
        );
        let body = body.map(String::into_bytes);
        let request = client::request(self.address, method, path, &headers, body.as_deref());
        let answered = tokio::time::timeout(PATIENCE, client::exchange(self.address, &request));
        let answer = answered.await.expect("every request is answered in time");
        for (name, value) in &answer.headers {
            if name == "set-cookie" {
                let pair = value.split(';').next().unwrap_or_default();
                let (name, value) = pair.split_once('=').expect("a cookie has a name");
                self.cookies.retain(|(known, _)| known != name);
                if !value.is_empty() {
                    self.cookies.push((name.to_owned(), value.to_owned()));
                }
            }
        }
        if let Some((_, rest)) = answer.text().split_once(r#"name="csrf" value=""#) {
            self.csrf = rest.chars().take_while(|letter| *letter != '"').collect();
        }
        answer
    }

    /// Signs in with a key.
    pub(crate) async fn sign_in(&mut self, key: &str) -> Answer {
        self.get("/login").await;
        self.post("/login", &[("key", key)]).await
    }
}

/// Runs a blocking part of a test, such as a browser, next to the server.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work)
        .await
        .expect("the browser part succeeds")
}
