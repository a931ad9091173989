//! Authentication and authorization: API keys with scopes.
//!
//! A server without API keys accepts every request. Only its own machine can send one: the server
//! binds to loopback and refuses to start on a public address. As soon as the first key exists,
//! every request needs a key. Revoked and expired keys count too, so revoking the last key does not
//! open the server again. An open server refuses requests that a browser sends for a page of
//! another site (see [`Access::check_browser`]).

mod browser;
mod key;
mod keys;
mod login_links;
mod proxy;
mod scope;
pub(crate) mod session;
mod throttle;
mod throttle_audit;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use windlass_core::Timestamp;
use windlass_engine::{Actor, Engine};
use windlass_store::StoreError;

pub use key::{ApiKey, KeyHash};
pub use keys::{KEYS, KEYS_MAX, KeyError, KeyInfo, Keys};
pub(crate) use login_links::NEEDED as LOGIN_LINK_SCOPE;
pub use login_links::{LoginLinkError, LoginLinks, NewLoginLink, RedeemError};
pub use proxy::TrustedProxies;
pub use scope::Scopes;
pub(crate) use throttle_audit::audit_throttled;
pub use windlass_api::{CheckedNewKey as NewKey, Scope};

use browser::Hosts;
use throttle::{Throttle, Throttling};

/// The authenticated caller of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The public id of the caller's key; `local` if the server needs no key.
    pub id: String,
    /// The name of the key.
    pub name: String,
    /// What the caller may do.
    pub scopes: Scopes,
    /// Whether this process authenticated the caller itself, without a key. Such a caller lives for
    /// one request and is not checked again.
    pub(crate) in_process: bool,
}

/// The caller of a request that this process sends to its own router. A request from the network
/// cannot carry it.
#[derive(Debug, Clone)]
pub(crate) struct InProcess(pub(crate) Caller);

impl Caller {
    /// The id of callers that need no key.
    pub(crate) const LOCAL: &'static str = "local";
    /// The id of callers that could open the store themselves.
    const STORE: &'static str = "store";

    /// Returns a caller that needs no key: a client of an open server.
    pub fn local() -> Self {
        Caller {
            id: Caller::LOCAL.to_owned(),
            name: Caller::LOCAL.to_owned(),
            scopes: Scopes::ALL,
            in_process: false,
        }
    }

    /// Returns the caller of a command that opened the store itself, or that has the token in its
    /// lock file.
    pub fn store() -> Self {
        Caller {
            id: Caller::STORE.to_owned(),
            name: Caller::STORE.to_owned(),
            scopes: Scopes::ALL,
            in_process: false,
        }
    }

    /// Returns the caller of a request that was not authenticated.
    pub(crate) fn unauthenticated() -> Self {
        Caller {
            id: "-".to_owned(),
            name: "-".to_owned(),
            scopes: Scopes::NONE,
            in_process: false,
        }
    }

    /// Returns the caller as the audit log names it.
    pub fn actor(&self) -> Actor {
        Actor {
            id: self.id.clone(),
            name: self.name.clone(),
        }
    }

    /// Whether the caller has `scope`.
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.include(scope)
    }
}

/// Why the server refused a request.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The request has no key.
    #[error("this request needs an API key: send `Authorization: Bearer wl_…`")]
    Missing,
    /// The key has the wrong format or checksum.
    #[error("the `Authorization` header must be `Bearer` followed by a complete API key")]
    Malformed,
    /// The key does not exist, or its secret is wrong. The server does not say which.
    #[error("the API key is invalid")]
    Unknown,
    /// The key has expired.
    #[error("the API key has expired: create a new one")]
    Expired,
    /// The key was revoked.
    #[error("the API key was revoked: create a new one")]
    Revoked,
    /// The key is valid but lacks a scope.
    #[error("the API key lacks the scope `{needed}`: use a key that has it")]
    Scope {
        /// The missing scope.
        needed: Scope,
    },
    /// The client failed to authenticate too often.
    #[error("too many failed authentication attempts: wait before you retry")]
    Throttled {
        /// How long to wait.
        retry_after: Duration,
    },
    /// A browser sent the request for a page of another site.
    #[error("{0}")]
    CrossSite(&'static str),
    /// The headers that name a person come from a client that is no trusted proxy.
    #[error(
        "only a trusted proxy may send the headers that name a person: remove them, or check `dashboard.proxies` and `dashboard.proxy_secret`"
    )]
    NotFromProxy,
    /// The proxy names a person who has no access.
    #[error("{0} has no access: add the person or one of their groups to `dashboard.people`")]
    NoAccess(String),
    /// The store cannot return the keys.
    #[error("the API keys are temporarily unavailable: retry")]
    Unavailable(#[source] StoreError),
}

impl Refused {
    /// Returns the status of the response.
    pub fn status(&self) -> StatusCode {
        match self {
            Refused::Missing
            | Refused::Malformed
            | Refused::Unknown
            | Refused::Expired
            | Refused::Revoked => StatusCode::UNAUTHORIZED,
            Refused::Scope { .. }
            | Refused::CrossSite(_)
            | Refused::NotFromProxy
            | Refused::NoAccess(_) => StatusCode::FORBIDDEN,
            Refused::Throttled { .. } => StatusCode::TOO_MANY_REQUESTS,
            Refused::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the stable code of the reason.
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
            Refused::NotFromProxy => "not_from_proxy",
            Refused::NoAccess(_) => "no_access",
            Refused::Unavailable(_) => "unavailable",
        }
    }

    /// Returns how long to wait before a retry, if known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Refused::Throttled { retry_after } => Some(*retry_after),
            Refused::Unavailable(_) => Some(Duration::from_secs(1)),
            _ => None,
        }
    }
}

/// What the server does while no key exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithoutKeys {
    /// Accepts every request.
    Open,
    /// Refuses every request.
    Closed,
}

/// A callback for throttled clients: the key id, the address and the wait. Used for the audit log.
pub type OnThrottle = Arc<dyn Fn(Option<&str>, Option<IpAddr>, Duration) + Send + Sync>;

/// Decides who may do what. Clones share their state.
#[derive(Clone)]
pub struct Access(Arc<AccessState>);

struct AccessState {
    keys: Option<Keys>,
    token: Option<Token>,
    without_keys: WithoutKeys,
    throttle: Option<Throttle>,
    on_throttle: Option<OnThrottle>,
    hosts: Hosts,
}

/// A key of one start of this process, which the store does not know. Its holder is
/// [`Caller::store`].
struct Token {
    hash: KeyHash,
    /// The address that the server listens on.
    own: IpAddr,
}

impl Token {
    /// Whether this is the token, and the client is on this machine. The token lies in a file of
    /// this machine, so no one else has a reason to send it.
    fn admits(&self, given: &ApiKey, peer: Option<IpAddr>) -> bool {
        let peer = peer.map(|peer| peer.to_canonical());
        let is_here = peer.is_some_and(|peer| peer.is_loopback() || peer == self.own);
        self.hash.matches(&given.hash()) && is_here
    }
}

impl Access {
    /// Accepts every request, with or without keys. For programs that authenticate requests before
    /// the router, and for tests.
    pub fn open() -> Self {
        Access::with(None, WithoutKeys::Open)
    }

    /// Requires the API keys in the engine's store.
    pub fn by_keys(engine: Arc<Engine>, without_keys: WithoutKeys) -> Self {
        Access::with(Some(Keys::new(engine)), without_keys)
    }

    /// Requires this one key, which the store does not know, from a client on this machine. Its
    /// holder is [`Caller::store`].
    pub(crate) fn by_one_key(key: &ApiKey) -> Self {
        let access = Access::with(None, WithoutKeys::Closed);
        access.with_token(key, Ipv4Addr::LOCALHOST.into())
    }

    /// Also accepts this token, which the store does not know, from a client on this machine. Its
    /// holder is [`Caller::store`]. The server listens on `own`. Call this before the first clone.
    #[must_use]
    pub(crate) fn with_token(mut self, token: &ApiKey, own: IpAddr) -> Self {
        if let Some(state) = Arc::get_mut(&mut self.0) {
            let hash = token.hash();
            state.token = Some(Token { hash, own });
        }
        self
    }

    fn with(keys: Option<Keys>, without_keys: WithoutKeys) -> Self {
        Access(Arc::new(AccessState {
            keys,
            token: None,
            without_keys,
            throttle: Some(Throttle::default()),
            on_throttle: None,
            hosts: Hosts::default(),
        }))
    }

    /// Calls `callback` when the throttling of a client begins. Call this before the first clone.
    #[must_use]
    pub fn on_throttle(mut self, callback: OnThrottle) -> Self {
        if let Some(state) = Arc::get_mut(&mut self.0) {
            state.on_throttle = Some(callback);
        }
        self
    }

    /// Does not throttle failed authentication. For programs that throttle before the router, and
    /// for tests. Call this before the first clone.
    #[must_use]
    pub fn unthrottled(mut self) -> Self {
        if let Some(state) = Arc::get_mut(&mut self.0) {
            state.throttle = None;
        }
        self
    }

    /// Lets an open server accept these names in `Host`, in addition to loopback names. Call this
    /// before the first clone.
    #[must_use]
    pub fn allow_hosts(mut self, hosts: impl IntoIterator<Item = String>) -> Self {
        if let Some(state) = Arc::get_mut(&mut self.0) {
            state.hosts.add_names(hosts);
        }
        self
    }

    /// Lets an open server accept every IP address in `Host`, so that other machines can reach it.
    /// Call this before the first clone.
    #[must_use]
    pub fn allow_addresses(mut self) -> Self {
        if let Some(state) = Arc::get_mut(&mut self.0) {
            state.hosts.add_addresses();
        }
        self
    }

    /// Returns the keys, or `None` for [`Access::open`].
    pub fn keys(&self) -> Option<&Keys> {
        self.0.keys.as_ref()
    }

    /// Whether the server currently accepts every request.
    pub async fn is_open(&self, now: Timestamp) -> Result<bool, Refused> {
        match (&self.0.keys, self.0.without_keys) {
            (None, without_keys) => Ok(without_keys == WithoutKeys::Open),
            (Some(_), WithoutKeys::Closed) => Ok(false),
            (Some(keys), WithoutKeys::Open) => {
                keys.is_empty(now).await.map_err(Refused::Unavailable)
            }
        }
    }

    /// Checks again whether an authenticated caller has the scope `needed`.
    ///
    /// A key may be revoked or expire while a long poll waits. Call this right before such a
    /// request returns data.
    pub(crate) async fn recheck(
        &self,
        caller: &Caller,
        needed: Scope,
        now: Timestamp,
    ) -> Result<(), Refused> {
        if caller.in_process {
            return Ok(());
        }
        let has_token = self.0.token.is_some() && caller.id == Caller::STORE;
        if self.is_open(now).await? || has_token {
            return Ok(());
        }
        let Some(keys) = self.0.keys.as_ref().filter(|_| caller.id != Caller::LOCAL) else {
            return Err(Refused::Missing);
        };
        let key = keys.find(&caller.id, now).await;
        let key = key.map_err(Refused::Unavailable)?.ok_or(Refused::Unknown)?;
        check_valid(&key, now)?;
        if !key.scopes.include(needed) {
            return Err(Refused::Scope { needed });
        }
        Ok(())
    }

    /// Authenticates a request by its `Authorization` header and checks for the scope `needed`.
    ///
    /// `peer` is the address of the client. A wrong secret and an unknown id give the same error.
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
        let caller = self.authenticate(authorization, peer, now).await?;
        if !caller.may(needed) {
            return Err(Refused::Scope { needed });
        }
        Ok(caller)
    }

    /// Authenticates a request by its `Authorization` header.
    pub(crate) async fn authenticate(
        &self,
        authorization: Option<&HeaderValue>,
        peer: Option<IpAddr>,
        now: Timestamp,
    ) -> Result<Caller, Refused> {
        let Some(authorization) = authorization else {
            return Err(Refused::Missing);
        };
        let Some(given) = bearer(authorization).and_then(ApiKey::parse) else {
            return Err(self.failed(None, peer, now, Refused::Malformed));
        };
        let token = self.0.token.as_ref();
        if token.is_some_and(|token| token.admits(&given, peer)) {
            return Ok(Caller::store());
        }
        let Some(keys) = &self.0.keys else {
            return Err(self.failed(None, peer, now, Refused::Unknown));
        };
        let throttle = self.0.throttle.as_ref();
        let wait = throttle.and_then(|throttle| throttle.id_wait(given.id(), peer, now));
        if let Some(retry_after) = wait {
            return Err(Refused::Throttled { retry_after });
        }
        let found = keys
            .find(given.id(), now)
            .await
            .map_err(Refused::Unavailable)?;
        // An unknown id is compared with a hash that no key has, so that both cases take equally
        // long.
        let no_key = KeyHash::of_no_key();
        let stored = found.as_ref().map_or(&no_key, |key| &key.hash);
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
            in_process: false,
        })
    }

    /// Returns a caller that was authenticated before, with its current scopes, unless its access
    /// has ended.
    pub(crate) async fn caller_again(
        &self,
        caller: Caller,
        now: Timestamp,
    ) -> Result<Caller, Refused> {
        self.recheck(&caller, Scope::Read, now).await?;
        let Some(keys) = &self.0.keys else {
            return Ok(caller);
        };
        let key = keys.find(&caller.id, now).await;
        let Some(key) = key.map_err(Refused::Unavailable)? else {
            return Ok(caller);
        };
        keys.touch(&key.id, now);
        Ok(Caller {
            name: key.name,
            scopes: key.scopes,
            ..caller
        })
    }

    /// Counts a failed authentication. Returns the error for the response.
    fn failed(
        &self,
        id: Option<&str>,
        peer: Option<IpAddr>,
        now: Timestamp,
        refused: Refused,
    ) -> Refused {
        let Some(throttle) = &self.0.throttle else {
            return refused;
        };
        match throttle.failed(id, peer, now) {
            Throttling::None => {}
            Throttling::Started(wait) => {
                if let Some(callback) = &self.0.on_throttle {
                    callback(id, peer, wait);
                }
            }
            // The callback ran when the wait began. A flood of ids must not call it for each id.
            Throttling::AddressWaits(retry_after) => return Refused::Throttled { retry_after },
        }
        refused
    }

    /// Refuses requests that a browser sends for a page of another site, while the server is open.
    ///
    /// Such a request has a foreign `Origin` or `Sec-Fetch-Site` or, after DNS rebinding, a foreign
    /// name in `Host` or the URI. A server with keys needs no such check: a foreign page has no
    /// key.
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

impl Access {
    /// Refuses a foreign name in `Host` or the URI while the server is open: a page of another site
    /// may have pointed its own name at this server. Links from other sites are allowed.
    pub(crate) async fn check_host(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Result<(), Refused> {
        if self.0.keys.is_none() || !self.is_open(now).await? {
            return Ok(());
        }
        let known = self.0.hosts.check_host(uri, headers);
        known.map(drop).map_err(Refused::CrossSite)
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

/// Refuses a revoked or expired key.
fn check_valid(key: &KeyInfo, now: Timestamp) -> Result<(), Refused> {
    if key.revoked_at.is_some() {
        return Err(Refused::Revoked);
    }
    if key.expires_at.is_some_and(|at| at <= now) {
        return Err(Refused::Expired);
    }
    Ok(())
}

/// Returns the token of `Bearer <token>`.
fn bearer(header: &HeaderValue) -> Option<&str> {
    let (scheme, token) = header.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests;
