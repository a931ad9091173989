//! TLS from a certificate and a key in files, which may be replaced while the server runs.

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

/// The files of a running server are looked at this often.
const LOOK_EVERY: Duration = Duration::from_secs(5);

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
        self.load().map(drop)
    }

    /// The certificates of the chain, each in DER.
    pub fn chain(&self) -> Result<Vec<Vec<u8>>, TlsError> {
        let loaded = self.load()?;
        Ok(loaded.cert.iter().map(|one| one.to_vec()).collect())
    }

    fn load(&self) -> Result<CertifiedKey, TlsError> {
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_file_iter(&self.certificate).and_then(Iterator::collect);
        let chain = chain.map_err(|cause| file("certificate", &self.certificate, cause))?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|cause| file("private key", &self.key, cause))?;
        CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(TlsError::Unfit)
    }

    /// What tells one version of the files from the next.
    fn stamp(&self) -> Stamp {
        let of = |path: &Path| {
            let about = std::fs::metadata(path).ok()?;
            Some((about.modified().ok()?, about.len()))
        };
        (of(&self.certificate), of(&self.key))
    }
}

/// When each file was changed, and its length.
type Stamp = (Option<(SystemTime, u64)>, Option<(SystemTime, u64)>);

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

/// The certificate that is offered. It follows its files; clones are the same.
#[derive(Debug, Clone)]
pub struct Certificate(Arc<Current>);

#[derive(Debug)]
struct Current {
    files: TlsFiles,
    offered: RwLock<Arc<CertifiedKey>>,
    seen: Mutex<Stamp>,
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let offered = self.offered.read();
        Some(Arc::clone(&offered.unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Certificate {
    pub(crate) fn load(files: &TlsFiles) -> Result<Self, TlsError> {
        // Before the files are read: what changes meanwhile is seen at the next look.
        let seen = files.stamp();
        Ok(Certificate(Arc::new(Current {
            offered: RwLock::new(Arc::new(files.load()?)),
            seen: Mutex::new(seen),
            files: files.clone(),
        })))
    }

    /// Reads the files again. New connections get the new certificate; if it cannot be used, they keep getting the old one.
    pub fn reload(&self) {
        let Current {
            files,
            offered,
            seen,
        } = &*self.0;
        *seen.lock().unwrap_or_else(PoisonError::into_inner) = files.stamp();
        let path = files.certificate.display();
        match files.load() {
            Ok(loaded) => {
                *offered.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
                info!(certificate = %path, "reloaded the TLS certificate");
            }
            Err(problem) => {
                let cause = problem.source().map(ToString::to_string);
                error!(certificate = %path, %problem, cause, "kept the old TLS certificate");
            }
        }
    }

    /// Reads the files again if they have changed.
    fn look(&self) {
        let seen = *self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if self.0.files.stamp() != seen {
            self.reload();
        }
    }

    /// Follows the files for ever.
    pub(crate) async fn follow(self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let certificate = self.clone();
            // Files may be slow. A look that broke is made again.
            let _ = tokio::task::spawn_blocking(move || certificate.look()).await;
        }
    }

    /// What takes connections over TLS.
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

    fn offered(certificate: &Certificate) -> Vec<u8> {
        certificate.0.offered.read().unwrap().cert[0].to_vec()
    }

    #[test]
    fn changed_files_are_followed_and_broken_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let (files, first) = write(folder.path(), 2030);
        let certificate = Certificate::load(&files).unwrap();
        certificate.look();
        assert_eq!(offered(&certificate), first);
        let set_back = |seconds: u64| {
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            let file = std::fs::File::options()
                .write(true)
                .open(&files.certificate);
            file.unwrap().set_modified(at).unwrap();
        };
        std::fs::write(&files.certificate, "nonsense").unwrap();
        certificate.look();
        assert_eq!(offered(&certificate), first, "a broken one is not offered");
        // The key of another certificate, as between two writes.
        let (_, second) = write(folder.path(), 2031);
        std::fs::write(
            &files.key,
            rcgen::KeyPair::generate().unwrap().serialize_pem(),
        )
        .unwrap();
        certificate.reload();
        assert_eq!(offered(&certificate), first);
        let (_, third) = write(folder.path(), 2032);
        set_back(1);
        certificate.look();
        assert_eq!(offered(&certificate), third);
        assert_ne!(second, third);
        // Nothing changed: the files are not read again.
        std::fs::write(
            &files.certificate,
            std::fs::read(&files.certificate).unwrap(),
        )
        .unwrap();
        set_back(1);
        certificate.look();
        assert_eq!(offered(&certificate), third);
    }
}
