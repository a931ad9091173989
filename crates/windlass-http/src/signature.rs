//! Signatures by the [Standard Webhooks](https://www.standardwebhooks.com) convention, in the headers
//! `webhook-id`, `webhook-timestamp` and `webhook-signature`.
//!
//! A signature is the HMAC-SHA256 of `id.timestamp.body`. While a secret is rotated, every valid key
//! signs, so a receiver may know the old key or the new one.

use std::fmt;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use windlass_core::{Invalid, Timestamp};

use crate::hosts::SecretHosts;

/// The prefix of a secret in text form.
const PREFIX: &str = "whsec_";
/// Shorter keys can be guessed; longer ones add no security.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// The most valid keys of one secret.
const KEYS_MAX: usize = 4;

/// A key that signs requests. Its `Debug` output does not show the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningKey(Vec<u8>);

impl SigningKey {
    /// Parses a secret: `whsec_` followed by 24 to 64 bytes in base64.
    ///
    /// # Errors
    ///
    /// [`Invalid`] names the rule. It does not show the secret.
    pub fn parse(secret: &str) -> Result<Self, Invalid> {
        let rule = "must be whsec_ followed by 24 to 64 bytes in base64";
        let invalid = || Invalid::new("", rule);
        let text = secret.strip_prefix(PREFIX).ok_or_else(invalid)?;
        let bytes = STANDARD.decode(text).map_err(|_| invalid())?;
        if !KEY_BYTES.contains(&bytes.len()) {
            return Err(invalid());
        }
        Ok(SigningKey(bytes))
    }

    /// Parses the keys of a stored secret: one, or while it is rotated several, separated by spaces,
    /// the newest first.
    ///
    /// # Errors
    ///
    /// [`Invalid`] if a key is malformed, or there are none or more than 4.
    pub fn parse_all(secrets: &str) -> Result<Vec<Self>, Invalid> {
        let keys: Vec<Self> = secrets
            .split_whitespace()
            .map(SigningKey::parse)
            .collect::<Result<_, _>>()?;
        if keys.is_empty() || keys.len() > KEYS_MAX {
            let rule = format!("must be 1 to {KEYS_MAX} secrets, separated by spaces");
            return Err(Invalid::new("", rule));
        }
        Ok(keys)
    }

    /// Generates a new secret of 32 random bytes, in text form.
    ///
    /// # Errors
    ///
    /// [`KeyError::Unavailable`] if the operating system has no random numbers.
    pub fn generate() -> Result<String, KeyError> {
        let mut bits = [0; 32];
        let provider = rustls::crypto::ring::default_provider();
        let filled = provider.secure_random.fill(&mut bits);
        filled.map_err(|_| {
            KeyError::Unavailable("the operating system provides no random numbers".to_owned())
        })?;
        Ok(format!("{PREFIX}{}", STANDARD.encode(bits)))
    }

    fn sign(&self, message: &[u8]) -> String {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC accepts a key of any length");
        mac.update(message);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(…)")
    }
}

/// Why a request cannot be signed.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// There is no secret with that name.
    #[error("there is no webhook secret named {0:?}; create it, or remove it from `sign`")]
    Unknown(String),
    /// The secret is bound to other hosts.
    #[error(
        "the webhook secret {0:?} must not sign requests to this host; add the host to the secret, or \
         remove the secret from `sign`"
    )]
    OtherHost(String),
    /// The secrets cannot be read at the moment.
    #[error("cannot read the webhook secrets: {0}")]
    Unavailable(String),
}

/// A webhook secret: its keys and the hosts that it signs for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookSecret {
    /// The valid keys, the newest first. There are several while the secret is rotated.
    pub keys: Vec<SigningKey>,
    /// The hosts that it signs for. Requests to other hosts are not sent.
    pub hosts: SecretHosts,
}

/// Looks up webhook secrets. The caller decides where they are stored and how they are encrypted.
#[async_trait]
pub trait SigningKeys: Send + Sync + fmt::Debug {
    /// Returns the secret with this name.
    ///
    /// # Errors
    ///
    /// [`KeyError::Unknown`] if there is none, [`KeyError::Unavailable`] if it cannot be read.
    async fn secret(&self, name: &str) -> Result<WebhookSecret, KeyError>;
}

/// A [`SigningKeys`] without secrets.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoSigningKeys;

#[async_trait]
impl SigningKeys for NoSigningKeys {
    async fn secret(&self, name: &str) -> Result<WebhookSecret, KeyError> {
        Err(KeyError::Unknown(name.to_owned()))
    }
}

/// Returns the value of `webhook-signature`: one signature for each key, separated by spaces.
///
/// # Errors
///
/// [`Invalid`] if the id is empty or contains a dot. Dots separate the parts of the signed message.
pub fn sign(
    keys: &[SigningKey],
    id: &str,
    timestamp: Timestamp,
    body: &[u8],
) -> Result<String, Invalid> {
    if id.is_empty() || id.contains('.') {
        return Err(Invalid::new(
            "webhook-id",
            "must not be empty or contain a dot",
        ));
    }
    let mut message = format!("{id}.{}.", seconds(timestamp)).into_bytes();
    message.extend_from_slice(body);
    let signatures: Vec<String> = keys.iter().map(|key| key.sign(&message)).collect();
    Ok(signatures.join(" "))
}

/// Returns the value of `webhook-timestamp`: whole seconds since 1970.
pub fn seconds(timestamp: Timestamp) -> i64 {
    timestamp.as_micros().div_euclid(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, HeaderValue};
    use standardwebhooks::Webhook;

    const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const NEW: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

    fn keys(secrets: &[&str]) -> Vec<SigningKey> {
        let parse = |secret: &&str| SigningKey::parse(secret).unwrap();
        secrets.iter().map(parse).collect()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the other library compares with the time of the machine"
    )]
    fn machine_now() -> Timestamp {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Timestamp::from_micros(i64::try_from(since.unwrap().as_micros()).unwrap()).unwrap()
    }

    fn headers(secrets: &[&str], at: Timestamp, body: &[u8]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let signature = sign(&keys(secrets), "msg_1", at, body).unwrap();
        headers.insert("webhook-id", HeaderValue::from_static("msg_1"));
        let text = seconds(at).to_string();
        headers.insert("webhook-timestamp", text.parse().unwrap());
        headers.insert("webhook-signature", signature.parse().unwrap());
        headers
    }

    fn verified(secret: &str, headers: &HeaderMap, body: &[u8]) -> bool {
        Webhook::new(secret).unwrap().verify(body, headers).is_ok()
    }

    #[test]
    fn the_reference_vector_is_signed_as_published() {
        let at = Timestamp::from_micros(1_614_265_330 * 1_000_000).unwrap();
        let signature = sign(
            &keys(&[OLD]),
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            at,
            br#"{"test": 2432232314}"#,
        );
        assert_eq!(
            signature.unwrap(),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }

    #[test]
    fn another_library_accepts_our_signatures_and_nothing_else() {
        let (now, body) = (machine_now(), br#"{"a": 1}"#);
        let signed = headers(&[OLD], now, body);
        assert!(verified(OLD, &signed, body));
        assert!(!verified(NEW, &signed, body), "another secret");
        assert!(!verified(OLD, &signed, br#"{"a": 2}"#), "another body");
        let late = now.saturating_sub(std::time::Duration::from_secs(301));
        assert!(
            !verified(OLD, &headers(&[OLD], late, body), body),
            "an old one"
        );
        let mut moved = signed.clone();
        let later = (seconds(now) + 1).to_string();
        moved.insert("webhook-timestamp", later.parse().unwrap());
        assert!(!verified(OLD, &moved, body), "another time");
        let mut renamed = signed;
        renamed.insert("webhook-id", HeaderValue::from_static("msg_2"));
        assert!(!verified(OLD, &renamed, body), "another message");
    }

    #[test]
    fn both_keys_sign_while_a_secret_is_rotated() {
        let (now, body) = (machine_now(), b"x");
        let signed = headers(&[NEW, OLD], now, body);
        assert!(verified(OLD, &signed, body) && verified(NEW, &signed, body));
        let text = signed["webhook-signature"].to_str().unwrap();
        assert_eq!(text.split(' ').count(), 2);
    }

    #[test]
    fn a_generated_secret_is_parsed_together_with_older_ones() {
        let (one, other) = (
            SigningKey::generate().unwrap(),
            SigningKey::generate().unwrap(),
        );
        assert_ne!(one, other);
        let both = SigningKey::parse_all(&format!("{one} {other}")).unwrap();
        assert_eq!(both, keys(&[&one, &other]));
        assert_eq!(SigningKey::parse_all(&one).unwrap().len(), 1);
        let five = format!("{one} ").repeat(5);
        for bad in ["", "  ", "plain", five.as_str()] {
            assert!(SigningKey::parse_all(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bad_secrets_and_ids_are_refused_and_never_shown() {
        for secret in [
            "",
            "whsec_",
            "whsec_!",
            "whsec_c2hvcnQ=",
            "plain",
            &OLD[6..],
        ] {
            let refusal = SigningKey::parse(secret).unwrap_err().to_string();
            assert!(
                secret.len() < 7 || !refusal.contains(&secret[6..]),
                "{refusal}"
            );
        }
        assert_eq!(format!("{:?}", keys(&[OLD])), "[SigningKey(…)]");
        let now = machine_now();
        for id in ["", "a.b", "."] {
            assert!(sign(&keys(&[OLD]), id, now, b"").is_err(), "{id}");
        }
    }
}
