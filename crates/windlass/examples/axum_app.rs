//! A web application that enqueues jobs in its HTTP handlers and runs them in the same process.
#![expect(clippy::print_stdout, reason = "examples print")]

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use windlass::{Client, Context, Failure, Job, JobId, Worker};

#[derive(Serialize, Deserialize)]
struct Welcome {
    name: String,
}

impl Job for Welcome {
    const KIND: &'static str = "welcome";
}

async fn welcome(job: Welcome, _: Context) -> Result<String, Failure> {
    Ok(format!("welcome, {}", job.name))
}

/// Answers as soon as the job is stored. It does not wait for the job to run.
async fn sign_up(
    State(client): State<Client>,
    Json(job): Json<Welcome>,
) -> Result<String, StatusCode> {
    let receipt = client.enqueue(job).await;
    let receipt = receipt.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    Ok(receipt.id.to_string())
}

async fn result(
    State(client): State<Client>,
    Path(id): Path<String>,
) -> Result<String, StatusCode> {
    let id: JobId = id.parse().map_err(|_| StatusCode::BAD_REQUEST)?;
    let result = client.result(id, Duration::from_secs(5)).await;
    result.map_err(|_| StatusCode::NOT_FOUND)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::open("memory:").await?;
    let app = Router::new()
        .route("/sign-up", post(sign_up))
        .route("/result/{id}", get(result))
        .with_state(client.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });
    // Plays the part of your users. A real program runs until `tokio::signal::ctrl_c()` instead.
    let requests = tokio::spawn(send_requests(address));
    Worker::new(&client, ())
        .handle(welcome)
        .run_until(requests)
        .await?;
    serving.abort();
    Ok(())
}

async fn send_requests(address: std::net::SocketAddr) -> std::io::Result<()> {
    let body = r#"{"name": "Ann"}"#;
    let length = body.len();
    let post = format!(
        "POST /sign-up HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    let id = send(address, &post).await?;
    let get = format!("GET /result/{id} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    println!("{}", send(address, &get).await?);
    Ok(())
}

async fn send(address: std::net::SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer
        .rsplit("\r\n\r\n")
        .next()
        .unwrap_or_default()
        .to_owned())
}
