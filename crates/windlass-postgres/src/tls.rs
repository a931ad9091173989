//! TLS with verification of the server's certificate and name: there is no other.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;
use windlass_store::StoreError;

/// Makes connections that trust these certificates, or those of the system.
pub(crate) fn connector(roots: Option<&Path>) -> Result<MakeRustlsConnect, StoreError> {
    let mut trusted = RootCertStore::empty();
    match roots {
        Some(path) => {
            for certificate in read(path).map_err(|error| failed(path, error))? {
                trusted
                    .add(certificate)
                    .map_err(|error| failed(path, std::io::Error::other(error)))?;
            }
        }
        None => {
            trusted.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::Unavailable(error.into()))?
        .with_root_certificates(trusted)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

fn read(path: &Path) -> std::io::Result<Vec<rustls::pki_types::CertificateDer<'static>>> {
    let mut file = BufReader::new(File::open(path)?);
    let found: Vec<_> = rustls_pemfile::certs(&mut file).collect::<Result<_, _>>()?;
    if found.is_empty() {
        return Err(std::io::Error::other("there is no certificate in it"));
    }
    Ok(found)
}

fn failed(path: &Path, error: std::io::Error) -> StoreError {
    StoreError::CannotOpen {
        reason: format!("`sslrootcert` {} cannot be read: {error}", path.display()),
        next: "correct it in the URL",
    }
}
