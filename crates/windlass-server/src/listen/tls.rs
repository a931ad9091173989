//! TLS from a certificate and a key in files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Where the certificate and its key are, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, with those that it is signed by.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl TlsFiles {
    /// Refuses files that TLS cannot be offered with.
    pub fn check(&self) -> Result<(), TlsError> {
        acceptor(self).map(drop)
    }
}

/// TLS cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or has nothing of the kind.
    #[error("the {what} in {path} cannot be read: it must be PEM")]
    File {
        /// Which of the two.
        what: &'static str,
        /// The file.
        path: String,
        /// What is wrong.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The two do not fit.
    #[error("the certificate and the private key do not fit together")]
    Unfit(#[source] tokio_rustls::rustls::Error),
}

/// What takes connections over TLS.
pub(super) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(&files.certificate).and_then(Iterator::collect);
    let certificates =
        certificates.map_err(|cause| file("certificate", &files.certificate, cause))?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|cause| file("private key", &files.key, cause))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            builder
                .with_no_client_auth()
                .with_single_cert(certificates, key)
        })
        .map_err(TlsError::Unfit)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn file(
    what: &'static str,
    path: &Path,
    cause: impl std::error::Error + Send + Sync + 'static,
) -> TlsError {
    TlsError::File {
        what,
        path: path.display().to_string(),
        cause: Box::new(cause),
    }
}
