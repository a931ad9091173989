//! A TCP proxy between a store and its server whose connections can be cut.

mod requests;

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use requests::Requests;

/// The message of the server that it is ready and has no open transaction.
const IDLE: &[u8] = b"Z\0\0\0\x05I";

/// What the proxy does with the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// Passes everything through.
    Whole,
    /// Cuts a connection once: after the server has committed a transaction with this statement,
    /// and before the client learns about it.
    CutAtCommitOf(&'static str),
    /// Cuts a connection once: after this many more bytes to the server.
    CutAfter(usize),
    /// Delays all bytes, without closing any connection.
    Dead,
}

/// A running proxy.
pub struct Proxy {
    pub port: u16,
    wire: Arc<Mutex<Wire>>,
}

impl Proxy {
    pub async fn to(server: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let wire = Arc::new(Mutex::new(Wire::Whole));
        let shared = Arc::clone(&wire);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let wire = Arc::clone(&shared);
                tokio::spawn(async move {
                    if let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await {
                        carry(client, server, &wire).await;
                    }
                });
            }
        });
        Proxy { port, wire }
    }

    pub fn set(&self, wire: Wire) {
        *self.wire.lock().expect("no holder panics") = wire;
    }

    /// Whether the requested cut has happened.
    pub fn is_whole(&self) -> bool {
        *self.wire.lock().expect("no holder panics") == Wire::Whole
    }
}

/// Passes bytes in both directions until one side closes or the proxy cuts the connection.
async fn carry(mut client: TcpStream, mut server: TcpStream, wire: &Mutex<Wire>) {
    let (mut asked, mut answered) = (vec![0; 65_536], vec![0; 65_536]);
    let (mut requests, mut armed) = (Requests::default(), false);
    loop {
        let (bytes, to_server) = tokio::select! {
            read = client.read(&mut asked) => (read.unwrap_or(0), true),
            read = server.read(&mut answered) => (read.unwrap_or(0), false),
        };
        if bytes == 0 {
            return;
        }
        let part = if to_server { &asked } else { &answered };
        let (part, _) = part.split_at(bytes);
        while *wire.lock().expect("no holder panics") == Wire::Dead {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let run = if to_server {
            requests.read(part)
        } else {
            Vec::new()
        };
        let Some((part, cut)) = pass(part, to_server, &run, &mut armed, wire) else {
            return;
        };
        let to = if to_server { &mut server } else { &mut client };
        if to.write_all(part).await.is_err() || cut {
            return;
        }
    }
}

/// Returns the part of the bytes to pass on, and whether to cut the connection after it. Returns
/// `None` to cut it before. `run` are the texts of the statements that these bytes run.
fn pass<'a>(
    part: &'a [u8],
    to_server: bool,
    run: &[Vec<u8>],
    armed: &mut bool,
    wire: &Mutex<Wire>,
) -> Option<(&'a [u8], bool)> {
    let mut now = wire.lock().expect("no holder panics");
    match *now {
        Wire::CutAtCommitOf(statement) if to_server => {
            *armed |= run.iter().any(|text| contains(text, statement.as_bytes()));
            Some((part, false))
        }
        Wire::CutAtCommitOf(_) if *armed && contains(part, IDLE) => {
            *now = Wire::Whole;
            None
        }
        Wire::CutAfter(left) if to_server => {
            let cut = left <= part.len();
            let (part, _) = part.split_at(left.min(part.len()));
            *now = if cut {
                Wire::Whole
            } else {
                Wire::CutAfter(left - part.len())
            };
            Some((part, cut))
        }
        _ => Some((part, false)),
    }
}

fn contains(bytes: &[u8], searched: &[u8]) -> bool {
    bytes
        .windows(searched.len())
        .any(|window| window == searched)
}
