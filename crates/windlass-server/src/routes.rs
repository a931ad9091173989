//! The table of routes. Each route is declared once, with its scope, its body and query, and its
//! responses.
//!
//! The router, the access check, the check of query parameters, `openapi.json` and several tests
//! are derived from this table.

mod actions;
mod audit;
mod bulk_actions;
mod completions;
mod dead_letters;
mod events;
mod failures;
mod hooks;
mod jobs;
mod keys;
mod login_links;
mod policies;
mod queues;
mod replays;
mod schedules;
mod secrets;
mod statistics;
mod system;
mod workers;

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::routing::{MethodFilter, on};
use serde_json::Value;
use windlass_core::JOB_BYTES_MAX;

pub(crate) use jobs::CompactBulk;

use crate::access::Scope;
use crate::app::{App, Settings};
use crate::endpoint::{Endpoint, Handler, Signature};
use crate::preconditions;
use crate::problem::Problem;
use crate::request_id::request_id;
use crate::serve::{finish, serve};

/// What a request needs to get access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing: the route reveals nothing about jobs.
    Nothing,
    /// A key with this scope.
    Scope(Scope),
}

impl From<Scope> for Needs {
    fn from(scope: Scope) -> Self {
        Needs::Scope(scope)
    }
}

/// The size limit of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyLimit {
    /// The limit of one job.
    OneJob,
    /// The limit of bulk requests.
    Many,
}

/// The size limit of a body on a route without one: enough for an empty object.
const NO_BODY_BYTES: usize = 1024;

/// One route.
#[derive(Clone)]
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) needs: Needs,
    pub(crate) summary: &'static str,
    pub(crate) tag: &'static str,
    pub(crate) body_required: bool,
    /// The headers that it reads, each with its schema.
    pub(crate) headers: Vec<(&'static str, Value)>,
    pub(crate) content_type: &'static str,
    /// The content type of a response that the client can have instead, as text.
    pub(crate) text_type: Option<&'static str>,
    pub(crate) idempotent: bool,
    /// Whether the request is cancelled when its client disconnects.
    pub(crate) cancel_on_disconnect: bool,
    limit: BodyLimit,
    pub(crate) handler: Handler,
    /// What the handler takes and returns.
    pub(crate) signature: Arc<Signature>,
    /// The statuses of successful responses, each with its description.
    pub(crate) statuses: Vec<(u16, &'static str)>,
}

impl Route {
    fn new<Args>(
        method: Method,
        path: &'static str,
        needs: impl Into<Needs>,
        endpoint: impl Endpoint<Args>,
    ) -> Self {
        let (handler, signature) = endpoint.into_parts();
        Route {
            // A request that only reads cannot leave a change unfinished.
            cancel_on_disconnect: method.is_safe(),
            path,
            needs: needs.into(),
            summary: "",
            tag: "system",
            body_required: signature.body.is_some(),
            headers: preconditions::headers_of(&method),
            method,
            content_type: "application/json",
            text_type: None,
            idempotent: false,
            limit: BodyLimit::OneJob,
            handler,
            statuses: match &signature.returns {
                Some(_) => Vec::new(),
                None => vec![(204, "The request succeeded. The response has no body.")],
            },
            signature: Arc::new(signature),
        }
    }

    fn get<Args>(
        path: &'static str,
        needs: impl Into<Needs>,
        endpoint: impl Endpoint<Args>,
    ) -> Self {
        Route::new(Method::GET, path, needs, endpoint)
    }

    fn post<Args>(
        path: &'static str,
        needs: impl Into<Needs>,
        endpoint: impl Endpoint<Args>,
    ) -> Self {
        Route::new(Method::POST, path, needs, endpoint)
    }

    fn put<Args>(
        path: &'static str,
        needs: impl Into<Needs>,
        endpoint: impl Endpoint<Args>,
    ) -> Self {
        Route::new(Method::PUT, path, needs, endpoint)
    }

    fn patch<Args>(
        path: &'static str,
        needs: impl Into<Needs>,
        endpoint: impl Endpoint<Args>,
    ) -> Self {
        Route::new(Method::PATCH, path, needs, endpoint)
    }

    fn delete<Args>(
        path: &'static str,
        needs: impl Into<Needs>,
        endpoint: impl Endpoint<Args>,
    ) -> Self {
        Route::new(Method::DELETE, path, needs, endpoint)
    }

    /// Adds the status of a successful response, with its description.
    fn status(mut self, status: u16, about: &'static str) -> Self {
        self.statuses.push((status, about));
        self
    }

    /// Whether the route takes a body.
    pub(crate) fn takes_body(&self) -> bool {
        self.signature.body.is_some()
    }

    /// Whether the route has a query parameter of this name.
    pub(crate) fn has_param(&self, name: &str) -> bool {
        self.signature.query.iter().any(|param| param.name == name)
    }

    /// Sets the summary and the tag, which is the heading in the API description.
    fn summary(mut self, tag: &'static str, summary: &'static str) -> Self {
        self.tag = tag;
        self.summary = summary;
        self
    }

    /// Makes the body optional.
    fn body_optional(mut self) -> Self {
        self.body_required = false;
        self
    }

    /// Allows a body of the size of a bulk request.
    fn bulk_body(mut self) -> Self {
        self.limit = BodyLimit::Many;
        self
    }

    /// Declares a header that the route reads, with its schema.
    fn header(mut self, name: &'static str, schema: Value) -> Self {
        self.headers.push((name, schema));
        self
    }

    /// Sets the content type of a response that is not JSON.
    fn content_type(mut self, content_type: &'static str) -> Self {
        self.content_type = content_type;
        self
    }

    /// Declares another content type that the client can choose.
    fn or_text(mut self, content_type: &'static str) -> Self {
        self.text_type = Some(content_type);
        self
    }

    /// Accepts an `Idempotency-Key`, so that a repeated request has an effect only once.
    fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// Cancels the request when its client disconnects. The handler must be safe to stop at any
    /// await.
    fn cancel_on_disconnect(mut self) -> Self {
        self.cancel_on_disconnect = true;
        self
    }

    pub(crate) fn body_bytes_max(&self, settings: &Settings) -> usize {
        match self.limit {
            _ if !self.takes_body() => NO_BODY_BYTES,
            BodyLimit::OneJob => settings.payload_bytes_max.saturating_add(JOB_BYTES_MAX),
            BodyLimit::Many => settings.bulk_bytes_max,
        }
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({:?})", self.method, self.path, self.needs)
    }
}

/// All routes.
pub(crate) fn table() -> Vec<Route> {
    let mut all = jobs::routes();
    all.extend(completions::routes());
    all.extend(dead_letters::routes());
    all.extend(failures::routes());
    all.extend(hooks::routes());
    all.extend(replays::routes());
    all.extend(bulk_actions::routes());
    all.extend(queues::routes());
    all.extend(schedules::routes());
    all.extend(policies::routes());
    all.extend(workers::routes());
    all.extend(events::routes());
    all.extend(keys::routes());
    all.extend(login_links::routes());
    all.extend(secrets::routes());
    all.extend(statistics::routes());
    all.extend(audit::routes());
    all.extend(system::routes());
    all
}

/// A description of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteInfo {
    /// The method.
    pub method: Method,
    /// The path, with its parameters in braces.
    pub path: &'static str,
    /// The scope that it needs. `None` if it needs no key.
    pub scope: Option<Scope>,
    /// Whether it accepts an `Idempotency-Key`.
    pub idempotent: bool,
    /// The name of the schema of its body, if it takes one.
    pub takes: Option<String>,
    /// The other headers that it reads.
    pub headers: Vec<&'static str>,
}

/// Returns all routes of [`router`].
pub fn routes() -> Vec<RouteInfo> {
    let info = |route: Route| RouteInfo {
        method: route.method,
        path: route.path,
        scope: match route.needs {
            Needs::Nothing => None,
            Needs::Scope(scope) => Some(scope),
        },
        idempotent: route.idempotent,
        takes: route.signature.body.as_ref().map(|(name, _)| name.clone()),
        headers: route.headers.iter().map(|(name, _)| *name).collect(),
    };
    table().into_iter().map(info).collect()
}

type RawParams = Result<RawPathParams, RawPathParamsRejection>;

/// Returns the REST API as a router to serve or to mount.
pub fn router(app: App) -> Router {
    let mut router = Router::new();
    for route in table() {
        let filter = MethodFilter::try_from(route.method.clone())
            .expect("the table has only methods that axum knows");
        let path = route.path;
        let route = Arc::new(route);
        let handler = move |State(app): State<App>, params: RawParams, request: Request| {
            let params = params.map(|params| {
                let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
                params.iter().map(owned).collect()
            });
            serve(Arc::clone(&route), app, params, request)
        };
        router = router.route(path, on(filter, handler));
    }
    let unknown_path = |State(app): State<App>, headers: HeaderMap| async move {
        let problem =
            Problem::not_found("such path").hint("list all routes with GET /openapi.json");
        app.count_unrouted(&problem);
        finish(Err(problem), &request_id(&headers, app.ids()))
    };
    let other_method = |State(app): State<App>, method: Method, headers: HeaderMap| async move {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        let detail = format!("this path does not support the method {method}");
        let problem = Problem::new(status, "method_not_allowed", detail)
            .hint("list all routes with GET /openapi.json");
        app.count_unrouted(&problem);
        finish(Err(problem), &request_id(&headers, app.ids()))
    };
    router
        .fallback(unknown_path)
        .method_not_allowed_fallback(other_method)
        .with_state(app)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use axum::body::Body;
    use tokio::sync::Notify;
    use windlass::Client;

    use super::*;
    use crate::access::Access;
    use crate::call::Call;
    use crate::endpoint::Reply;

    /// Calls a route with two steps and disconnects after the first. Returns whether the second
    /// ran.
    async fn is_done_without_client(change: impl FnOnce(Route) -> Route, method: Method) -> bool {
        let (entered, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let done = Arc::new(AtomicBool::new(false));
        let (inside, gate, note) = (entered.clone(), goes_on.clone(), done.clone());
        let handler = move |_: Call| {
            let (inside, gate, note) = (inside.clone(), gate.clone(), note.clone());
            async move {
                inside.notify_one();
                gate.notified().await;
                note.store(true, Ordering::SeqCst);
                Ok(Reply::empty())
            }
        };
        let route = change(Route::new(method, "/two", Needs::Nothing, handler));
        let client = Client::open("memory:").await.expect("a store in memory");
        let app = App::new(client, Access::open());
        let serving = serve(
            Arc::new(route),
            app.clone(),
            Ok(Vec::new()),
            Request::new(Body::empty()),
        );
        tokio::select! {
            _ = serving => {}
            () = entered.notified() => {}
        }
        goes_on.notify_one();
        let all = tokio::time::timeout(Duration::from_secs(30), app.all_changed());
        all.await.expect("every request ends");
        done.load(Ordering::SeqCst)
    }

    #[tokio::test]
    async fn a_change_is_completed_after_its_client_disconnects() {
        assert!(is_done_without_client(|route| route, Method::POST).await);
        assert!(is_done_without_client(|route| route, Method::DELETE).await);
        assert!(!is_done_without_client(|route| route, Method::GET).await);
        assert!(!is_done_without_client(Route::cancel_on_disconnect, Method::POST).await);
    }
}
