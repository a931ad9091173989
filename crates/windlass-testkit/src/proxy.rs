//! A wire between a store and its server that can be cut.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// What the wire does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Whole,
    /// It is cut once, when the server has committed a transaction with that statement, and before that is told.
    CutAtCommitOf(&'static str),
    /// It is cut once, when so many more bytes went to the server.
    CutAfter(usize),
    /// Nothing comes through, and nothing is told.
    Dead,
}

pub struct Proxy {
    pub port: u16,
    wire: Arc<Mutex<Wire>>,
}

impl Proxy {
    pub async fn to(server: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let wire = Arc::new(Mutex::new(Wire::Whole));
        let of_all = Arc::clone(&wire);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let wire = Arc::clone(&of_all);
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
        *self.wire.lock().expect("nobody panics with it") = wire;
    }

    /// Whether the cut has happened.
    pub fn is_whole(&self) -> bool {
        *self.wire.lock().expect("nobody panics with it") == Wire::Whole
    }
}

/// Carries bytes both ways until one end closes or the wire is cut.
async fn carry(mut client: TcpStream, mut server: TcpStream, wire: &Mutex<Wire>) {
    let (mut asked, mut answered) = (vec![0; 65_536], vec![0; 65_536]);
    let mut armed = false;
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
        while *wire.lock().expect("nobody panics with it") == Wire::Dead {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let Some((part, cut)) = pass(part, to_server, &mut armed, wire) else {
            return;
        };
        let to = if to_server { &mut server } else { &mut client };
        if to.write_all(part).await.is_err() || cut {
            return;
        }
    }
}

/// What of a part comes through, and whether the wire is cut behind it; nothing, if it is cut before.
fn pass<'a>(
    part: &'a [u8],
    to_server: bool,
    armed: &mut bool,
    wire: &Mutex<Wire>,
) -> Option<(&'a [u8], bool)> {
    let contains = |text: &str| {
        part.windows(text.len())
            .any(|window| window == text.as_bytes())
    };
    let mut now = wire.lock().expect("nobody panics with it");
    match *now {
        Wire::CutAtCommitOf(statement) if to_server => {
            *armed |= contains(statement);
            Some((part, false))
        }
        Wire::CutAtCommitOf(_) if *armed && contains("COMMIT\0") => {
            *now = Wire::Whole;
            None
        }
        Wire::CutAfter(left) if to_server => {
            let cut = left <= part.len();
            let (part, _) = part.split_at(left.min(part.len()));
            *now = match cut {
                true => Wire::Whole,
                false => Wire::CutAfter(left - part.len()),
            };
            Some((part, cut))
        }
        _ => Some((part, false)),
    }
}
