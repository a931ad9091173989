//! Handles one request, from its headers to its response.
//!
//! When a client disconnects, the connection drops the future of its request at any await. So a
//! request that changes something runs in a task of its own once its body is read: the change is
//! completed and audited, or never started.

use std::error::Error;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{ConnectInfo, OriginalUri, Request};
use axum::http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::runtime::Handle;
use tracing::{Instrument as _, debug, error_span};
use windlass_api::query_pairs;
use windlass_core::Invalid;
use windlass_listen::BodyError;

use crate::access::{Caller, InProcess, Refused, Scopes};
use crate::answer::Answer;
use crate::app::{App, Settings};
use crate::body_budget::BodyPermit;
use crate::call::Call;
use crate::idempotency;
use crate::preconditions;
use crate::problem::Problem;
use crate::request_id::{REQUEST_ID, request_id};
use crate::routes::{Needs, Route};

/// A larger body is parsed on a blocking thread, so that it does not delay other requests.
const LARGE_BYTES: usize = 256 * 1024;

/// If reading the body and waiting for a permit took longer, the key is checked again before the
/// request is handled.
const RECHECK_AFTER: Duration = Duration::from_secs(1);

/// The names and values of the path parameters, if they are UTF-8.
pub(crate) type PathParams = Result<Vec<(String, String)>, RawPathParamsRejection>;

/// Handles a request to a route. Always returns a response, even if the handler panics.
pub(crate) async fn serve(
    route: Arc<Route>,
    app: App,
    params: PathParams,
    request: Request,
) -> Response<Body> {
    let id = request_id(request.headers(), app.ids());
    let begun = app.client.now();
    let clock = Arc::clone(app.clock());
    let metrics = app.metrics.clone();
    // All log lines of the request carry its id. The span has the level `error`, so that it exists
    // at every log level.
    let span = error_span!("request", request_id = id);
    let answering = async {
        let answered = AssertUnwindSafe(answer(Arc::clone(&route), app, params, request))
            .catch_unwind()
            .await;
        let answered = answered.unwrap_or_else(|_| Err(Problem::internal(&"the handler panicked")));
        let status = match &answered {
            Ok(answer) => answer.status.as_u16(),
            Err(problem) => problem.status(),
        };
        let took = clock.now().since(begun);
        debug!(method = %route.method, route = %route.path, status, ?took, "answered");
        if let Some(metrics) = metrics {
            metrics.http_request(route.method.as_str(), route.path, status, took);
        }
        answered
    };
    finish(answering.instrument(span).await, &id)
}

/// Converts the result to the response that is sent.
pub(crate) fn finish(answered: Result<Answer, Problem>, id: &str) -> Response<Body> {
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
    route: Arc<Route>,
    app: App,
    params: PathParams,
    request: Request,
) -> Result<Answer, Problem> {
    let now = app.client.now();
    let (parts, body) = request.into_parts();
    let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
    let peer = peer.map(|ConnectInfo(peer)| peer.ip());
    let in_process = parts.extensions.get::<InProcess>();
    let caller = match (route.needs, in_process) {
        (Needs::Nothing, _) => Caller {
            scopes: Scopes::NONE,
            ..Caller::local()
        },
        (Needs::Scope(needed), Some(InProcess(caller))) => {
            if !caller.may(needed) {
                return Err(Refused::Scope { needed }.into());
            }
            caller.clone()
        }
        (Needs::Scope(scope), None) => {
            let access = &app.access;
            access
                .check_browser(&parts.uri, &parts.headers, now)
                .await?;
            let authorization = parts.headers.get(AUTHORIZATION);
            access.check(authorization, peer, scope, now).await?
        }
    };
    preconditions::check(&route, &parts.headers)?;
    let params =
        params.map_err(|_| Problem::not_found("such path: path parameters must be UTF-8"))?;
    let query = query_pairs(parts.uri.query().unwrap_or_default())?;
    if let Some(unknown) = query.keys().find(|name| !route.has_param(name)) {
        return Err(Invalid::new(unknown, "is not a parameter of this route").into());
    }
    let mut permit = app.body_budget.permit();
    let body = read_body(&route, &app.settings, &parts.headers, body, &mut permit).await?;
    // The prefix is the path at which the router is mounted.
    let original = parts.extensions.get::<OriginalUri>();
    let prefix = original.and_then(|OriginalUri(uri)| uri.path().strip_suffix(parts.uri.path()));
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
    if route.cancel_on_disconnect {
        return handle(&route, call).await;
    }
    let changing = Arc::clone(&call.app.changing).acquire_owned().await;
    let changing = changing.map_err(|closed| Problem::internal(&closed))?;
    let is_large = call.body.len() > LARGE_BYTES;
    let handling = async move {
        let answered = handle(&route, call).await;
        drop((changing, permit));
        answered
    };
    let handling = handling.in_current_span();
    let handled = if is_large {
        let runtime = Handle::current();
        tokio::task::spawn_blocking(move || runtime.block_on(handling)).await
    } else {
        tokio::spawn(handling).await
    };
    handled.unwrap_or_else(|panicked| Err(Problem::internal(&panicked)))
}

async fn handle(route: &Route, call: Call) -> Result<Answer, Problem> {
    if let Needs::Scope(scope) = route.needs
        && call.app.client.now().since(call.now) >= RECHECK_AFTER
    {
        call.recheck(scope).await?;
    }
    if route.idempotent {
        return idempotency::once(call, route, &|call| (route.handler)(call)).await;
    }
    (route.handler)(call).await
}

/// The reason why the listener did not read the whole body, if the error comes from the listener.
fn body_error<'a>(mut error: &'a (dyn Error + 'static)) -> Option<&'a BodyError> {
    loop {
        match error.downcast_ref() {
            Some(body_error) => return Some(body_error),
            None => error = error.source()?,
        }
    }
}

/// Reads the body. Refuses a body that is too large, or one on a route without a body.
async fn read_body(
    route: &Route,
    settings: &Settings,
    headers: &HeaderMap,
    body: Body,
    permit: &mut BodyPermit,
) -> Result<Bytes, Problem> {
    let bytes_max = route.body_bytes_max(settings);
    let too_large = || {
        let detail = format!("the body must be at most {bytes_max} bytes");
        Problem::too_large("body_too_large", detail)
    };
    let length = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: u64| length > u64::try_from(bytes_max).unwrap_or(u64::MAX)) {
        return Err(too_large()); // before any of it is read
    }
    let mut body_read = Vec::new();
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| match body_error(&error) {
            Some(BodyError::TooSlow) => {
                let detail = "the body arrived too slowly";
                Problem::new(StatusCode::REQUEST_TIMEOUT, "body_too_slow", detail)
            }
            Some(BodyError::TooLarge) => too_large(),
            Some(BodyError::Broken(_)) | None => {
                let detail = "the connection ended before the body was complete";
                Problem::new(StatusCode::BAD_REQUEST, "broken_body", detail)
            }
        })?;
        if body_read.len() + piece.len() > bytes_max {
            return Err(too_large());
        }
        permit.grow_to(body_read.len() + piece.len())?;
        body_read.extend_from_slice(&piece);
    }
    let body = Bytes::from(body_read);
    if !route.takes_body() {
        // Some clients send an empty object with every request.
        return match body.trim_ascii() {
            b"" | b"{}" => Ok(Bytes::new()),
            _ => Err(Invalid::new("", "must be empty: this route takes no body").into()),
        };
    }
    if body.is_empty() {
        if route.body_required {
            let detail = "this route requires a JSON body";
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
    if let Some(encoding) = headers.get(CONTENT_ENCODING)
        && !encoding.as_bytes().eq_ignore_ascii_case(b"identity")
    {
        let detail = "the body must not be compressed: this server accepts no `Content-Encoding`";
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(Problem::new(status, "unsupported_media_type", detail));
    }
    Ok(body)
}
