//! `Idempotency-Key`: a request that creates something can be sent again, and creates it once.
//!
//! Before anything is made, a note in the store keeps the key with a fingerprint of the body, the
//! time and a seed for ids. Every try of the same request (a resend, one at the same time, one
//! after a crash) makes the same ids at the same time, and a store takes an id once: so the request
//! may run twice, and still creates once. The first answer is kept with the note for a day.
//!
//! A refusal of the first try lets another body take the key, as nothing was made. An answer that
//! means "try again" does not, nor does a crash: the request may have made something, and only the
//! same body can find out. So a later refusal keeps the key too.

mod allowance;

use std::fmt::Write as _;
use std::future::Future;
use std::time::Duration;

use axum::http::{HeaderName, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use windlass_core::{Invalid, Timestamp};
use windlass_engine::Ids;
use windlass_store::{Document, Expected, compare_and_set};

pub(crate) use allowance::{Allowance, NOTES_MAX_DEFAULT};

use crate::answer::{Answer, AnswerBody};
use crate::app::App;
use crate::call::{Call, Seeded};
use crate::problem::Problem;
use crate::routes::{CompactBulk, Route};

/// The header.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Says that an answer was given before.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The collection of the notes.
const COLLECTION: &str = "idempotency";

/// How long a note is kept.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// How long the note of a refused request is kept: longer than another try of it can be under way.
const REFUSED_KEPT: Duration = Duration::from_secs(600);
/// The longest key.
const KEY_BYTES_MAX: usize = 255;
/// What is kept with a key.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Note {
    /// Of the body.
    fingerprint: String,
    /// When it was first sent: jobs are made as of then.
    at: Timestamp,
    /// Where its ids come from.
    seed: u64,
    /// A try was refused, and nothing was made: another body may take the key.
    refused: bool,
    /// What was answered, once it was.
    answer: Option<KeptAnswer>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct KeptAnswer {
    status: u16,
    headers: Vec<(String, String)>,
    body: KeptBody,
}

/// An answer as it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum KeptBody {
    /// As it was sent.
    Json(Value),
    /// What cannot be worked out from the seed.
    Bulk(CompactBulk),
}

/// Answers a request that creates something; with a key, once.
pub(crate) async fn once<F>(
    call: Call,
    route: &Route,
    handle: &(dyn Fn(Call) -> F + Sync),
) -> Result<Answer, Problem>
where
    F: Future<Output = Result<Answer, Problem>> + Send,
{
    let Some(key) = key_of(&call)? else {
        return handle(call).await;
    };
    let notes = Notes {
        app: call.app.clone(),
        caller: call.caller.id.clone(),
        name: hashed(&[
            call.caller.id.as_bytes(),
            route.path.as_bytes(),
            key.as_bytes(),
        ]),
        fingerprint: hashed(&[call.path.as_bytes(), &call.body]),
        now: call.now,
    };
    let Reserved {
        note,
        version,
        begun,
    } = notes.reserve().await?;
    if let Some(answer) = note.answer {
        return replay(answer, note.seed, note.at);
    }
    let call = Call {
        now: note.at,
        seeded: Some(Seeded::new(note.seed)),
        ..call
    };
    match handle(call).await {
        Ok(answer) => notes.keep(note, version, answer).await,
        Err(problem) if problem.is_refusal() && begun => notes.refuse_again(&note, problem).await,
        Err(problem) if problem.is_refusal() => notes.refuse(note, version, problem).await,
        Err(problem) => Err(problem),
    }
}

fn key_of(call: &Call) -> Result<Option<String>, Problem> {
    let Some(value) = call.headers.get(&IDEMPOTENCY_KEY) else {
        return Ok(None);
    };
    let text = value.to_str().ok();
    let fits = |text: &&str| !text.is_empty() && text.len() <= KEY_BYTES_MAX;
    let text = text.filter(fits).ok_or_else(|| {
        let rule = format!("must be 1 to {KEY_BYTES_MAX} visible ASCII characters");
        Invalid::new("Idempotency-Key", rule)
    })?;
    Ok(Some(text.to_owned()))
}

/// The note that a request goes by.
struct Reserved {
    note: Note,
    version: u64,
    /// Another try began, and it is not known how it ended.
    begun: bool,
}

/// The note of one key, as one request sees it.
struct Notes {
    app: App,
    caller: String,
    /// Of the document.
    name: String,
    /// Of this request's body.
    fingerprint: String,
    now: Timestamp,
}

impl Notes {
    /// The note of the key: the one that another try made, or a new one.
    async fn reserve(&self) -> Result<Reserved, Problem> {
        compare_and_set(busy, || async {
            let (note, expected) = match self.read().await? {
                None => (self.new_note(), Expected::Absent),
                Some((note, version)) if note.fingerprint == self.fingerprint => {
                    if !note.refused {
                        return Ok(Some(Reserved {
                            note,
                            version,
                            begun: true,
                        }));
                    }
                    // The same ids again: another try of it may be under way.
                    let again = Note {
                        refused: false,
                        ..note
                    };
                    (again, Expected::Version(version))
                }
                Some((note, version)) if note.refused => {
                    (self.new_note(), Expected::Version(version))
                }
                Some(_) => {
                    let detail = "this `Idempotency-Key` was used with another request";
                    let problem = Problem::conflict("idempotency_key_reused", detail);
                    return Err(problem.hint("use a new key for each new request"));
                }
            };
            if expected == Expected::Absent {
                let most = self.app.settings.idempotency_notes_max;
                self.app.allowance.check(&self.caller, most, self.now)?;
            }
            let Some(version) = self.write(&note, expected).await? else {
                return Ok(None);
            };
            self.app.allowance.spend(&self.caller, 1, self.now);
            Ok(Some(Reserved {
                note,
                version,
                begun: false,
            }))
        })
        .await
    }

    fn new_note(&self) -> Note {
        Note {
            fingerprint: self.fingerprint.clone(),
            at: self.now,
            seed: self.app.ids().bits(),
            refused: false,
            answer: None,
        }
    }

    /// Keeps the answer; where another try was first, its answer counts.
    async fn keep(&self, note: Note, version: u64, answer: Answer) -> Result<Answer, Problem> {
        let Some(kept) = kept_of(&answer)? else {
            return Ok(answer);
        };
        let done = Note {
            refused: false,
            answer: Some(kept),
            ..note
        };
        let written = self.write(&done, Expected::Version(version)).await?;
        if written.is_some() {
            return Ok(answer);
        }
        let first = compare_and_set(busy, || async {
            match self.read().await? {
                Some((other, version)) if other.seed == done.seed => match other.answer {
                    Some(first) => {
                        replay(first, other.seed, other.at).map(|first| Some(Some(first)))
                    }
                    // Another try was refused.
                    None => {
                        let written = self.write(&done, Expected::Version(version)).await?;
                        Ok(written.map(|_| None))
                    }
                },
                // It has expired, or was refused and taken by another body: there is nothing to keep it with.
                _ => Ok(Some(None)),
            }
        });
        Ok(first.await?.unwrap_or(answer))
    }

    /// Lets another body take the key; where another try has succeeded, its answer counts.
    async fn refuse(&self, note: Note, version: u64, problem: Problem) -> Result<Answer, Problem> {
        let refused = Note {
            refused: true,
            ..note
        };
        let written = self.write(&refused, Expected::Version(version)).await?;
        if written.is_none()
            && let Some(first) = self.answered(&refused).await?
        {
            return Ok(first);
        }
        Err(problem)
    }

    /// Keeps the key with its body: another try may have made something. Where one has succeeded,
    /// its answer counts.
    async fn refuse_again(&self, note: &Note, problem: Problem) -> Result<Answer, Problem> {
        if let Some(first) = self.answered(note).await? {
            return Ok(first);
        }
        let hint = "an earlier try of this request may have succeeded; check before sending it with another key";
        Err(problem.and_hint(hint))
    }

    /// What another try of the request was answered, if it was.
    async fn answered(&self, note: &Note) -> Result<Option<Answer>, Problem> {
        let other = self.read().await?.map(|(other, _)| other);
        let Some(other) = other.filter(|other| other.seed == note.seed) else {
            return Ok(None);
        };
        let first = other.answer;
        first
            .map(|first| replay(first, other.seed, other.at))
            .transpose()
    }

    async fn read(&self) -> Result<Option<(Note, u64)>, Problem> {
        let store = self.app.store();
        let found = store.document(COLLECTION, &self.name, self.now).await?;
        let read = |document: Document| {
            let note = serde_json::from_value(document.value);
            let note: Note = note.map_err(|error| Problem::internal(&error))?;
            Ok((note, document.version))
        };
        found.map(read).transpose()
    }

    async fn write(&self, note: &Note, expected: Expected) -> Result<Option<u64>, Problem> {
        let value = serde_json::to_value(note).map_err(|error| Problem::internal(&error))?;
        let mut expires_at = note.at.saturating_add(KEPT);
        if note.refused {
            expires_at = expires_at.min(self.now.saturating_add(REFUSED_KEPT));
        }
        if note.answer.is_some() {
            let bytes = value.to_string().len();
            self.app
                .allowance
                .spend(&self.caller, bytes / 1024, self.now);
        }
        let store = self.app.store();
        let written = store
            .put_document(
                COLLECTION,
                &self.name,
                &value,
                expected,
                Some(expires_at),
                self.now,
            )
            .await?;
        Ok(written.version())
    }
}

/// An answer as it is kept; none for one that has no JSON.
fn kept_of(answer: &Answer) -> Result<Option<KeptAnswer>, Problem> {
    let body = match (&answer.compact, &answer.body) {
        (Some(compact), _) => KeptBody::Bulk(compact.clone()),
        (None, AnswerBody::Json(body)) => {
            let body = serde_json::from_slice(body);
            KeptBody::Json(body.map_err(|error| Problem::internal(&error))?)
        }
        _ => return Ok(None),
    };
    Ok(Some(KeptAnswer {
        status: answer.status.as_u16(),
        headers: answer.kept_headers(),
        body,
    }))
}

fn replay(kept: KeptAnswer, seed: u64, at: Timestamp) -> Result<Answer, Problem> {
    let status = StatusCode::from_u16(kept.status).map_err(|error| Problem::internal(&error))?;
    let answer = match kept.body {
        KeptBody::Json(body) => Answer::json(status, &body)?,
        KeptBody::Bulk(compact) => compact.answer(&Ids::seeded(seed), at)?.status(status),
    };
    let mut answer = answer.header(REPLAYED, "true");
    for (name, value) in &kept.headers {
        if let Ok(name) = HeaderName::try_from(name) {
            answer = answer.header(name, value);
        }
    }
    Ok(answer)
}

/// A digest of several texts, as hexadecimal digits. Lengths go in too: moving a byte from one to the next changes it.
fn hashed(parts: &[&[u8]]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        digest.update(part);
    }
    let mut text = String::new();
    for byte in digest.finalize() {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn busy() -> Problem {
    Problem::conflict(
        "idempotency_key_busy",
        "others are using this `Idempotency-Key` right now",
    )
    .retry_after(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_tells_where_one_part_ends() {
        assert_ne!(hashed(&[b"ab", b"c"]), hashed(&[b"a", b"bc"]));
        assert_eq!(hashed(&[b"a"]).len(), 64);
    }
}
