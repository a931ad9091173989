//! The target of HTTP jobs: logs each request as an attempt with its effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use windlass_core::JobId;

use super::error::{CrashTestError, During as _};
use super::record::{Log, What};
use super::work::Work;
use crate::history::digest_of;

/// The largest request.
const REQUEST_BYTES_MAX: usize = 64 * 1024;

/// A running target. It ends when it is dropped.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) url: String,
    accepting: AbortHandle,
}

impl Target {
    pub(super) async fn start(log: Arc<Log>) -> Result<Self, CrashTestError> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.during("listen for HTTP jobs")?;
        let port = listener.local_addr().during("listen for HTTP jobs")?.port();
        let url = format!("http://127.0.0.1:{port}/effect");
        let address = url.clone();
        let accepting = tokio::spawn(async move {
            let requests = AtomicU64::new(0);
            while let Ok((stream, _)) = listener.accept().await {
                let number = requests.fetch_add(1, Ordering::Relaxed);
                let (log, address) = (Arc::clone(&log), address.clone());
                tokio::spawn(async move { serve(stream, &log, &address, number).await });
            }
        });
        Ok(Target {
            url,
            accepting: accepting.abort_handle(),
        })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Answers one request and closes the connection.
async fn serve(mut stream: TcpStream, log: &Log, url: &str, number: u64) {
    let Some((head, body)) = read_request(&mut stream).await else {
        return;
    };
    let job = header(&head, "windlass-job-id").and_then(|id| id.parse::<JobId>().ok());
    let attempt = header(&head, "windlass-attempt").and_then(|number| number.parse().ok());
    let work: Option<Work> = serde_json::from_str(&body).ok();
    let (Some(job), Some(attempt), Some(work)) = (job, attempt, work) else {
        let _ = answer(&mut stream, "400 Bad Request").await; // the attempt fails without an effect
        return;
    };
    let by = format!("target.{number}"); // an attempt may come while the one before still runs
    let payload = digest_of(http_payload(url, &body).as_str());
    let started = What::Started {
        job,
        attempt,
        payload,
    };
    if log.write_as(&by, started).is_err() {
        return;
    }
    tokio::time::sleep(Duration::from_millis(work.work_ms)).await;
    let status = if work.fails(attempt) {
        "503 Service Unavailable"
    } else if log.write_as(&by, What::Effect { job, attempt }).is_err() {
        return;
    } else {
        "200 OK"
    };
    let _ = log.write_as(&by, What::Returned { job, attempt }); // only to see concurrent handlers
    let _ = answer(&mut stream, status).await; // the server may be dead by now
}

async fn answer(stream: &mut TcpStream, status: &str) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.shutdown().await
}

async fn read_request(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    loop {
        if bytes.len() > REQUEST_BYTES_MAX || stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
        let text = std::str::from_utf8(&bytes).ok()?;
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = header(head, "content-length").and_then(|length| length.parse().ok());
        if body.len() >= length.unwrap_or(0) {
            return Some((head.to_owned(), body.to_owned()));
        }
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = head.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = fields.find(|(field, _)| field.eq_ignore_ascii_case(name))?;
    Some(value.trim())
}

/// The payload of a job that sends this body to the target.
pub(super) fn http_payload(url: &str, body: &str) -> String {
    format!(r#"{{"url":"{url}","body":{body}}}"#)
}
