//! Who may do what: API keys with scopes, and what happens without any.
//!
//! The rule. A server without any key answers everybody who can reach it, and nobody but the machine itself can: it binds to
//! loopback, and a public bind without a key is refused at start. From the moment the first key exists, every request needs one
//! (revoked and expired keys count: taking the last key away does not open the door again). Browsers are kept out of an open
//! server: a page of another site must not reach it through its visitor (see [`Access::check_browser`]).

mod browser;
mod key;
mod keys;
mod scope;
mod throttle;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use windlass_core::Timestamp;
use windlass_engine::{Actor, Engine};
use windlass_store::StoreError;

pub use key::{ApiKey, KeyHash};
pub use keys::{KEYS, KEYS_MAX, KeyError, KeyInfo, Keys};
pub use scope::Scopes;
pub use windlass_api::{CheckedNewKey as NewKey, Scope};

use browser::Hosts;
use key::KeyHash as Hash;
use throttle::{Counted, Throttle};

/// One who was let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The public id of its key; `local` where none is needed.
    pub id: String,
    /// The name of its key.
    pub name: String,
    /// What it may do.
    pub scopes: Scopes,
}

impl Caller {
    /// The id of one who needs no key.
    pub(crate) const LOCAL: &'static str = "local";

    /// One who needs no key: the machine itself, or a command that opened the store.
    pub fn local() -> Self {
        Caller {
            id: Caller::LOCAL.to_owned(),
            name: Caller::LOCAL.to_owned(),
            scopes: Scopes::ALL,
        }
    }

    /// One who was not let in.
    pub(crate) fn nobody() -> Self {
        Caller {
            id: "-".to_owned(),
            name: "-".to_owned(),
            scopes: Scopes::NONE,
        }
    }

    /// As the audit log names it.
    pub fn actor(&self) -> Actor {
        Actor {
            id: self.id.clone(),
            name: self.name.clone(),
        }
    }

    /// Whether it may do what needs `scope`.
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.include(scope)
    }
}

/// Why one was not let in.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// No key was given.
    #[error("this needs a key: send `Authorization: Bearer wl_…`")]
    Missing,
    /// What was given is no key: the form or the checksum is wrong.
    #[error("the `Authorization` header must be `Bearer` and a whole key")]
    Malformed,
    /// There is no such key, or its secret is another one; which of the two is not told.
    #[error("the key is not valid")]
    Unknown,
    /// The key was right, once.
    #[error("the key has expired: make a new one")]
    Expired,
    /// The key was right, once.
    #[error("the key was revoked: make a new one")]
    Revoked,
    /// The key is right, and may not do this.
    #[error("the key may not do this: it needs the scope `{needed}`")]
    Scope {
        /// What would be needed.
        needed: Scope,
    },
    /// Too many tries failed.
    #[error("too many failed tries: wait before the next one")]
    Throttled {
        /// For so long.
        retry_after: Duration,
    },
    /// A browser asks for a page of another site.
    #[error("{0}")]
    CrossSite(&'static str),
    /// The keys cannot be read now.
    #[error("the keys cannot be read now: try again")]
    Unavailable(#[source] StoreError),
}

impl Refused {
    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        match self {
            Refused::Missing
            | Refused::Malformed
            | Refused::Unknown
            | Refused::Expired
            | Refused::Revoked => StatusCode::UNAUTHORIZED,
            Refused::Scope { .. } | Refused::CrossSite(_) => StatusCode::FORBIDDEN,
            Refused::Throttled { .. } => StatusCode::TOO_MANY_REQUESTS,
            Refused::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The stable name of the reason.
    pub fn code(&self) -> &'static str {
        match self {
            Refused::Missing => "key_missing",
            Refused::Malformed => "key_malformed",
            Refused::Unknown => "key_unknown",
            Refused::Expired => "key_expired",
            Refused::Revoked => "key_revoked",
            Refused::Scope { .. } => "scope_missing",
            Refused::Throttled { .. } => "too_many_failed_tries",
            Refused::CrossSite(_) => "cross_site",
            Refused::Unavailable(_) => "unavailable",
        }
    }

    /// After how long it is worth trying again, where that is known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Refused::Throttled { retry_after } => Some(*retry_after),
            Refused::Unavailable(_) => Some(Duration::from_secs(1)),
            _ => None,
        }
    }
}

/// What happens while there is no key at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithoutKeys {
    /// Everybody may do all.
    Open,
    /// Nobody may do anything.
    Closed,
}

/// Is told that tries are being throttled, for the audit log.
pub type OnThrottle = Arc<dyn Fn(Option<&str>, Option<IpAddr>, Duration) + Send + Sync>;

/// Decides who may do what. Clones are the same.
#[derive(Clone)]
pub struct Access(Arc<Inside>);

struct Inside {
    keys: Option<Keys>,
    without_keys: WithoutKeys,
    throttle: Option<Throttle>,
    on_throttle: Option<OnThrottle>,
    hosts: Hosts,
}

impl Access {
    /// Everybody may do all, always: for a program that mounts the router and decides by itself, and for tests.
    pub fn open() -> Self {
        Access::with(None, WithoutKeys::Open)
    }

    /// By the keys in the engine's store.
    pub fn by_keys(engine: Arc<Engine>, without_keys: WithoutKeys) -> Self {
        Access::with(Some(Keys::new(engine)), without_keys)
    }

    fn with(keys: Option<Keys>, without_keys: WithoutKeys) -> Self {
        Access(Arc::new(Inside {
            keys,
            without_keys,
            throttle: Some(Throttle::default()),
            on_throttle: None,
            hosts: Hosts::default(),
        }))
    }

    /// Tells somebody when tries begin to be throttled. To be said before the first clone.
    #[must_use]
    pub fn on_throttle(mut self, told: OnThrottle) -> Self {
        if let Some(inside) = Arc::get_mut(&mut self.0) {
            inside.on_throttle = Some(told);
        }
        self
    }

    /// Without throttling failed tries: for a program that does so in front of the router, and for tests. To be said before the
    /// first clone.
    #[must_use]
    pub fn unthrottled(mut self) -> Self {
        if let Some(inside) = Arc::get_mut(&mut self.0) {
            inside.throttle = None;
        }
        self
    }

    /// Beside the names of loopback, an open server answers to these in `Host`. To be said before the first clone.
    #[must_use]
    pub fn allow_hosts(mut self, hosts: impl IntoIterator<Item = String>) -> Self {
        if let Some(inside) = Arc::get_mut(&mut self.0) {
            inside.hosts.add_names(hosts);
        }
        self
    }

    /// An open server answers to every address in `Host`, as others than this machine write it. To be said before the first clone.
    #[must_use]
    pub fn allow_addresses(mut self) -> Self {
        if let Some(inside) = Arc::get_mut(&mut self.0) {
            inside.hosts.add_addresses();
        }
        self
    }

    /// The keys, unless everybody may do all always.
    pub fn keys(&self) -> Option<&Keys> {
        self.0.keys.as_ref()
    }

    /// Whether everybody may do all at this moment.
    pub async fn is_open(&self, now: Timestamp) -> Result<bool, Refused> {
        match (&self.0.keys, self.0.without_keys) {
            (None, without_keys) => Ok(without_keys == WithoutKeys::Open),
            (Some(_), WithoutKeys::Closed) => Ok(false),
            (Some(keys), WithoutKeys::Open) => {
                keys.is_empty(now).await.map_err(Refused::Unavailable)
            }
        }
    }

    /// Checks again whether one who was let in may do what needs `needed`: a key may be revoked or expire while a request
    /// waits. To be asked right before such a request hands anything out.
    pub(crate) async fn recheck(
        &self,
        caller: &Caller,
        needed: Scope,
        now: Timestamp,
    ) -> Result<(), Refused> {
        if self.is_open(now).await? {
            return Ok(());
        }
        let Some(keys) = self.0.keys.as_ref().filter(|_| caller.id != Caller::LOCAL) else {
            return Err(Refused::Missing);
        };
        let found = keys.find(&caller.id, now).await;
        let key = found.map_err(Refused::Unavailable)?;
        let key = key.ok_or(Refused::Unknown)?;
        check_valid(&key, now)?;
        match key.scopes.include(needed) {
            true => Ok(()),
            false => Err(Refused::Scope { needed }),
        }
    }

    /// Whether one who sent this header from this address may do what needs `needed`.
    ///
    /// What is answered to a wrong secret and to an unknown id is the same. `peer` is where the connection comes from.
    pub async fn check(
        &self,
        authorization: Option<&HeaderValue>,
        peer: Option<IpAddr>,
        needed: Scope,
        now: Timestamp,
    ) -> Result<Caller, Refused> {
        if self.is_open(now).await? {
            return Ok(Caller::local());
        }
        let caller = self.caller(authorization, peer, now).await?;
        if !caller.may(needed) {
            return Err(Refused::Scope { needed });
        }
        Ok(caller)
    }

    async fn caller(
        &self,
        authorization: Option<&HeaderValue>,
        peer: Option<IpAddr>,
        now: Timestamp,
    ) -> Result<Caller, Refused> {
        let (Some(authorization), Some(keys)) = (authorization, &self.0.keys) else {
            return Err(Refused::Missing);
        };
        let Some(given) = bearer(authorization).and_then(ApiKey::parse) else {
            return Err(self.failed(None, peer, now, Refused::Malformed));
        };
        let throttle = self.0.throttle.as_ref();
        let waits = throttle.and_then(|throttle| throttle.id_waits(given.id(), peer, now));
        if let Some(retry_after) = waits {
            return Err(Refused::Throttled { retry_after });
        }
        let found = keys
            .find(given.id(), now)
            .await
            .map_err(Refused::Unavailable)?;
        // An unknown id is compared too, with what no key has: both take the same steps.
        let nobody = Hash::of_nobody();
        let stored = found.as_ref().map_or(&nobody, |key| &key.hash);
        let matches = stored.matches(&given.hash());
        let Some(key) = found.filter(|_| matches) else {
            return Err(self.failed(Some(given.id()), peer, now, Refused::Unknown));
        };
        if let Err(refused) = check_valid(&key, now) {
            return Err(self.failed(Some(given.id()), peer, now, refused));
        }
        if let Some(throttle) = throttle {
            throttle.succeeded(&key.id, peer);
        }
        keys.touch(&key.id, now);
        Ok(Caller {
            id: key.id,
            name: key.name,
            scopes: key.scopes,
        })
    }

    /// Counts a failure, and says what is answered.
    fn failed(
        &self,
        id: Option<&str>,
        peer: Option<IpAddr>,
        now: Timestamp,
        why: Refused,
    ) -> Refused {
        let Some(throttle) = &self.0.throttle else {
            return why;
        };
        match throttle.failed(id, peer, now) {
            Counted::Free => {}
            Counted::Waits(wait) => {
                if let Some(told) = &self.0.on_throttle {
                    told(id, peer, wait);
                }
            }
            // That the address waits was told when it began: a flood of ids is not told one by one.
            Counted::AddressWaits(retry_after) => return Refused::Throttled { retry_after },
        }
        why
    }

    /// Refuses what a browser sends on behalf of another site, while the server is open.
    ///
    /// Such a request has another `Origin` or `Sec-Fetch-Site`, or comes under a name that was made to point here
    /// (DNS rebinding), which `Host` or the URI tells. With keys this cannot harm: a page of another site has none.
    pub async fn check_browser(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Result<(), Refused> {
        if self.0.keys.is_none() || !self.is_open(now).await? {
            return Ok(());
        }
        self.0.hosts.check(uri, headers).map_err(Refused::CrossSite)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (keys, without) = (&self.0.keys, &self.0.without_keys);
        f.debug_struct("Access")
            .field("keys", keys)
            .field("without_keys", without)
            .finish_non_exhaustive()
    }
}

/// Refuses a key that was right once.
fn check_valid(key: &KeyInfo, now: Timestamp) -> Result<(), Refused> {
    if key.revoked_at.is_some() {
        return Err(Refused::Revoked);
    }
    if key.expires_at.is_some_and(|at| at <= now) {
        return Err(Refused::Expired);
    }
    Ok(())
}

/// The token of `Bearer <token>`.
fn bearer(header: &HeaderValue) -> Option<&str> {
    let (scheme, token) = header.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests;
