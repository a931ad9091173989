//! TLS with a certificate and a key from files, which may be replaced while the server runs.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tracing::{error, info};

use crate::lock;

/// How often a running listener checks whether the files changed.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// The files of a certificate and its private key, in PEM format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, followed by its intermediate certificates.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl TlsFiles {
    /// Checks that the files can be used for TLS.
    ///
    /// # Errors
    ///
    /// [`TlsError`] if a file cannot be read, or the key does not belong to the certificate.
    pub fn check(&self) -> Result<(), TlsError> {
        self.load().map(drop)
    }

    /// Reads the files and returns the certificates of the chain, each in DER format.
    ///
    /// # Errors
    ///
    /// As [`TlsFiles::check`].
    pub fn chain(&self) -> Result<Vec<Vec<u8>>, TlsError> {
        let loaded = self.load()?;
        let chain = loaded.cert.iter().map(|certificate| certificate.to_vec());
        Ok(chain.collect())
    }

    fn load(&self) -> Result<CertifiedKey, TlsError> {
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_file_iter(&self.certificate).and_then(Iterator::collect);
        let chain = chain.map_err(|cause| unreadable("certificate", &self.certificate, cause))?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|cause| unreadable("private key", &self.key, cause))?;
        CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(TlsError::Unfit)
    }

    /// Returns a value that changes when the files change.
    fn version(&self) -> FilesVersion {
        let version = |path: &Path| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        };
        (version(&self.certificate), version(&self.key))
    }
}

/// The modification time and the length of each file.
type FilesVersion = (Option<(SystemTime, u64)>, Option<(SystemTime, u64)>);

/// Why a certificate and its key cannot be used for TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or holds no certificate or key.
    #[error("cannot read the {what} in {path}; it must be a PEM file that this process can read")]
    File {
        /// `certificate` or `private key`.
        what: &'static str,
        /// The file.
        path: String,
        /// The error of the file system or of the PEM parser.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The key does not belong to the certificate, or TLS does not support one of them.
    #[error(
        "the private key does not belong to the certificate, or their algorithm is not supported"
    )]
    Unfit(#[source] tokio_rustls::rustls::Error),
}

/// The certificate that a listener presents. It reloads when its files change. Clones share it.
#[derive(Debug, Clone)]
pub struct Certificate(Arc<CurrentCertificate>);

#[derive(Debug)]
struct CurrentCertificate {
    files: TlsFiles,
    key: RwLock<Arc<CertifiedKey>>,
    loaded_version: Mutex<FilesVersion>,
}

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let key = self.key.read();
        Some(Arc::clone(&key.unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Certificate {
    pub(crate) fn load(files: &TlsFiles) -> Result<Self, TlsError> {
        // Taken before the files are read, so the next check notices a change in between.
        let version = files.version();
        Ok(Certificate(Arc::new(CurrentCertificate {
            key: RwLock::new(Arc::new(files.load()?)),
            loaded_version: Mutex::new(version),
            files: files.clone(),
        })))
    }

    /// Reads the files again and presents the new certificate to new connections. If it cannot be
    /// used, the listener logs an error and keeps the old one.
    pub fn reload(&self) {
        let CurrentCertificate {
            files,
            key,
            loaded_version,
        } = &*self.0;
        *lock(loaded_version) = files.version();
        let path = files.certificate.display();
        match files.load() {
            Ok(loaded) => {
                *key.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
                info!(certificate = %path, "reloaded the TLS certificate");
            }
            Err(error) => {
                let cause = error.source().map(ToString::to_string);
                error!(certificate = %path, %error, cause, "reload failed; kept the old TLS certificate");
            }
        }
    }

    /// Reloads the files if they changed.
    fn reload_if_changed(&self) {
        let loaded_version = *lock(&self.0.loaded_version);
        if self.0.files.version() != loaded_version {
            self.reload();
        }
    }

    /// Reloads the files whenever they change, forever.
    pub(crate) async fn reload_on_change(self) {
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            let certificate = self.clone();
            // Reading files may block. If a check panics, the next one tries again.
            let _ = tokio::task::spawn_blocking(move || certificate.reload_if_changed()).await;
        }
    }

    /// Returns an acceptor that presents the current certificate to each new connection.
    pub(crate) fn acceptor(&self) -> Result<TlsAcceptor, TlsError> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Unfit)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&self.0) as _);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn unreadable(
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

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, until: i32) -> (TlsFiles, Vec<u8>) {
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        let made = params.self_signed(&key).unwrap();
        let files = TlsFiles {
            certificate: folder.join("cert.pem"),
            key: folder.join("key.pem"),
        };
        std::fs::write(&files.certificate, made.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        (files, made.der().to_vec())
    }

    fn presented(certificate: &Certificate) -> Vec<u8> {
        certificate.0.key.read().unwrap().cert[0].to_vec()
    }

    #[test]
    fn changed_files_are_reloaded_unless_they_are_broken() {
        let folder = tempfile::tempdir().unwrap();
        let (files, first) = write(folder.path(), 2030);
        let certificate = Certificate::load(&files).unwrap();
        certificate.reload_if_changed();
        assert_eq!(presented(&certificate), first);
        let set_back = |seconds: u64| {
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            let file = std::fs::File::options()
                .write(true)
                .open(&files.certificate);
            file.unwrap().set_modified(at).unwrap();
        };
        std::fs::write(&files.certificate, "nonsense").unwrap();
        certificate.reload_if_changed();
        assert_eq!(presented(&certificate), first, "a broken one is not used");
        // The key of another certificate, as between two writes.
        let (_, second) = write(folder.path(), 2031);
        std::fs::write(
            &files.key,
            rcgen::KeyPair::generate().unwrap().serialize_pem(),
        )
        .unwrap();
        certificate.reload();
        assert_eq!(presented(&certificate), first);
        let (_, third) = write(folder.path(), 2032);
        set_back(1);
        certificate.reload_if_changed();
        assert_eq!(presented(&certificate), third);
        assert_ne!(second, third);
        // Nothing changed: the files are not read again.
        std::fs::write(
            &files.certificate,
            std::fs::read(&files.certificate).unwrap(),
        )
        .unwrap();
        set_back(1);
        certificate.reload_if_changed();
        assert_eq!(presented(&certificate), third);
    }
}
