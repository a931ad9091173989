//! Errors of opening a database, with the next step.

use std::error::Error as _;
use std::io::ErrorKind;

use tokio_postgres::config::Host;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Config, Error};
use windlass_store::StoreError;

use crate::error::DriverError;

/// Returns why a server could not be reached, or refused the connection.
pub(crate) fn refused(server: &Config, error: &Error) -> StoreError {
    let address = address(server);
    if let Some(db_error) = error.as_db_error() {
        let reason = format!(
            "PostgreSQL at {address} refused the connection: {}",
            db_error.message()
        );
        let next = next_step(db_error.code());
        return StoreError::CannotOpen { reason, next };
    }
    let cause = error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string);
    let kind = error
        .source()
        .and_then(|cause| cause.downcast_ref::<std::io::Error>())
        .map(std::io::Error::kind);
    let next = match kind {
        Some(ErrorKind::ConnectionRefused | ErrorKind::NotFound) => {
            "start the server, or correct the host and port in the URL"
        }
        Some(_) => "check the host and port in the URL, and the network",
        None => "correct the URL",
    };
    let reason = format!("cannot connect to PostgreSQL at {address}: {cause}");
    StoreError::CannotOpen { reason, next }
}

/// Returns that a server accepted a connection but did not answer.
pub(crate) fn silent(server: &Config) -> StoreError {
    StoreError::CannotOpen {
        reason: format!("PostgreSQL at {} does not answer", address(server)),
        next: "check the server, and the host and port in the URL",
    }
}

/// Returns why checking or migrating the schema failed.
pub(crate) fn failed(server: &Config, error: DriverError) -> StoreError {
    match &error {
        DriverError::Sql(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            refused(server, error)
        }
        _ => error.into_store_error(),
    }
}

fn next_step(code: &SqlState) -> &'static str {
    if *code == SqlState::INVALID_CATALOG_NAME {
        "create the database, or correct its name in the URL"
    } else if *code == SqlState::INVALID_PASSWORD {
        "correct the user and password in the URL"
    } else if *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION {
        "create the role or allow it in pg_hba.conf, or correct the user in the URL"
    } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        "grant the role connect and create on the database, or all on the schema `windlass`"
    } else if *code == SqlState::CANNOT_CONNECT_NOW || *code == SqlState::TOO_MANY_CONNECTIONS {
        "try again when the server accepts connections"
    } else {
        "correct the URL, or the settings of the server"
    }
}

/// Returns hosts and database, as in `10.0.0.1:5432, 10.0.0.2:5432 (database "jobs")`, without user
/// and password.
fn address(server: &Config) -> String {
    let ports = server.get_ports();
    let hosts = server.get_hosts().iter().enumerate().map(|(number, host)| {
        let port = ports.get(number).or(ports.first()).copied();
        let port = port.unwrap_or(5432);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            #[cfg(unix)]
            Host::Unix(path) => format!("{}:{port}", path.display()),
        }
    });
    let hosts: Vec<String> = hosts.collect();
    let database = server.get_dbname().or(server.get_user()).unwrap_or("");
    format!("{} (database {database:?})", hosts.join(", "))
}
