//! A server on loopback with a fresh store, and a client that speaks plain HTTP/1.1 to it.
use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use windlass::Client;
use windlass::prometheus::PrometheusRecorder;
use windlass_engine::{Engine, Ids, SystemClock};
use windlass_server::access::{Access, NewKey, Scope, WithoutKeys};
use windlass_server::secrets::{MasterKey, Secrets};
use windlass_server::{App, Settings, router};
use windlass_store::Store;
use windlass_testkit::{client, cluster};

pub(crate) use windlass_testkit::client::{Answer, PATIENCE};

/// A server of its own, on a SQLite file of its own; on a PostgreSQL database if `WINDLASS_TEST_STORE` says so.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) client: Client,
    pub(crate) app: App,
    pub(crate) access: Access,
    pub(crate) key: Option<String>,
    serving: JoinHandle<()>,
    _directory: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Server {
    /// Open to everybody.
    pub(crate) async fn open() -> Self {
        Server::with(Settings::default(), "", |_| Access::open()).await
    }

    /// Open to everybody, under a path of a larger program.
    pub(crate) async fn mounted(path: &str) -> Self {
        Server::with(Settings::default(), path, |_| Access::open()).await
    }

    pub(crate) async fn with_settings(settings: Settings) -> Self {
        Server::with(settings, "", |_| Access::open()).await
    }

    /// With keys, and none of them made yet. Failed tries are not throttled, so that each is answered as the first.
    pub(crate) async fn closed() -> Self {
        Server::with(Settings::default(), "", |client| {
            Access::by_keys(
                Arc::clone(windlass::admin::engine_of(client)),
                WithoutKeys::Closed,
            )
            .unthrottled()
        })
        .await
    }

    /// Open to everybody, on a store that somebody made: as a process that has just started.
    pub(crate) async fn on(store: Arc<dyn Store>) -> Self {
        let engine = Engine::new(store, Arc::new(SystemClock::new()), Ids::unpredictable());
        let client = windlass::admin::client_of(Arc::new(engine));
        let app = App::new(client.clone(), Access::open());
        let directory = tempfile::tempdir().expect("a directory");
        Server::serve(client, app, Access::open(), "", directory).await
    }

    async fn with(settings: Settings, path: &str, access: impl FnOnce(&Client) -> Access) -> Self {
        let directory = tempfile::tempdir().expect("a directory for a store");
        let url = match std::env::var("WINDLASS_TEST_STORE").as_deref() {
            Err(_) => format!("sqlite:{}", directory.path().join("jobs.db").display()),
            Ok("postgres") => cluster::database().await,
            Ok(other) => panic!("WINDLASS_TEST_STORE is `postgres` or not set, not {other}"),
        };
        let recorder = Arc::new(PrometheusRecorder::new());
        let opened = Client::open_with_recorder(&url, Arc::clone(&recorder) as _).await;
        let client = opened.expect("a fresh store opens");
        let access = access(&client);
        let master_key = MasterKey::generate().expect("randomness");
        let secrets = Secrets::new(
            Arc::clone(windlass::admin::engine_of(&client)),
            Some(master_key),
            Vec::new(),
        );
        let app = App::new(client.clone(), access.clone())
            .settings(settings)
            .secrets(secrets)
            .metrics(recorder);
        Server::serve(client, app, access, path, directory).await
    }

    /// On a store of the caller's, open to everybody: another server of the same store where there
    /// is one.
    pub(crate) async fn on_client(client: &Client) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let app = App::new(client.clone(), Access::open());
        Server::serve(client.clone(), app, Access::open(), "", directory).await
    }

    async fn serve(
        client: Client,
        app: App,
        access: Access,
        path: &str,
        directory: TempDir,
    ) -> Self {
        let routes = match path {
            "" => router(app.clone()),
            path => axum::Router::new().nest(path, router(app.clone())),
        };
        let service = routes.into_make_service_with_connect_info::<SocketAddr>();
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port on loopback");
        let address = listener
            .local_addr()
            .expect("a bound socket has an address");
        let serving = tokio::spawn(async move {
            let _ = axum::serve(listener, service).await;
        });
        Server {
            address,
            client,
            app,
            access,
            key: None,
            serving,
            _directory: directory,
        }
    }

    /// The text of a new key with these scopes.
    pub(crate) async fn new_key(&self, scopes: &[Scope]) -> String {
        let keys = self.access.keys().expect("made with keys");
        let new = NewKey {
            name: "test".to_owned(),
            scopes: scopes.to_vec(),
            expires_at: None,
        };
        let (key, _) = keys
            .create(new, self.client.now())
            .await
            .expect("a key can be made");
        key.reveal()
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[], Some(body.to_string().as_bytes()))
            .await
    }

    /// A POST without a body.
    pub(crate) async fn act(&self, path: &str) -> Answer {
        self.send("POST", path, &[], None).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send("PUT", path, &[], Some(body.to_string().as_bytes()))
            .await
    }

    pub(crate) async fn patch(&self, path: &str, body: &Value) -> Answer {
        self.send("PATCH", path, &[], Some(body.to_string().as_bytes()))
            .await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, &[], None).await
    }

    /// One request on a connection of its own.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> Answer {
        let key = self.key.as_ref().map(|key| format!("Bearer {key}"));
        let mut headers = headers.to_vec();
        headers.extend(key.as_deref().map(|key| ("Authorization", key)));
        let request = client::request(self.address, method, path, &headers, body);
        self.exchange(&request).await
    }

    /// Asks, and resets the connection before there is an answer.
    pub(crate) async fn post_and_reset(&self, path: &str, body: &Value) {
        let body = body.to_string();
        let request = client::request(self.address, "POST", path, &[], Some(body.as_bytes()));
        let mut stream = TcpStream::connect(self.address)
            .await
            .expect("the server listens");
        let asked = stream.write_all(&request).await;
        asked.expect("the server reads");
        stream.set_zero_linger().expect("a connection can be reset");
    }

    /// Sends bytes as they are, and reads one answer.
    pub(crate) async fn exchange(&self, request: &[u8]) -> Answer {
        let answered =
            tokio::time::timeout(PATIENCE, client::exchange(self.address, request)).await;
        answered.expect("every request is answered in time")
    }

    /// Creates a job and answers its id.
    pub(crate) async fn job(&self, body: &Value) -> String {
        let created = self.post("/api/v1/jobs", body).await;
        assert_eq!(created.status, 201, "{created:?}");
        created.text_at("/id")
    }

    /// Claims with these fields; the jobs.
    pub(crate) async fn claim(&self, body: &Value) -> Vec<Value> {
        let claimed = self.post("/api/v1/claim", body).await;
        assert_eq!(claimed.status, 200, "{claimed:?}");
        claimed.json["data"]
            .as_array()
            .expect("a list of jobs")
            .clone()
    }

    /// Waits until a worker has been heard.
    pub(crate) async fn until_heard(&self, worker: &str) {
        let heard = async {
            loop {
                let list = self.get("/api/v1/workers").await;
                let names = list.json["data"].as_array().expect("a list of workers");
                if names.iter().any(|one| one["name"] == worker) {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE, heard)
            .await
            .expect("it is heard in time");
    }

    /// Claims one job and ends its attempt so.
    pub(crate) async fn run(&self, outcome: &Value) -> String {
        self.run_claimed(&serde_json::json!({}), outcome).await
    }

    /// Claims one job by these fields and ends its attempt so.
    pub(crate) async fn run_claimed(&self, claim: &Value, outcome: &Value) -> String {
        let jobs = self.claim(claim).await;
        let job = jobs.first().expect("a job is ready");
        let mut outcome = outcome.clone();
        outcome["id"] = job["id"].clone();
        outcome["attempt"] = job["attempt"].clone();
        let body = serde_json::json!({"outcomes": [outcome]});
        let settled = self.post("/api/v1/settle", &body).await;
        assert_eq!(settled.text_at("/data/0/status"), "done", "{settled:?}");
        job["id"].as_str().expect("an id").to_owned()
    }
}

/// A connection on which a stream of events is read.
pub(crate) struct Events {
    stream: TcpStream,
    text: String,
}

impl Events {
    pub(crate) async fn listen(server: &Server, path: &str, headers: &[(&str, &str)]) -> Self {
        let mut stream = TcpStream::connect(server.address)
            .await
            .expect("the server listens");
        let request = client::request(server.address, "GET", path, headers, None);
        stream.write_all(&request).await.expect("the server reads");
        let mut events = Events {
            stream,
            text: String::new(),
        };
        events.until("retry: 1000").await;
        events
    }

    /// Reads until a text has come; what was read up to its end.
    pub(crate) async fn until(&mut self, text: &str) -> String {
        let read = async {
            loop {
                if let Some(place) = self.text.find(text) {
                    let end = place + text.len();
                    let read = self.text.get(..end).unwrap_or_default().to_owned();
                    self.text.drain(..end);
                    return read;
                }
                let mut bytes = vec![0; 4096];
                let count = self
                    .stream
                    .read(&mut bytes)
                    .await
                    .expect("the stream goes on");
                assert!(count > 0, "the stream ended: {}", self.text);
                bytes.truncate(count);
                self.text.push_str(&String::from_utf8_lossy(&bytes));
            }
        };
        tokio::time::timeout(PATIENCE, read)
            .await
            .expect("the event comes in time")
    }
}
