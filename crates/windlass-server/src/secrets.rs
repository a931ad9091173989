//! Secrets in the store, encrypted with a key that is not in the store.
//!
//! Each secret is encrypted with XChaCha20-Poly1305 and its own nonce. The encryption is bound to
//! the name of the secret and to the hosts it signs for: if someone changes these in the store,
//! decryption fails. A stored secret has the fingerprint of its master key, so that keys can be
//! rotated: old keys stay configured until [`Secrets::rotate`] has re-encrypted everything. A
//! server does not start if its keys cannot decrypt every secret.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chacha20poly1305::aead::{Aead as _, KeyInit as _, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use windlass_api::Secret;
use windlass_core::{Invalid, check_path_segment};
use windlass_engine::Engine;
use windlass_http::SecretHosts;
use windlass_store::{Document, Expected, StoreError, Written, compare_and_set};
use zeroize::{Zeroize as _, Zeroizing};

/// The collection of the secrets.
const COLLECTION: &str = "secrets";
/// The largest secret in bytes.
pub const SECRET_BYTES_MAX: usize = 64 * 1024;
/// The most secrets in a store.
pub const SECRETS_MAX: usize = 10_000;
const NAME_CHARS_MAX: usize = 128;

/// An error about secrets. No message contains a secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// No master key is configured.
    #[error(
        "no master key is configured: set `secrets.master_key`; `windlass secrets new-key` prints a new key"
    )]
    NoMasterKey,
    /// A master key has the wrong format.
    #[error(
        "the master key must be 64 hexadecimal digits; `windlass secrets new-key` prints a new key"
    )]
    BadMasterKey,
    /// A secret was encrypted with a master key that is not configured.
    #[error(
        "the secret {name} was encrypted with the master key {key}, which is not configured: set it as `secrets.master_key` or add it to `secrets.old_keys`"
    )]
    WrongMasterKey {
        /// The name of the secret.
        name: String,
        /// The fingerprint of the master key.
        key: String,
    },
    /// Other nodes still encrypt with an old master key.
    #[error(
        "other nodes still encrypt secrets with an old master key: first set the new key as `secrets.master_key` on every node"
    )]
    StillOld,
    /// A secret cannot be decrypted although its master key is configured.
    #[error(
        "the secret {0} cannot be decrypted because it was changed in the store: store it again with `windlass secrets put`"
    )]
    Changed(String),
    /// A name or a value is invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The operating system returned no random bytes.
    #[error("the operating system returned no random bytes")]
    Random(#[source] getrandom::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A key that encrypts secrets. `Debug` prints only its fingerprint.
#[derive(Clone)]
pub struct MasterKey(Zeroizing<[u8; 32]>);

impl MasterKey {
    /// Generates a key with random bytes of the operating system.
    pub fn generate() -> Result<Self, SecretError> {
        let mut key = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *key).map_err(SecretError::Random)?;
        Ok(MasterKey(key))
    }

    /// Parses a key of 64 hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let bytes = HEXLOWER_PERMISSIVE.decode(text.trim().as_bytes());
        let bytes = Zeroizing::new(bytes.map_err(|_| SecretError::BadMasterKey)?);
        let key = <[u8; 32]>::try_from(bytes.as_slice()).map_err(|_| SecretError::BadMasterKey)?;
        Ok(MasterKey(Zeroizing::new(key)))
    }

    /// Returns the key in the format that [`MasterKey::parse`] reads.
    pub fn reveal(&self) -> String {
        HEXLOWER.encode(&*self.0)
    }

    /// Returns a short name of the key that does not reveal it.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(b"windlass master key");
        hash.update(*self.0);
        HEXLOWER.encode(hash.finalize().get(..6).unwrap_or_default())
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        let mut key = Key::from(*self.0);
        let cipher = XChaCha20Poly1305::new(&key);
        key.zeroize();
        cipher
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterKey({})", self.fingerprint())
    }
}

/// The document of a secret.
#[derive(Debug, Serialize, Deserialize)]
struct Sealed {
    /// The fingerprint of the master key.
    key: String,
    nonce: String,
    sealed: String,
    /// The hosts that the secret signs for; null for every host.
    hosts: Option<Vec<String>>,
}

/// A decrypted secret. `Debug` does not print its value.
pub struct StoredSecret {
    /// The value of the secret.
    pub value: Zeroizing<Vec<u8>>,
    /// The hosts that the secret signs for.
    pub hosts: SecretHosts,
}

impl fmt::Debug for StoredSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("StoredSecret");
        shown.field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// The secrets of one store.
#[derive(Debug, Clone)]
pub struct Secrets {
    engine: Arc<Engine>,
    /// The master keys, the current one first.
    keys: Arc<[MasterKey]>,
}

impl Secrets {
    /// Creates the secrets of a store with the current master key, if any, and earlier keys.
    pub fn new(engine: Arc<Engine>, key: Option<MasterKey>, old_keys: Vec<MasterKey>) -> Self {
        let keys = key.into_iter().chain(old_keys).collect();
        Secrets { engine, keys }
    }

    /// Checks that the master keys can decrypt every secret. Changes nothing.
    pub async fn check(&self) -> Result<(), SecretError> {
        for document in self.documents().await? {
            self.open(&document)?;
        }
        Ok(())
    }

    async fn documents(&self) -> Result<Vec<Document>, StoreError> {
        let (store, now) = (self.engine.store(), self.engine.now());
        store.documents(COLLECTION, now).await
    }

    async fn document(&self, name: &str) -> Result<Option<Document>, StoreError> {
        let (store, now) = (self.engine.store(), self.engine.now());
        store.document(COLLECTION, name, now).await
    }

    /// Stores a secret for these hosts. Replaces a secret with the same name.
    pub async fn put(
        &self,
        name: &str,
        secret: &[u8],
        hosts: &SecretHosts,
    ) -> Result<(), SecretError> {
        self.write(name, secret, hosts, Expected::Any)
            .await
            .map(|_| ())
    }

    /// Stores a secret for these hosts unless one with this name exists. Returns whether it was
    /// stored.
    pub async fn create(
        &self,
        name: &str,
        secret: &[u8],
        hosts: &SecretHosts,
    ) -> Result<bool, SecretError> {
        let written = self.write(name, secret, hosts, Expected::Absent).await?;
        Ok(matches!(written, Written::Version(_)))
    }

    async fn write(
        &self,
        name: &str,
        secret: &[u8],
        hosts: &SecretHosts,
        expected: Expected,
    ) -> Result<Written, SecretError> {
        check_name(name)?;
        if secret.is_empty() || secret.len() > SECRET_BYTES_MAX {
            let rule = format!("must have 1 to {SECRET_BYTES_MAX} bytes");
            return Err(Invalid::new("secret", rule).into());
        }
        if self.document(name).await?.is_none() && self.names().await?.len() >= SECRETS_MAX {
            let rule = format!("must be at most {SECRETS_MAX} in total: remove some");
            return Err(Invalid::new("secrets", rule).into());
        }
        self.store_sealed(name, secret, hosts, expected).await
    }

    async fn store_sealed(
        &self,
        name: &str,
        secret: &[u8],
        hosts: &SecretHosts,
        expected: Expected,
    ) -> Result<Written, SecretError> {
        let sealed = self.seal(name, secret, hosts)?;
        let (store, now) = (self.engine.store(), self.engine.now());
        let written = store.put_document(COLLECTION, name, &sealed, expected, None, now);
        Ok(written.await?)
    }

    /// Returns the secret with this name.
    pub async fn get(&self, name: &str) -> Result<Option<StoredSecret>, SecretError> {
        check_form(name)?;
        let found = self.document(name).await?;
        found.map(|document| self.open(&document)).transpose()
    }

    /// Returns the hosts that a secret signs for, or `None` if it does not exist. Needs no master
    /// key.
    pub async fn hosts(&self, name: &str) -> Result<Option<SecretHosts>, SecretError> {
        if check_form(name).is_err() {
            return Ok(None);
        }
        let found = self.document(name).await?;
        found.map(|document| hosts_of(&document)).transpose()
    }

    /// Returns all secrets by name, without their values. Needs no master key.
    pub async fn list(&self) -> Result<Vec<Secret>, SecretError> {
        let all = self.documents().await?;
        let shown = |document: Document| {
            let hosts = hosts_of(&document)?;
            Ok(Secret {
                name: document.name,
                any_host: hosts == SecretHosts::Any,
                hosts: hosts.names().unwrap_or_default(),
            })
        };
        all.into_iter().map(shown).collect()
    }

    /// Returns the names of all secrets in order.
    pub async fn names(&self) -> Result<Vec<String>, SecretError> {
        let all = self.documents().await?;
        Ok(all.into_iter().map(|document| document.name).collect())
    }

    /// Removes a secret. Returns whether it existed.
    pub async fn remove(&self, name: &str) -> Result<bool, SecretError> {
        check_form(name)?;
        if self.document(name).await?.is_none() {
            return Ok(false);
        }
        let (store, any) = (self.engine.store(), Expected::Any);
        store.remove_document(COLLECTION, name, any).await?;
        Ok(true)
    }

    /// Re-encrypts all secrets with the current master key. Returns how many it re-encrypted.
    pub async fn rotate(&self) -> Result<u64, SecretError> {
        self.current()?;
        self.check().await?;
        let rotated = AtomicU64::new(0);
        // During a pass, another node that has only the old key may encrypt a secret with it.
        let still_old = || SecretError::StillOld;
        compare_and_set(still_old, || self.rotate_pass(&rotated)).await?;
        Ok(rotated.into_inner())
    }

    /// Re-encrypts every secret that uses an old key, and counts them in `rotated`. Returns `None`
    /// if there were any: another pass must then confirm that none are left.
    async fn rotate_pass(&self, rotated: &AtomicU64) -> Result<Option<()>, SecretError> {
        let current = self.current()?.fingerprint();
        let mut is_done = true;
        for document in self.documents().await? {
            if read(&document)?.key == current {
                continue;
            }
            is_done = false;
            let opened = self.open(&document)?;
            let version = Expected::Version(document.version);
            let written = self.store_sealed(&document.name, &opened.value, &opened.hosts, version);
            if let Written::Version(_) = written.await? {
                rotated.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(is_done.then_some(()))
    }

    fn current(&self) -> Result<&MasterKey, SecretError> {
        self.keys.first().ok_or(SecretError::NoMasterKey)
    }

    fn seal(&self, name: &str, secret: &[u8], hosts: &SecretHosts) -> Result<Value, SecretError> {
        let key = self.current()?;
        let mut nonce = [0; 24];
        getrandom::fill(&mut nonce).map_err(SecretError::Random)?;
        let payload = Payload {
            msg: secret,
            aad: &bound_to(name, hosts),
        };
        let sealed = key.cipher().encrypt(&XNonce::from(nonce), payload);
        let sealed = sealed.map_err(|_| SecretError::Changed(name.to_owned()))?;
        let sealed = Sealed {
            key: key.fingerprint(),
            nonce: HEXLOWER.encode(&nonce),
            sealed: HEXLOWER.encode(&sealed),
            hosts: hosts.names(),
        };
        Ok(serde_json::to_value(sealed).unwrap_or_default())
    }

    fn open(&self, document: &Document) -> Result<StoredSecret, SecretError> {
        let (name, sealed) = (&document.name, read(document)?);
        let changed = || SecretError::Changed(name.clone());
        let key = self.keys.iter().find(|key| key.fingerprint() == sealed.key);
        let Some(key) = key else {
            return Err(SecretError::WrongMasterKey {
                name: name.clone(),
                key: sealed.key,
            });
        };
        let bytes = |hex: &str| HEXLOWER_PERMISSIVE.decode(hex.as_bytes()).ok();
        let nonce = bytes(&sealed.nonce).and_then(|nonce| <[u8; 24]>::try_from(nonce).ok());
        let bytes = bytes(&sealed.sealed).ok_or_else(changed)?;
        let hosts = hosts_of(document)?;
        let payload = Payload {
            msg: &bytes,
            aad: &bound_to(name, &hosts),
        };
        let opened = key
            .cipher()
            .decrypt(&XNonce::from(nonce.ok_or_else(changed)?), payload);
        let value = Zeroizing::new(opened.map_err(|_| changed())?);
        Ok(StoredSecret { value, hosts })
    }
}

fn read(document: &Document) -> Result<Sealed, SecretError> {
    let sealed = Sealed::deserialize(&document.value);
    sealed.map_err(|_| SecretError::Changed(document.name.clone()))
}

fn hosts_of(document: &Document) -> Result<SecretHosts, SecretError> {
    let Some(hosts) = read(document)?.hosts else {
        return Ok(SecretHosts::Any);
    };
    SecretHosts::parse(&hosts).map_err(|_| SecretError::Changed(document.name.clone()))
}

/// Returns the data that the encryption of a secret is bound to. JSON separates the parts.
fn bound_to(name: &str, hosts: &SecretHosts) -> Vec<u8> {
    json!([name, hosts.names()]).to_string().into_bytes()
}

/// Checks the name of a new secret. `rotate` is reserved: it is an action next to the secrets in
/// the REST API.
fn check_name(name: &str) -> Result<(), Invalid> {
    match name {
        "rotate" => Err(Invalid::new("name", "must not be `rotate`")),
        name => check_form(name),
    }
}

fn check_form(name: &str) -> Result<(), Invalid> {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "_.:-".contains(letter);
    if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(allowed) {
        let rule = format!("must be 1 to {NAME_CHARS_MAX} letters, digits, `_`, `.`, `:` or `-`");
        return Err(Invalid::new("name", rule));
    }
    check_path_segment(name).map_err(|error| error.within("name"))
}

#[cfg(test)]
mod tests;
