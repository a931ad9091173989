//! A real server on loopback, and a scripted one.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use windlass_client::api::{CreatedKey, NewKey, Scope};
use windlass_client::{Builder, Client};
use windlass_listen::{Limits, Listener, Site, TlsFiles};
use windlass_server::access::{Access, WithoutKeys};
use windlass_server::secrets::{MasterKey, Secrets};
use windlass_server::{App, router};

/// A server with a store in memory.
pub(crate) struct Server {
    pub(crate) url: String,
    serving: JoinHandle<usize>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Server {
    /// Starts a server without keys, which accepts all requests.
    pub(crate) async fn start() -> Self {
        Server::start_with("", None).await
    }

    /// Starts a server under a base path or with TLS.
    pub(crate) async fn start_with(path: &str, tls: Option<&TlsFiles>) -> Self {
        let store = windlass::Client::open("memory:").await.expect("a store");
        let engine = windlass::admin::engine_of(&store);
        let access = Access::by_keys(Arc::clone(engine), WithoutKeys::Open);
        let master_key = MasterKey::generate().expect("randomness");
        let secrets = Secrets::new(Arc::clone(engine), Some(master_key), Vec::new());
        let app = App::new(store.clone(), access).secrets(secrets);
        let routes = match path {
            "" => router(app),
            path => axum::Router::new().nest(path, router(app)),
        };
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = Listener::bind(address, tls, Limits::default()).await;
        let listener = listener.expect("a port on loopback");
        let port = listener.address().port();
        let url = match tls {
            Some(_) => format!("https://localhost:{port}{path}"),
            None => format!("http://127.0.0.1:{port}{path}"),
        };
        let never = CancellationToken::new();
        let serving = tokio::spawn(listener.serve(Site::new(routes), never.clone(), never));
        Server { url, serving }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.url).expect("a client")
    }

    pub(crate) fn builder(&self) -> Builder {
        Client::builder(&self.url)
    }

    /// Creates the first key. From now on, the server requires a key.
    pub(crate) async fn admin_key(&self) -> CreatedKey {
        let created = self.client().create_key(&new_key(Scope::Admin)).await;
        created.expect("the first key")
    }
}

pub(crate) fn new_key(scope: Scope) -> NewKey {
    NewKey {
        name: Some("test".to_owned()),
        scopes: Some(vec![scope]),
        ..NewKey::default()
    }
}

/// What a [`Script`] does with a request.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Responds and keeps the connection open.
    Answer(&'static str),
    /// Responds and closes the connection without announcing it.
    AnswerAndClose(&'static str),
    /// Closes the connection without a response.
    Close,
    /// Never responds.
    Hang,
}

/// A server that takes one step for each request and then repeats its last step.
pub(crate) struct Script {
    pub(crate) url: String,
    received: Arc<Mutex<Received>>,
    serving: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Received {
    connections: usize,
    requests: Vec<String>,
}

impl Drop for Script {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Script {
    pub(crate) async fn start(steps: &[Step]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (received, steps) = (
            Arc::<Mutex<Received>>::default(),
            Arc::<[Step]>::from(steps),
        );
        let note = Arc::clone(&received);
        let serving = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.expect("a connection");
                note.lock().expect("no panic").connections += 1;
                tokio::spawn(follow(socket, Arc::clone(&note), Arc::clone(&steps)));
            }
        });
        Script {
            url,
            received,
            serving,
        }
    }

    /// Returns the heads and bodies of all requests so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.received.lock().expect("no panic").requests.clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.received.lock().expect("no panic").connections
    }
}

async fn follow(mut socket: TcpStream, received: Arc<Mutex<Received>>, steps: Arc<[Step]>) {
    while let Some(request) = read_request(&mut socket).await {
        let number = {
            let mut received = received.lock().expect("no panic");
            received.requests.push(request);
            received.requests.len() - 1
        };
        let step = steps.get(number).or(steps.last()).expect("a step");
        let (answer, closes) = match step {
            Step::Answer(answer) => (*answer, false),
            Step::AnswerAndClose(answer) => (*answer, true),
            Step::Close => return,
            Step::Hang => std::future::pending().await,
        };
        let (head, body) = answer.split_once("\n\n").unwrap_or((answer, ""));
        let head = head.replace('\n', "\r\n");
        let length = body.len();
        let answer = format!("HTTP/1.1 {head}\r\ncontent-length: {length}\r\n\r\n{body}");
        if socket.write_all(answer.as_bytes()).await.is_err() || closes {
            return;
        }
    }
}

/// Reads the next request. Returns `None` if the client closed the connection.
async fn read_request(socket: &mut TcpStream) -> Option<String> {
    let mut text = String::new();
    loop {
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                let is_length = name.eq_ignore_ascii_case("content-length");
                is_length.then(|| value.trim().parse::<usize>().ok())?
            });
            if body.len() >= length.unwrap_or(0) {
                return Some(text);
            }
        }
        let mut bytes = [0; 4096];
        let count = socket
            .read(&mut bytes)
            .await
            .ok()
            .filter(|count| *count > 0)?;
        text.push_str(&String::from_utf8_lossy(bytes.get(..count)?));
    }
}
