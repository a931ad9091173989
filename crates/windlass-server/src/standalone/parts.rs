//! What the configuration means for each part of a server.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::http::HeaderName;
use windlass_core::retry::{AttemptLimit, Cap, WorkerRetry};
use windlass_dashboard::About;
use windlass_engine::{JanitorConfig, MaintenanceConfig};
use windlass_http::{HttpConfig, HttpConfigError, HttpJobs, SystemResolver, TlsRoots};
use windlass_listen::{Limits, TlsFiles};

use crate::access::TrustedProxies;
use crate::app::{App, Settings};
use crate::dashboard::{DashboardSettings, with_dashboard};
use crate::routes::router;
use crate::secrets::Secrets;
use crate::standalone::checks::Machine;
use crate::standalone::config::Config;
use crate::standalone::nodes;
use crate::standalone::start::StartError;

impl Config {
    /// Whether the server accepts no requests before an API key exists.
    pub(super) fn needs_key(&self) -> bool {
        (self.is_public() || self.behind_proxy) && !self.insecure
    }

    pub(super) fn limits(&self, machine: &Machine) -> Limits {
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        Limits {
            header_time: self.header_time,
            header_bytes: number(self.header_bytes),
            header_fields: number(self.header_fields),
            body_time: self.body_time,
            body_bytes_per_second: self.body_bytes_per_second,
            body_bytes_max: self.bulk_bytes,
            write_time: self.write_time,
            write_bytes: number(self.write_bytes),
            idle_time: self.idle_time,
            connections: number(machine.connections_allowed(self.connections)),
            connections_per_address: number(self.connections_per_address),
            streams: u32::try_from(self.streams).unwrap_or(u32::MAX),
            drain_time: self.shutdown_grace,
        }
    }

    pub(super) fn settings(&self) -> Settings {
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let cap = self.retry_cap.and_then(|cap| {
            let cap = AttemptLimit::from_max_attempts(i64::try_from(cap).ok()?);
            cap.ok().flatten()
        });
        Settings {
            payload_bytes_max: number(self.payload_bytes),
            bulk_bytes_max: number(self.bulk_bytes),
            lease: self.lease,
            lease_max: self.lease_max,
            wait_max: self.wait_max,
            waiting_max: number(self.waiting_max),
            idempotency_notes_max: self.idempotency_keys,
            replaced_payload_retention: self.retention_replaced_payloads,
            retry: WorkerRetry {
                policy: Some(Arc::new(self.retry.clone())),
                cap: cap.map_or(Cap::Unlimited, Cap::AtMost),
            },
        }
    }

    /// Returns the settings of HTTP jobs. Jobs never connect to the server itself at `own`.
    fn http_config(&self, own: SocketAddr) -> Result<HttpConfig, StartError> {
        let extra_pem = self.http_jobs_ca_file.as_ref().map(|path| {
            let unreadable = |cause| StartError::Authorities {
                path: path.clone(),
                cause,
            };
            std::fs::read(path).map_err(unreadable)
        });
        let ranges = self.allow_targets.iter().map(|range| range.parse());
        Ok(HttpConfig {
            allow: ranges
                .collect::<Result<_, _>>()
                .map_err(HttpConfigError::from)?,
            own: vec![own],
            roots: TlsRoots {
                extra_pem: extra_pem.transpose()?,
            },
            connect_timeout: self.http_jobs_connect_timeout,
            per_host: self
                .http_jobs_per_host
                .map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)),
            completion_url: self
                .public_url
                .as_ref()
                .map(|url| format!("{}/api/v1/completions/", url.trim_end_matches('/'))),
        })
    }

    pub(super) fn http_jobs(
        &self,
        own: SocketAddr,
        secrets: &Secrets,
    ) -> Result<HttpJobs, StartError> {
        let keys = Arc::new(secrets.clone());
        let config = self.http_config(own)?;
        Ok(HttpJobs::with(config, Arc::new(SystemResolver), keys)?)
    }

    /// Returns the files of the TLS certificate and key, if configured.
    pub fn tls_files(&self) -> Option<TlsFiles> {
        let files = self.tls_certificate.clone().zip(self.tls_key.clone());
        files.map(|(certificate, key)| TlsFiles { certificate, key })
    }

    /// Returns the routes of a server at `url`: the REST API, and the dashboard unless it is off.
    pub(super) fn routes(&self, app: App, url: &str) -> Router {
        match self.dashboard_serve {
            true => with_dashboard(app, self.dashboard(url)),
            false => router(app),
        }
    }

    /// Returns how the dashboard is served at `url`.
    fn dashboard(&self, url: &str) -> DashboardSettings {
        let store = match self.store_url().split(':').next() {
            Some("postgres" | "postgresql") => "PostgreSQL",
            Some("memory") => "in memory",
            _ => "SQLite",
        };
        DashboardSettings {
            about: About {
                environment: self.dashboard_environment.clone(),
                colour: self.dashboard_colour,
                read_only: self.dashboard_read_only,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                store: store.to_owned(),
                store_path: self.store_shown(),
                url: url.to_owned(),
            },
            secure: self.tls_files().is_some() || self.behind_proxy,
            proxies: self.trusted_proxies(),
        }
    }

    /// Returns the proxies that may name people. The settings are checked, so a name that does not
    /// parse cannot occur.
    fn trusted_proxies(&self) -> Option<TrustedProxies> {
        let secret = self.dashboard_proxy_secret.as_ref()?;
        let header = |name: &str| name.parse::<HeaderName>().ok();
        let addresses = self
            .dashboard_proxies
            .iter()
            .filter_map(|range| range.parse().ok());
        let proxies = TrustedProxies {
            addresses: addresses.collect(),
            secret_header: header(&self.dashboard_proxy_secret_header)?,
            secret: secret.reveal().to_owned(),
            user_header: header(&self.dashboard_user_header)?,
            groups_header: header(&self.dashboard_groups_header)?,
            people: self.dashboard_people.0.clone(),
        };
        (!proxies.addresses.is_empty()).then_some(proxies)
    }

    pub(super) fn upkeep(&self, node: String) -> MaintenanceConfig {
        MaintenanceConfig {
            about: nodes::about(self),
            lease: self.lease,
            sweep_every: self.sweep_every,
            janitor: JanitorConfig {
                retention: self.retention_finished,
                queues: self.retention_queues.clone(),
                dead_retention: self.retention_dead,
                ..JanitorConfig::default()
            },
            ..MaintenanceConfig::new(node)
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
