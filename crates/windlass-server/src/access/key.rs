//! The text of an API key: `wl_<public id>_<secret>_<checksum>`.
//!
//! The public id identifies the key and may be shown. The secret is 256 random bits; the store has
//! only its hash. The checksum detects mistyped and truncated keys without a read of the store, and
//! helps scanners to find leaked keys.

use std::fmt;

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

const PREFIX: &str = "wl_";
const ID_CHARS: usize = 12;
const SECRET_CHARS: usize = 43;
const CHECKSUM_CHARS: usize = 6;
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// An API key with its secret. `Debug` does not print the secret.
#[derive(Clone)]
pub struct ApiKey {
    id: String,
    secret: String,
}

impl ApiKey {
    /// Generates a key with random bytes of the operating system.
    pub fn generate() -> Result<Self, getrandom::Error> {
        Ok(ApiKey {
            id: random_text(ID_CHARS)?,
            secret: random_text(SECRET_CHARS)?,
        })
    }

    /// Parses a key. Returns `None` if the format or the checksum is wrong.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix(PREFIX)?.split('_');
        let (id, secret, checksum) = (parts.next()?, parts.next()?, parts.next()?);
        let sized = secret.len() == SECRET_CHARS && checksum.len() == CHECKSUM_CHARS;
        let alphanumeric = secret.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !sized || parts.next().is_some() || !ApiKey::is_id(id) || !alphanumeric {
            return None;
        }
        let key = ApiKey {
            id: id.to_owned(),
            secret: secret.to_owned(),
        };
        (key.checksum() == checksum).then_some(key)
    }

    /// Whether a text has the format of a public id.
    pub(super) fn is_id(text: &str) -> bool {
        text.len() == ID_CHARS && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
    }

    /// Returns the public id, which may be shown.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the hash that the store keeps.
    pub fn hash(&self) -> KeyHash {
        let mut hash = Sha256::new();
        hash.update(self.id.as_bytes());
        hash.update(b"_");
        hash.update(self.secret.as_bytes());
        KeyHash(hash.finalize().into())
    }

    /// Returns the complete key. Show it only once, right after its creation.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}{}_{}_{}", self.id, self.secret, self.checksum())
    }

    /// Returns a forged key: this id with the secret of another key.
    #[cfg(test)]
    pub(super) fn with_secret_of(&self, other: &ApiKey) -> ApiKey {
        ApiKey {
            id: self.id.clone(),
            secret: other.secret.clone(),
        }
    }

    fn checksum(&self) -> String {
        let mut rest = crc32(format!("{}_{}", self.id, self.secret).as_bytes());
        let mut text = [b'0'; CHECKSUM_CHARS];
        for character in text.iter_mut().rev() {
            *character = digit(rest % 62);
            rest /= 62;
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKey({}, …)", self.id)
    }
}

/// The SHA-256 hash of a key. Has no `PartialEq`, so that all comparisons take constant time.
#[derive(Clone)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// Compares two hashes in constant time.
    pub fn matches(&self, other: &KeyHash) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// Returns a hash that no key has. Comparing an unknown id with it takes as long as a wrong
    /// secret.
    pub(super) fn of_no_key() -> Self {
        KeyHash([0; 32])
    }

    /// Returns the hash as the store keeps it.
    pub(super) fn to_hex(&self) -> String {
        HEXLOWER.encode(&self.0)
    }

    pub(super) fn from_hex(text: &str) -> Option<Self> {
        let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?;
        bytes.try_into().ok().map(KeyHash)
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(…)")
    }
}

/// Returns random letters and digits, all equally likely: skips bytes from 248, the largest
/// multiple of 62.
pub(super) fn random_text(chars: usize) -> Result<String, getrandom::Error> {
    let mut text = String::with_capacity(chars);
    let mut drawn = [0u8; 64];
    while text.len() < chars {
        getrandom::fill(&mut drawn)?;
        let fair = drawn.iter().filter(|byte| **byte < 248);
        let missing = chars - text.len();
        text.extend(
            fair.take(missing)
                .map(|byte| char::from(digit(u32::from(*byte)))),
        );
    }
    Ok(text)
}

fn digit(number: u32) -> u8 {
    let index = usize::try_from(number % 62).unwrap_or(0);
    DIGITS.get(index).copied().unwrap_or(b'0')
}

/// CRC-32 as in gzip. Bit by bit is fast enough for short keys.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            let carry = crc & 1 == 1;
            crc >>= 1;
            if carry {
                crc ^= 0xEDB8_8320;
            }
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn crc32_matches_the_standard_check_value() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    }

    #[test]
    fn a_key_survives_a_round_trip_with_the_same_hash() {
        let key = ApiKey::generate().unwrap();
        let text = key.reveal();
        assert_eq!(text.len(), 3 + 12 + 1 + 43 + 1 + 6);
        let read = ApiKey::parse(&text).unwrap();
        assert_eq!(read.id(), key.id());
        assert!(read.hash().matches(&key.hash()));
        let stored = KeyHash::from_hex(&key.hash().to_hex()).unwrap();
        assert!(stored.matches(&key.hash()));
        let other = ApiKey::generate().unwrap();
        assert!(!stored.matches(&other.hash()));
        assert!(!KeyHash::of_no_key().matches(&other.hash()));
        for text in ["+f".repeat(32), "f".repeat(63), "f".repeat(66)] {
            assert!(KeyHash::from_hex(&text).is_none(), "{text}");
        }
    }

    #[test]
    fn every_changed_or_missing_character_is_detected() {
        let text = ApiKey::generate().unwrap().reveal();
        for index in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[index] = if changed[index] == b'x' { b'y' } else { b'x' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(ApiKey::parse(&changed).is_none(), "{index}");
            assert!(ApiKey::parse(&text[..index]).is_none(), "{index}");
        }
        assert!(ApiKey::parse(&format!("{text} ")).is_none());
        assert!(ApiKey::parse(&format!("{text}_")).is_none());
    }

    #[test]
    fn debug_shows_no_secret() {
        let key = ApiKey::generate().unwrap();
        assert!(!format!("{key:?} {:?}", key.hash()).contains(&key.secret));
        assert!(!format!("{:?}", key.hash()).contains(&key.hash().to_hex()));
    }

    proptest! {
        #[test]
        fn random_text_is_no_key(text in "\\PC*|wl_[0-9A-Za-z_]{0,80}") {
            prop_assert!(ApiKey::parse(&text).is_none());
        }
    }
}
