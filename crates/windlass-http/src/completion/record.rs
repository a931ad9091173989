//! The stored record of an async request.

use std::time::Duration;

use serde_json::{Value, json};
use subtle::ConstantTimeEq as _;
use windlass_core::{Outcome, Timestamp};
use windlass_store::Attempt;

use super::Completion;
use super::token::CompletionToken;

/// How long a record stays after the target's deadline.
const RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);

/// The record of the last request of one job.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CompletionRecord {
    /// The attempt that sent the request.
    pub(super) attempt: u32,
    /// The hash of its token.
    token_hash: String,
    /// The deadline of the target, once it responded with 202.
    pub(super) until: Option<Timestamp>,
    /// The outcome that the target reported.
    pub(super) completion: Option<Completion>,
}

impl CompletionRecord {
    pub(super) fn new(token: &CompletionToken) -> Self {
        CompletionRecord {
            attempt: token.attempt,
            token_hash: token.hash(),
            until: None,
            completion: None,
        }
    }

    pub(super) fn read(value: &Value) -> Option<Self> {
        let completion = match value.get("completion") {
            None | Some(Value::Null) => None,
            Some(completion) => Some(Completion::from_json(completion).ok()?),
        };
        let until = match value.get("until").and_then(Value::as_str) {
            None => None,
            Some(text) => Some(text.parse().ok()?),
        };
        Some(CompletionRecord {
            attempt: value.get("attempt")?.as_u64()?.try_into().ok()?,
            token_hash: value.get("token")?.as_str()?.to_owned(),
            until,
            completion,
        })
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "attempt": self.attempt,
            "token": self.token_hash,
            "until": self.until,
            "completion": self.completion.as_ref().map(Completion::to_json),
        })
    }

    /// Returns when the store may delete the record. That is long after the target's deadline, so a
    /// worker that was down for a while does not resend a request whose outcome is known.
    pub(super) fn expires_at(&self, now: Timestamp) -> Option<Timestamp> {
        let until = self.until.map_or(now, |until| until.max(now));
        Some(until.saturating_add(RETENTION))
    }

    /// Whether this token was sent with the request. Compares in constant time.
    pub(super) fn matches(&self, token: &CompletionToken) -> bool {
        let is_same: bool = self
            .token_hash
            .as_bytes()
            .ct_eq(token.hash().as_bytes())
            .into();
        self.attempt == token.attempt && is_same
    }

    /// Whether the next attempt uses this record instead of sending the request again. `history` is
    /// newest first.
    ///
    /// It does if no later attempt came to a result, and the target either responded with 202 or
    /// reported success. A reported failure counts only after a 202: without one, the attempt that
    /// sent the request has failed already, and the failure must not count twice.
    pub(super) fn is_current(&self, history: &[Attempt]) -> bool {
        let mut later = history.iter().take_while(|row| row.attempt > self.attempt);
        let was_accepted = history
            .iter()
            .any(|row| row.attempt == self.attempt && row.outcome == Outcome::Snoozed);
        let succeeded = matches!(self.completion, Some(Completion::Succeeded(_)));
        let no_later_result =
            later.all(|row| matches!(row.outcome, Outcome::Lost | Outcome::Released));
        no_later_result && (was_accepted || succeeded)
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
    fn a_record_is_written_and_read_back() {
        let token = CompletionToken::new(JobId::from_u128(1), 2).unwrap();
        let mut record = CompletionRecord::new(&token);
        assert_eq!(CompletionRecord::read(&record.to_json()).unwrap(), record);
        record.until = Some("2026-01-01T00:00:00Z".parse().unwrap());
        record.completion = Some(Completion::Succeeded(Some(json!([1]))));
        assert_eq!(CompletionRecord::read(&record.to_json()).unwrap(), record);
        assert!(record.matches(&token));
        assert!(!record.matches(&CompletionToken::new(JobId::from_u128(1), 2).unwrap()));
        assert!(!record.to_json().to_string().contains(&token.to_string()));
        for bad in [
            json!(null),
            json!({"attempt": 1}),
            json!({"attempt": -1, "token": "x"}),
        ] {
            assert_eq!(CompletionRecord::read(&bad), None);
        }
    }

    #[test]
    fn a_record_is_current_until_a_later_attempt_has_a_result() {
        use Outcome::{Failed, Lost, Released, Snoozed, TimedOut};
        let record = CompletionRecord::new(&CompletionToken::new(JobId::from_u128(1), 2).unwrap());
        let counts = |outcomes: &[(u32, Outcome)]| {
            let rows: Vec<_> = outcomes
                .iter()
                .map(|(n, outcome)| row(*n, *outcome))
                .collect();
            record.is_current(&rows)
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
    fn a_reported_success_counts_however_its_attempt_ended() {
        use Outcome::{Failed, Lost, TimedOut};
        let token = CompletionToken::new(JobId::from_u128(1), 2).unwrap();
        let counts = |completion: Completion, outcomes: &[(u32, Outcome)]| {
            let mut record = CompletionRecord::new(&token);
            record.completion = Some(completion);
            let rows: Vec<_> = outcomes
                .iter()
                .map(|(n, outcome)| row(*n, *outcome))
                .collect();
            record.is_current(&rows)
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
