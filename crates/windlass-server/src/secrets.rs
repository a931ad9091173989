//! Secrets in the store, encrypted with a key that is not in the store.
//!
//! Each secret is sealed with XChaCha20-Poly1305 under a nonce of its own, bound to its name and to the hosts it signs for: one
//! that was moved to another name, or given other hosts in the store, does not open. A secret says which master key sealed it, so that keys can be changed: old ones are kept in a list until
//! [`Secrets::rotate`] has sealed everything anew. A server whose keys do not open every secret does not start.

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
/// The largest secret.
pub const SECRET_BYTES_MAX: usize = 64 * 1024;
/// The most secrets.
pub const SECRETS_MAX: usize = 10_000;
const NAME_CHARS_MAX: usize = 128;

/// Something about secrets went wrong. No message has anything secret in it.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// There is no master key.
    #[error(
        "there is no master key: set `secrets.master_key` (`windlass secrets new-key` makes one)"
    )]
    NoMasterKey,
    /// A master key is none.
    #[error(
        "the master key must be 64 hexadecimal digits, as `windlass secrets new-key` prints them"
    )]
    BadMasterKey,
    /// A secret was sealed with a key that is not given.
    #[error(
        "secret {name} was sealed with master key {key}, which is not given: set it as `secrets.master_key` or in `secrets.old_keys`"
    )]
    WrongMasterKey {
        /// Which secret.
        name: String,
        /// The fingerprint of the key that sealed it.
        key: String,
    },
    /// Others go on sealing with an old key.
    #[error(
        "secrets are still being sealed with an old master key: give every node the new one as `secrets.master_key` first"
    )]
    StillOld,
    /// A secret does not open, though its key is given.
    #[error("secret {0} does not open: it was changed in the store")]
    Changed(String),
    /// A name or a value breaks a rule.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The operating system gave no randomness.
    #[error("the operating system gives no randomness")]
    Random(#[source] getrandom::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A key that secrets are sealed with.
#[derive(Clone)]
pub struct MasterKey(Zeroizing<[u8; 32]>);

impl MasterKey {
    /// A new one, from the randomness of the operating system.
    pub fn generate() -> Result<Self, SecretError> {
        let mut key = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *key).map_err(SecretError::Random)?;
        Ok(MasterKey(key))
    }

    /// Reads 64 hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let bytes = HEXLOWER_PERMISSIVE.decode(text.trim().as_bytes());
        let bytes = Zeroizing::new(bytes.map_err(|_| SecretError::BadMasterKey)?);
        let key = <[u8; 32]>::try_from(bytes.as_slice()).map_err(|_| SecretError::BadMasterKey)?;
        Ok(MasterKey(Zeroizing::new(key)))
    }

    /// What `parse` reads.
    pub fn reveal(&self) -> String {
        HEXLOWER.encode(&*self.0)
    }

    /// A short name that tells nothing about the key.
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

/// A secret as it is stored.
#[derive(Debug, Serialize, Deserialize)]
struct Sealed {
    /// The fingerprint of the key.
    key: String,
    nonce: String,
    sealed: String,
    /// The hosts it signs for, as they are written; null for every host.
    hosts: Option<Vec<String>>,
}

/// A secret as it is used. Its value is not shown.
pub struct StoredSecret {
    /// What was put.
    pub value: Zeroizing<Vec<u8>>,
    /// The hosts it signs for.
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
    /// The current key first.
    keys: Arc<[MasterKey]>,
}

impl Secrets {
    /// With the current master key, if there is one, and those before it.
    pub fn new(engine: Arc<Engine>, key: Option<MasterKey>, old_keys: Vec<MasterKey>) -> Self {
        let keys = key.into_iter().chain(old_keys).collect();
        Secrets { engine, keys }
    }

    /// Refuses keys that do not open every secret. Changes nothing.
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

    /// Keeps a secret under a name, for these hosts; one that was there is replaced.
    pub async fn put(
        &self,
        name: &str,
        secret: &[u8],
        hosts: &SecretHosts,
    ) -> Result<(), SecretError> {
        let any = Expected::Any;
        self.write(name, secret, hosts, any).await.map(|_| ())
    }

    /// Keeps a secret under a name that has none, for these hosts. Whether it had none.
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
            let rule = format!("must be at most {SECRETS_MAX} in all");
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

    /// The secret of a name.
    pub async fn get(&self, name: &str) -> Result<Option<StoredSecret>, SecretError> {
        check_form(name)?;
        let found = self.document(name).await?;
        found.map(|document| self.open(&document)).transpose()
    }

    /// The hosts that a secret signs for; nothing where there is no such secret. Needs no key.
    pub async fn hosts(&self, name: &str) -> Result<Option<SecretHosts>, SecretError> {
        if check_form(name).is_err() {
            return Ok(None);
        }
        let found = self.document(name).await?;
        found.map(|document| hosts_of(&document)).transpose()
    }

    /// All of them by name, without their values. Needs no key.
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

    /// The names, in order.
    pub async fn names(&self) -> Result<Vec<String>, SecretError> {
        let all = self.documents().await?;
        Ok(all.into_iter().map(|document| document.name).collect())
    }

    /// Forgets a secret. Whether it was there.
    pub async fn remove(&self, name: &str) -> Result<bool, SecretError> {
        check_form(name)?;
        if self.document(name).await?.is_none() {
            return Ok(false);
        }
        let (store, any) = (self.engine.store(), Expected::Any);
        store.remove_document(COLLECTION, name, any).await?;
        Ok(true)
    }

    /// Seals with the current key everything that an old key sealed, until nothing is left. Returns
    /// how many secrets it sealed.
    pub async fn rotate(&self) -> Result<u64, SecretError> {
        self.current()?;
        self.check().await?;
        let rotated = AtomicU64::new(0);
        // During a pass, a node that knows only the old key may seal a secret with it again.
        let still_old = || SecretError::StillOld;
        compare_and_set(still_old, || self.rotate_pass(&rotated)).await?;
        Ok(rotated.into_inner())
    }

    /// Seals everything again that an old key sealed, and counts it. `None` if there was something:
    /// another pass must find nothing.
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

/// What a sealed secret is bound to: JSON keeps the parts apart.
fn bound_to(name: &str, hosts: &SecretHosts) -> Vec<u8> {
    json!([name, hosts.names()]).to_string().into_bytes()
}

/// A name for a new secret: `rotate` is the name of an action beside them.
fn check_name(name: &str) -> Result<(), Invalid> {
    match name {
        "rotate" => Err(Invalid::new("name", "must not be `rotate`")),
        name => check_form(name),
    }
}

fn check_form(name: &str) -> Result<(), Invalid> {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "_.:-".contains(letter);
    if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(allowed) {
        let rule =
            format!("must be 1 to {NAME_CHARS_MAX} of letters, digits, `_`, `.`, `:` and `-`");
        return Err(Invalid::new("name", rule));
    }
    check_path_segment(name).map_err(|error| error.within("name"))
}

#[cfg(test)]
mod tests;
