//! Options of a store, read from its URL.

use std::borrow::Cow;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};
use windlass_core::Invalid;

/// How to reach a PostgreSQL server, and how to use it.
#[derive(Debug, Clone)]
pub struct Options {
    /// Hosts, user, password, database, and whether to use TLS.
    pub server: tokio_postgres::Config,
    /// A PEM file with the trusted root certificates; `None` for those of the system.
    pub root_certificates: Option<PathBuf>,
    /// The most connections for claims, enqueues and reads. Two more are reserved for settles,
    /// renewals, heartbeats and sweeps.
    pub pool_size: usize,
    /// The timeout of a statement, on the server and in this process.
    pub statement_timeout: Duration,
    /// The longest time that a statement waits for a lock, and a caller for a connection.
    pub lock_timeout: Duration,
    /// Whether to start even if the settings of the server can lose acknowledged writes.
    pub allow_unsafe_durability: bool,
}

impl Options {
    /// Reads a URL such as
    /// `postgres://user:password@host:5432/database?sslmode=verify-full&pool_size=8`.
    ///
    /// In addition to PostgreSQL's own parameters, the URL can have `sslrootcert`, `pool_size`,
    /// `statement_timeout`, `lock_timeout` (such as `30s`) and `allow_unsafe_durability`. The
    /// values `require`, `verify-ca` and `verify-full` of `sslmode` all verify the certificate and
    /// the name of the server.
    pub fn parse(url: &str) -> Result<Self, Invalid> {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let mut options = Options {
            server: tokio_postgres::Config::new(),
            root_certificates: None,
            pool_size: 8,
            statement_timeout: Duration::from_secs(30),
            lock_timeout: Duration::from_secs(5),
            allow_unsafe_durability: false,
        };
        let (mut rest, mut mode) = (Vec::new(), None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let text = decode(value).ok_or_else(|| {
                Invalid::new(key, "must be valid percent-encoding (write % as %25)")
            })?;
            match key {
                "sslrootcert" => options.root_certificates = Some(text.into()),
                "sslmode" => mode = Some(ssl_mode(&text)?),
                "pool_size" => options.pool_size = number(key, &text)?,
                "statement_timeout" => options.statement_timeout = duration(key, &text)?,
                "lock_timeout" => options.lock_timeout = duration(key, &text)?,
                "allow_unsafe_durability" => options.allow_unsafe_durability = boolean(key, &text)?,
                _ => rest.push(pair),
            }
        }
        let server = if rest.is_empty() {
            address.to_owned()
        } else {
            format!("{address}?{}", rest.join("&"))
        };
        options.server = tokio_postgres::Config::from_str(&server).map_err(|error| {
            let why = std::error::Error::source(&error)
                .map_or_else(|| error.to_string(), ToString::to_string);
            Invalid::new("url", format!("must be a PostgreSQL URL: {why}"))
        })?;
        options.server.ssl_mode(mode.unwrap_or(SslMode::Disable));
        if options.server.get_hosts().len() > 1 {
            // After a failover, the first host may be a read-only standby.
            options
                .server
                .target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if options.server.get_connect_timeout().is_none() {
            options.server.connect_timeout(Duration::from_secs(5));
        }
        if options.server.get_application_name().is_none() {
            options.server.application_name("windlass");
        }
        Ok(options)
    }
}

fn ssl_mode(text: &str) -> Result<SslMode, Invalid> {
    match text {
        "disable" => Ok(SslMode::Disable),
        "require" | "verify-ca" | "verify-full" => Ok(SslMode::Require),
        _ => Err(Invalid::new(
            "sslmode",
            format!("must be disable, require, verify-ca or verify-full, got {text:?}"),
        )),
    }
}

fn number(key: &str, text: &str) -> Result<usize, Invalid> {
    let number = text
        .parse()
        .ok()
        .filter(|number| (1..=1000).contains(number));
    number.ok_or_else(|| {
        Invalid::new(
            key,
            format!("must be a number from 1 to 1000, got {text:?}"),
        )
    })
}

fn boolean(key: &str, text: &str) -> Result<bool, Invalid> {
    text.parse()
        .map_err(|_| Invalid::new(key, format!("must be true or false, got {text:?}")))
}

fn duration(key: &str, text: &str) -> Result<Duration, Invalid> {
    let duration = windlass_core::parse_duration(text).map_err(|error| error.within(key))?;
    if duration < Duration::from_millis(1) {
        return Err(Invalid::new(key, "must be at least 1ms"));
    }
    Ok(duration)
}

/// Decodes percent-encoded text. Returns `None` if it is not valid.
fn decode(text: &str) -> Option<String> {
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut escapes = text.split('%').skip(1);
    if !escapes.all(|rest| rest.get(..2).is_some_and(is_digits)) {
        return None;
    }
    let text = percent_decode_str(text).decode_utf8();
    text.ok().map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parameters_of_a_url_are_read() {
        let url = "postgres://ann:secret@db:6432/jobs?sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem&pool_size=3\
             &statement_timeout=2s&lock_timeout=300ms&allow_unsafe_durability=true&connect_timeout=7";
        let options = Options::parse(url).unwrap();
        assert_eq!(options.server.get_user(), Some("ann"));
        assert_eq!(options.server.get_dbname(), Some("jobs"));
        assert_eq!(options.server.get_ports(), [6432]);
        assert_eq!(options.server.get_ssl_mode(), SslMode::Require);
        assert_eq!(
            options.server.get_connect_timeout(),
            Some(&Duration::from_secs(7))
        );
        assert_eq!(options.root_certificates, Some("/etc/ca.pem".into()));
        assert_eq!(options.pool_size, 3);
        assert_eq!(options.statement_timeout, Duration::from_secs(2));
        assert_eq!(options.lock_timeout, Duration::from_millis(300));
        assert!(options.allow_unsafe_durability);
    }

    #[test]
    fn an_error_names_the_wrong_parameter() {
        for (url, field) in [
            ("postgres://db/jobs?pool_size=0", "pool_size"),
            (
                "postgres://db/jobs?statement_timeout=soon",
                "statement_timeout",
            ),
            ("postgres://db/jobs?lock_timeout=0s", "lock_timeout"),
            ("postgres://db/jobs?sslmode=prefer", "sslmode"),
            (
                "postgres://db/jobs?allow_unsafe_durability=maybe",
                "allow_unsafe_durability",
            ),
            ("postgres://db/jobs?sslrootcert=%zz", "sslrootcert"),
            ("postgres://db/jobs?colour=red", "url"),
            ("mysql://db/jobs", "url"),
        ] {
            let refused = Options::parse(url).unwrap_err();
            assert_eq!(refused.field(), field, "{url}: {refused}");
        }
    }
}
