//! TLS connections. They always verify the certificate and the name of the server.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;
use windlass_store::StoreError;

/// Returns a TLS connector that trusts these root certificates, or those of the system.
pub(crate) fn connector(roots: Option<&Path>) -> Result<MakeRustlsConnect, StoreError> {
    let mut trusted = RootCertStore::empty();
    match roots {
        Some(path) => {
            let found = CertificateDer::pem_file_iter(path);
            for certificate in found.map_err(|error| failed(path, &error))? {
                let certificate = certificate.map_err(|error| failed(path, &error))?;
                let added = trusted.add(certificate);
                added.map_err(|error| failed(path, &error))?;
            }
            if trusted.is_empty() {
                return Err(failed(path, &"the file has no certificate"));
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

fn failed(path: &Path, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::CannotOpen {
        reason: format!("`sslrootcert` {} cannot be read: {error}", path.display()),
        next: "correct the path in the URL",
    }
}
