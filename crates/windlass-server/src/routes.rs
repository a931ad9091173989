//! The table of routes: each is declared once, with the scope it needs, what it takes and what it answers.
//!
//! The table makes the router, the access check, the check of parameters, `openapi.json` and the tests that walk it.

mod admin;
mod completions;
mod dead_letters;
mod events;
mod jobs;
mod keys;
mod policies;
mod queues;
mod schedules;
mod system;
mod workers;

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, OriginalUri, RawPathParams, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use axum::routing::{MethodFilter, on};
use futures_util::{FutureExt as _, StreamExt as _};
use tracing::debug;
use windlass_api::Query;
use windlass_api::schema::{Field, Schema};
use windlass_core::Invalid;

pub(crate) use workers::Claims;

use crate::access::{Caller, Scope};
use crate::answer::Answer;
use crate::app::{App, Settings};
use crate::call::Call;
use crate::idempotency;
use crate::problem::Problem;
use crate::request_id::{REQUEST_ID, request_id};

/// So large may everything about a job be but its payload.
pub(crate) const JOB_BYTES: usize = 256 * 1024;

/// What a request must show before it is let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing: the route tells nothing about anybody's jobs.
    Nothing,
    /// A key with this scope.
    Scope(Scope),
}

impl From<Scope> for Needs {
    fn from(scope: Scope) -> Self {
        Needs::Scope(scope)
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<Answer, Problem>> + Send>>;
type Handler = Arc<dyn Fn(Call) -> Answering + Send + Sync>;

/// How large a body may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyLimit {
    /// Of one job, and a little more.
    OneJob,
    /// Of many jobs.
    Many,
}

/// One route.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) needs: Needs,
    pub(crate) summary: &'static str,
    pub(crate) tag: &'static str,
    pub(crate) takes: Option<&'static str>,
    pub(crate) body_required: bool,
    pub(crate) params: Vec<Field>,
    pub(crate) headers: Vec<Field>,
    pub(crate) answers: Vec<(u16, &'static str, Option<Schema>)>,
    pub(crate) content_type: &'static str,
    pub(crate) idempotent: bool,
    limit: BodyLimit,
    handler: Handler,
}

impl Route {
    fn new<F, A>(method: Method, path: &'static str, needs: impl Into<Needs>, handler: F) -> Self
    where
        F: Fn(Call) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Answer, Problem>> + Send + 'static,
    {
        Route {
            method,
            path,
            needs: needs.into(),
            summary: "",
            tag: "system",
            takes: None,
            body_required: false,
            params: Vec::new(),
            headers: Vec::new(),
            answers: Vec::new(),
            content_type: "application/json",
            idempotent: false,
            limit: BodyLimit::OneJob,
            handler: Arc::new(move |call| Box::pin(handler(call))),
        }
    }

    /// What it does, and under which heading.
    fn says(mut self, tag: &'static str, summary: &'static str) -> Self {
        self.tag = tag;
        self.summary = summary;
        self
    }

    /// It takes a body of this shape.
    fn takes(mut self, schema: &'static str) -> Self {
        self.takes = Some(schema);
        self.body_required = true;
        self
    }

    /// It takes a body of this shape, or none.
    fn may_take(mut self, schema: &'static str) -> Self {
        self.takes = Some(schema);
        self
    }

    /// Its body is about many jobs.
    fn many(mut self) -> Self {
        self.limit = BodyLimit::Many;
        self
    }

    /// It takes these parameters in its query.
    fn params(mut self, params: impl IntoIterator<Item = Field>) -> Self {
        self.params.extend(params);
        self
    }

    /// It looks at this header.
    fn header(mut self, header: Field) -> Self {
        self.headers.push(header);
        self
    }

    /// It answers so when all is well.
    fn answers(mut self, status: u16, about: &'static str, schema: Schema) -> Self {
        self.answers.push((status, about, Some(schema)));
        self
    }

    /// It answers so, without a body, when all is well.
    fn answers_nothing(mut self) -> Self {
        self.answers.push((204, "Done.", None));
        self
    }

    /// What it answers is not JSON.
    fn content_type(mut self, content_type: &'static str) -> Self {
        self.content_type = content_type;
        self
    }

    /// It creates something: with an `Idempotency-Key`, only once.
    fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    fn body_bytes_max(&self, settings: &Settings) -> usize {
        match (self.takes, self.limit) {
            (None, _) => 0,
            (Some(_), BodyLimit::OneJob) => settings.payload_bytes_max.saturating_add(JOB_BYTES),
            (Some(_), BodyLimit::Many) => settings.bulk_bytes_max,
        }
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({:?})", self.method, self.path, self.needs)
    }
}

/// Everything that is answered.
pub(crate) fn table() -> Vec<Route> {
    let mut all = jobs::routes();
    all.extend(completions::routes());
    all.extend(dead_letters::routes());
    all.extend(queues::routes());
    all.extend(schedules::routes());
    all.extend(policies::routes());
    all.extend(workers::routes());
    all.extend(events::routes());
    all.extend(keys::routes());
    all.extend(admin::routes());
    all.extend(system::routes());
    all
}

/// A route, as far as the outside may know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteInfo {
    /// The method.
    pub method: Method,
    /// The path, with its parameters in braces.
    pub path: &'static str,
    /// The scope it needs; none if it is open to everybody.
    pub scope: Option<Scope>,
}

/// Every route that [`router`] answers.
pub fn routes() -> Vec<RouteInfo> {
    let info = |route: Route| RouteInfo {
        method: route.method,
        path: route.path,
        scope: match route.needs {
            Needs::Nothing => None,
            Needs::Scope(scope) => Some(scope),
        },
    };
    table().into_iter().map(info).collect()
}

/// The REST interface, to be served or mounted.
pub fn router(app: App) -> Router {
    let mut router = Router::new();
    for route in table() {
        let filter = MethodFilter::try_from(route.method.clone())
            .expect("the table has only methods that axum knows");
        let path = route.path;
        let route = Arc::new(route);
        let handler = move |State(app): State<App>, params: RawPathParams, request: Request| {
            let params = params
                .iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()));
            let params: Vec<(String, String)> = params.collect();
            serve(Arc::clone(&route), app, params, request)
        };
        router = router.route(path, on(filter, handler));
    }
    let nothing_here = |State(app): State<App>, headers: HeaderMap| async move {
        let problem = Problem::not_found("such path").hint("GET /openapi.json lists what there is");
        finish(Err(problem), &request_id(&headers, app.engine().ids()))
    };
    let other_method = |State(app): State<App>, headers: HeaderMap| async move {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        let problem = Problem::new(status, "method_not_allowed", "this path has other methods");
        finish(Err(problem), &request_id(&headers, app.engine().ids()))
    };
    router
        .fallback(nothing_here)
        .method_not_allowed_fallback(other_method)
        .with_state(app)
}

/// One request, from its headers to its answer.
async fn serve(
    route: Arc<Route>,
    app: App,
    params: Vec<(String, String)>,
    request: Request,
) -> Response<Body> {
    let id = request_id(request.headers(), app.engine().ids());
    let begun = app.engine().now();
    let clock = Arc::clone(app.engine().clock());
    let answered = AssertUnwindSafe(answer(&route, app, params, request))
        .catch_unwind()
        .await;
    let answered = answered.unwrap_or_else(|_| Err(Problem::internal(&"a route panicked")));
    let status = match &answered {
        Ok(answer) => answer.status.as_u16(),
        Err(problem) => problem.status(),
    };
    let took = clock.now().since(begun);
    debug!(request_id = id, method = %route.method, route = route.path, status, ?took, "answered");
    finish(answered, &id)
}

fn finish(answered: Result<Answer, Problem>, id: &str) -> Response<Body> {
    let mut response = match answered {
        Ok(answer) => answer.into_response(),
        Err(problem) => problem.request_id(id).into_response(),
    };
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(id) {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(
        "x-content-type-options",
        HeaderValue::from_static("nosniff"),
    );
    headers.insert("cache-control", HeaderValue::from_static("no-store"));
    response
}

async fn answer(
    route: &Route,
    app: App,
    params: Vec<(String, String)>,
    request: Request,
) -> Result<Answer, Problem> {
    let now = app.engine().now();
    let (parts, body) = request.into_parts();
    let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
    let peer = peer.map(|ConnectInfo(peer)| peer.ip());
    let caller = match route.needs {
        Needs::Nothing => Caller {
            scopes: crate::access::Scopes::NONE,
            ..Caller::local()
        },
        Needs::Scope(scope) => {
            app.access.check_browser(&parts.headers, now).await?;
            let authorization = parts.headers.get(AUTHORIZATION);
            app.access.check(authorization, peer, scope, now).await?
        }
    };
    let query = Query::pairs(parts.uri.query().unwrap_or_default())?;
    let known = |name: &String| route.params.iter().any(|param| param.name() == name);
    if let Some(unknown) = query.keys().find(|name| !known(name)) {
        return Err(Invalid::new(unknown, "is not a parameter of this route").into());
    }
    let body = read_body(route, &app.settings, &parts.headers, body).await?;
    // Where the router is mounted.
    let asked = parts.extensions.get::<OriginalUri>();
    let prefix = asked.and_then(|OriginalUri(uri)| uri.path().strip_suffix(parts.uri.path()));
    let call = Call {
        prefix: prefix.unwrap_or_default().to_owned(),
        path: parts.uri.path().to_owned(),
        app,
        caller,
        now,
        headers: parts.headers,
        body,
        params,
        query,
        seeded: None,
    };
    if route.idempotent {
        return idempotency::once(call, route, &|call| (route.handler)(call)).await;
    }
    (route.handler)(call).await
}

/// Reads a body that is not too large, and only where one is expected.
async fn read_body(
    route: &Route,
    settings: &Settings,
    headers: &HeaderMap,
    body: Body,
) -> Result<Bytes, Problem> {
    let most = route.body_bytes_max(settings);
    let too_large = || {
        let detail = if most == 0 {
            "this route takes no body".to_owned()
        } else {
            format!("the body must be at most {most} bytes")
        };
        Problem::too_large("body_too_large", detail)
    };
    let told = headers
        .get(CONTENT_LENGTH)
        .and_then(|told| told.to_str().ok()?.parse().ok());
    if told.is_some_and(|told: u64| told > u64::try_from(most).unwrap_or(u64::MAX)) {
        return Err(too_large()); // before a byte of it is read
    }
    let mut body_read = Vec::new();
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| {
            let detail = "the body ended before it was whole";
            Problem::new(StatusCode::BAD_REQUEST, "broken_body", detail)
        })?;
        if body_read.len() + piece.len() > most {
            return Err(too_large());
        }
        body_read.extend_from_slice(&piece);
    }
    let body = Bytes::from(body_read);
    if body.is_empty() {
        if route.body_required {
            let detail = "this route takes a body of JSON";
            return Err(Problem::new(
                StatusCode::BAD_REQUEST,
                "malformed_json",
                detail,
            ));
        }
        return Ok(body);
    }
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let kind = kind
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let detail = "the body must be sent as `Content-Type: application/json`";
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(Problem::new(status, "unsupported_media_type", detail)
            .hint("curl: add -H 'Content-Type: application/json'"));
    }
    Ok(body)
}
