//! Serves the dashboard: who is visiting, and the REST API inside the process as that person.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Request};
use axum::http::header::{ACCEPT, CONTENT_TYPE, COOKIE, HOST, ORIGIN};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, Uri};
use tower::ServiceExt as _;
use tracing::warn;
use windlass_api::Scope;
use windlass_core::Timestamp;
use windlass_dashboard::{
    About, Answer, Backend, Call, Credential, Identity, Refusal, SignedIn, Visitor,
};

use crate::access::session::{AGE_MAX, SessionId, Sessions};
use crate::access::{Caller, InProcess, LoginLinks, RedeemError, Refused, Scopes, TrustedProxies};
use crate::app::App;
use crate::routes::router;

/// The largest answer of a route that a page reads.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How the dashboard is served.
#[derive(Debug, Clone, Default)]
pub struct DashboardSettings {
    /// What every page shows about the server.
    pub about: About,
    /// Whether browsers reach the dashboard over TLS, here or at a proxy. Cookies are then sent
    /// over TLS only.
    pub secure: bool,
    /// Proxies that authenticate people. None by default.
    pub proxies: Option<TrustedProxies>,
}

/// Returns the dashboard of an app as a router, to serve at `/` or to nest under a path.
pub fn dashboard(app: App, settings: DashboardSettings) -> Router {
    windlass_dashboard::router(Arc::new(InProcessApi {
        api: router(app.clone()),
        sessions: Sessions::new(Arc::clone(app.engine())),
        app,
        settings,
    }))
}

/// Paths of the REST API and of programs that watch the server.
const API_PATHS: [&str; 5] = ["/api/", "/openapi.json", "/metrics", "/livez", "/readyz"];

/// Returns the REST API and the dashboard at `/`. A browser gets pages, also for unknown paths; a
/// program gets JSON.
pub fn with_dashboard(app: App, settings: DashboardSettings) -> Router {
    let (api, pages) = (router(app.clone()), dashboard(app, settings));
    Router::new().fallback(move |request: Request| {
        let chosen = if is_for_dashboard(&request) {
            &pages
        } else {
            &api
        };
        chosen.clone().oneshot(request)
    })
}

fn is_for_dashboard(request: &Request) -> bool {
    let path = request.uri().path();
    if API_PATHS.iter().any(|api| path.starts_with(api)) {
        return false;
    }
    let accepted = request
        .headers()
        .get(ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    let is_browser = accepted.is_some_and(|accept| accept.contains("text/html"));
    is_browser || path == "/live" || path.starts_with("/assets/")
}

struct InProcessApi {
    api: Router,
    app: App,
    sessions: Sessions,
    settings: DashboardSettings,
}

#[async_trait::async_trait]
impl Backend for InProcessApi {
    fn now(&self) -> Timestamp {
        self.app.client.now()
    }

    fn about(&self) -> &About {
        &self.settings.about
    }

    async fn stopped(&self) {
        self.app.stopping.cancelled().await;
    }

    async fn visitor(&self, request: &Parts) -> Result<Visitor, Refusal> {
        let now = self.now();
        let access = &self.app.access;
        access
            .check_host(&request.uri, &request.headers, now)
            .await?;
        let known = self.session_of(request);
        let id = match &known {
            Some(id) => id.clone(),
            None => SessionId::generate().map_err(|_| no_random())?,
        };
        let proxies = self.settings.proxies.as_ref();
        let person = proxies.map(|proxies| proxies.person(&request.headers, peer(request)));
        let caller = match (person.transpose()?.flatten(), &known) {
            (Some(person), _) => Some((person, SignedIn::ByProxy)),
            _ if access.is_open(now).await? => Some((Caller::local(), SignedIn::Locally)),
            (None, Some(id)) => self.session_caller(id, now).await?,
            (None, None) => None,
        };
        Ok(Visitor {
            identity: caller.map(|(caller, signed_in)| self.identity(&caller, signed_in)),
            csrf: id.csrf(),
            cookie: known.is_none().then(|| self.cookie(id.reveal(), None)),
        })
    }

    fn check_origin(&self, request: &Parts) -> Result<(), Refusal> {
        let text = |name| {
            request
                .headers
                .get(name)
                .map(|value: &HeaderValue| value.as_bytes())
        };
        let forbidden = |detail: &str| Refusal {
            status: StatusCode::FORBIDDEN,
            detail: detail.to_owned(),
        };
        match text("sec-fetch-site") {
            Some(b"same-origin") => return Ok(()),
            Some(_) => {
                return Err(forbidden(
                    "the server refuses changes that a page of another site sends",
                ));
            }
            None => {}
        }
        // Without `Sec-Fetch-Site`, a page that sends no referrer has the origin `null`. The token
        // of the session then decides alone.
        let origin = text(ORIGIN.as_str()).filter(|origin| *origin != b"null");
        let Some(origin) = origin else { return Ok(()) };
        let origin = std::str::from_utf8(origin)
            .ok()
            .and_then(|origin| origin.parse::<Uri>().ok());
        let origin = origin
            .as_ref()
            .and_then(|uri| uri.authority())
            .map(|host| host.as_str().as_bytes());
        let in_uri = request.uri.authority().map(|host| host.as_str().as_bytes());
        if origin.is_some() && (origin == text(HOST.as_str()) || origin == in_uri) {
            return Ok(());
        }
        Err(forbidden("`Origin` must be the server itself"))
    }

    async fn sign_in(
        &self,
        request: &Parts,
        credential: Credential<'_>,
    ) -> Result<HeaderValue, Refusal> {
        let now = self.now();
        let caller = match credential {
            Credential::Key(key) => self.caller_of_key(request, key, now).await?,
            Credential::Link(link) => self.caller_of_link(link, now).await?,
        };
        if !caller.may(Scope::Read) {
            let needed = Scope::Read;
            return Err(Refused::Scope { needed }.into());
        }
        if let Some(old) = self.session_of(request) {
            let _ = self.sessions.end(&old).await;
        }
        let id = SessionId::generate().map_err(|_| no_random())?;
        let started = self.sessions.start(&id, &caller, now).await;
        started.map_err(Refused::Unavailable)?;
        let audit = &self.app.audit;
        let detail = serde_json::json!({});
        audit
            .record(&caller.actor(), "session.start", &caller.id, detail)
            .await;
        Ok(self.cookie(id.reveal(), Some(AGE_MAX.as_secs())))
    }

    async fn sign_out(&self, request: &Parts) -> HeaderValue {
        if let Some(id) = self.session_of(request)
            && let Err(error) = self.sessions.end(&id).await
        {
            warn!(%error, "cannot end a session in the store; it ends within 30 minutes");
        }
        self.cookie("", Some(0))
    }

    async fn call(&self, identity: &Identity, call: Call) -> Answer {
        let mut scopes: Scopes = identity.scopes.iter().copied().collect();
        if self.settings.about.read_only {
            let reading = [Scope::Read, Scope::ReadPayload].into_iter();
            scopes = reading.filter(|scope| scopes.include(*scope)).collect();
        }
        let caller = Caller {
            id: identity.id.clone(),
            name: identity.name.clone(),
            scopes,
            in_process: identity.signed_in != SignedIn::WithKey,
        };
        let mut request = Request::builder().method(call.method).uri(call.path);
        if !call.body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(key) = call.idempotency_key {
            request = request.header("idempotency-key", key);
        }
        let Ok(request) = request
            .extension(InProcess(caller))
            .body(Body::from(call.body))
        else {
            return unreadable(StatusCode::BAD_REQUEST);
        };
        let response = match self.api.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let status = response.status();
        match to_bytes(response.into_body(), ANSWER_BYTES_MAX).await {
            Ok(body) => Answer { status, body },
            Err(_) => unreadable(StatusCode::BAD_GATEWAY),
        }
    }
}

impl InProcessApi {
    async fn caller_of_key(
        &self,
        request: &Parts,
        key: &str,
        now: Timestamp,
    ) -> Result<Caller, Refusal> {
        let bearer = HeaderValue::from_str(&format!("Bearer {key}"));
        let bearer = bearer.map_err(|_| Refusal::from(Refused::Malformed))?;
        let access = &self.app.access;
        Ok(access
            .authenticate(Some(&bearer), peer(request), now)
            .await?)
    }

    /// The person that a single-use link stands for. Using it up is safe here: the person confirmed
    /// the form, and its token was checked.
    async fn caller_of_link(&self, link: &str, now: Timestamp) -> Result<Caller, Refusal> {
        let links = LoginLinks::new(Arc::clone(self.app.engine()));
        let redeemed = links.redeem(&self.app.access, link, now).await;
        redeemed.map_err(|error| match error {
            RedeemError::Refused(refused) => refused.into(),
            RedeemError::Store(error) => Refused::Unavailable(error).into(),
            error @ RedeemError::Invalid => Refusal {
                status: StatusCode::UNAUTHORIZED,
                detail: error.to_string(),
            },
        })
    }

    /// The person of a session, unless the session or the access of the person has ended.
    async fn session_caller(
        &self,
        id: &SessionId,
        now: Timestamp,
    ) -> Result<Option<(Caller, SignedIn)>, Refusal> {
        let stored = self.sessions.caller_of(id, now).await;
        let Some(stored) = stored.map_err(Refused::Unavailable)? else {
            return Ok(None);
        };
        match self.app.access.caller_again(stored, now).await {
            Ok(caller) => Ok(Some((caller, SignedIn::WithKey))),
            Err(refused @ Refused::Unavailable(_)) => Err(refused.into()),
            Err(_) => {
                let _ = self.sessions.end(id).await;
                Ok(None)
            }
        }
    }

    fn identity(&self, caller: &Caller, signed_in: SignedIn) -> Identity {
        let scopes = Scope::ALL.into_iter().filter(|scope| caller.may(*scope));
        let reads = |scope: &Scope| matches!(scope, Scope::Read | Scope::ReadPayload);
        let read_only = self.settings.about.read_only;
        Identity {
            id: caller.id.clone(),
            name: caller.name.clone(),
            scopes: scopes.filter(|scope| !read_only || reads(scope)).collect(),
            signed_in,
        }
    }

    /// With TLS, the browser sends the cookie over TLS only and to this host only.
    fn cookie_name(&self) -> &'static str {
        if self.settings.secure {
            "__Host-windlass_session"
        } else {
            "windlass_session"
        }
    }

    fn cookie(&self, value: &str, max_age: Option<u64>) -> HeaderValue {
        let secure = if self.settings.secure { "; Secure" } else { "" };
        let max_age = max_age
            .map(|seconds| format!("; Max-Age={seconds}"))
            .unwrap_or_default();
        let name = self.cookie_name();
        let cookie = format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict{secure}{max_age}");
        HeaderValue::from_str(&cookie).unwrap_or_else(|_| HeaderValue::from_static(""))
    }

    fn session_of(&self, request: &Parts) -> Option<SessionId> {
        let lines = request
            .headers
            .get_all(COOKIE)
            .iter()
            .filter_map(|line| line.to_str().ok());
        let mut pairs = lines
            .flat_map(|line| line.split(';'))
            .filter_map(|pair| pair.trim().split_once('='));
        let (_, value) = pairs.find(|(name, _)| *name == self.cookie_name())?;
        SessionId::parse(value)
    }
}

fn peer(request: &Parts) -> Option<IpAddr> {
    let peer = request.extensions.get::<ConnectInfo<SocketAddr>>();
    peer.map(|ConnectInfo(peer)| peer.ip())
}

fn no_random() -> Refusal {
    Refusal {
        status: StatusCode::SERVICE_UNAVAILABLE,
        detail: "the operating system returned no random bytes: try again".to_owned(),
    }
}

fn unreadable(status: StatusCode) -> Answer {
    Answer {
        status,
        body: axum::body::Bytes::new(),
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        let mut detail = refused.to_string();
        if let Some(wait) = refused.retry_after() {
            detail = format!("{detail} ({} s)", wait.as_secs().max(1));
        }
        Refusal {
            status: refused.status(),
            detail,
        }
    }
}
