//! `Idempotency-Key`: a request that creates something can be sent again, and creates it once.
//!
//! Before anything is made, a document notes the key with a fingerprint of the body, the time and a seed for ids. Whoever sends
//! the same request (again, at the same time, after a crash) makes the same ids at the same time, and a store takes an id
//! once: so the request may run twice, and still creates once. The first answer is kept beside it for a day.

use std::fmt::Write as _;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderName, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use windlass_core::{Invalid, Timestamp};
use windlass_engine::Ids;
use windlass_store::{Document, Expected, Store, StoreError, Written};

use crate::answer::{Answer, AnswerBody};
use crate::app::App;
use crate::call::Call;
use crate::problem::Problem;
use crate::routes::Route;

/// The header.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Says that an answer was given before.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The documents lie in so many collections, by the first byte of their name: old ones are looked for in one at a time.
const COLLECTIONS: u64 = 256;

/// So long a key is kept.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// A key is at most so long.
const KEY_BYTES_MAX: usize = 255;
/// So often a key is looked at again that others write too.
const TRIES: usize = 10;
/// How often keys are looked for that are over, at most.
const TIDY_EVERY: Duration = Duration::from_secs(1);

/// When keys that are over were last looked for, and where next.
#[derive(Debug, Default)]
pub(crate) struct Tidied(Mutex<Option<(Timestamp, u64)>>);

impl Tidied {
    /// The collection to look into now, if it is time.
    fn due(&self, now: Timestamp) -> Option<String> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = match *last {
            None => 0,
            Some((at, _)) if now.since(at) < TIDY_EVERY => return None,
            Some((_, place)) => (place + 1) % COLLECTIONS,
        };
        *last = Some((now, place));
        Some(format!("idempotency.{place:02x}"))
    }
}

/// Where the document of a key lies.
fn collection(name: &str) -> String {
    let byte: String = name.chars().take(2).collect();
    format!("idempotency.{byte}")
}

/// What is kept with a key.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Kept {
    /// Of the body.
    fingerprint: String,
    /// When it was first sent: jobs are made as of then.
    at: Timestamp,
    /// Where its ids come from.
    seed: u64,
    /// What was answered, once it was.
    answer: Option<KeptAnswer>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct KeptAnswer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Value,
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
    let app = call.app.clone();
    let now = call.now;
    let name = hashed(&[
        call.caller.id.as_bytes(),
        route.path.as_bytes(),
        key.as_bytes(),
    ]);
    let fingerprint = hashed(&[call.path.as_bytes(), &call.body]);
    tidy(&app, now).await;
    let (kept, version) = reserve(&app, &name, fingerprint, now).await?;
    if let Some(answer) = kept.answer {
        return replay(answer);
    }
    let call = Call {
        now: kept.at,
        seeded: Some(Ids::seeded(kept.seed)),
        ..call
    };
    match handle(call).await {
        Ok(answer) => keep(&app, &name, &kept, version, answer, now).await,
        Err(problem) => {
            // Nothing was made: the key is free for a request that is right. Of a failure of ours nobody knows.
            if problem.status() < 500 {
                let expected = Expected::Version(version);
                app.store()
                    .remove_document(&collection(&name), &name, expected)
                    .await?;
            }
            Err(problem)
        }
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

/// What is kept with the key: what another request noted, or what this one does.
async fn reserve(
    app: &App,
    name: &str,
    fingerprint: String,
    now: Timestamp,
) -> Result<(Kept, u64), Problem> {
    let store = app.store();
    for _ in 0..TRIES {
        let found = store.document(&collection(name), name).await?;
        let expected = match found {
            Some(document) if !is_over(&document, now) => {
                let kept = read(&document)?;
                if kept.fingerprint != fingerprint {
                    let detail = "this `Idempotency-Key` was used with another request";
                    let problem = Problem::conflict("idempotency_key_reused", detail);
                    return Err(problem.hint("use a new key for each new request"));
                }
                return Ok((kept, document.version));
            }
            Some(over) => Expected::Version(over.version),
            None => Expected::Absent,
        };
        let kept = Kept {
            fingerprint: fingerprint.clone(),
            at: now,
            seed: app.engine().ids().bits(),
            answer: None,
        };
        if let Some(version) = write(store, name, &kept, expected, now).await? {
            return Ok((kept, version));
        }
    }
    Err(busy())
}

/// Keeps the answer; where another request with the key was first, its answer counts.
async fn keep(
    app: &App,
    name: &str,
    kept: &Kept,
    version: u64,
    answer: Answer,
    now: Timestamp,
) -> Result<Answer, Problem> {
    let AnswerBody::Json(body) = &answer.body else {
        return Ok(answer);
    };
    let told = KeptAnswer {
        status: answer.status.as_u16(),
        headers: answer.kept_headers(),
        body: serde_json::from_slice(body).map_err(|error| Problem::internal(&error))?,
    };
    let done = Kept {
        answer: Some(told),
        ..kept.clone()
    };
    let store = app.store();
    if write(store, name, &done, Expected::Version(version), now)
        .await?
        .is_some()
    {
        return Ok(answer);
    }
    let other = store.document(&collection(name), name).await?;
    match other
        .as_ref()
        .map(read)
        .transpose()?
        .and_then(|kept| kept.answer)
    {
        Some(first) => replay(first),
        None => Ok(answer),
    }
}

fn replay(kept: KeptAnswer) -> Result<Answer, Problem> {
    let status = StatusCode::from_u16(kept.status).map_err(|error| Problem::internal(&error))?;
    let mut answer = Answer::json(status, &kept.body)?.header(REPLAYED, "true");
    for (name, value) in &kept.headers {
        if let Ok(name) = HeaderName::try_from(name) {
            answer = answer.header(name, value);
        }
    }
    Ok(answer)
}

async fn write(
    store: &dyn Store,
    name: &str,
    kept: &Kept,
    expected: Expected,
    now: Timestamp,
) -> Result<Option<u64>, Problem> {
    let value = serde_json::to_value(kept).map_err(|error| Problem::internal(&error))?;
    let written = store
        .put_document(&collection(name), name, &value, expected, now)
        .await?;
    Ok(match written {
        Written::Version(version) => Some(version),
        Written::Conflict(_) => None,
    })
}

fn read(document: &Document) -> Result<Kept, Problem> {
    serde_json::from_value(document.value.clone()).map_err(|error| Problem::internal(&error))
}

fn is_over(document: &Document, now: Timestamp) -> bool {
    now.since(document.updated_at) >= KEPT
}

/// Removes keys that are over, a few at a time.
async fn tidy(app: &App, now: Timestamp) {
    let Some(collection) = app.tidied.due(now) else {
        return;
    };
    if let Err(error) = forget_old(app.store(), &collection, now).await {
        tracing::info!(%error, "old idempotency keys stay for now");
    }
}

async fn forget_old(store: &dyn Store, collection: &str, now: Timestamp) -> Result<(), StoreError> {
    for document in store.documents(collection).await? {
        if is_over(&document, now) {
            let expected = Expected::Version(document.version);
            store
                .remove_document(collection, &document.name, expected)
                .await?;
        }
    }
    Ok(())
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
    fn every_collection_is_looked_into_in_turn_and_not_too_often() {
        let tidied = Tidied::default();
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let at = |seconds| start.saturating_add(Duration::from_secs(seconds));
        assert_eq!(tidied.due(at(0)).as_deref(), Some("idempotency.00"));
        assert_eq!(tidied.due(at(0)), None);
        for place in 1..256 {
            assert_eq!(
                tidied.due(at(place)),
                Some(format!("idempotency.{place:02x}"))
            );
        }
        assert_eq!(tidied.due(at(256)).as_deref(), Some("idempotency.00"));
        assert_eq!(collection("ff12"), "idempotency.ff");
    }

    #[test]
    fn a_digest_tells_where_one_part_ends() {
        assert_ne!(hashed(&[b"ab", b"c"]), hashed(&[b"a", b"bc"]));
        assert_eq!(hashed(&[b"a"]).len(), 64);
    }
}
