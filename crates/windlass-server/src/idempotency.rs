//! `Idempotency-Key`: a client can send a request again, and the server creates its jobs only once.
//!
//! Before a request creates anything, the server stores a note with the key, a fingerprint of the
//! body, the time and a seed for ids. Every attempt of the same request (a retry, a concurrent one,
//! one after a crash) uses the same ids and the same time. A store accepts an id only once, so the
//! request may run twice and still creates its jobs once. The note keeps the first response for a
//! day.
//!
//! If the first attempt is refused, nothing was created, and another body can use the key. After a
//! response that means "retry", or after a crash, the request may have created something, and only
//! a retry with the same body can find out. So the key stays with its body, even if a later attempt
//! is refused.

mod allowance;

use std::fmt::Write as _;
use std::future::Future;
use std::time::Duration;

use axum::http::{HeaderName, StatusCode};
use serde::{Deserialize, Serialize};
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

/// The name of the header.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The header that marks a repeated response.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The collection of the notes.
const COLLECTION: &str = "idempotency";

/// How long a note is kept.
const NOTE_RETENTION: Duration = Duration::from_secs(24 * 3600);
/// How long the note of a refused request is kept: longer than a concurrent attempt can run.
const REFUSED_RETENTION: Duration = Duration::from_secs(600);
/// The longest key.
const KEY_BYTES_MAX: usize = 255;

/// What the store keeps for a key.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Note {
    /// The hash of the path and the body.
    fingerprint: String,
    /// When the request was first sent. Jobs are created as of this time.
    at: Timestamp,
    /// The seed of its ids.
    seed: u64,
    /// Whether an attempt was refused and created nothing. Another body can then use the key.
    refused: bool,
    /// The response, once there is one.
    answer: Option<KeptAnswer>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct KeptAnswer {
    status: u16,
    headers: Vec<(String, String)>,
    body: KeptBody,
}

/// The body of a stored response.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum KeptBody {
    /// The text of the body. A parsed value would lose digits of large numbers.
    Json(String),
    /// The parts that cannot be computed from the seed.
    Bulk(CompactBulk),
}

/// Handles a request that creates something. With a key, its jobs are created only once.
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
    let notes = NoteAccess {
        app: call.app.clone(),
        caller: call.caller.id.clone(),
        name: hash_of(&[
            call.caller.id.as_bytes(),
            route.path.as_bytes(),
            key.as_bytes(),
        ]),
        fingerprint: hash_of(&[call.path.as_bytes(), &call.body]),
        now: call.now,
    };
    let Reserved {
        note,
        version,
        has_earlier_attempt,
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
        Err(problem) if problem.is_refusal() && has_earlier_attempt => {
            notes.refuse_again(&note, problem).await
        }
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

/// The note that a request uses.
struct Reserved {
    note: Note,
    version: u64,
    /// Whether an earlier attempt has begun and its result is unknown.
    has_earlier_attempt: bool,
}

/// Reads and writes the note of one key for one request.
struct NoteAccess {
    app: App,
    caller: String,
    /// The name of the document.
    name: String,
    /// The fingerprint of this request.
    fingerprint: String,
    now: Timestamp,
}

impl NoteAccess {
    /// Returns the note of an earlier attempt, or creates a new one.
    async fn reserve(&self) -> Result<Reserved, Problem> {
        compare_and_set(busy, || async {
            let (note, expected) = match self.read().await? {
                None => (self.new_note(), Expected::Absent),
                Some((note, version)) if note.fingerprint == self.fingerprint => {
                    if !note.refused {
                        return Ok(Some(Reserved {
                            note,
                            version,
                            has_earlier_attempt: true,
                        }));
                    }
                    // Keep the seed: another attempt may be running with the same ids.
                    let retried = Note {
                        refused: false,
                        ..note
                    };
                    (retried, Expected::Version(version))
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
                let notes_max = self.app.settings.idempotency_notes_max;
                self.app
                    .allowance
                    .check(&self.caller, notes_max, self.now)?;
            }
            let Some(version) = self.write(&note, expected).await? else {
                return Ok(None);
            };
            self.app.allowance.spend(&self.caller, 1, self.now);
            Ok(Some(Reserved {
                note,
                version,
                has_earlier_attempt: false,
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

    /// Stores the response. If another attempt finished first, returns its response instead.
    async fn keep(&self, note: Note, version: u64, answer: Answer) -> Result<Answer, Problem> {
        let Some(kept) = to_kept(&answer)? else {
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
                    // A concurrent attempt was refused.
                    None => {
                        let written = self.write(&done, Expected::Version(version)).await?;
                        Ok(written.map(|_| None))
                    }
                },
                // The note has expired, or the request was refused and another body now uses the
                // key: nothing to store.
                _ => Ok(Some(None)),
            }
        });
        Ok(first.await?.unwrap_or(answer))
    }

    /// Lets another body use the key. If another attempt succeeded, returns its response instead.
    async fn refuse(&self, note: Note, version: u64, problem: Problem) -> Result<Answer, Problem> {
        let refused = Note {
            refused: true,
            ..note
        };
        let written = self.write(&refused, Expected::Version(version)).await?;
        if written.is_none()
            && let Some(first) = self.stored_response(&refused).await?
        {
            return Ok(first);
        }
        Err(problem)
    }

    /// Keeps the key with its body, because another attempt may have created something. If one
    /// succeeded, returns its response instead.
    async fn refuse_again(&self, note: &Note, problem: Problem) -> Result<Answer, Problem> {
        if let Some(first) = self.stored_response(note).await? {
            return Ok(first);
        }
        let hint = "an earlier attempt of this request may have succeeded; check before you send it with another key";
        Err(problem.and_hint(hint))
    }

    /// Returns the response of another attempt, if there is one.
    async fn stored_response(&self, note: &Note) -> Result<Option<Answer>, Problem> {
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
        let mut expires_at = note.at.saturating_add(NOTE_RETENTION);
        if note.refused {
            expires_at = expires_at.min(self.now.saturating_add(REFUSED_RETENTION));
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

/// Converts a response for the note. Returns `None` if its body is not JSON.
fn to_kept(answer: &Answer) -> Result<Option<KeptAnswer>, Problem> {
    let body = match (&answer.compact, &answer.body) {
        (Some(compact), _) => KeptBody::Bulk(compact.clone()),
        (None, AnswerBody::Json(body)) => {
            let body = String::from_utf8(body.clone());
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
        KeptBody::Json(body) => Answer::written(status, body.into_bytes()),
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

/// Returns the hash of several parts in hexadecimal. Includes their lengths, so that moving a byte
/// from one part to the next changes the hash.
fn hash_of(parts: &[&[u8]]) -> String {
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
        "other requests are using this `Idempotency-Key` right now",
    )
    .retry_after(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_depends_on_where_a_part_ends() {
        assert_ne!(hash_of(&[b"ab", b"c"]), hash_of(&[b"a", b"bc"]));
        assert_eq!(hash_of(&[b"a"]).len(), 64);
    }
}
