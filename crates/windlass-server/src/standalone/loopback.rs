//! The REST API of an opened store inside this process, for commands that work without a server.
//!
//! It listens on a free port of the loopback interface and accepts one random key, which only this
//! process knows. It runs no jobs, fires no schedules and removes nothing: it only answers requests.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use windlass::Client;
use windlass_listen::{Limits, Listener};

use super::config::Config;
use super::start::StartError;
use crate::access::{Access, ApiKey};
use crate::app::App;
use crate::refusals::site;
use crate::routes::router;

/// The REST API of an opened store. The audit log names its caller `store`.
#[derive(Debug)]
pub struct Loopback {
    url: String,
    key: ApiKey,
    stop: CancellationToken,
    serving: JoinHandle<usize>,
}

impl Loopback {
    /// Serves the REST API of the store until [`stop`](Loopback::stop), with the limits and defaults
    /// of the configuration.
    ///
    /// # Errors
    ///
    /// Fails if no loopback port is free or the configured master key is invalid.
    pub async fn start(config: &Config, client: Client) -> Result<Loopback, StartError> {
        let secrets = config.secrets(windlass::admin::engine_of(&client))?;
        let key = ApiKey::generate().map_err(|_| StartError::Random)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = Listener::bind(address, None, Limits::default()).await?;
        let (url, stop) = (listener.url(), CancellationToken::new());
        let app = App::new(client, Access::by_one_key(&key))
            .settings(config.settings())
            .secrets(secrets)
            .stopping(stop.clone());
        let stop_now = CancellationToken::new();
        let serving = listener.serve(site(router(app)), stop.clone(), stop_now);
        Ok(Loopback {
            url,
            key,
            stop,
            serving: tokio::spawn(serving),
        })
    }

    /// Returns the URL of the API: `http://127.0.0.1:40123`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the key that requests need. It is valid until the API stops.
    pub fn key(&self) -> String {
        self.key.reveal()
    }

    /// Waits for running requests and closes the store.
    pub async fn stop(self) {
        self.stop.cancel();
        let _ = self.serving.await; // it failed if a request panicked, and its client knows that
    }
}
