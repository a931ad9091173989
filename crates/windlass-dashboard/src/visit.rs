//! One request to the dashboard, by someone who is signed in.

use std::sync::Arc;

use askama::Template;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, OriginalUri, RawPathParams, Request};
use axum::http::header::{COOKIE, LOCATION, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_api::Scope;
use windlass_core::Timestamp;

use crate::backend::{Answer, Call, Identity};
use crate::depths::Depths;
use crate::failure::Failure;
use crate::fields::{Fields, escaped};
use crate::headers::html;
use crate::show::Zone;
use crate::sign_in;
use crate::site::Site;
use crate::snapshot::Snapshot;

/// The largest form: a payload of 1 MiB, each byte percent-encoded, and the other fields.
const FORM_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The field of a form with the token against forged requests.
pub(crate) const CSRF_FIELD: &str = "csrf";

/// The cookie with the theme.
pub(crate) const THEME: &str = "windlass_theme";
/// The cookie with the time zone of the browser.
pub(crate) const ZONE: &str = "windlass_zone";
/// The cookie with a message for the next page.
pub(crate) const FLASH: &str = "windlass_flash";

/// The tone of a message with an inverse. Its path follows.
pub(crate) const UNDO: &str = "undo:";

/// A request by someone who is signed in. Clones share its data.
#[derive(Clone)]
pub(crate) struct Visit(Arc<VisitData>);

struct VisitData {
    site: Site,
    identity: Identity,
    csrf: String,
    cookie: Option<HeaderValue>,
    now: Timestamp,
    base: String,
    path: String,
    params: Vec<(String, String)>,
    query: Fields,
    headers: HeaderMap,
    zone: Zone,
}

impl Visit {
    pub(crate) fn site(&self) -> &Site {
        &self.0.site
    }

    /// The person.
    pub(crate) fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// Whether the person may do what `scope` allows here.
    pub(crate) fn may(&self, scope: Scope) -> bool {
        self.0.identity.may(scope)
    }

    /// The token that forms of this person must carry.
    pub(crate) fn csrf(&self) -> &str {
        &self.0.csrf
    }

    /// When the request began.
    pub(crate) fn now(&self) -> Timestamp {
        self.0.now
    }

    /// The path at which the dashboard is mounted: empty, or like `/jobs-admin`.
    pub(crate) fn base(&self) -> &str {
        &self.0.base
    }

    /// The path of the page with its query, below the mount point.
    pub(crate) fn here(&self) -> String {
        format!("{}{}", self.0.path, self.0.query.query())
    }

    /// A part of the path that the route names: `{queue}`.
    pub(crate) fn param(&self, name: &str) -> &str {
        let found = self.0.params.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.as_str())
    }

    /// The parameters of the page.
    pub(crate) fn query(&self) -> &Fields {
        &self.0.query
    }

    /// The zone in which the page shows times.
    pub(crate) fn zone(&self) -> &Zone {
        &self.0.zone
    }

    /// Returns a cookie of the browser.
    pub(crate) fn cookie(&self, name: &str) -> Option<String> {
        cookie(&self.0.headers, name)
    }

    /// The counts that all pages share, at most 2 s old.
    pub(crate) async fn snapshot(&self) -> Result<Arc<Snapshot>, Failure> {
        if !self.may(Scope::Read) {
            return Ok(Arc::default());
        }
        self.0.site.snapshot().await
    }

    /// How the depths of all queues changed in the last hour, at most 10 s old.
    pub(crate) async fn depths(&self) -> Result<Depths, Failure> {
        if !self.may(Scope::Read) {
            return Ok(Depths::default());
        }
        self.0.site.depths().await
    }

    /// Calls a route of the REST API without a body and reads its answer.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.read(Method::GET, path, Bytes::new()).await
    }

    /// Calls a route of the REST API with a JSON body and reads its answer.
    pub(crate) async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        let body = serde_json::to_vec(body).map_err(|error| Failure::unreadable(&error))?;
        self.read(method, path, body.into()).await
    }

    async fn read<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, Failure> {
        let answer = self.call(method, path, body, None).await?;
        let body: &[u8] = if answer.body.is_empty() {
            b"null"
        } else {
            &answer.body
        };
        serde_json::from_slice(body).map_err(|error| Failure::unreadable(&error))
    }

    /// Calls a route of the REST API and returns its raw answer if it succeeded.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        idempotency_key: Option<String>,
    ) -> Result<Answer, Failure> {
        let call = Call {
            method,
            path: path.to_owned(),
            body,
            idempotency_key,
        };
        let answer = self.0.site.backend().call(&self.0.identity, call).await;
        if answer.status.is_success() {
            Ok(answer)
        } else {
            Err(Failure::of(&answer))
        }
    }

    /// Renders a page.
    pub(crate) fn page(&self, template: &impl Template) -> Result<Response<Body>, Failure> {
        let page = template.render().map_err(|error| {
            Failure::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "template",
                error.to_string(),
            )
        })?;
        let mut response = html(page);
        if self.cookie(FLASH).is_some() {
            let forget = format!("{FLASH}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict");
            append_cookie(&mut response, &forget);
        }
        Ok(self.finish(response))
    }

    /// Adds the cookie that the visitor needs.
    pub(crate) fn finish(&self, mut response: Response<Body>) -> Response<Body> {
        if let Some(cookie) = &self.0.cookie {
            response.headers_mut().append(SET_COOKIE, cookie.clone());
        }
        response
    }

    /// Leads to a page of the dashboard, which shows `message`.
    pub(crate) fn done(&self, path: &str, message: &str) -> Response<Body> {
        self.redirect(path, Some(("ok", message)))
    }

    /// Leads to a page that shows `message` and offers the action at `undo`, which is the inverse.
    pub(crate) fn undoable(&self, path: &str, undo: &str, message: &str) -> Response<Body> {
        self.redirect(path, Some((&format!("{UNDO}{undo}"), message)))
    }

    /// Leads back to a page of the dashboard, which shows why the action failed.
    pub(crate) fn failed(&self, path: &str, failure: &Failure) -> Response<Body> {
        let hint = failure.hint.as_deref().map(|hint| format!(" ({hint})"));
        let message = format!("{}{}", failure.detail, hint.unwrap_or_default());
        self.redirect(path, Some(("bad", &message)))
    }

    /// Leads to a page of the dashboard.
    pub(crate) fn redirect(&self, path: &str, flash: Option<(&str, &str)>) -> Response<Body> {
        let mut response = see_other(&format!("{}{path}", self.0.base));
        if let Some((tone, message)) = flash {
            let message: String = message.chars().take(600).collect();
            let message = escaped(&format!("{tone} {message}"));
            let flash = format!("{FLASH}={message}; Path=/; Max-Age=30; HttpOnly; SameSite=Strict");
            append_cookie(&mut response, &flash);
        }
        self.finish(response)
    }
}

/// Leads to a URL with a GET request.
pub(crate) fn see_other(location: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    if let Ok(location) = HeaderValue::from_str(location) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

fn append_cookie(response: &mut Response<Body>, cookie: &str) {
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
}

/// Returns the decoded value of a cookie.
pub(crate) fn cookie(headers: &HeaderMap, name: &str) -> Option<String> {
    let pairs = headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let mut pairs = pairs
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='));
    let (_, value) = pairs.find(|(known, _)| *known == name)?;
    Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
}

/// The path at which the dashboard is mounted.
pub(crate) fn base(parts: &Parts) -> String {
    let original = parts
        .extensions
        .get::<OriginalUri>()
        .map(|OriginalUri(uri)| uri.path());
    let original = original.unwrap_or_else(|| parts.uri.path());
    // A nested router sees `/` for a mount point that was requested without a slash.
    let below = parts.uri.path();
    let base = original.strip_suffix(below).unwrap_or(original);
    base.trim_end_matches('/').to_owned()
}

impl FromRequestParts<Site> for Visit {
    type Rejection = Response<Body>;

    async fn from_request_parts(parts: &mut Parts, site: &Site) -> Result<Self, Self::Rejection> {
        let visitor = site.backend().visitor(parts).await;
        let visitor = visitor.map_err(|refusal| sign_in::refused(site, parts, &refusal))?;
        let Some(identity) = visitor.identity else {
            return Err(sign_in::required(site, parts, &visitor));
        };
        let params = RawPathParams::from_request_parts(parts, site).await;
        let params = params.as_ref().map(|params| {
            params
                .iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect()
        });
        let params = params.unwrap_or_default();
        let query = Fields::parse(parts.uri.query().unwrap_or_default());
        let zone = cookie(&parts.headers, ZONE).and_then(|name| Zone::named(&name));
        Ok(Visit(Arc::new(VisitData {
            site: site.clone(),
            identity,
            csrf: visitor.csrf,
            cookie: visitor.cookie,
            now: site.backend().now(),
            base: base(parts),
            path: parts.uri.path().to_owned(),
            params,
            query,
            headers: parts.headers.clone(),
            zone: zone.unwrap_or_default(),
        })))
    }
}

/// A form that a person submitted. Its token is checked.
pub(crate) struct Submit {
    pub(crate) visit: Visit,
    pub(crate) fields: Fields,
}

impl Submit {
    /// Returns a field, or fails with the name of the field.
    pub(crate) fn required(&self, name: &str) -> Result<&str, Failure> {
        let missing = || Failure::invalid(format!("{name} is required"));
        self.fields.get(name).ok_or_else(missing)
    }
}

impl FromRequest<Site> for Submit {
    type Rejection = Response<Body>;

    async fn from_request(request: Request, site: &Site) -> Result<Self, Self::Rejection> {
        let (mut parts, body) = request.into_parts();
        let visit = Visit::from_request_parts(&mut parts, site).await?;
        let origin = site.backend().check_origin(&parts);
        origin.map_err(|refusal| sign_in::refused(site, &parts, &refusal))?;
        let fields = form(body).await.map_err(|failure| failure.page(&visit))?;
        if !same(fields.get(CSRF_FIELD).unwrap_or_default(), visit.csrf()) {
            return Err(forged().page(&visit));
        }
        Ok(Submit { visit, fields })
    }
}

/// Reads the fields of a form.
pub(crate) async fn form(body: Body) -> Result<Fields, Failure> {
    let bytes = to_bytes(body, FORM_BYTES_MAX).await.map_err(|_| {
        let detail = "The form is larger than 4 MiB. Use the REST API or the command line for it.";
        Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail)
    })?;
    Ok(Fields::parse(&String::from_utf8_lossy(&bytes)))
}

/// The failure of a form without the token of its session.
pub(crate) fn forged() -> Failure {
    let detail = "This form was not sent by a page of this session, or the session has ended.";
    let mut failure = Failure::new(StatusCode::FORBIDDEN, "csrf", detail);
    failure.hint = Some("Reload the page and submit the form again.".to_owned());
    failure
}

/// Compares two tokens in constant time.
pub(crate) fn same(given: &str, expected: &str) -> bool {
    let differences = given
        .bytes()
        .zip(expected.bytes())
        .fold(0, |all, (a, b)| all | (a ^ b));
    !expected.is_empty() && given.len() == expected.len() && differences == 0
}
