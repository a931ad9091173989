//! Mounts the REST API in your own axum program, next to a Rust worker for the same jobs.
#![expect(clippy::print_stdout, reason = "examples print")]

use std::error::Error;

use axum::Router;
use axum::routing::get;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use windlass::{Client, Context, Failure, Job, Worker};
use windlass_server::access::Access;
use windlass_server::{App, router};

#[derive(Serialize, Deserialize)]
struct Add {
    a: i64,
    b: i64,
}

impl Job for Add {
    const KIND: &'static str = "add";
}

async fn add(job: Add, _: Context) -> Result<i64, Failure> {
    Ok(job.a + job.b)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::open("memory:").await?;
    // `Access::open` needs no keys: your own program decides who may call the API.
    let jobs = router(App::new(client.clone(), Access::open()));
    let app = Router::new()
        .route("/", get(|| async { "my own page" }))
        .nest("/background", jobs);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });

    // Plays the part of your users. A real program runs until `ctrl_c()` instead.
    let requests = tokio::spawn(async move {
        let job = r#"{"kind": "add", "payload": {"a": 40, "b": 2}}"#;
        let created = ask(address, "POST", "/background/api/v1/jobs", job).await?;
        let id = text_of(&created, "id").ok_or_else(|| format!("no job: {created}"))?;
        let path = format!("/background/api/v1/jobs/{id}/wait?timeout=30s");
        ask(address, "GET", &path, "").await
    });
    let (sender, response) = tokio::sync::oneshot::channel();
    let finished = async move {
        let answer = requests
            .await
            .unwrap_or_else(|error| Err(error.to_string()));
        let _ = sender.send(answer);
    };
    Worker::new(&client, ())
        .handle(add)
        .run_until(finished)
        .await?;
    let answer = response.await??;
    let value: serde_json::Value = serde_json::from_str(&answer)?;
    let result = value.get("result").ok_or("the job left no result")?;
    println!("40 + 2 = {result}");
    serving.abort();
    Ok(())
}

/// Sends a request and returns the body of the response.
async fn ask(
    address: std::net::SocketAddr,
    method: &str,
    path: &str,
    body: &str,
) -> Result<String, String> {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = exchange.await.map_err(|error| error.to_string())?;
    let body = answer
        .split_once("\r\n\r\n")
        .map(|(_, body)| body.to_owned());
    body.ok_or_else(|| format!("no answer: {answer}"))
}

fn text_of(json: &str, field: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(json).ok()?;
    Some(value.get(field)?.as_str()?.to_owned())
}
