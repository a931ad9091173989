//! A target of HTTP jobs, and a server that may reach it.

use std::io::{BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::Value;

use super::{PATIENCE, Server};

/// What the target saw of one request.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value)
    }
}

/// A target that answers with the status that the path begins with, as `/503/x`, and tells what it saw.
pub(crate) fn target() -> (SocketAddr, Receiver<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let (tell, seen) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let tell = tell.clone();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream);
                while let Some(request) = read_request(&mut reader) {
                    let status = request.path.trim_start_matches('/');
                    let status = status.split('/').next().unwrap_or("200").to_owned();
                    let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 5\r\n\r\nhello");
                    let _ = tell.send(request);
                    if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, seen)
}

fn read_request(reader: &mut impl std::io::BufRead) -> Option<Seen> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let Some((name, value)) = line.trim().split_once(':') else {
            break;
        };
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = String::from_utf8_lossy(&body).into_owned();
    Some(Seen {
        path,
        headers,
        body,
    })
}

pub(crate) fn serve(data: &std::path::Path) -> Server {
    Server::start(data, &["--allow-target", "127.0.0.0/8"])
}

/// Looks until the answer is as it should be.
pub(crate) fn until(server: &Server, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    const BETWEEN: Duration = Duration::from_millis(20);
    let mut left = PATIENCE;
    loop {
        let answer = server.get(path);
        if is_so(&answer) {
            return answer;
        }
        assert!(!left.is_zero(), "{path} stays {answer}");
        left = left.saturating_sub(BETWEEN);
        std::thread::sleep(BETWEEN);
    }
}

pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}
