//! The Windlass server: REST interface, HTTP jobs, metrics.
//!
//! [`router`] serves the REST interface of a client's store, alone or within a program of your own:
//!
//! ```
//! # use windlass::{Client, Error};
//! # use windlass_server::{App, access::Access, router};
//! # async fn example() -> Result<(), Error> {
//! let client = Client::open("memory:").await?;
//! let service = axum::Router::new().nest("/jobs", router(App::new(client, Access::open())));
//! # let _ = service;
//! # Ok(())
//! # }
//! ```
//!
//! [`standalone`] is the same server as a process of its own.
//!
//! Every route is declared once, in `routes`, with the scope it needs: there is no way to write one without.

pub mod access;
mod answer;
mod app;
mod audit;
mod bodies;
mod call;
mod endpoint;
mod events;
mod health;
mod http_jobs;
mod idempotency;
mod metrics;
mod openapi;
mod permits;
mod preconditions;
mod problem;
mod rates;
mod refusals;
mod request_id;
mod routes;
mod search;
pub mod secrets;
mod serve;
mod signing;
pub mod standalone;

pub use app::{App, Settings};
pub use openapi::openapi;
pub use routes::{RouteInfo, router, routes};
