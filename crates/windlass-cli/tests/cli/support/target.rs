//! A target of HTTP jobs, and a server that may reach it.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::Value;
use windlass_testkit::target::{Reply, Seen, Target};

use super::{PATIENCE, Server};

/// A target that answers with the status that the path begins with, as `/503/x`, and tells what it saw.
pub(crate) fn target() -> (SocketAddr, Receiver<Seen>) {
    let (tell, seen) = channel();
    let (listening, address) = channel();
    std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let answer = move |request: &Seen| {
            let status = request.path.split('/').nth(1);
            let _ = tell.send(request.clone());
            let status = status.and_then(|status| status.parse().ok());
            Reply::body(status.unwrap_or(200), "hello")
        };
        runtime
            .enable_all()
            .build()
            .expect("a runtime")
            .block_on(async {
                let target = Target::start(answer).await;
                let _ = listening.send(target.address);
                std::future::pending::<()>().await;
            });
    });
    (address.recv().expect("it listens"), seen)
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
