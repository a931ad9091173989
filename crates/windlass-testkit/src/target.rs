//! A real HTTP server for tests. A script decides every response, byte for byte.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// A request that the target received.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
    /// The number of the connection that it came over.
    pub connection: usize,
}

impl Seen {
    /// Returns a header that must exist.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).expect("the header is sent")
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a body that is text")
    }
}

/// How the target responds to a request.
#[derive(Debug, Clone)]
pub enum Reply {
    /// Responds with an empty body.
    Status(u16),
    /// Responds with headers and a body.
    Full(u16, Vec<(String, String)>, String),
    /// Sends these bytes and closes the connection.
    Raw(Vec<u8>),
    /// Sends the first bytes once, then the second ones repeatedly until the client disconnects.
    Endless(Vec<u8>, Vec<u8>),
    /// Sends these bytes and then keeps the connection open.
    Hang(Vec<u8>),
    /// Resets the connection, so that the client gets an error.
    Reset,
}

impl Reply {
    pub fn header(status: u16, name: &str, value: &str) -> Reply {
        Reply::Full(
            status,
            vec![(name.to_owned(), value.to_owned())],
            String::new(),
        )
    }

    pub fn body(status: u16, body: &str) -> Reply {
        Reply::Full(status, Vec::new(), body.to_owned())
    }
}

type Script = dyn Fn(&Seen) -> Reply + Send + Sync;

/// A running HTTP server.
pub struct Target {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    listening: JoinHandle<()>,
}

struct Shared {
    script: Box<Script>,
    seen: Mutex<Vec<Seen>>,
    arrived: Notify,
    connections: AtomicUsize,
}

impl Target {
    /// Starts a target that responds to each request as the script says.
    pub async fn start(script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Target {
        Target::listen(script, None).await
    }

    /// Starts a target with TLS.
    pub async fn secure(
        acceptor: TlsAcceptor,
        script: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
    ) -> Target {
        Target::listen(script, Some(acceptor)).await
    }

    /// Starts a target that sends these replies in order and repeats the last one.
    pub async fn replying(replies: &[Reply]) -> Target {
        let (replies, next) = (replies.to_vec(), AtomicUsize::new(0));
        Target::start(move |_| {
            let turn = next.fetch_add(1, Ordering::SeqCst).min(replies.len() - 1);
            replies.get(turn).cloned().expect("at least one reply")
        })
        .await
    }

    async fn listen(
        script: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
        tls: Option<TlsAcceptor>,
    ) -> Target {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            script: Box::new(script),
            seen: Mutex::default(),
            arrived: Notify::new(),
            connections: AtomicUsize::new(0),
        });
        let serving = Arc::clone(&shared);
        let listening = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    return;
                };
                let number = serving.connections.fetch_add(1, Ordering::SeqCst);
                let (shared, tls) = (Arc::clone(&serving), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, number, &shared).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, number, &shared).await;
                            }
                        }
                    }
                });
            }
        });
        Target {
            address,
            shared,
            listening,
        }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().expect("no script panics").clone()
    }

    /// The number of connections so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Waits until this many requests have arrived.
    pub async fn wait_for(&self, count: usize) {
        let waiting = async {
            loop {
                let arrived = self.shared.arrived.notified();
                if self.seen().len() >= count {
                    return;
                }
                arrived.await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), waiting)
            .await
            .expect("the requests came");
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// A connection, with or without TLS.
trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for S {}

async fn serve(mut stream: impl ByteStream + AsResettable, connection: usize, shared: &Shared) {
    let mut buffer = Vec::new();
    while let Some(seen) = read_request(&mut stream, &mut buffer, connection).await {
        let reply = (shared.script)(&seen);
        shared.seen.lock().expect("no script panics").push(seen);
        shared.arrived.notify_waiters();
        if !answer(&mut stream, reply).await {
            return;
        }
    }
}

/// Sends a reply. Returns whether the connection stays open.
async fn answer(stream: &mut (impl ByteStream + AsResettable), reply: Reply) -> bool {
    match reply {
        Reply::Status(status) => {
            let text = plain(status, &[], "");
            stream.write_all(text.as_bytes()).await.is_ok()
        }
        Reply::Full(status, headers, body) => {
            let text = plain(status, &headers, &body);
            stream.write_all(text.as_bytes()).await.is_ok()
        }
        Reply::Raw(bytes) => {
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
            false
        }
        Reply::Endless(first, again) => {
            let mut sent = stream.write_all(&first).await;
            while sent.is_ok() {
                sent = stream.write_all(&again).await;
            }
            false
        }
        Reply::Hang(bytes) => {
            let _ = stream.write_all(&bytes).await;
            // Wait until the client disconnects.
            let mut rest = [0; 64];
            while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
            false
        }
        Reply::Reset => {
            stream.reset();
            false
        }
    }
}

fn plain(status: u16, headers: &[(String, String)], body: &str) -> String {
    let mut text = format!("HTTP/1.1 {status} X\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if status != 204 && status >= 200 {
        text.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    format!("{text}\r\n{body}")
}

async fn read_request(
    stream: &mut impl ByteStream,
    buffer: &mut Vec<u8>,
    connection: usize,
) -> Option<Seen> {
    let head_end = loop {
        if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        read_some(stream, buffer).await?;
    };
    let head: Vec<u8> = buffer.drain(..head_end).collect();
    let head = String::from_utf8_lossy(&head);
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let length = headers
        .get("content-length")
        .map_or(Ok(0), |text| text.parse());
    let length: usize = length.ok()?;
    while buffer.len() < length {
        read_some(stream, buffer).await?;
    }
    let body = buffer.drain(..length).collect();
    Some(Seen {
        method,
        path,
        headers,
        body,
        connection,
    })
}

async fn read_some(stream: &mut impl ByteStream, buffer: &mut Vec<u8>) -> Option<()> {
    let read = stream.read_buf(buffer).await;
    read.ok().filter(|read| *read > 0).map(|_| ())
}

/// A connection that can be closed with a reset: a linger time of zero makes the close send one.
trait AsResettable {
    fn reset(&self);
}

impl AsResettable for TcpStream {
    fn reset(&self) {
        let _ = self.set_zero_linger();
    }
}

impl AsResettable for tokio_rustls::server::TlsStream<TcpStream> {
    fn reset(&self) {
        self.get_ref().0.reset();
    }
}
