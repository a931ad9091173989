//! The Windlass server: REST API, HTTP jobs and metrics.
//!
//! Use this crate in one of three ways:
//!
//! - Mount the REST API in your own axum program with [`router`].
//! - Let operators look into your own program with [`admin()`].
//! - Run the server as its own process with [`standalone`]. The command `windlass serve` does this.
//!
//! # Mount the REST API in an axum program
//!
//! Open a store with [`Client`](windlass::Client), choose how requests are authenticated with
//! [`access::Access`], and nest the router under any path:
//!
//! ```no_run
//! use axum::{Router, routing::get};
//! use windlass::Client;
//! use windlass_server::{App, access::Access, router};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let client = Client::open("sqlite:jobs.db").await?;
//!     // `Access::open` accepts every request: your own middleware decides who may call the API.
//!     let api = router(App::new(client, Access::open()));
//!     let program = Router::new()
//!         .route("/", get(|| async { "my own page" }))
//!         .nest("/background", api);
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//!     Ok(axum::serve(listener, program).await?)
//! }
//! ```
//!
//! A client now creates a job with `POST /background/api/v1/jobs`. The router only serves requests.
//! A [`Worker`](windlass::Worker) of the same client, or a remote worker that uses the API, runs the
//! jobs.
//!
//! To require API keys, use [`Access::by_keys`](access::Access::by_keys). To change limits such as
//! the largest payload, use [`App::settings`]. For `GET /metrics`, open the client with a recorder
//! and pass the recorder to [`App::metrics`]. At shutdown, cancel the token of [`App::stopping`], so
//! that long polls and event streams end.
//!
//! # Look into a program that owns its store
//!
//! [`admin()`] serves the REST API of a program's own store for the command `windlass`.
//!
//! # Routes
//!
//! The module `routes` declares every route once, together with its scope. A route without a scope
//! does not compile. [`routes`] lists all routes, and [`openapi`] describes them as OpenAPI.

pub mod access;
mod admin;
mod answer;
mod app;
mod audit;
mod body_budget;
mod call;
mod dashboard;
mod endpoint;
mod events;
mod health;
mod http_jobs;
mod idempotency;
mod metrics;
mod openapi;
mod permits;
mod poison;
mod preconditions;
mod problem;
mod rates;
mod refusals;
mod request_id;
mod routes;
pub mod secrets;
mod serve;
mod signing;
pub mod standalone;

/// Compiles the examples of the documentation.
#[cfg(doctest)]
mod documentation {
    #[doc = include_str!("../../../docs/running-program.md")]
    struct RunningProgram;
}

pub use admin::{Admin, AdminError, AdminListener, admin};
pub use app::{App, Settings};
pub use dashboard::{DashboardSettings, dashboard, with_dashboard};
pub use openapi::openapi;
pub use routes::{RouteInfo, router, routes};
