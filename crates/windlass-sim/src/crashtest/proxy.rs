//! A TCP proxy in front of PostgreSQL. It cuts and stalls connections, and can point to another
//! server after a failover.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::error::{CrashTestError, During as _};

/// A running proxy. It ends when it is dropped.
#[derive(Debug)]
pub(super) struct Proxy {
    pub(super) port: u16,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    /// Where connections lead. `None` refuses them.
    target: Mutex<Option<(String, u16)>>,
    open: Mutex<Vec<AbortHandle>>,
    is_stalled: watch::Sender<bool>,
}

impl Proxy {
    pub(super) async fn start() -> Result<Self, CrashTestError> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.during("listen for the proxy")?;
        let port = listener.local_addr().during("listen for the proxy")?.port();
        let shared = Arc::new(Shared {
            target: Mutex::new(None),
            open: Mutex::new(Vec::new()),
            is_stalled: watch::Sender::new(false),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Proxy {
            port,
            shared,
            accepting: accepting.abort_handle(),
        })
    }

    /// Lets new connections lead to this server, or refuses them.
    pub(super) fn point_to(&self, target: Option<(&str, u16)>) {
        let target = target.map(|(host, port)| (host.to_owned(), port));
        *lock(&self.shared.target) = target;
    }

    /// Cuts all connections.
    pub(super) fn cut_all(&self) {
        for connection in lock(&self.shared.open).drain(..) {
            connection.abort();
        }
    }

    /// Cuts one connection.
    pub(super) fn cut_one(&self, bits: u64) {
        let mut open = lock(&self.shared.open);
        open.retain(|connection| !connection.is_finished());
        if !open.is_empty() {
            let index = usize::try_from(bits).unwrap_or(0) % open.len();
            open.swap_remove(index).abort();
        }
    }

    /// Holds back all bytes for a while, without closing any connection.
    pub(super) fn stall(&self, pause: Duration) {
        let stalled = self.shared.is_stalled.clone();
        stalled.send_replace(true);
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            stalled.send_replace(false);
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut_all();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let target = lock(&shared.target).clone();
        let Some(target) = target else { continue };
        let stalled = shared.is_stalled.subscribe();
        let connection = tokio::spawn(async move {
            if let Ok(server) = TcpStream::connect(target).await {
                carry(client, server, stalled).await;
            }
        });
        let mut open = lock(&shared.open);
        open.retain(|connection| !connection.is_finished());
        open.push(connection.abort_handle());
    }
}

async fn carry(client: TcpStream, server: TcpStream, stalled: watch::Receiver<bool>) {
    let _ = (client.set_nodelay(true), server.set_nodelay(true)); // only faster
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = pass(from_client, to_server, stalled.clone()) => {}
        () = pass(from_server, to_client, stalled) => {}
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut stalled: watch::Receiver<bool>) {
    let mut buffer = vec![0; 16_384];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let part = buffer.get(..count).unwrap_or_default();
        let passes = stalled.wait_for(|is_stalled| !is_stalled).await.is_ok();
        if !passes || to.write_all(part).await.is_err() {
            return;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
