//! Sessions of people who signed in to the dashboard with an API key.
//!
//! A session is a document of the store, so it is valid on every node. Its name is a hash of the
//! random id that only the cookie contains. It ends with its key, with the sign-out, after 30
//! minutes without a request and after 12 hours at the latest.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use windlass_api::Scope;
use windlass_core::Timestamp;
use windlass_engine::Engine;
use windlass_store::{Expected, StoreError};

use super::Caller;
use crate::poison::lock;

/// The collection of the session documents.
const SESSIONS: &str = "dashboard_sessions";
/// A session ends after this time without a request.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(30 * 60);
/// A session ends after this time at the latest.
pub(crate) const AGE_MAX: Duration = Duration::from_secs(12 * 3600);
/// The use of a session is written at most once per minute.
const TOUCH_EVERY: Duration = Duration::from_secs(60);
/// The most sessions whose last write this node remembers.
const REMEMBERED_MAX: usize = 10_000;

/// The random id of a session or of a browser that has not signed in. Only its cookie contains it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SessionId(String);

impl SessionId {
    /// Generates an id with random bytes of the operating system.
    pub(crate) fn generate() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(SessionId(HEXLOWER.encode(&bytes)))
    }

    /// Parses the value of a cookie.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (text.len() == 64 && text.bytes().all(is_hex)).then(|| SessionId(text.to_owned()))
    }

    /// Returns the value for a cookie.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns the token that changing requests must carry. A page of another site cannot know it.
    pub(crate) fn csrf(&self) -> String {
        self.hash("csrf")
    }

    fn hash(&self, purpose: &str) -> String {
        let hash = Sha256::new().chain_update(purpose).chain_update(&self.0);
        HEXLOWER.encode(&hash.finalize())
    }

    fn document(&self) -> String {
        self.hash("session")
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionId(…)")
    }
}

/// The document of a session.
#[derive(Debug, Serialize, Deserialize)]
struct SessionDocument {
    id: String,
    name: String,
    scopes: Vec<Scope>,
    created_at: Timestamp,
}

/// The sessions of a store.
pub(crate) struct Sessions {
    engine: Arc<Engine>,
    touched: Mutex<HashMap<String, Timestamp>>,
}

impl Sessions {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Sessions {
            engine,
            touched: Mutex::default(),
        }
    }

    /// Starts a session of a caller under a new id.
    pub(crate) async fn start(
        &self,
        id: &SessionId,
        caller: &Caller,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let document = SessionDocument {
            id: caller.id.clone(),
            name: caller.name.clone(),
            scopes: caller.scopes.given(),
            created_at: now,
        };
        self.write(id, &document, Expected::Absent, now).await
    }

    async fn write(
        &self,
        id: &SessionId,
        document: &SessionDocument,
        expected: Expected,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let value = serde_json::to_value(document).unwrap_or_default();
        let ends_at = document.created_at.saturating_add(AGE_MAX);
        let expires_at = now.saturating_add(IDLE_MAX).min(ends_at);
        let name = id.document();
        let store = self.engine.store();
        // A conflict means that another request touched or ended the session at the same time.
        store
            .put_document(SESSIONS, &name, &value, expected, Some(expires_at), now)
            .await?;
        let mut touched = lock(&self.touched);
        if touched.len() >= REMEMBERED_MAX {
            touched.clear();
        }
        touched.insert(name, now);
        Ok(())
    }

    /// Returns the caller who started a session, unless it has ended, and prolongs the session.
    pub(crate) async fn caller_of(
        &self,
        id: &SessionId,
        now: Timestamp,
    ) -> Result<Option<Caller>, StoreError> {
        let name = id.document();
        let found = self.engine.store().document(SESSIONS, &name, now).await?;
        let Some(found) = found else { return Ok(None) };
        let Ok(document) = SessionDocument::deserialize(&found.value) else {
            return Ok(None);
        };
        if document.created_at.saturating_add(AGE_MAX) <= now {
            return Ok(None);
        }
        let touched_at = lock(&self.touched).get(&name).copied();
        let touched_at = touched_at.unwrap_or(found.updated_at);
        if now.since(touched_at) >= TOUCH_EVERY {
            let expected = Expected::Version(found.version);
            self.write(id, &document, expected, now).await?;
        }
        Ok(Some(Caller {
            id: document.id,
            name: document.name,
            scopes: document.scopes.into_iter().collect(),
            in_process: false,
        }))
    }

    /// Ends a session on all nodes.
    pub(crate) async fn end(&self, id: &SessionId) -> Result<(), StoreError> {
        let store = self.engine.store();
        store
            .remove_document(SESSIONS, &id.document(), Expected::Any)
            .await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use windlass::Client;

    use super::*;

    fn minutes(minutes: u64) -> Timestamp {
        let noon: Timestamp = "2026-03-17T12:00:00Z".parse().unwrap();
        noon.saturating_add(Duration::from_secs(minutes * 60))
    }

    async fn sessions() -> Sessions {
        let client = Client::open("memory:").await.unwrap();
        Sessions::new(Arc::clone(windlass::admin::engine_of(&client)))
    }

    #[tokio::test]
    async fn a_session_ends_after_30_minutes_without_a_request() {
        let (sessions, id) = (sessions().await, SessionId::generate().unwrap());
        sessions
            .start(&id, &Caller::local(), minutes(0))
            .await
            .unwrap();
        for now in [29, 58, 87] {
            let caller = sessions.caller_of(&id, minutes(now)).await.unwrap();
            assert_eq!(caller, Some(Caller::local()), "{now}");
        }
        assert_eq!(sessions.caller_of(&id, minutes(118)).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_session_ends_after_12_hours_even_if_it_is_used() {
        let (sessions, id) = (sessions().await, SessionId::generate().unwrap());
        sessions
            .start(&id, &Caller::local(), minutes(0))
            .await
            .unwrap();
        for now in (20..720).step_by(20) {
            assert!(
                sessions
                    .caller_of(&id, minutes(now))
                    .await
                    .unwrap()
                    .is_some()
            );
        }
        assert_eq!(sessions.caller_of(&id, minutes(720)).await.unwrap(), None);
    }

    #[tokio::test]
    async fn an_ended_session_and_an_unknown_id_are_refused() {
        let (sessions, id) = (sessions().await, SessionId::generate().unwrap());
        sessions
            .start(&id, &Caller::local(), minutes(0))
            .await
            .unwrap();
        let other = SessionId::generate().unwrap();
        assert_eq!(sessions.caller_of(&other, minutes(1)).await.unwrap(), None);
        sessions.end(&id).await.unwrap();
        assert_eq!(sessions.caller_of(&id, minutes(1)).await.unwrap(), None);
        sessions.end(&id).await.unwrap();
    }

    #[test]
    fn only_ids_of_the_right_form_are_parsed() {
        let id = SessionId::generate().unwrap();
        assert_eq!(SessionId::parse(id.reveal()), Some(id.clone()));
        assert_ne!(id.csrf(), SessionId::generate().unwrap().csrf());
        for text in ["", "abc", &"A".repeat(64), &"0".repeat(65)] {
            assert_eq!(SessionId::parse(text), None, "{text}");
        }
        assert!(!format!("{id:?}").contains(id.reveal()));
    }
}
