//! Servers whose certificate a private CA signed: `--ca` and `WINDLASS_CA`.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::support::{Server, command};

/// Writes a file that only its owner can read.
fn write(path: &Path, text: &str) {
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    std::io::Write::write_all(&mut file.expect("a file"), text.as_bytes()).expect("it is written");
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a CA")
}

#[test]
fn a_server_is_trusted_by_the_ca_that_signed_its_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let (ca, other) = (authority(), authority());
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
    let signed = params.signed_by(&key, &ca).expect("a certificate");
    write(&path("certificate.pem"), &signed.pem());
    write(&path("key.pem"), &key.serialize_pem());
    write(&path("ca.pem"), &ca.pem());
    write(&path("other.pem"), &other.pem());
    write(&path("empty.pem"), "no certificate\n");
    let data = path("data").display().to_string();
    let mut serve = command(&["serve", "--bind", "127.0.0.1:0", "--data", &data]);
    serve.env("WINDLASS_TLS_CERTIFICATE", path("certificate.pem"));
    serve.env("WINDLASS_TLS_KEY", path("key.pem"));
    let server = Server::spawn(serve);
    assert!(server.url.starts_with("https://"), "{}", server.url);

    let list = |flag: Option<&str>, variable: Option<&str>| {
        let mut list = command(&["queues", "list", "--url", &server.url]);
        if let Some(name) = flag {
            list.arg("--ca").arg(path(name));
        }
        if let Some(name) = variable {
            list.env("WINDLASS_CA", path(name));
        }
        let done = list.output().expect("it runs");
        let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
        (done.status.code().expect("an exit code"), stderr)
    };
    assert_eq!(list(Some("ca.pem"), None).0, 0);
    assert_eq!(list(None, Some("ca.pem")).0, 0);
    assert_eq!(
        list(Some("ca.pem"), Some("other.pem")).0,
        0,
        "the flag wins"
    );
    for (flag, code, text) in [
        (None, 1, "name the CA with `--ca FILE`"),
        (Some("other.pem"), 1, "name the CA with `--ca FILE`"),
        (
            Some("empty.pem"),
            2,
            "`--ca` must be a PEM file with certificates: it contains none",
        ),
        (
            Some("nowhere.pem"),
            2,
            "`--ca` must be a file that this command can read",
        ),
    ] {
        let (found, stderr) = list(flag, None);
        assert!(found == code && stderr.contains(text), "{flag:?}: {stderr}");
    }
    let mut doctor = command(&["doctor", "--url", &server.url]);
    let done = doctor
        .env("WINDLASS_CA", path("ca.pem"))
        .output()
        .expect("it runs");
    assert!(done.status.success(), "{done:?}");
}
