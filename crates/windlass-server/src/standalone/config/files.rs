//! Checks the files that settings name: the TLS certificate and key, and certificate authorities.
//!
//! Only a server needs them. Other commands that open the same store work even if they cannot read
//! the certificate.

use std::error::Error;
use std::path::Path;

use windlass_http::TlsRoots;
use windlass_listen::{TlsError, TlsFiles};

use super::secret::{Privacy, privacy};
use super::settings::PartialConfig;
use super::{Origin, Problem};

impl PartialConfig {
    /// Returns the problems with the files and adds lesser ones to `warnings`.
    pub(super) fn broken_files(
        &self,
        origin: impl Fn(&str) -> Origin,
        warnings: &mut Vec<String>,
    ) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut refuse = |key: &'static str, rule: String| {
            let (origin, key) = (origin(key), key.to_owned());
            problems.push(Problem { origin, key, rule });
        };
        let certificate = self.tls_certificate.as_ref().and_then(Option::as_ref);
        let key = self.tls_key.as_ref().and_then(Option::as_ref);
        if let Some((certificate, key)) = certificate.zip(key) {
            let files = TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
            };
            if let Err(error) = files.check() {
                refuse(key_of(&error), unusable(&error));
            }
        }
        if let Some(key) = key {
            match privacy(key) {
                Privacy::Private => {}
                Privacy::Exposed => refuse("tls.key", Privacy::refusal(key)),
                Privacy::ExposedByEnvironment => warnings.push(Privacy::warning("tls.key", key)),
            }
        }
        let authorities = self.http_jobs_ca_file.as_ref().and_then(Option::as_ref);
        if let Some(Err(rule)) = authorities.map(|path| check_authorities(path)) {
            refuse("http_jobs.ca_file", rule);
        }
        problems
    }
}

fn key_of(error: &TlsError) -> &'static str {
    match error {
        TlsError::File { what, .. } if *what == "certificate" => "tls.certificate",
        _ => "tls.key",
    }
}

fn check_authorities(path: &Path) -> Result<(), String> {
    let unreadable = |error: std::io::Error| {
        let path = path.display();
        format!("names the file {path}, which cannot be read: {error}")
    };
    let pem = std::fs::read(path).map_err(unreadable)?;
    let roots = TlsRoots {
        extra_pem: Some(pem),
    };
    roots.check().map_err(|error| unusable(&error))
}

/// Describes an error with its cause, worded to follow the name of a setting.
fn unusable(error: &dyn Error) -> String {
    match error.source() {
        Some(cause) => format!("cannot be used: {error} ({cause})"),
        None => format!("cannot be used: {error}"),
    }
}
