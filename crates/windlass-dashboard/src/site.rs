//! The routes of the dashboard.

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::http::Response;
use axum::middleware::map_response;
use axum::routing::{MethodRouter, get, post};

use crate::assets;
use crate::backend::Backend;
use crate::depths::{DepthReader, Depths};
use crate::failure::Failure;
use crate::headers::secure;
use crate::live;
use crate::pages;
use crate::sign_in;
use crate::snapshot::{Snapshot, Snapshots};
use crate::visit::{Submit, Visit};

/// What all requests share. Clones share it too.
#[derive(Clone)]
pub(crate) struct Site(Arc<SiteState>);

struct SiteState {
    backend: Arc<dyn Backend>,
    snapshots: Snapshots,
    depths: DepthReader,
}

impl Site {
    fn new(backend: Arc<dyn Backend>) -> Self {
        Site(Arc::new(SiteState {
            backend,
            snapshots: Snapshots::default(),
            depths: DepthReader::default(),
        }))
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.0.backend
    }

    /// Returns the counts that all pages share.
    pub(crate) async fn snapshot(&self) -> Result<Arc<Snapshot>, Failure> {
        self.0.snapshots.get(self.backend()).await
    }

    /// Returns how the depths of all queues changed in the last hour.
    pub(crate) async fn depths(&self) -> Result<Depths, Failure> {
        self.0.depths.get(self.backend()).await
    }

    /// Makes the next page read the counts again, after an action.
    pub(crate) fn forget_snapshot(&self) {
        self.0.snapshots.forget();
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").finish_non_exhaustive()
    }
}

/// The result of a page or an action.
pub(crate) type PageResult = Result<Response<Body>, Failure>;

/// Returns the dashboard as a router, to serve at `/` or to nest under a path.
pub fn router(backend: Arc<dyn Backend>) -> Router {
    let asset = |Path(name): Path<String>| async move { assets::serve(&name) };
    Router::new()
        .merge(pages::routes())
        .route(
            "/live",
            page(|visit| async move { Ok(live::stream_of(&visit)) }),
        )
        .route("/login", get(sign_in::show).post(sign_in::submit))
        .route("/logout", post(sign_in::sign_out))
        .route("/assets/{name}", get(asset))
        .fallback(|visit: Visit| async move { Failure::no_page().page(&visit) })
        .with_state(Site::new(backend))
        .layer(map_response(async |response| secure(response)))
}

/// The route of a page. A failure becomes a page that explains it.
pub(crate) fn page<F, Fut>(handler: F) -> MethodRouter<Site>
where
    F: Fn(Visit) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = PageResult> + Send,
{
    get(move |visit: Visit| {
        let (handler, context) = (handler.clone(), visit.clone());
        async move {
            let shown = handler(visit).await;
            shown.unwrap_or_else(|failure| failure.page(&context))
        }
    })
}

/// The route of an action: a form that changes something. A failure leads back to `from`, the page
/// that the form names, and is shown there.
pub(crate) fn action<F, Fut>(handler: F) -> MethodRouter<Site>
where
    F: Fn(Submit) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = PageResult> + Send,
{
    post(move |submit: Submit| {
        let (handler, context) = (handler.clone(), submit.visit.clone());
        let from = submit.fields.get("from").map(str::to_owned);
        async move {
            let done = handler(submit).await;
            context.site().forget_snapshot();
            done.unwrap_or_else(|failure| match from {
                Some(from) if from.starts_with('/') && !from.starts_with("//") => {
                    context.failed(&from, &failure)
                }
                _ => failure.page(&context),
            })
        }
    })
}
