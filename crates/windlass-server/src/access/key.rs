//! The text of a key: `wl_<public id>_<secret>_<checksum>`.
//!
//! The public id finds the key and may be shown; the secret is 256 random bits and is stored as a hash only. The checksum
//! tells a mistyped or cut key from a wrong one without a look at the store, and lets scanners find leaked keys.

use std::fmt;

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

const PREFIX: &str = "wl_";
const ID_CHARS: usize = 12;
const SECRET_CHARS: usize = 43;
const CHECKSUM_CHARS: usize = 6;
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A key as its owner has it. It is not printed by `Debug`.
#[derive(Clone)]
pub struct ApiKey {
    id: String,
    secret: String,
}

impl ApiKey {
    /// A new one, from the randomness of the operating system.
    pub fn generate() -> Result<Self, getrandom::Error> {
        Ok(ApiKey {
            id: random_text(ID_CHARS)?,
            secret: random_text(SECRET_CHARS)?,
        })
    }

    /// Reads a key; `None` where it is not one. Looks at the form alone.
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

    /// Whether a text has the form of a public id.
    pub(super) fn is_id(text: &str) -> bool {
        text.len() == ID_CHARS && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
    }

    /// The part that may be shown, and that finds the key.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What is stored of it.
    pub fn hash(&self) -> KeyHash {
        let mut hash = Sha256::new();
        hash.update(self.id.as_bytes());
        hash.update(b"_");
        hash.update(self.secret.as_bytes());
        KeyHash(hash.finalize().into())
    }

    /// The whole text, for the one time that it is shown.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}{}_{}_{}", self.id, self.secret, self.checksum())
    }

    /// A forgery: this id with the secret of another key.
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
        for place in text.iter_mut().rev() {
            *place = digit(rest % 62);
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

/// The SHA-256 of a key. Compared in constant time only: it has no `PartialEq`.
#[derive(Clone)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// Whether it is the same, in a time that does not depend on where they differ.
    pub fn matches(&self, other: &KeyHash) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// The hash of no key: what a try with an unknown id is compared with, so that it costs the same.
    pub(super) fn of_nobody() -> Self {
        KeyHash([0; 32])
    }

    /// As it is stored.
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

/// Letters and digits, each as likely as every other: bytes past a multiple of 62 are drawn again.
fn random_text(chars: usize) -> Result<String, getrandom::Error> {
    let mut text = String::with_capacity(chars);
    let mut drawn = [0u8; 64];
    while text.len() < chars {
        getrandom::fill(&mut drawn)?;
        let fair = drawn.iter().filter(|byte| **byte < 248);
        let wanted = chars - text.len();
        text.extend(
            fair.take(wanted)
                .map(|byte| char::from(digit(u32::from(*byte)))),
        );
    }
    Ok(text)
}

fn digit(number: u32) -> u8 {
    let place = usize::try_from(number % 62).unwrap_or(0);
    DIGITS.get(place).copied().unwrap_or(b'0')
}

/// CRC-32 as in gzip, bit by bit: keys are short.
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
    fn the_checksum_is_the_known_one() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    }

    #[test]
    fn a_key_is_read_back_and_hashes_alike() {
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
        assert!(!KeyHash::of_nobody().matches(&other.hash()));
        for text in ["+f".repeat(32), "f".repeat(63), "f".repeat(66)] {
            assert!(KeyHash::from_hex(&text).is_none(), "{text}");
        }
    }

    #[test]
    fn every_changed_or_missing_letter_is_noticed_by_the_form() {
        let text = ApiKey::generate().unwrap().reveal();
        for place in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[place] = if changed[place] == b'x' { b'y' } else { b'x' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(ApiKey::parse(&changed).is_none(), "{place}");
            assert!(ApiKey::parse(&text[..place]).is_none(), "{place}");
        }
        assert!(ApiKey::parse(&format!("{text} ")).is_none());
        assert!(ApiKey::parse(&format!("{text}_")).is_none());
    }

    #[test]
    fn nothing_secret_is_shown_by_debug() {
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
