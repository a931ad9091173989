//! The token of an async request: the id of the job, the number of the attempt, and 256 random bits.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use windlass_core::JobId;

const PREFIX: &str = "wlc_";

/// A token that authorizes its holder to report the outcome of the request. Only its hash is stored.
pub(super) struct CompletionToken {
    pub(super) job: JobId,
    pub(super) attempt: u32,
    secret: String,
}

impl CompletionToken {
    pub(super) fn new(job: JobId, attempt: u32) -> Result<Self, String> {
        let mut bits = [0; 32];
        let provider = rustls::crypto::ring::default_provider();
        provider
            .secure_random
            .fill(&mut bits)
            .map_err(|_| "the operating system provides no random numbers".to_owned())?;
        Ok(CompletionToken {
            job,
            attempt,
            secret: URL_SAFE_NO_PAD.encode(bits),
        })
    }

    /// Parses a token from an untrusted caller; it may have any length and any characters.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix(PREFIX)?.splitn(3, '_');
        let job = parts.next()?.parse().ok()?;
        let attempt = parts.next()?.parse().ok()?;
        let secret = parts.next().filter(|secret| secret.len() <= 64)?;
        Some(CompletionToken {
            job,
            attempt,
            secret: secret.to_owned(),
        })
    }

    /// Returns the hash of the random part, which is what the record stores.
    pub(super) fn hash(&self) -> String {
        URL_SAFE_NO_PAD.encode(Sha256::digest(self.secret.as_bytes()))
    }
}

impl fmt::Display for CompletionToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}_{}_{}", self.job, self.attempt, self.secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_parsed_back_and_no_two_are_alike() {
        let job = JobId::from_u128(7);
        let (one, other) = (
            CompletionToken::new(job, 3).unwrap(),
            CompletionToken::new(job, 3).unwrap(),
        );
        assert_ne!(one.to_string(), other.to_string());
        let read = CompletionToken::parse(&one.to_string()).unwrap();
        assert_eq!((read.job, read.attempt, read.hash()), (job, 3, one.hash()));
        assert!(!one.to_string().contains(&one.hash()));
        for text in [
            "",
            "wlc_",
            "wlc_x_1_s",
            "wlc_1",
            &one.to_string()[4..],
            &"x".repeat(9999),
        ] {
            assert!(CompletionToken::parse(text).is_none(), "{text}");
        }
    }
}
