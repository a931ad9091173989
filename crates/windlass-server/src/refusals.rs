//! Problem responses for requests that the listener refuses before they reach a route.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use windlass_engine::Ids;
use windlass_listen::{Refusal, Site};

use crate::problem::Problem;
use crate::request_id::request_id;
use crate::serve::finish;

/// Paths that the server answers even if all connections are in use.
const HEALTH: &[&str] = &["/livez", "/readyz", "/metrics"];

/// Wraps a router for a [`Listener`](windlass_listen::Listener). Requests that the listener refuses
/// get a problem response.
pub(crate) fn site(router: Router) -> Site {
    let ids = Arc::new(Ids::unpredictable());
    Site::new(router)
        .health(HEALTH)
        .on_refusal(move |refusal, headers| finish(Err(refusal.into()), &request_id(headers, &ids)))
}

impl From<&Refusal> for Problem {
    fn from(refusal: &Refusal) -> Self {
        let code = match refusal {
            Refusal::HeadTooLarge => "head_too_large",
            Refusal::Malformed => "malformed_request",
            Refusal::BodyTooLarge { .. } => "body_too_large",
            Refusal::Busy => "busy",
        };
        let problem = Problem::new(refusal.status(), code, refusal.to_string());
        match refusal {
            Refusal::Busy => problem.retry_after(Duration::from_secs(1)),
            _ => problem,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio_util::sync::CancellationToken;
    use windlass_listen::{Limits, Listener};

    use super::*;

    /// Returns the response of a server with these limits.
    async fn answer_to(limits: Limits, request: &str) -> String {
        let address = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(address, None, limits).await.unwrap();
        let (address, stop) = (listener.address(), CancellationToken::new());
        let site = site(Router::new());
        let served = tokio::spawn(listener.serve(site, stop.clone(), stop.clone()));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // The connection may end with a reset if the server did not read the whole request.
        let _ = stream.read_to_end(&mut answer).await;
        stop.cancel();
        served.await.unwrap();
        String::from_utf8(answer).unwrap()
    }

    #[tokio::test]
    async fn a_refused_request_gets_a_problem_with_its_request_id() {
        let small = Limits {
            header_bytes: 200,
            body_bytes_max: 10,
            ..Limits::default()
        };
        let full = Limits {
            connections: 0,
            ..Limits::default()
        };
        let long = format!("X: {}\r\n", "x".repeat(300));
        for (limits, fields, status, code) in [
            (&small, "Content-Length: +1\r\n", 400, "malformed_request"),
            (&small, long.as_str(), 431, "head_too_large"),
            (&small, "Content-Length: 11\r\n", 413, "body_too_large"),
            (&full, "X-Request-Id: mine\r\n", 503, "busy"),
        ] {
            let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            let answer = answer_to(limits.clone(), &request).await;
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
            assert!(head.contains("application/problem+json"), "{answer}");
            assert_eq!(head.contains("retry-after: 1"), code == "busy", "{answer}");
            assert_eq!(head.contains("x-request-id: mine"), code == "busy");
            let problem: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!(problem["code"], code, "{answer}");
            assert!(!problem["request_id"].as_str().unwrap().is_empty());
        }
    }
}
