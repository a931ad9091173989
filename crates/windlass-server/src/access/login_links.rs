//! Login links: an authenticated caller opens the dashboard in a browser without typing a key.
//!
//! A link is 256 random bits. The store keeps only its hash and the caller that it stands for, in a
//! document that expires after a minute. Redeeming a link removes that document with
//! compare-and-set, so a link works once, whichever node it reaches.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use windlass_api::Scope;
use windlass_core::Timestamp;
use windlass_engine::Engine;
use windlass_store::{Expected, StoreError, Written};

use super::key::random_text;
use super::{Access, Caller, Refused, Scopes};

/// The collection of the documents. A document's name is the hash of its link.
const LOGIN_LINKS: &str = "login-links";
const PREFIX: &str = "wlogin_";
const SECRET_CHARS: usize = 43;
/// How long a link is valid.
const VALID_FOR: Duration = Duration::from_secs(60);
/// The most valid links of a store.
const LINKS_MAX: usize = 100;

/// The scope that a caller needs to create a link, and still needs when the link is redeemed.
pub(crate) const NEEDED: Scope = Scope::Read;

/// Creates and redeems the login links of a store.
#[derive(Clone)]
pub struct LoginLinks(Arc<Engine>);

/// A new login link.
#[derive(Clone)]
pub struct NewLoginLink {
    /// The secret text. Show it only to its creator.
    pub link: String,
    /// When it expires.
    pub expires_at: Timestamp,
}

/// Why no link was created.
#[derive(Debug, thiserror::Error)]
pub enum LoginLinkError {
    /// Too many links are valid.
    #[error("there are {LINKS_MAX} unused login links, the maximum; retry after 60 s")]
    TooMany,
    /// The operating system returned no random bytes.
    #[error("cannot create a login link: the operating system returns no random bytes")]
    Random(#[from] getrandom::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a link was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum RedeemError {
    /// The link never existed, has expired, or was used before. The server does not say which.
    #[error("the login link is invalid, has expired or was used before; create a new one")]
    Invalid,
    /// Its creator may no longer use the server.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A link as it is stored.
#[derive(Serialize, Deserialize)]
struct LinkDocument {
    id: String,
    name: String,
    scopes: Vec<String>,
}

impl LoginLinks {
    /// Returns the login links of the engine's store.
    pub fn new(engine: Arc<Engine>) -> Self {
        LoginLinks(engine)
    }

    /// Creates a link that stands for `caller`.
    pub async fn create(
        &self,
        caller: &Caller,
        now: Timestamp,
    ) -> Result<NewLoginLink, LoginLinkError> {
        let store = self.0.store();
        let valid = store.document_names(LOGIN_LINKS, "", LINKS_MAX, now);
        if valid.await?.len() >= LINKS_MAX {
            return Err(LoginLinkError::TooMany);
        }
        let link = format!("{PREFIX}{}", random_text(SECRET_CHARS)?);
        let expires_at = now.saturating_add(VALID_FOR);
        let (name, value) = (name_of(&link), LinkDocument::of(caller));
        store
            .put_document(
                LOGIN_LINKS,
                &name,
                &value,
                Expected::Absent,
                Some(expires_at),
                now,
            )
            .await?;
        Ok(NewLoginLink { link, expires_at })
    }

    /// Uses a link up. Returns the caller that it stands for, if `access` still admits that caller.
    ///
    /// Call this only for a request that a person confirmed: browsers and chat programs send `GET`
    /// requests to links by themselves.
    pub async fn redeem(
        &self,
        access: &Access,
        link: &str,
        now: Timestamp,
    ) -> Result<Caller, RedeemError> {
        let secret = link.strip_prefix(PREFIX).ok_or(RedeemError::Invalid)?;
        if secret.len() != SECRET_CHARS {
            return Err(RedeemError::Invalid);
        }
        let (store, name) = (self.0.store(), name_of(link));
        let found = store.document(LOGIN_LINKS, &name, now).await?;
        let found = found.ok_or(RedeemError::Invalid)?;
        let expected = Expected::Version(found.version);
        match store.remove_document(LOGIN_LINKS, &name, expected).await? {
            Written::Version(_) => {}
            Written::Conflict(_) => return Err(RedeemError::Invalid), // another request was faster
        }
        let caller = LinkDocument::caller(found.value).ok_or(RedeemError::Invalid)?;
        access.recheck(&caller, NEEDED, now).await?;
        Ok(caller)
    }
}

impl LinkDocument {
    fn of(caller: &Caller) -> Value {
        let scopes = caller.scopes.given().into_iter();
        let document = LinkDocument {
            id: caller.id.clone(),
            name: caller.name.clone(),
            scopes: scopes.map(|scope| scope.name().to_owned()).collect(),
        };
        serde_json::to_value(document).expect("texts are valid JSON")
    }

    fn caller(value: Value) -> Option<Caller> {
        let document: LinkDocument = serde_json::from_value(value).ok()?;
        Some(Caller {
            id: document.id,
            name: document.name,
            scopes: Scopes::from_names(&document.scopes).ok()?,
            in_process: false,
        })
    }
}

/// Returns the name of a link's document.
fn name_of(link: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(link.as_bytes()))
}

impl fmt::Debug for LoginLinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoginLinks")
    }
}

impl fmt::Debug for NewLoginLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewLoginLink(…, valid until {})", self.expires_at)
    }
}

#[cfg(test)]
mod tests {
    use windlass_engine::{Ids, VirtualClock};
    use windlass_memory::MemoryStore;

    use super::super::{NewKey, WithoutKeys};
    use super::*;

    fn noon() -> Timestamp {
        "2026-01-01T12:00:00Z".parse().unwrap()
    }

    struct Scene {
        clock: VirtualClock,
        engine: Arc<Engine>,
        access: Access,
        links: LoginLinks,
    }

    impl Scene {
        fn new() -> Self {
            let (store, clock) = (Arc::new(MemoryStore::new()), VirtualClock::new(noon()));
            let engine = Engine::new(store, Arc::new(clock.clone()), Ids::seeded(1));
            let engine = Arc::new(engine);
            Scene {
                clock,
                access: Access::by_keys(Arc::clone(&engine), WithoutKeys::Closed),
                links: LoginLinks::new(Arc::clone(&engine)),
                engine,
            }
        }

        /// A caller with a key that has these scopes.
        async fn caller(&self, scopes: &[Scope]) -> Caller {
            let new = |scopes: &[Scope]| NewKey {
                name: "ann".to_owned(),
                scopes: scopes.to_vec(),
                expires_at: None,
            };
            let keys = self.access.keys().unwrap();
            keys.create(new(&[Scope::Admin]), noon()).await.unwrap();
            let (_, info) = keys.create(new(scopes), noon()).await.unwrap();
            Caller {
                id: info.id,
                name: info.name,
                scopes: info.scopes,
                in_process: false,
            }
        }

        async fn redeem(&self, link: &str) -> Result<Caller, RedeemError> {
            let now = self.engine.now();
            self.links.redeem(&self.access, link, now).await
        }
    }

    #[tokio::test]
    async fn a_link_works_once_and_gives_the_scopes_of_its_creator() {
        let scene = Scene::new();
        let caller = scene.caller(&[Scope::Read, Scope::Operate]).await;
        let new = scene.links.create(&caller, noon()).await.unwrap();
        assert_eq!(scene.redeem(&new.link).await.unwrap(), caller);
        let again = scene.redeem(&new.link).await;
        assert!(matches!(again, Err(RedeemError::Invalid)), "{again:?}");
    }

    #[tokio::test]
    async fn two_nodes_never_both_redeem_a_link() {
        let scene = Scene::new();
        let caller = scene.caller(&[Scope::Read]).await;
        for _ in 0..20 {
            let new = scene.links.create(&caller, noon()).await.unwrap();
            let redeemed = tokio::join!(scene.redeem(&new.link), scene.redeem(&new.link));
            let count = [redeemed.0.is_ok(), redeemed.1.is_ok()];
            assert_eq!(count.iter().filter(|ok| **ok).count(), 1);
        }
    }

    #[tokio::test]
    async fn a_link_expires_after_a_minute() {
        let scene = Scene::new();
        let caller = scene.caller(&[Scope::Read]).await;
        let new = scene.links.create(&caller, noon()).await.unwrap();
        scene.clock.advance(VALID_FOR);
        assert_eq!(new.expires_at, scene.engine.now());
        let late = scene.redeem(&new.link).await;
        assert!(matches!(late, Err(RedeemError::Invalid)), "{late:?}");
    }

    #[tokio::test]
    async fn a_link_of_a_revoked_key_is_refused() {
        let scene = Scene::new();
        let caller = scene.caller(&[Scope::Read]).await;
        let new = scene.links.create(&caller, noon()).await.unwrap();
        let keys = scene.access.keys().unwrap();
        keys.revoke(&caller.id, noon()).await.unwrap();
        let refused = scene.redeem(&new.link).await;
        assert!(
            matches!(refused, Err(RedeemError::Refused(Refused::Revoked))),
            "{refused:?}"
        );
    }

    #[tokio::test]
    async fn the_store_never_has_the_text_of_a_link() {
        let scene = Scene::new();
        let caller = scene.caller(&[Scope::Read]).await;
        let new = scene.links.create(&caller, noon()).await.unwrap();
        let documents = scene.engine.store().documents(LOGIN_LINKS, noon()).await;
        let shown = format!("{:?} {new:?}", documents.unwrap());
        let secret = new.link.strip_prefix(PREFIX).unwrap();
        assert!(!shown.contains(secret), "{shown}");
        for wrong in [
            "",
            PREFIX,
            "wl_x",
            &new.link[1..],
            &format!("{}x", new.link),
        ] {
            let refused = scene.redeem(wrong).await;
            assert!(matches!(refused, Err(RedeemError::Invalid)), "{wrong}");
        }
        scene.redeem(&new.link).await.unwrap();
    }

    #[tokio::test]
    async fn the_number_of_unused_links_is_bounded() {
        let scene = Scene::new();
        let caller = scene.caller(&[Scope::Read]).await;
        for _ in 0..LINKS_MAX {
            scene.links.create(&caller, noon()).await.unwrap();
        }
        let refused = scene.links.create(&caller, noon()).await;
        assert!(matches!(refused, Err(LoginLinkError::TooMany)));
        scene.clock.advance(VALID_FOR);
        let now = scene.engine.now();
        scene.links.create(&caller, now).await.unwrap();
    }
}
