//! An axum program with a worker and an admin listener: while it runs, `windlass` looks in.
//!
//! ```sh
//! cargo run -p windlass-server --example admin_listener -- sqlite:shop.db
//! curl -X POST http://127.0.0.1:PORT/orders/7
//! windlass jobs list --store sqlite:shop.db
//! ```
#![expect(clippy::print_stdout, reason = "examples print")]

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use windlass::{Client, Context, Failure, Job, Worker};

#[derive(Serialize, Deserialize)]
struct Ship {
    order: u64,
}

impl Job for Ship {
    const KIND: &'static str = "ship";
}

/// The state of the program: the carrier is down until someone repairs it.
#[derive(Clone)]
struct Shop {
    client: Client,
    carrier_is_up: Arc<AtomicBool>,
}

async fn ship(job: Ship, ctx: Context<Shop>) -> Result<String, Failure> {
    if !ctx.state.carrier_is_up.load(Ordering::Relaxed) {
        return Err(Failure::unrecoverable("the carrier is down"));
    }
    Ok(format!("order {} is on its way", job.order))
}

async fn order(State(shop): State<Shop>, Path(order): Path<u64>) -> Result<String, StatusCode> {
    let receipt = shop.client.enqueue(Ship { order }).queue("orders").await;
    let receipt = receipt.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    Ok(receipt.id.to_string())
}

async fn repair(State(shop): State<Shop>) {
    shop.carrier_is_up.store(true, Ordering::Relaxed);
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = std::env::args().nth(1);
    let client = Client::open(store.as_deref().unwrap_or("sqlite:shop.db")).await?;
    let shop = Shop {
        client: client.clone(),
        carrier_is_up: Arc::default(),
    };
    let app = Router::new()
        .route("/orders/{order}", post(order))
        .route("/carrier/repair", post(repair))
        .with_state(shop.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let admin = windlass_server::admin(&client).bind("127.0.0.1:0").await?;
    println!(
        "shop http://{} admin {}",
        listener.local_addr()?,
        admin.url()
    );

    // The worker ends when the operating system or an operator stops it, and the rest follows.
    let stop = CancellationToken::new();
    let serving = axum::serve(listener, app).with_graceful_shutdown(stop.clone().cancelled_owned());
    let serving = tokio::spawn(serving.into_future());
    let stopped = Worker::new(&client, shop)
        .name("shop")
        .queue("orders", 4)
        .handle(ship)
        .run_until(tokio::signal::ctrl_c())
        .await?;
    stop.cancel();
    serving.await??;
    admin.stop().await?;
    println!("stopped, {} jobs given back", stopped.released);
    Ok(())
}
