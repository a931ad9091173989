//! What is kept of a request that is to be completed later.

use std::time::Duration;

use serde_json::{Value, json};
use subtle::ConstantTimeEq as _;
use windlass_core::{Outcome, Timestamp};
use windlass_store::Attempt;

use super::Completion;
use super::token::Token;

const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// The document of one job.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Kept {
    /// Which attempt sent the request.
    pub(super) attempt: u32,
    /// The hash of its token.
    token: String,
    /// Until when the target has time, once it took the request for later.
    pub(super) until: Option<Timestamp>,
    /// What the target told.
    pub(super) told: Option<Completion>,
}

impl Kept {
    pub(super) fn of(token: &Token) -> Self {
        Kept {
            attempt: token.attempt,
            token: token.hash(),
            until: None,
            told: None,
        }
    }

    pub(super) fn read(value: &Value) -> Option<Self> {
        let told = match value.get("told") {
            None | Some(Value::Null) => None,
            Some(told) => Some(Completion::from_json(told).ok()?),
        };
        let until = match value.get("until").and_then(Value::as_str) {
            None => None,
            Some(text) => Some(text.parse().ok()?),
        };
        Some(Kept {
            attempt: value.get("attempt")?.as_u64()?.try_into().ok()?,
            token: value.get("token")?.as_str()?.to_owned(),
            until,
            told,
        })
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "attempt": self.attempt,
            "token": self.token,
            "until": self.until,
            "told": self.told.as_ref().map(Completion::to_json),
        })
    }

    /// Until when this is kept: long after the target's time, so that no worker that was away sends
    /// a request again whose end is known.
    pub(super) fn kept_until(&self, now: Timestamp) -> Option<Timestamp> {
        let until = self.until.map_or(now, |until| until.max(now));
        Some(until.saturating_add(KEPT))
    }

    /// Whether that is the token that was sent. How long this takes says nothing about it.
    pub(super) fn is_of(&self, token: &Token) -> bool {
        let same: bool = self.token.as_bytes().ct_eq(token.hash().as_bytes()).into();
        self.attempt == token.attempt && same
    }

    /// Whether the request is still the one that counts: since then nothing was tried that ended, and the target took it for
    /// later, or has done what was asked. A failure that it tells of an attempt that failed anyway is no second one.
    /// `history` is newest first.
    pub(super) fn is_for_the_attempt_after(&self, history: &[Attempt]) -> bool {
        let mut since = history.iter().take_while(|row| row.attempt > self.attempt);
        let waits = history
            .iter()
            .any(|row| row.attempt == self.attempt && row.outcome == Outcome::Snoozed);
        let done = matches!(self.told, Some(Completion::Succeeded(_)));
        let open = since.all(|row| matches!(row.outcome, Outcome::Lost | Outcome::Released));
        open && (waits || done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::JobId;

    fn row(attempt: u32, outcome: Outcome) -> Attempt {
        let at: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        Attempt {
            attempt,
            retry_count: 0,
            outcome,
            started_at: at,
            finished_at: at,
            worker: None,
            error: None,
            detail: None,
        }
    }

    #[test]
    fn it_is_written_and_read_back() {
        let token = Token::new(JobId::from_u128(1), 2).unwrap();
        let mut kept = Kept::of(&token);
        assert_eq!(Kept::read(&kept.to_json()).unwrap(), kept);
        kept.until = Some("2026-01-01T00:00:00Z".parse().unwrap());
        kept.told = Some(Completion::Succeeded(Some(json!([1]))));
        assert_eq!(Kept::read(&kept.to_json()).unwrap(), kept);
        assert!(kept.is_of(&token));
        assert!(!kept.is_of(&Token::new(JobId::from_u128(1), 2).unwrap()));
        assert!(!kept.to_json().to_string().contains(&token.to_string()));
        for bad in [
            json!(null),
            json!({"attempt": 1}),
            json!({"attempt": -1, "token": "x"}),
        ] {
            assert_eq!(Kept::read(&bad), None);
        }
    }

    #[test]
    fn it_counts_until_a_later_attempt_has_ended() {
        use Outcome::{Failed, Lost, Released, Snoozed, TimedOut};
        let kept = Kept::of(&Token::new(JobId::from_u128(1), 2).unwrap());
        let counts = |outcomes: &[(u32, Outcome)]| {
            let rows: Vec<_> = outcomes
                .iter()
                .map(|(n, outcome)| row(*n, *outcome))
                .collect();
            kept.is_for_the_attempt_after(&rows)
        };
        assert!(counts(&[(2, Snoozed), (1, Failed)]));
        assert!(counts(&[(4, Lost), (3, Released), (2, Snoozed)]));
        assert!(!counts(&[(3, Failed), (2, Snoozed)]));
        assert!(!counts(&[(4, Lost), (3, TimedOut), (2, Snoozed)]));
        assert!(!counts(&[(2, Lost)]));
        assert!(!counts(&[(1, Snoozed)]));
        assert!(!counts(&[]));
    }

    #[test]
    fn what_was_done_counts_however_its_attempt_ended() {
        use Outcome::{Failed, Lost, TimedOut};
        let token = Token::new(JobId::from_u128(1), 2).unwrap();
        let counts = |told: Completion, outcomes: &[(u32, Outcome)]| {
            let mut kept = Kept::of(&token);
            kept.told = Some(told);
            let rows: Vec<_> = outcomes
                .iter()
                .map(|(n, outcome)| row(*n, *outcome))
                .collect();
            kept.is_for_the_attempt_after(&rows)
        };
        let failed = || Completion::Failed {
            error: "no".to_owned(),
            retryable: true,
        };
        assert!(counts(Completion::Succeeded(None), &[(2, TimedOut)]));
        assert!(counts(Completion::Succeeded(None), &[(3, Lost), (2, Lost)]));
        assert!(!counts(
            Completion::Succeeded(None),
            &[(3, Failed), (2, Lost)]
        ));
        assert!(!counts(failed(), &[(2, TimedOut)]));
    }
}
