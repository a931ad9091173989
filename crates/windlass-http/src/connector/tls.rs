//! The trusted certificate authorities: those of the machine, or a compiled-in list if the machine
//! has none, plus those that the operator adds.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

/// The trusted certificate authorities. Verification cannot be switched off.
#[derive(Debug, Clone, Default)]
pub struct TlsRoots {
    /// Certificates of additional authorities, in PEM format.
    pub extra_pem: Option<Vec<u8>>,
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The additional authorities cannot be used.
    #[error("the extra CA file holds no usable certificate: {0}")]
    BadExtra(String),
    /// The TLS library refuses its settings.
    #[error("cannot set up TLS: {0}")]
    Setup(String),
}

impl TlsRoots {
    /// Checks that the additional authorities can be used.
    ///
    /// # Errors
    ///
    /// [`TlsError::BadExtra`] if they hold no usable certificate.
    pub fn check(&self) -> Result<(), TlsError> {
        self.store().map(drop)
    }

    pub(crate) fn connector(&self) -> Result<TlsConnector, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Setup(error.to_string()))?;
        let mut config = builder
            .with_root_certificates(self.store()?)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsConnector::from(Arc::new(config)))
    }

    fn store(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        let native = rustls_native_certs::load_native_certs();
        let (added, _) = roots.add_parsable_certificates(native.certs);
        if added == 0 {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        let Some(pem) = &self.extra_pem else {
            return Ok(roots);
        };
        let bad = |error: String| TlsError::BadExtra(error);
        let mut added = 0;
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| bad(error.to_string()))?;
            roots
                .add(certificate)
                .map_err(|error| bad(error.to_string()))?;
            added += 1;
        }
        if added == 0 {
            return Err(bad("it holds no PEM certificate".to_owned()));
        }
        Ok(roots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roots(pem: &str) -> Result<RootCertStore, TlsError> {
        TlsRoots {
            extra_pem: Some(pem.as_bytes().to_vec()),
        }
        .store()
    }

    #[test]
    fn there_are_always_authorities_and_the_operator_can_add_some() {
        let plain = TlsRoots::default().store().unwrap().len();
        assert!(plain > 0);
        let own = rcgen::generate_simple_self_signed(["target.example".to_owned()]).unwrap();
        assert_eq!(roots(&own.cert.pem()).unwrap().len(), plain + 1);
        assert!(TlsRoots::default().connector().is_ok());
    }

    #[test]
    fn a_file_without_certificates_is_refused() {
        assert!(matches!(roots(""), Err(TlsError::BadExtra(_))));
        assert!(matches!(roots("not pem"), Err(TlsError::BadExtra(_))));
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(matches!(roots(broken), Err(TlsError::BadExtra(_))));
    }
}
