//! A server on loopback, and one that answers what a test says.

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
    /// Open to everyone until the first key exists.
    pub(crate) async fn start() -> Self {
        Server::start_with("", None).await
    }

    /// Under a path of a larger program, or with TLS.
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

    /// Closes the server: from now on it needs a key.
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
    /// Answers, and keeps the connection.
    Answer(&'static str),
    /// Answers, and closes the connection although it said nothing about that.
    AnswerAndClose(&'static str),
    /// Closes the connection without an answer.
    Close,
    /// Never answers.
    Hang,
}

/// A server that does one step after the other, whatever it is asked; the last one again and again.
pub(crate) struct Script {
    pub(crate) url: String,
    seen: Arc<Mutex<Seen>>,
    serving: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Seen {
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
        let (seen, steps) = (Arc::<Mutex<Seen>>::default(), Arc::<[Step]>::from(steps));
        let note = Arc::clone(&seen);
        let serving = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.expect("a connection");
                note.lock().expect("no panic").connections += 1;
                tokio::spawn(follow(socket, Arc::clone(&note), Arc::clone(&steps)));
            }
        });
        Script { url, seen, serving }
    }

    /// The heads and bodies of all requests so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.seen.lock().expect("no panic").requests.clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.seen.lock().expect("no panic").connections
    }
}

async fn follow(mut socket: TcpStream, seen: Arc<Mutex<Seen>>, steps: Arc<[Step]>) {
    while let Some(request) = read_request(&mut socket).await {
        let number = {
            let mut seen = seen.lock().expect("no panic");
            seen.requests.push(request);
            seen.requests.len() - 1
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

/// The next request; none if the other side closed the connection.
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
